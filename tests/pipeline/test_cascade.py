"""Cascade and compaction: what comes near goes into finer slots, the dead go, nothing is lost or doubled (R7)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.slots import parse_slot
from tarry.index.table import IndexFile
from tarry.ledger.record import Key
from tarry.pipeline import cascade as module
from tarry.pipeline import stream
from tarry.pipeline.cascade import FILES_PER_SLOT, cascade, plan
from tarry.pipeline.stream import State
from tests.pipeline.kit import START_MS, Writer
from tests.pipeline.test_stream import ALL, index, tables_of, view

FIVE_MS = 5 * MINUTE_MS


def file(slot: str, low: int, high: int, name: str = "f") -> IndexFile:
    return IndexFile(f"slot={slot}/{name}.parquet", 100, 10, slot, low, high)


def test_a_slot_that_came_near_is_rewritten_and_a_far_one_is_not() -> None:
    near = file(f"{HOUR_MS}_{START_MS}", START_MS, START_MS + HOUR_MS - 1)
    far = file(f"{DAY_MS}_{START_MS + 5 * DAY_MS}", START_MS + 5 * DAY_MS, START_MS + 6 * DAY_MS - 1)
    fine = file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 1)
    todo = plan([near, far, fine], State(), FIVE_MS, START_MS)
    assert [rewrite.files for rewrite in todo.rewrites] == [[near]]
    assert todo.rewrites[0].beside == [fine]
    assert todo.expired == []


def test_what_is_below_the_watermark_goes() -> None:
    old = file(f"{FIVE_MS}_0", 0, 10)
    kept = file(f"{FIVE_MS}_0", 0, 20, "g")
    assert plan([old, kept], State((15, 0)), FIVE_MS, 100).expired == [old]


def test_many_small_files_of_a_slot_are_put_together() -> None:
    many = [file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 5, str(n)) for n in range(FILES_PER_SLOT + 1)]
    assert [rewrite.files for rewrite in plan(many, State(), FIVE_MS, START_MS).rewrites] == [many]
    assert plan(many[1:], State(), FIVE_MS, START_MS).rewrites == []


def test_the_granularity_may_shrink_and_grow_while_messages_wait() -> None:
    waiting = file(f"{FIVE_MS}_{START_MS}", START_MS, START_MS + 5)
    shrunk = plan([waiting], State(granularity={"": MINUTE_MS}), FIVE_MS, START_MS)
    assert [rewrite.files for rewrite in shrunk.rewrites] == [[waiting]]
    assert plan([waiting], State(granularity={"": 2 * HOUR_MS}), FIVE_MS, START_MS).rewrites == []


def test_rows_move_into_finer_slots_and_the_dead_go(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS)
    kept = [writer.schedule(2 * DAY_MS + n * HOUR_MS) for n in range(20)]
    dead = [writer.schedule(2 * DAY_MS + n * HOUR_MS) for n in range(10)]
    tables = tables_of(writer)
    index(spark, writer, tables)
    for message in dead:
        writer.settle(writer.engine.cancel(message.id))
    index(spark, writer, tables)
    before = view(writer).keys(*ALL)
    assert before.fire_at_ms.tolist() == [message.due_at_ms for message in kept]
    assert {parse_slot(one.partition).size_ms for one in tables.index.files()} == {DAY_MS}
    # Two days later, less a minute: the first is due within the hour.
    later = START_MS + 2 * DAY_MS - MINUTE_MS
    monkeypatch.setattr(module, "now_ms", lambda: later)
    assert cascade(spark, tables.index, FIVE_MS)["rows"] == 20
    assert {parse_slot(one.partition).size_ms for one in tables.index.files()} == {FIVE_MS, HOUR_MS}
    after = view(writer).keys(*ALL)
    assert (after.fire_at_ms.tolist(), after.seqs.tolist()) == (
        before.fire_at_ms.tolist(),
        before.seqs.tolist(),
    )
    keys = [Key(*key) for key in zip(after.fire_at_ms.tolist(), after.seqs.tolist(), strict=True)]
    assert view(writer).bodies(keys) == [writer.ledger.read(key.seq).body for key in keys]
    assert cascade(spark, tables.index, FIVE_MS) == {}
