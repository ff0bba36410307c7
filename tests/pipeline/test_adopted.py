"""Adopted batches in the index (R10): their files as they were staged, their rows made like all others by the cascade."""

from pathlib import Path

import google_crc32c
import msgspec
import pytest

from tarry.core.errors import Unavailable
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.index.adopted import files_of
from tarry.index.files import Folder
from tarry.index.state import Cancelled, CommitState
from tarry.ledger.record import FIRST_BATCH_SEQ, CancelBatch, Finalise, Key, Mark, Spared, decode_put
from tarry.pipeline import cascade as cascading
from tarry.pipeline import stream
from tarry.pipeline.cascade import cascade
from tarry.pipeline.plan import Rewrite
from tarry.pipeline.stream import Tables
from tests.pipeline.kit import START_MS, Writer, history, index_locally, live, record, staged, tables_of

FIVE_MS = 300_000
B = FIRST_BATCH_SEQ


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS)
    return Writer(tmp_path)


def state(tables: Tables) -> CommitState:
    return msgspec.convert(tables.index.state(), CommitState)


def at(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    monkeypatch.setattr(cascading, "now_ms", lambda: now_ms)


def cancel(count: int, high_ms: int, *spared: int) -> CancelBatch:
    return CancelBatch(
        "b", B, count, high_ms, START_MS + 7, [Spared(Key(high_ms, seq), "") for seq in spared]
    )


def test_files_are_numbered_in_the_order_of_the_manifest(writer: Writer) -> None:
    adopt = staged(writer, "b", [[5, 7], [6], [8, 9]], first_seq=B + 10, floor_ms=6)
    assert [(file.base, file.floor_ms, file.rows) for file in files_of(adopt)] == [
        (B + 10, 6, 2),
        (B + 12, 6, 1),
        (B + 13, 6, 2),
    ]


def test_a_batch_is_in_the_index_with_the_commit_that_passes_its_record(writer: Writer) -> None:
    first, second = START_MS + 2 * DAY_MS, START_MS + 3 * DAY_MS
    single = writer.schedule(HOUR_MS)
    record(writer, staged(writer, "b", [[first, first + 1], [second]], floor_ms=START_MS))
    tables = tables_of(writer)
    before = index_locally(writer, tables, last_seq=1)
    assert before.last_commit["files"] == 1
    index_locally(writer, tables)
    assert tables.index.cursor() == writer.ledger.durable_seq
    assert live(tables) == [(single.due_at_ms, 1), (first, B), (first + 1, B + 1), (second, B + 2)]
    paths = [file.path for file in tables.index.files() if file.base]
    assert sorted(paths) == ["staged/b/0.parquet", "staged/b/1.parquet"]


def test_the_same_record_again_adds_no_file(writer: Writer) -> None:
    record(writer, staged(writer, "b", [[START_MS + DAY_MS]]))
    tables = tables_of(writer)
    index_locally(writer, tables)
    index_locally(writer, tables)
    assert len(live(tables)) == 1


def test_a_staged_file_that_is_missing_refuses_the_batch_and_is_named(writer: Writer) -> None:
    tables = tables_of(writer)
    record(writer, staged(writer, "b", [[START_MS + DAY_MS], [START_MS + 2 * DAY_MS]]))
    gone = Path(tables.index.uri.removeprefix("file://")) / "staged/b/1.parquet"
    gone.unlink()
    with pytest.raises(Unavailable, match=r"staged/b/1\.parquet: this staged file of the batch 'b'"):
        index_locally(writer, tables)
    assert (tables.index.cursor(), live(tables)) == (0, [])


def test_a_message_of_a_batch_can_end_in_the_batch_of_its_adoption_and_later(writer: Writer) -> None:
    fires = [START_MS + DAY_MS + n for n in range(4)]
    record(writer, staged(writer, "b", [fires]), end(fires[1], B + 1))
    tables = tables_of(writer)
    index_locally(writer, tables)
    assert [seq for _, seq in live(tables)] == [B, B + 2, B + 3]
    record(writer, end(fires[3], B + 3))
    index_locally(writer, tables)
    assert [seq for _, seq in live(tables)] == [B, B + 2]


def end(fire_at_ms: int, seq: int) -> Finalise:
    key = Key(fire_at_ms, seq)
    return Finalise(
        key, key, "cancelled", START_MS, None, None, 0, fire_at_ms, START_MS, "public/default", "orders", None, "",
        "http", None, False,
    )  # fmt: skip


def test_the_cascade_writes_keys_and_floor_into_the_rows(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = START_MS + HOUR_MS
    fires = [START_MS + 5, START_MS + 6, floor, floor + 1]
    record(writer, staged(writer, "b", [fires], floor_ms=floor), end(floor, B + 1))
    tables = tables_of(writer)
    index_locally(writer, tables)
    before = live(tables)
    assert before == [(floor, B), (floor, B + 2), (floor + 1, B + 3)]
    at(monkeypatch, START_MS)
    assert cascade(None, tables.index, FIVE_MS)["rewritten"] > 0
    assert live(tables) == before
    assert {(file.base, file.floor_ms) for file in tables.index.files()} == {(0, 0)}
    [file] = [file for file in tables.index.files() if not file.dels]
    [rows] = Folder(tables.index.uri).read(file.path)
    for row in rows.to_pylist():
        put = decode_put(row["body"])
        assert (put.fire_at_ms, google_crc32c.value(row["body"])) == (row["fire_at_ms"], row["crc"])
        assert put.accepted_at_ms == row["accepted_at_ms"] == (floor if row["seq"] == B else START_MS)
        assert row["batch"] == "b"


def test_the_end_of_a_batchs_message_is_kept_until_its_staged_row_is_gone(writer: Writer) -> None:
    """Else the message would come back: its row is in a file that is not rewritten, and says nothing of the base."""
    fire = START_MS + 2 * DAY_MS
    record(writer, staged(writer, "b", [[fire, fire + 1]]))
    tables = tables_of(writer)
    index_locally(writer, tables)
    record(writer, end(fire, B))
    index_locally(writer, tables)
    assert live(tables) == [(fire + 1, B + 1)]
    [dels] = [file for file in tables.index.files() if file.dels]
    [batch] = [file for file in tables.index.files() if file.base]
    task = cascading.RewriteTask(tables.index.uri, state(tables), FIVE_MS, START_MS)
    [anew] = task.rewrite(Rewrite([dels], [batch]))
    assert (anew.rows, anew.dels) == (1, 1)


def test_files_of_one_slot_keep_their_own_numbers_when_they_are_put_together(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fires = [START_MS + HOUR_MS + n for n in range(4)]
    record(writer, staged(writer, "b", [fires[::2], fires[1::2]], floor_ms=fires[1]))
    tables = tables_of(writer)
    index_locally(writer, tables)
    before = live(tables)
    assert before == [(fires[1], B), (fires[1], B + 2), (fires[2], B + 1), (fires[3], B + 3)]
    at(monkeypatch, START_MS)
    assert cascade(None, tables.index, FIVE_MS)["rewritten"] == 2
    assert live(tables) == before


def test_a_cancelled_batch_is_dead_at_once_and_gone_after_the_cascade(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fires = [START_MS + 2 * DAY_MS + n for n in range(3)]
    kept = writer.schedule(2 * DAY_MS)
    record(writer, staged(writer, "b", [fires[:2], fires[2:]]))
    tables = tables_of(writer)
    index_locally(writer, tables)
    record(writer, cancel(3, fires[-1]))
    index_locally(writer, tables)
    assert live(tables) == [(kept.due_at_ms, 1)]
    assert state(tables).cancelled == [Cancelled(B, 3, fires[-1])]
    [row] = history(tables)
    assert (row["outcome"], row["reason"], row["messages"], row["batch"], row["destination"]) == (
        "cancelled", "its batch was cancelled", 3, "b", None,
    )  # fmt: skip
    at(monkeypatch, START_MS)
    assert cascade(None, tables.index, FIVE_MS)["expired"] == 2
    assert [file.rows for file in tables.index.files()] == [1]


def test_a_cancelled_batch_goes_also_from_files_that_hold_others(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fires = [START_MS + HOUR_MS + n for n in range(3)]
    record(writer, staged(writer, "b", [fires]))
    kept = writer.schedule(HOUR_MS)
    tables = tables_of(writer)
    index_locally(writer, tables)
    at(monkeypatch, START_MS + 1)
    cascade(None, tables.index, FIVE_MS)
    assert [file.base for file in tables.index.files()] == [0, 0]
    record(writer, cancel(3, fires[-1], B + 1))
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS + 2)
    index_locally(writer, tables)
    expected = [(kept.due_at_ms, 2), (fires[1], B + 1)]
    assert live(tables) == sorted(expected)
    at(monkeypatch, START_MS + 3)
    assert cascade(None, tables.index, FIVE_MS)["rows"] == 1
    assert live(tables) == sorted(expected)
    assert cascade(None, tables.index, FIVE_MS) == {}


def test_a_message_that_was_spared_outlives_its_batch(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fires = [START_MS + 2 * DAY_MS + n for n in range(3)]
    record(writer, staged(writer, "b", [fires]), cancel(3, fires[-1], B + 2))
    tables = tables_of(writer)
    index_locally(writer, tables)
    at(monkeypatch, START_MS + 1)
    for _ in range(2):
        assert live(tables) == [(fires[2], B + 2)]
        assert history(tables)[0]["messages"] == 2
        cascade(None, tables.index, FIVE_MS)


def test_a_cancelled_batch_is_forgotten_when_the_watermark_has_passed_it(writer: Writer) -> None:
    high = START_MS + HOUR_MS
    record(writer, staged(writer, "b", [[high]]), cancel(1, high))
    tables = tables_of(writer)
    index_locally(writer, tables)
    record(writer, Mark(Key(high, 0), high))
    index_locally(writer, tables)
    assert state(tables).cancelled == [Cancelled(B, 1, high)]
    record(writer, Mark(Key(high + 1, 0), high))
    index_locally(writer, tables)
    assert state(tables).cancelled == []
