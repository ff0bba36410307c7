"""Cascade and compaction: what comes near goes into finer slots, the dead go, nothing is lost or doubled (R7)."""

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tarry.core.errors import Damage
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tarry.core.timers.slots import parse_slot
from tarry.index import merge
from tarry.index.files import Folder
from tarry.index.schema import PUT
from tarry.index.state import CommitState
from tarry.index.table import IndexFile
from tarry.ledger.record import Key, Mark, PolicySet
from tarry.pipeline import cascade as module
from tarry.pipeline import plan as planning
from tarry.pipeline import stream
from tarry.pipeline.cascade import cascade, living
from tarry.pipeline.plan import FILES_PER_SLOT, crowd, plan
from tarry.pipeline.stream import Tables
from tests.pipeline.kit import START_MS, Writer, index_locally, live, put, record, tables_of
from tests.pipeline.test_stream import ALL, index, view

FIVE_MS = 5 * MINUTE_MS
MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    at(monkeypatch, START_MS)
    return Writer(tmp_path)


def at(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    """From here on it is this instant for the stream and the cascade."""
    monkeypatch.setattr(stream, "now_ms", lambda: now_ms)
    monkeypatch.setattr(module, "now_ms", lambda: now_ms)


def sizes(tables: Tables) -> set[int]:
    return {parse_slot(file.partition).size_ms for file in tables.index.files()}


def file(slot: str, low: int, high: int, name: str = "f", **fields: int) -> IndexFile:
    return msgspec.structs.replace(
        IndexFile(f"slot={slot}/{name}.parquet", 100, 10, slot, low, high), **fields
    )


def test_a_slot_that_came_near_is_rewritten_and_a_far_one_is_not() -> None:
    near = file(f"{HOUR_MS}_{START_MS}", START_MS, START_MS + HOUR_MS - 1)
    far = file(f"{DAY_MS}_{MIDNIGHT_MS + DAY_MS}", MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS + 2 * DAY_MS - 1)
    dels = file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 1, dels=10)
    puts = file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 1, "g")
    todo = plan([near, far, dels, puts], CommitState(), FIVE_MS, START_MS)
    assert [rewrite.files for rewrite in todo.rewrites] == [[near]]
    assert todo.rewrites[0].beside == [dels]
    assert todo.expired == []


def test_what_was_rewritten_when_its_slot_was_near_is_left_alone() -> None:
    slot = f"{HOUR_MS}_{START_MS}"
    before, after = (file(slot, START_MS, START_MS + 1, written_ms=START_MS + lag) for lag in (-HOUR_MS, 0))
    todo = plan([before, after], CommitState(), FIVE_MS, START_MS + 1)
    assert [rewrite.files for rewrite in todo.rewrites] == [[before]]


def test_what_is_below_the_watermark_goes() -> None:
    old = file(f"{FIVE_MS}_0", 0, 10)
    kept = file(f"{FIVE_MS}_0", 0, 20, "g")
    assert plan([old, kept], CommitState((15, 0)), FIVE_MS, 100).expired == [old]


def test_what_is_at_the_watermarks_instant_and_not_below_its_seq_stays() -> None:
    """A version that is accepted later may fire at the instant at which the watermark stands."""
    state = CommitState((15, 5))
    assert plan([file(f"{FIVE_MS}_0", 0, 15)], state, FIVE_MS, 100).expired == []
    rows = pa.table({"op": [PUT] * 4, "seq": [9, 4, 5, 6], "fire_at_ms": [14, 15, 15, 15]})
    nobody = np.empty(0, np.int64)
    assert living(rows, state, nobody, nobody)["seq"].to_pylist() == [5, 6]


def test_many_small_files_of_a_slot_are_put_together() -> None:
    many = [file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 5, str(n)) for n in range(FILES_PER_SLOT + 1)]
    assert [rewrite.files for rewrite in plan(many, CommitState(), FIVE_MS, START_MS).rewrites] == [many]
    assert plan(many[1:], CommitState(), FIVE_MS, START_MS).rewrites == []


def test_a_large_file_is_not_written_again_for_small_ones() -> None:
    small = [file("1000_0", 0, 1, str(n)) for n in range(FILES_PER_SLOT + 1)]
    large = file("1000_0", 0, 1, "large", size=10_000)
    full = file("1000_0", 0, 1, "full", size=100, rows=planning.SMALL_ROWS)
    assert crowd([large, full, *small]) == small
    assert crowd([large, full, *small[1:]]) == small[1:]


def test_a_task_reads_a_bounded_number_of_files_and_rows() -> None:
    slot = f"{HOUR_MS}_{START_MS}"
    many = [file(slot, START_MS, START_MS + 5, str(n)) for n in range(2 * planning.FILES_PER_REWRITE)]
    large = [file(slot, START_MS, START_MS + 5, f"l{n}", rows=700_000) for n in range(3)]
    groups = [rewrite.files for rewrite in plan([*many, *large], CommitState(), FIVE_MS, START_MS).rewrites]
    assert [len(group) for group in groups] == [16, 16, 1, 1, 1]
    assert len(plan([*many, *large], CommitState(), FIVE_MS, START_MS).within(700_000).rewrites) == 2


