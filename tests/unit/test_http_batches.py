"""Many messages in one request, through the real server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tarry.core.errors import Invalid
from tarry.doors.http.messages import batches
from tarry.doors.http.messages.arrow import chunks_of, read_batches
from tarry.doors.http.settings import HttpSettings
from tests.serving import Serving, serving
from tests.waiting import until

NDJSON = {"content-type": "application/x-ndjson"}
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
BATCH = "/v1/messages/batch"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data", ledger__segment_bytes=16 << 20) as server:
        yield server


def lines(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


async def post(served: Serving, body: Any, query: str = "", **headers: str) -> list[dict[str, Any]]:
    answer = await served.client.post(BATCH + query, content=body, headers={**NDJSON, **headers})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return lines(answer.content)


async def test_every_line_has_an_answer_in_its_place(served: Serving) -> None:
    body = b"\n".join(
        [
            b'{"destination":"t","delay_ms":3600000,"payload":"1"}', b"", b"{", b'{"destination":"t","delay_ms":-1}',
            b'{"destination":"t","delay_ms":1,"x":1}', b'{"destination":"t","payload":"\xff","delay_ms":1}',
            b'{"destination":"t"}', b'{"destination":"t","due_at_ms":1000}', b'{"destination":"t","delay":"2h","payload":"9"}',
        ]
    )  # fmt: skip
    answers = await post(served, body)
    assert [next(iter(answer)) for answer in answers] == ["id", *["error"] * 6, "id", "id"]
    assert [answer.get("line") for answer in answers] == [None, 2, 3, 4, 5, 6, 7, None, None]
    fields = [answer["error"].get("field") for answer in answers[1:7]]
    assert fields == ["line", None, "delay_ms", "x", None, "due_at_ms"]
    assert answers[7]["past_due"] is True
    for place, payload in ((0, "1"), (8, "9")):
        shown = await served.client.get(f"/v1/messages/{answers[place]['id']}")
        assert shown.json()["payload"] == payload


async def test_the_request_gives_defaults(served: Serving) -> None:
    query = "?destination=t&delay_ms=3600000&owner=o&ttl_ms=5"
    one, two = await post(served, b'{}\n{"owner":"p","delay_ms":7200000}\n', query)
    first = (await served.client.get(f"/v1/messages/{one['id']}")).json()
    second = (await served.client.get(f"/v1/messages/{two['id']}")).json()
    assert (first["owner"], first["delay_ms"], first["ttl_ms"]) == ("o", 3_600_000, 5)
    assert (second["owner"], second["delay_ms"], second["ttl_ms"]) == ("p", 7_200_000, 5)
    refused = await served.client.post(BATCH + "?delay_ms=x", content=b"{}", headers=NDJSON)
    assert (refused.status_code, refused.json()["field"]) == (400, "delay_ms")


async def test_a_long_body_is_taken_in_pieces(served: Serving) -> None:
    line = b'{"destination":"t","delay_ms":3600000,"payload":"%b"}\n' % (b"x" * 100)
    count = 20_000

    async def pieces() -> AsyncIterator[bytes]:
        body = line * count
        for at in range(0, len(body), 10_007):
            yield body[at : at + 10_007]

    answers = await post(served, pieces())
    assert len({answer["id"] for answer in answers}) == count
    assert served.engine.stats().pending == count


async def test_an_empty_body_has_an_empty_answer(served: Serving) -> None:
    assert await post(served, b"") == []


@contextlib.asynccontextmanager
async def raw_batch(
    served: Serving, length: int = 1_000_000
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with served.connect() as (reader, writer):
        writer.write(
            f"POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
            f"content-length: {length}\r\n\r\n".encode()
        )
        yield reader, writer


async def test_answers_come_while_the_request_still_goes_on(served: Serving) -> None:
    async with raw_batch(served) as (reader, writer):
        for n in range(3):
            writer.write(b'{"destination":"t","delay_ms":3600000,"payload":"%d"}\n' % n)
            if n == 0:
                assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n")
            assert b'"id":"' in await reader.readuntil(b"}\n\r\n")


async def test_a_request_cut_short_has_scheduled_its_whole_lines_and_no_more(served: Serving) -> None:
    good = b'{"destination":"t","delay_ms":3600000}'
    async with raw_batch(served) as (reader, writer):
        # What follows the last newline would be a message too, had it been the end.
        writer.write(good + b"\n" + good)
        await reader.readuntil(b"}\n\r\n")
    assert len(await post(served, good)) == 1
    assert served.engine.stats().pending == 2


async def test_a_client_that_reads_nothing_before_it_has_sent_everything_is_served(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_IN_FLIGHT_BYTES", 100_000)
    line = b'{"destination":"t","delay_ms":3600000}\n'
    count = 30_000
    async with raw_batch(served, len(line) * count) as (reader, writer):
        # The answers are far longer than what the sockets hold.
        for _ in range(count // 1000):
            writer.write(line * 1000)
            await writer.drain()
        assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n")
        taken = 0
        while (size := int(await reader.readline(), 16)) > 0:
            taken += (await reader.readexactly(size)).count(b"\n")
            await reader.readexactly(2)
        assert taken == count


async def test_a_client_that_never_takes_its_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.serve.transport.listener.SWEEP_MS", 20)
    door = HttpSettings(body_timeout_ms=100, max_answer_bytes=100_000)
    async with serving(tmp_path / "data", door=door) as served:
        line = b'{"destination":"t","delay_ms":3600000}\n'
        async with raw_batch(served, 1 << 30) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writing = asyncio.create_task(_write_on(writer, line * 1000))
            await until(lambda: begun_and_ended(served))
            writing.cancel()
        # Nothing like all of it was read.
        assert served.engine.stats().pending < 1_000_000


async def _write_on(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()


async def none_under_way(served: Serving) -> bool:
    return bool((await served.client.get("/v1/status")).json()["batches"] == 0)


async def begun_and_ended(served: Serving) -> bool:
    return served.engine.stats().pending > 0 and await none_under_way(served)


async def test_a_client_that_stops_in_the_middle_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.serve.transport.listener.SWEEP_MS", 20)
    async with serving(tmp_path / "data", door=HttpSettings(body_timeout_ms=100)) as served:
        async with raw_batch(served) as (reader, writer):
            assert b"HTTP/1.1 408" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        async with raw_batch(served) as (reader, writer):
            writer.write(b'{"destination":"t","delay_ms":3600000}\n{"destination":')
            answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)
        assert b'"id":"' in answer
        assert b'"code":"timeout"' in answer
        assert b'"line":2' in answer
        assert served.engine.stats().pending == 1


async def test_a_line_over_the_limit_is_refused_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(max_body_bytes=1000)) as served:
        long = b'{"destination":"t","delay_ms":3600000,"payload":"%b"}\n' % (b"x" * 200_000)
        good = b'{"destination":"t","delay_ms":3600000}\n'
        one, two, three = await post(served, good + long + good)
        assert "id" in one
        assert (two["error"]["code"], two["line"]) == ("too-large", 2)
        assert "id" in three


async def test_batches_under_way_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(max_batches=1)) as served:
        async with raw_batch(served) as (reader, writer):
            writer.write(b'{"destination":"t","delay_ms":3600000}\n')
            await reader.readuntil(b"}\n\r\n")
            refused = await served.client.post(BATCH, content=b"{}", headers=NDJSON)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        await until(lambda: none_under_way(served))
        assert len(await post(served, b"{}")) == 1


async def test_a_repeated_batch_is_safe_with_a_key(served: Serving) -> None:
    body = b'{"destination":"t","delay_ms":3600000}\n' * 3
    first = await post(served, body, **{"idempotency-key": "night"})
    again = await post(served, body, **{"idempotency-key": "night"})
    assert [answer["id"] for answer in first] == [answer["id"] for answer in again]
    assert [answer["repeated"] for answer in first + again] == [False] * 3 + [True] * 3
    assert served.engine.stats().pending == 3
    refused = await served.client.post(BATCH, content=body, headers={**NDJSON, "idempotency-key": "x" * 250})
    assert refused.status_code == 400


async def test_a_batch_that_broke_off_is_repeated_with_its_rest(served: Serving) -> None:
    """More lines than go one by one, some of them bad: those that were taken get their answers, the others are taken now."""
    lines = [b'{"destination":"t","payload":"%d","delay_ms":3600000}\n' % n for n in range(100)]
    lines[10] = b'{"destination":"","delay_ms":1}\n'
    lines[11] = b"no JSON\n"
    bad = {10, 11}
    begun = await post(served, b"".join(lines[:60]), **{"idempotency-key": "rest"})
    whole, again = [await post(served, b"".join(lines), **{"idempotency-key": "rest"}) for _ in range(2)]
    assert [n for n, answer in enumerate(whole) if "error" in answer] == sorted(bad)
    good = [n for n in range(100) if n not in bad]
    assert [whole[n]["repeated"] for n in good] == [n < 60 for n in good]
    assert all(again[n]["repeated"] and again[n]["id"] == whole[n]["id"] for n in good)
    assert all(begun[n]["id"] == whole[n]["id"] for n in good if n < 60)
    assert served.engine.stats().pending == 98
    lines[50] = b'{"destination":"t","payload":"other","delay_ms":3600000}\n'
    changed = await post(served, b"".join(lines), **{"idempotency-key": "rest"})
    assert changed[50]["error"]["code"] == "conflict"
    assert changed[51]["id"] == whole[51]["id"]


async def test_other_content_types_are_refused(served: Serving) -> None:
    refused = await served.client.post(BATCH, content=b"{}", headers={"content-type": "application/json"})
    assert refused.status_code == 415


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=1000)
    written: bytes = sink.getvalue().to_pybytes()
    return written


async def post_arrow(served: Serving, table: pa.Table, query: str = "") -> pa.Table:
    answer = await served.client.post(BATCH + query, content=stream(table), headers=ARROW)
    assert answer.status_code == 200, answer.text
    with pa.ipc.open_stream(answer.content) as reader:
        return reader.read_all()


async def test_arrow_rows_have_answers_in_their_places(served: Serving) -> None:
    table = pa.table(
        {
            "destination": ["a", "b", None, "x/y"],
            "payload": pa.array([b"1", b"\xff", b"3", b"4"]),
            "delay_ms": pa.array([3_600_000, 7_200_000, 3_600_000, 5], pa.int64()),
            "owner": ["o", None, None, None],
            "headers": pa.array([[("k", "v")], [], None, None], pa.map_(pa.string(), pa.string())),
        }
    )
    rows = (await post_arrow(served, table)).to_pylist()
    assert [row["id"] is not None for row in rows] == [True, True, False, False]
    assert [row["due_at_ms"] is not None for row in rows] == [True, True, False, False]
    assert rows[0]["error"] is None
    assert json.loads(rows[2]["error"])["field"] == "destination"
    assert json.loads(rows[3]["error"])["field"] == "destination"
    first = (await served.client.get(f"/v1/messages/{rows[0]['id']}")).json()
    assert (first["payload"], first["owner"], first["headers"]) == ("1", "o", {"k": "v"})
    second = (await served.client.get(f"/v1/messages/{rows[1]['id']}")).json()
    assert (second["payload_base64"], second["due_at_ms"]) == ("/w==", rows[1]["due_at_ms"])


async def test_many_arrow_rows(served: Serving) -> None:
    count = 20_000
    table = pa.table({"payload": pa.array([b"x"] * count), "delay_ms": pa.array([3_600_000] * count)})
    answers = await post_arrow(served, table, "?destination=t&owner=o")
    assert answers.num_rows == count
    assert set(answers["error"].to_pylist()) == {None}
    assert len(set(answers["id"].to_pylist())) == count
    assert served.engine.stats().pending == count
    assert (await post_arrow(served, table.slice(0, 0), "?destination=t")).num_rows == 0


@pytest.mark.parametrize(
    "body",
    [
        b"", b"nonsense", stream(pa.table({"a": [1]})), stream(pa.table({"payload": ["x"]}))[:-40],
        stream(pa.table({"payload": ["x" * 1000]}), compression="zstd"),
        stream(pa.table({"payload": pa.array(["x" * 100, "y"]).dictionary_encode()}), compression="lz4"),
    ],
)  # fmt: skip
async def test_a_bad_stream_is_refused_as_a_whole(served: Serving, body: bytes) -> None:
    refused = await served.client.post(BATCH, content=body, headers=ARROW)
    assert refused.status_code == 400
    assert served.engine.stats().pending == 0


def nulls(rows: int, **columns: Any) -> bytes:
    """A stream whose rows are mere numbers: a column of nulls has a length and no bytes."""
    table = pa.table({"key": pa.nulls(rows), **columns})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


async def test_rows_without_bytes_are_refused(served: Serving) -> None:
    for rows in (200_000, 10**9):
        body = nulls(rows)
        assert len(body) < 1_000
        refused = await served.client.post(
            f"{BATCH}?destination=t&delay_ms=3600000", content=body, headers=ARROW
        )
        assert (refused.status_code, refused.json()["field"]) == (400, "body")
    few = await served.client.post(
        f"{BATCH}?destination=t&delay_ms=3600000", content=nulls(10), headers=ARROW
    )
    assert few.status_code == 200
    assert served.engine.stats().pending == 10


async def test_a_stream_of_very_many_batches_is_refused(served: Serving) -> None:
    table = pa.table({"delay_ms": pa.array([3_600_000] * 10_001, pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    body = sink.getvalue().to_pybytes()
    refused = await served.client.post(f"{BATCH}?destination=t", content=body, headers=ARROW)
    assert (refused.status_code, refused.json()["field"]) == (400, "body")
    assert served.engine.stats().pending == 0


def coded(values: list[str], codes: Any) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(values))


async def test_what_a_dictionary_decodes_to_is_known_before_it_is_decoded(served: Serving) -> None:
    rows = 500_000
    table = pa.table({"owner": coded(["o" * 200], [0] * rows), "delay_ms": pa.array([0] * rows, pa.int32())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    refused = await served.client.post(
        f"{BATCH}?destination=t", content=sink.getvalue().to_pybytes(), headers=ARROW
    )
    assert refused.status_code == 400
    assert "decode to" in refused.json()["detail"]
    fits = pa.table(
        {
            "destination": coded(["t", "u"], [0, 1, 0]),
            "payload": coded(["a", "b"], [1, 0, None]),
            "delay_ms": pa.array([3_600_000] * 3, pa.int64()).dictionary_encode(),
        }
    )
    rows_ = (await post_arrow(served, fits)).to_pylist()
    assert [row["error"] for row in rows_] == [None] * 3
    views = [(await served.client.get(f"/v1/messages/{row['id']}")).json() for row in rows_]
    assert [view["payload"] for view in views] == ["b", "a", ""]
    assert served.engine.stats().pending == 3


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a"], ["b"]]),
        pa.RunEndEncodedArray.from_arrays([2], ["a"]),
        pa.array([[("k", [1])], []], pa.map_(pa.string(), pa.list_(pa.int64()))),
        pa.array([{"a": 1}, {"a": 2}]),
    ],
)
async def test_columns_of_other_types_are_refused(served: Serving, column: Any) -> None:
    body = stream(pa.table({"payload": column}))
    refused = await served.client.post(f"{BATCH}?destination=t&delay_ms=1", content=body, headers=ARROW)
    assert (refused.status_code, refused.json()["field"]) == (400, "payload")


def test_chunks_are_small_where_rows_are_costly() -> None:
    rows = 20_000
    plain = pa.record_batch({"payload": [b"x" * 50] * rows, "destination": ["t"] * rows})
    assert max(chunk.num_rows for chunk in chunks_of([plain])) == 8192
    many = pa.record_batch({"destination": [f"t{n}" for n in range(rows)]})
    assert max(chunk.num_rows for chunk in chunks_of([many])) == 512
    pairs = [[(str(n), "v") for n in range(64)]] * 2_000
    headers = pa.record_batch({"headers": pa.array(pairs, pa.map_(pa.string(), pa.string()))})
    assert max(chunk.nbytes for chunk in chunks_of([headers])) <= 160 * 1024
    # Nor does a batch for each row make a piece of each.
    single = [plain.slice(row, 1) for row in range(3_000)]
    assert [chunk.num_rows for chunk in chunks_of(single)] == [3_000]
    assert chunks_of(single)[0].equals(plain.slice(0, 3_000))
    assert chunks_of([]) == []
    for batch in (plain, many, headers):
        assert sum(chunk.num_rows for chunk in chunks_of([batch])) == batch.num_rows


def test_offsets_are_not_believed() -> None:
    good = stream(pa.table({"payload": ["abcd" * 4, "efgh" * 4]}))
    offset = (16).to_bytes(4, "little")
    assert good.count(offset + (32).to_bytes(4, "little")) == 1
    # An offset far outside: whoever looks there without a check reads another's memory, or crashes.
    bad = good.replace(offset + (32).to_bytes(4, "little"), offset + (0x7FFFFF).to_bytes(4, "little"))
    assert len(read_batches(good)) == 1
    with pytest.raises(Invalid):
        read_batches(bad)


async def test_an_arrow_stream_has_a_bound_and_no_idempotency_key(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", door=HttpSettings(max_arrow_bytes=1000)) as served:
        body = stream(pa.table({"payload": ["x" * 2000]}))
        assert (await served.client.post(BATCH, content=body, headers=ARROW)).status_code == 413
        refused = await served.client.post(BATCH, content=b"", headers={**ARROW, "idempotency-key": "k"})
        assert refused.json()["field"] == "Idempotency-Key"
