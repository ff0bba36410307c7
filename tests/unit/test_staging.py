"""Staging: what columns mean, which rows are refused and why, and what lies in the files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.errors import DelayTooLong, Invalid, TooLarge, Unavailable
from tarry.core.timers.slots import parse_slot, sizes_for
from tarry.index import incoming, staging
from tarry.index.incoming import Mapping
from tarry.index.inspection import inspect
from tarry.index.manifest import is_token_for, new_token
from tarry.index.schema import INDEX, INDEX_SCHEMA
from tarry.index.staging import BadRows, Stager, manifest_of
from tarry.ledger.lanes import lane_of
from tarry.ledger.record import Put, decode_put
from tests.unit.staging_kit import NOW_MS, place, stage, terms

HOUR = 3_600_000
BEGIN = datetime.fromisoformat("1971-01-01")
DAY = 24 * HOUR


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def read_back(folder: Path, files: list[Any]) -> list[Put]:
    puts: list[Put] = []
    for file in files:
        table = pq.ParquetFile(folder / "index" / file.path, page_checksum_verification=True).read()
        puts += map(decode_put, table["body"].to_pylist())
    return puts


def bad(folder: Path, batch: pa.RecordBatch, mapping: Mapping | None = None, **terms_: Any) -> list[str]:
    staged = stage(place(folder, **terms_), batch, mapping=mapping)
    assert not staged.files or not staged.bad
    return [f"{row.where}: {row.reason}" for row in staged.bad]


def test_files_have_the_columns_of_the_index_in_the_order_of_their_instants(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    due = NOW_MS + random.integers(0, 400 * DAY, 2000)
    owners = random.choice(["ann", "bob"], 2000)
    at = place(tmp_path)
    staged = stage(at, rows(due=due, payload=[b"%d" % n for n in range(2000)], owner=owners.tolist()))
    assert sum(file.rows for file in staged.files) == staged.rows == 2000
    seen: list[bytes] = []
    for file in staged.files:
        path = Path(at.index) / file.path
        assert path.stat().st_size == file.size_bytes
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
        assert sorted(table.schema.names) == sorted(set(INDEX_SCHEMA.names) - set(INDEX.partitions))
        for name in table.schema.names:
            assert table.schema.field(name).type == INDEX_SCHEMA.field(name).type
        fire = table["fire_at_ms"].to_pylist()
        assert fire == sorted(fire)
        assert (fire[0], fire[-1]) == (file.low_ms, file.high_ms)
        assert table["seq"].to_pylist() == list(range(file.rows))
        slot = parse_slot(file.slot)
        assert all(slot.start_ms <= one < slot.end_ms for one in fire)
        assert {*sizes_for(np.array(fire), NOW_MS, np.full(len(fire), 300_000)).tolist()} == {slot.size_ms}
        for row in table.to_pylist():
            put = decode_put(row["body"])
            assert google_crc32c.value(row["body"]) == row["crc"]
            assert (put.fire_at_ms, put.due_at_ms, put.owner) == (
                row["fire_at_ms"],
                row["due_at_ms"],
                row["owner"],
            )
            assert (row["lane"], row["op"], row["batch"], row["door"]) == (
                lane_of(put.namespace, put.owner, "bulk"),
                1,
                "letters",
                "bulk",
            )
            assert row["destination"] == put.destination == "persistent://public/default/orders"
            assert (put.accepted_at_ms, put.delayed_since_ms) == (NOW_MS, NOW_MS)
            seen.append(put.payload)
    assert sorted(seen) == sorted(b"%d" % n for n in range(2000))
    manifest = manifest_of(at, [staged])
    assert manifest.owners == {name: int((owners == name).sum()) for name in ("ann", "bob")}
    assert manifest.namespaces == {"public/default": int(due.max())}
    inspect(at.index, "letters", manifest.files)


def test_a_chunk_is_sorted_and_written_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 100)
    staged = stage(place(tmp_path), *[rows(due=[NOW_MS + n] * 60, payload=["x"] * 60) for n in range(5)])
    assert [file.rows for file in staged.files] == [120, 120, 60]
    monkeypatch.setattr(staging, "MAX_FILES", 2)
    with pytest.raises(TooLarge, match=r"limit of 2 files$"):
        stage(place(tmp_path), *[rows(due=[NOW_MS + n] * 60, payload=["x"] * 60) for n in range(5)])


@pytest.mark.parametrize(
    ("column", "expected_ms"),
    [
        (pa.array([NOW_MS + 5], pa.int64()), NOW_MS + 5),
        (pa.array([2_000_000_000], pa.int32()), None),
        (pa.array([NOW_MS * 1000 + 1], pa.timestamp("us", "UTC")), NOW_MS + 1),
        (pa.array([NOW_MS * 1000 + 1], pa.timestamp("us", "Asia/Tokyo")), NOW_MS + 1),
        (pa.array([NOW_MS // 1000], pa.timestamp("s")), NOW_MS),
        (pa.array([NOW_MS * 1_000_000 + 1], pa.timestamp("ns")), NOW_MS + 1),
        (pa.array([str(NOW_MS)]), NOW_MS),
        (pa.array(["2030-03-17T17:46:40Z"]), NOW_MS),
        (pa.array(["2030-03-17 18:46:40+01:00"]), NOW_MS),
        (pa.array(["2030-03-17T17:46:40"]), NOW_MS),
        (pa.array(["2030-03-17T17:46:40.0000001"]), NOW_MS + 1),
        (pa.array(["2030-03-17T17:46:40.001"]).dictionary_encode(), NOW_MS + 1),
    ],
)
def test_due_instants_by_type(tmp_path: Path, column: Any, expected_ms: int | None) -> None:
    staged = stage(place(tmp_path), rows(due=column, payload=["x"]))
    (put,) = read_back(tmp_path, staged.files)
    assert put.due_at_ms == (2_000_000_000 if expected_ms is None else expected_ms)
    # What is past is due now: the floor at adoption is later still.
    assert put.fire_at_ms == max(put.due_at_ms or 0, NOW_MS)


@pytest.mark.parametrize("delays", [[0, 1500], ["0", "1500"], pa.array(["0", "1500"], pa.large_string())])
def test_a_delay_counts_from_the_beginning_of_the_job(tmp_path: Path, delays: Any) -> None:
    staged = stage(place(tmp_path), rows(delay_ms=delays, payload=["a", "b"]))
    puts = sorted(read_back(tmp_path, staged.files), key=lambda put: put.payload)
    assert [(put.due_at_ms, put.delay_ms) for put in puts] == [(NOW_MS, 0), (NOW_MS + 1500, 1500)]


@given(
    st.integers(0, 180 * 365 * 24 * 60).map(lambda minutes: BEGIN + timedelta(minutes=minutes)),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
@settings(max_examples=150, deadline=None)
def test_a_timestamp_without_a_zone_is_never_read_too_early(at: datetime, name: str) -> None:
    zone = ZoneInfo(name)
    expected = max(at.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    for column in (pa.array([at], pa.timestamp("us")), pa.array([at.isoformat()])):
        found = incoming._instants(column, zone, {})
        assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(found[0])) == expected


def test_payloads_by_type(tmp_path: Path) -> None:
    shapes = {
        b"\x00\xff": pa.array([b"\x00\xff"]),
        "é".encode(): pa.array(["é"]),
        b"": pa.array([None], pa.string()),
        b'{"a":1,"b":null,"c":[true]}': pa.array(
            [{"a": 1, "b": None, "c": [True]}],
            pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.bool_()))]),
        ),
        b'{"k":"v"}': pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())),
    }
    for expected, column in shapes.items():
        (put,) = read_back(tmp_path, stage(place(tmp_path), rows(due=[NOW_MS], payload=column)).files)
        assert put.payload == expected


def test_ticks_slots_and_limits_are_those_of_the_place(tmp_path: Path) -> None:
    at = place(
        tmp_path,
        namespaces={"shop/eu": terms(tick_ms=1000, slot_ms=60_000, max_delay_ms=DAY)},
        topics={"persistent://shop/eu/slow": terms(tick_ms=60_000), "persistent://shop/eu/off": terms(delayed_delivery=False)},
    )  # fmt: skip
    destinations = ["orders", "shop/eu/orders", "shop/eu/slow", "https://example.com/x"]
    spaces = [None, None, "shop/eu", "shop/eu"]
    batch = rows(due=[NOW_MS + 1] * 4, payload=["x"] * 4, destination=destinations, namespace=spaces)
    puts = {put.destination: put for put in read_back(tmp_path, stage(at, batch).files)}
    assert {name: put.fire_at_ms - NOW_MS for name, put in puts.items()} == {
        "persistent://public/default/orders": 1,
        "persistent://shop/eu/orders": 1000,
        "persistent://shop/eu/slow": 20_000,
        "https://example.com/x": 1000,
    }
    assert puts["https://example.com/x"].namespace == "shop/eu"
    far = rows(
        due=[NOW_MS + DAY + 1] * 3, payload=["x"] * 3, destination=["orders", "shop/eu/orders", "shop/eu/off"]
    )
    staged = stage(at, far)
    assert [row.where for row in staged.bad] == ["row 2"]
    assert "exceeds the maximum" in staged.bad[0].reason
    at_once = rows(delay_ms=[DAY], payload=["x"], destination=["shop/eu/off"])
    (put,) = read_back(tmp_path, stage(at, at_once).files)
    assert (put.fire_at_ms, put.due_at_ms, put.delay_ms) == (NOW_MS, NOW_MS, DAY)
    beyond = rows(delay_ms=[DAY + 1, 1 << 62], payload=["x"] * 2, destination=["shop/eu/orders"] * 2)
    assert [row.reason for row in stage(at, beyond).bad] == [str(DelayTooLong(DAY))] * 2


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"due": pa.array([None], pa.int64())}, "due: is missing"),
        ({"due": ["tomorrow"]}, "due: is not an instant"),
        ({"due": ["2031-05-04"]}, "due: is not an instant"),
        ({"due": ["2031-02-30T00:00:00Z"]}, "due: is not an instant"),
        ({"due": [-1]}, "due: is before 1970"),
        ({"due": [NOW_MS + 40_000 * DAY]}, "exceeds the maximum"),
        ({"delay_ms": [-1]}, "delay_ms: is negative; give 0 or more"),
        ({"destination": ["ftp://x/y"]}, "no outlet for ftp"),
        ({"destination": ["https://"]}, "not a whole address"),
        ({"destination": ["a/b"]}, "destination: a topic name is"),
        ({"destination": ["x" * 3000]}, "destination: larger"),
        ({"namespace": ["shop/eu"]}, "namespace: the destination is in public/default"),
        ({"payload": ["x" * 6_000_000]}, "payload: larger"),
        ({"key": ["x" * 2000]}, "key: larger"),
        ({"owner": ["x" * 300]}, "owner: larger"),
        ({"ttl_ms": [0]}, "ttl_ms: is not between"),
        ({"ttl_ms": ["soon"]}, "ttl_ms: is not a whole number"),
        ({"delay_ms": ["1h"]}, "delay_ms: is not a whole number"),
        ({"headers": pa.array([[("", "v")]], pa.map_(pa.string(), pa.string()))}, "headers: a name is empty"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_with_its_reason(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    due: dict[str, Any] = {} if "delay_ms" in columns else {"due": [NOW_MS]}
    batch = pa.record_batch({**due, "payload": ["x"], **columns})
    (found,) = bad(tmp_path, batch)
    assert found.startswith("row 1: ")
    assert said in found


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"due": pa.array([1.5])}, "due: is a column of double"),
        ({"due": pa.array([1], pa.date32())}, "due: is a column of date32"),
        ({"payload": pa.array([1])}, "payload: is a column of int64"),
        ({"owner": pa.array([1])}, "owner: is a column of int64"),
        ({"headers": pa.array(["x"])}, "headers: is a column of string"),
        ({"ttl_ms": pa.array([1], pa.timestamp("ms"))}, "ttl_ms: is a column of timestamp"),
    ],
)
def test_a_column_of_no_use_is_refused_as_a_whole(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    (found,) = bad(tmp_path, pa.record_batch({"due": [NOW_MS], "payload": ["x"], **columns}))
    assert found.startswith("every row: ")
    assert said in found


def test_rows_are_counted_over_all_that_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 2)
    good, wrong = rows(due=[NOW_MS] * 3, payload=["x"] * 3), rows(due=[NOW_MS, -1], payload=["x"] * 2)
    staged = stage(place(tmp_path), good, wrong, part="7")
    assert [row.where for row in staged.bad] == ["row 5 of part 7"]
    (tmp_path / "index").mkdir(exist_ok=True)
    with pytest.raises(BadRows, match="row 5 of part 7: due: is before 1970"):
        manifest_of(place(tmp_path), [staged])
    stager = Stager(place(tmp_path), Mapping(destination="t"), "n", new_token("n"))
    assert not stager.add(rows(due=[-1] * 100, payload=["x"] * 100))
    assert len(stager.finish().bad) == staging.MAX_BAD_ROWS


@pytest.mark.parametrize(
    ("names", "mapping", "said"),
    [
        (["due", "payload", "colour"], Mapping(destination="t"), "colour: is not a column"),
        (["due", "payload"], Mapping(), "destination: there is neither"),
        (["payload"], Mapping(destination="t"), "due: there must be one"),
        (["due", "delay_ms"], Mapping(destination="t"), "due: there must be one"),
        (["at"], Mapping(destination="t", columns={"due": "when"}), "when: there is no such column"),
        (["at", "due"], Mapping(destination="t", columns={"due": "at"}), "due: is not a column"),
        (["due", "due"], Mapping(destination="t"), "columns: a name stands there twice"),
        (["due"], Mapping(destination="t", columns={"colour": "due"}), "colour: is not a field"),
        (["due"], Mapping(destination="t", timezone="Mars/Base"), "timezone: Mars/Base"),
    ],
)
def test_columns_that_cannot_make_messages_are_refused(names: list[str], mapping: Mapping, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        mapping.check(names)


def test_the_fingerprint_is_of_the_rows_and_of_nothing_else(tmp_path: Path) -> None:
    at = place(tmp_path)
    base: dict[str, Any] = {
        "due": [NOW_MS + n for n in range(6)],
        "payload": list("abcdef"),
        "key": ["k", None] * 3,
    }
    batch = pa.record_batch(base)

    def print_of(*parts: pa.RecordBatch, now_ms: int = NOW_MS) -> str:
        staged = [stage(place(tmp_path, now_ms=now_ms), part) for part in parts]
        return manifest_of(at, staged).fingerprint

    first = print_of(batch)
    assert first == print_of(batch, now_ms=NOW_MS - 5_000)
    assert first == print_of(batch.slice(4, 2), batch.slice(0, 4))
    assert first == print_of(batch.take(pa.array([5, 4, 3, 2, 1, 0])))
    changed = {
        "due": [NOW_MS + 9, *base["due"][1:]], "payload": list("abcdeg"), "key": ["k", "x", "k", None, "k", None],
        "owner": ["x"] + [""] * 5, "ttl_ms": [5] + [None] * 5, "destination": ["other"] + ["orders"] * 5,
    }  # fmt: skip
    prints = {print_of(pa.record_batch({**base, name: column})) for name, column in changed.items()}
    assert len(prints | {first}) == len(changed) + 1
    # Two rows that swap their payloads are other rows.
    assert print_of(pa.record_batch({**base, "payload": list("bacdef")})) != first


def test_a_folder_is_for_batches_of_one_name() -> None:
    token = new_token("letters")
    assert len(token) == 32
    assert token != new_token("letters")
    assert is_token_for(token, "letters")
    assert not is_token_for(token, "more")


def test_a_folder_that_is_not_here_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not to be seen from here"):
        Stager(place(tmp_path), Mapping(destination="t"), "n", new_token("n"))
    assert not (tmp_path / "index").exists()
