"""The ledger as a source: divided by segment and size, taken in bounded batches, stopped by damage."""

import asyncio
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tarry.core.errors import Invalid, NotFound
from tarry.ledger.follow import FolderFollower
from tarry.pipeline.ledger_parts import TOKEN_VARIABLE, LedgerAddress, SeqRange, ranges
from tarry.pipeline.session import open_session
from tarry.pipeline.source import LedgerReader, LedgerStreamReader
from tests.pipeline.kit import Writer
from tests.processes import running

TOKEN = "secret-of-the-pipeline"
CONFIG = f'[[tokens]]\nname = "pipeline"\ntoken = "{TOKEN}"\nroles = ["admin"]\n'


def bounds(parts: list[SeqRange]) -> list[tuple[int, int]]:
    return [(part.first_seq, part.last_seq) for part in parts]


def test_a_range_is_divided_evenly_and_at_segments_that_are_near() -> None:
    assert bounds(ranges(3, 25, [1, 10, 20, 30], 6)) == [(3, 7), (8, 13), (14, 19), (20, 25)]
    assert bounds(ranges(1, 300, [1, 90, 190, 310], 100)) == [(1, 89), (90, 189), (190, 300)]
    assert bounds(ranges(1, 300, [1, 80, 220], 100)) == [(1, 100), (101, 200), (201, 300)]
    assert bounds(ranges(7, 7, [1, 7], 6)) == [(7, 7)]
    assert bounds(ranges(5, 4, [1], 6)) == []


def test_partitions_hold_every_record_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for n in range(30):
        writer.schedule(1_000 + n, payload=bytes(100_000))
    reader = LedgerReader({"folder": writer.folder, "partition_rows": "4"})
    divided = reader.partitions()
    parts = [part.value for part in divided]
    assert len(FolderFollower(writer.folder).bounds()) > 2
    assert max(part.last_seq - part.first_seq + 1 for part in parts) == 4
    seqs = [seq for part in divided for batch in reader.read(part) for seq in batch.column("seq").to_pylist()]
    assert seqs == list(range(1, writer.ledger.durable_seq + 1))


def test_a_batch_is_at_most_what_the_limit_says_and_never_beyond_the_head(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for n in range(20):
        writer.schedule(1_000 + n)
    head = writer.ledger.durable_seq
    reader = LedgerStreamReader({"folder": writer.folder, "from": "3", "rows": "7"})
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7
    start = reader.initialOffset()
    assert (start, reader.latestOffset(start, limit)) == ({"seq": 2}, {"seq": 9})
    assert reader.latestOffset(start, ReadAllAvailable()) == {"seq": head}
    assert reader.latestOffset({"seq": head}, limit) == {"seq": head}


def test_few_records_wait_for_more_or_for_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("tarry.pipeline.source.time.monotonic", lambda: now_s)
    writer = Writer(tmp_path)
    writer.schedule(1_000)
    reader = LedgerStreamReader({"folder": writer.folder, "wait_seconds": "60"})
    limit = ReadMaxRows(5)
    assert reader.latestOffset({"seq": 0}, limit) == {"seq": 0}
    now_s = 159.0
    assert reader.latestOffset({"seq": 0}, limit) == {"seq": 0}
    now_s = 160.0
    assert reader.latestOffset({"seq": 0}, limit) == {"seq": writer.ledger.durable_seq}
    for n in range(9):
        writer.schedule(2_000 + n)
    assert reader.latestOffset({"seq": 1}, limit) == {"seq": 6}


def test_what_is_there_now_is_taken_and_no_more(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.schedule(1_000)
    head = writer.ledger.durable_seq
    reader = LedgerStreamReader({"folder": writer.folder})
    reader.prepareForTriggerAvailableNow()
    writer.schedule(2_000)
    assert reader.latestOffset({"seq": 0}, ReadMaxRows(100)) == {"seq": head}


def test_what_was_reclaimed_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for n in range(30):
        writer.schedule(1_000 + n, payload=bytes(100_000))
    assert writer.ledger.reclaim(writer.ledger.segments()[1].first_seq)
    first = writer.ledger.first_seq
    told = f"seq 1 of the ledger has been reclaimed; {first} is the first"
    with pytest.raises(NotFound, match=told):
        LedgerReader({"folder": writer.folder, "from": "1"}).partitions()
    with pytest.raises(NotFound, match=told):
        LedgerStreamReader({"folder": writer.folder}).partitions({"seq": 0}, {"seq": 5})
    parts = LedgerReader({"folder": writer.folder}).partitions()
    assert parts[0].value.first_seq == first


def test_a_token_is_never_shown_and_reaches_the_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.setenv(TOKEN_VARIABLE, "another")
    by_file = LedgerAddress.of({"server": "http://127.0.0.1:1", "token_file": str(file)})
    by_variable = LedgerAddress.of({"server": "http://127.0.0.1:1"})
    assert (by_file._token, by_variable._token) == (TOKEN, "another")
    assert TOKEN not in f"{by_file!r} {by_file}"
    assert pickle.loads(pickle.dumps(by_file))._token == TOKEN
    with pytest.raises(Invalid, match="one of the options folder, server and kafka"):
        LedgerAddress.of({})


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def test_damage_stops_a_stream_with_its_place_by_folder_and_by_server(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(tmp_path / "data", CONFIG) as server:
        asyncio.run(_fill(server.url))
        segment = tmp_path / "data/ledger/00000001.seg"
        follower = FolderFollower(str(segment.parent))
        offset = next(iter(follower.frames(2, 2))).place.offset
        flip(segment, offset + 200)
        (tmp_path / "token").write_text(TOKEN)
        for name, options in (
            ("folder", {"folder": str(segment.parent)}),
            ("server", {"server": server.url, "token_file": str(tmp_path / "token")}),
        ):
            seen: list[int] = []

            def take(batch: DataFrame, _id: int, seen: list[int] = seen) -> None:
                seen.append(batch.count())

            reader = spark.readStream.format("tarry-ledger").options(**options)
            query = (
                reader.load()
                .writeStream.foreachBatch(take)
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
            )
            with pytest.raises(
                StreamingQueryException, match=rf"00000001\.seg: damaged at byte {offset}:"
            ) as stopped:
                query.awaitTermination(120)
            assert not seen
            assert TOKEN not in str(stopped.value)


async def _fill(url: str) -> None:
    import httpx

    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
        for n in range(3):
            body = {"destination": "t", "delay": "1h", "payload": f"{n}" * 1000}
            assert (await client.post("/v1/messages", json=body)).status_code == 201


def test_what_an_object_store_needs_travels_with_the_tasks_and_is_in_no_setting(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "environment", dict(spark.sparkContext.environment))
    again = open_session("local[2]", {}, variables={"AWS_SECRET_ACCESS_KEY": "hush-hush"})
    assert again.sparkContext is spark.sparkContext

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"seen": [os.environ.get("AWS_SECRET_ACCESS_KEY")]})

    seen = spark.range(0, 1, 1, 1).mapInArrow(look, "seen string")
    assert [row.seen for row in seen.collect()] == ["hush-hush"]
    settings = str(spark.sparkContext.getConf().getAll()) + str(seen._jdf.queryExecution().toString())
    assert "hush-hush" not in settings