@pytest.mark.parametrize(
    ("granularity", "rewritten"),
    [({}, 0), ({"": MINUTE_MS}, 1), ({"": 2 * HOUR_MS}, 0), ({"tenant/ns": SECOND_MS}, 1)],
)
def test_only_a_finer_granularity_rewrites_what_waits(granularity: dict[str, int], rewritten: int) -> None:
    waiting = file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 5, written_ms=START_MS - MINUTE_MS)
    state = CommitState(default_ms=FIVE_MS).after([], FIVE_MS, START_MS)
    assert state.revised_at_ms == 0
    state = CommitState(granularity=granularity, default_ms=FIVE_MS, revised_at_ms=START_MS * rewritten)
    assert len(plan([waiting], state, FIVE_MS, START_MS).rewrites) == rewritten


def test_rows_move_into_finer_slots_and_the_dead_go(
    spark: SparkSession, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_ms = MIDNIGHT_MS - START_MS + 2 * DAY_MS
    kept = [writer.schedule(first_ms + n * HOUR_MS) for n in range(20)]
    dead = [writer.schedule(first_ms + n * HOUR_MS) for n in range(10)]
    tables = tables_of(writer)
    index(spark, writer, tables)
    for message in dead:
        writer.settle(writer.engine.cancel(message.id))
    index(spark, writer, tables)
    before = view(writer).load(*ALL, 1 << 40).due
    assert before.fire_at_ms.tolist() == [message.due_at_ms for message in kept]
    assert sizes(tables) == {DAY_MS}
    # A minute before the first is due: its day is split into hours, and its hour into slots.
    at(monkeypatch, START_MS + first_ms - MINUTE_MS)
    monkeypatch.setattr(module, "FEW_ROWS", 0)
    assert cascade(spark, tables.index, FIVE_MS)["rows"] == 20
    assert sizes(tables) == {FIVE_MS, HOUR_MS}
    after = view(writer).load(*ALL, 1 << 40).due
    assert (after.fire_at_ms.tolist(), after.seqs.tolist()) == (
        before.fire_at_ms.tolist(),
        before.seqs.tolist(),
    )
    keys = [Key(*key) for key in zip(after.fire_at_ms.tolist(), after.seqs.tolist(), strict=True)]
    assert view(writer).bodies(keys, 1 << 30) == [writer.ledger.read(key.seq).body for key in keys]
    assert cascade(spark, tables.index, FIVE_MS) == {}


def test_a_del_beside_ends_a_put_and_is_kept_until_its_put_is_gone(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(writer)
    message = writer.schedule(MIDNIGHT_MS + DAY_MS - START_MS)
    other = writer.schedule(MIDNIGHT_MS + DAY_MS - START_MS + 1)
    index_locally(writer, tables)
    # Near by now: the del goes into a slot of its own, beside the day that holds its put.
    at(monkeypatch, MIDNIGHT_MS + DAY_MS - 1)
    writer.settle(writer.engine.cancel(message.id))
    index_locally(writer, tables)
    assert sizes(tables) == {DAY_MS, FIVE_MS}
    todo = plan(tables.index.files(), CommitState(), FIVE_MS, MIDNIGHT_MS + DAY_MS)
    assert [(len(one.files), len(one.beside)) for one in todo.rewrites] == [(1, 1)]
    # Rewriting the del alone keeps it, as its put is still there.
    task = module.RewriteTask(tables.index.uri, CommitState(), FIVE_MS, MIDNIGHT_MS)
    turned = planning.Rewrite(todo.rewrites[0].beside, todo.rewrites[0].files)
    assert sum(one.rows for one in task.rewrite(turned)) == 1
    cascade(None, tables.index, FIVE_MS)
    assert [fire for fire, _ in live(tables)] == [other.due_at_ms]
    assert sum(one.rows - one.dels for one in tables.index.files()) == 1
    # Now the put is gone, and the del kills nothing any more.
    left = [one for one in tables.index.files() if one.dels]
    assert task.rewrite(planning.Rewrite(left, [one for one in tables.index.files() if not one.dels])) == []


def test_growing_and_shrinking_granularities_with_messages_waiting(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(writer)
    delays = [n * 30 * SECOND_MS + 1 for n in range(30)]
    record(writer, *(put(START_MS + delay) for delay in delays))
    expected = [(START_MS + delay, n + 1) for n, delay in enumerate(delays)]
    index_locally(writer, tables)
    now_ms, seen = START_MS, set()
    steps: list[int | None] = [MINUTE_MS, 14 * DAY_MS, SECOND_MS, None, 2 * HOUR_MS, 30 * SECOND_MS]
    for step in steps:
        now_ms += SECOND_MS
        at(monkeypatch, now_ms)
        policy: dict[str, Any] | None = None if step is None else {"slot_ms": step}
        record(writer, PolicySet("namespace", "public/default", policy), put(now_ms + 3 * HOUR_MS))
        expected.append((now_ms + 3 * HOUR_MS, writer.ledger.durable_seq))
        index_locally(writer, tables)
        assert live(tables) == sorted(expected)
        while cascade(None, tables.index, FIVE_MS):
            assert live(tables) == sorted(expected)
        # What is due now is in slots as fine as they were ever asked to be.
        near = [
            slot for one in tables.index.files() if (slot := parse_slot(one.partition)).start_ms <= now_ms
        ]
        assert all(
            slot.size_ms <= min([FIVE_MS, *filter(None, steps[: steps.index(step) + 1])]) for slot in near
        )
        seen |= {slot.size_ms for slot in near}
    assert seen >= {MINUTE_MS, SECOND_MS}
    # In the end all are due, and nothing is left.
    record(writer, Mark(Key(now_ms + DAY_MS, 0), now_ms))
    index_locally(writer, tables)
    cascade(None, tables.index, FIVE_MS)
    assert tables.index.files() == []


def test_a_granularity_that_the_configuration_makes_finer_is_obeyed(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(writer)
    record(writer, *(put(START_MS + n * MINUTE_MS) for n in range(1, 9)))
    index_locally(writer, tables, default_ms=HOUR_MS)
    assert sizes(tables) == {HOUR_MS}
    at(monkeypatch, START_MS + 1)
    record(writer, put(START_MS + MINUTE_MS))
    index_locally(writer, tables, default_ms=FIVE_MS)
    cascade(None, tables.index, FIVE_MS)
    assert sizes(tables) == {FIVE_MS}
    assert len(live(tables)) == 9


def test_the_number_of_files_stays_bounded_however_many_flushes(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(3)
    tables = tables_of(writer)
    most = 0
    for flush in range(40):
        at(monkeypatch, START_MS + flush * MINUTE_MS)
        # Over two days, five minutes and hours and days.
        spread = [
            put(START_MS + (flush + 1) * MINUTE_MS + int(2 ** random.uniform(10, 27.3))) for _ in range(60)
        ]
        record(writer, *spread)
        index_locally(writer, tables)
        cascade(None, tables.index, FIVE_MS)
        most = max(most, len(tables.index.files()))
        slots = len({one.partition for one in tables.index.files()})
        assert len(tables.index.files()) <= slots * FILES_PER_SLOT
    assert len(live(tables)) == 40 * 60
    assert most > 60


def test_a_file_below_the_bound_of_memory_is_merged_in_pieces(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is held than a row group of each file, and no file grows beyond its bound."""
    monkeypatch.setattr("tarry.index.files.ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(merge, "ROW_GROUP_ROWS", 16)
    monkeypatch.setattr("tarry.index.files.FULL_ROWS", 64)
    tables = tables_of(writer)
    # Ten files of forty rows, all of them due in the same two milliseconds.
    for _ in range(10):
        record(writer, *(put(START_MS + MINUTE_MS + n % 2) for n in range(40)))
        index_locally(writer, tables)
    before = live(tables)
    pieces: list[int] = []
    real = module.living

    def watched(rows, *rest):  # type: ignore[no-untyped-def]
        pieces.append(rows.num_rows)
        return real(rows, *rest)

    monkeypatch.setattr(module, "living", watched)
    cascade(None, tables.index, FIVE_MS)
    assert live(tables) == before
    assert max(pieces) <= 10 * 16
    assert len(pieces) > 3
    files = tables.index.files()
    assert all(one.rows <= 64 + 16 for one in files)
    assert len(files) >= 400 // 80
    for one in files:
        keys = [
            key
            for table in Folder(tables.index.uri).read(one.path)
            for key in zip(table["fire_at_ms"].to_pylist(), table["seq"].to_pylist(), strict=True)
        ]
        assert keys == sorted(keys)


def test_whoever_loses_the_race_changes_nothing(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(writer)
    record(writer, put(MIDNIGHT_MS + DAY_MS))
    index_locally(writer, tables)
    at(monkeypatch, MIDNIGHT_MS + DAY_MS)
    late = tables_of(writer).index
    real = module._rewritten

    def slowly(*arguments):  # type: ignore[no-untyped-def]
        new = real(*arguments)
        record(writer, put(MIDNIGHT_MS + DAY_MS + 1))
        index_locally(writer, tables)
        return new

    with monkeypatch.context() as patch:
        patch.setattr(module, "_rewritten", slowly)
        assert cascade(None, late, FIVE_MS) == {}
    assert len(live(tables)) == 2
    assert cascade(None, late, FIVE_MS)["rewritten"] == 1
    assert len(live(tables)) == 2


def test_a_damaged_file_is_refused_by_its_name(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(writer)
    record(writer, *(put(MIDNIGHT_MS + DAY_MS + n) for n in range(100)))
    index_locally(writer, tables)
    [only] = tables.index.files()
    path = Path(Folder(tables.index.uri.removeprefix("file://")).path(only.path))
    damaged = bytearray(path.read_bytes())
    damaged[200] ^= 16
    path.write_bytes(damaged)
    at(monkeypatch, MIDNIGHT_MS + DAY_MS)
    with pytest.raises(Damage, match=path.name):
        cascade(None, tables.index, FIVE_MS)
    assert tables.index.files() == [only]
