"""The audit: good books balance, and every sort of offender is found."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tarry.core.errors import NotFound
from tarry.core.limits import HOUR_MS
from tarry.core.messages.ids import Ids
from tarry.core.messages.message import Scheduled
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    Ack,
    CancelBatch,
    Claim,
    Entry,
    Finalise,
    Key,
    Mark,
    Record,
    Spared,
    encode,
)
from tarry.pipeline.audit.acks import early_acks
from tarry.pipeline.audit.audit import AuditFindings, Books, audit, judge, open_books
from tarry.pipeline.audit.checks import OFFENCES
from tests.pipeline.kit import START_MS, Writer, index_locally, put, record, staged, tables_of


def judged(spark: SparkSession, writer: Writer) -> AuditFindings:
    return audit(spark, {"path": str(Path(writer.folder).parent)}, writer.clock.now_ms())


def busy(writer: Writer) -> None:
    """A little of everything that an engine does."""
    for n in range(20):
        writer.schedule(n + 1, owner=f"o{n % 3}")
    cancelled, moved, sent = (writer.schedule(HOUR_MS * n) for n in (1, 2, 3))
    writer.settle(writer.engine.cancel(cancelled.id))
    writer.settle(writer.engine.restart(moved.id, delay_ms=5))
    writer.settle(writer.engine.send(sent.id))
    writer.run(1_000)
    for n in range(4):
        writer.schedule(HOUR_MS + n, group="g", owner="grouped")
    writer.settle(writer.engine.topics.subscribe("orders", "fifo", "exclusive", start="earliest"))
    writer.settle(writer.engine.topics.subscribe("orders", "shared", "shared", start="earliest"))
    later = [NewEntry(payload=b"x", deliver_at_ms=START_MS + 2 * HOUR_MS) for _ in range(3)]
    ids = writer.settle(writer.engine.topics.publish("orders", later))
    # Due when it is judged, which no record says.
    soon = NewEntry(payload=b"x", deliver_at_ms=START_MS + HOUR_MS + 2_000)
    writer.settle(writer.engine.topics.publish("orders", [soon]))
    writer.settle(writer.engine.topics.subscription("orders", "fifo").ack([ids[0]]))
    writer.run(1_000)


@pytest.mark.parametrize(("marked_ms", "early"), [(None, []), (1_500, [0]), (2_500, [])])
def test_an_acknowledgement_is_early_if_the_next_mark_is(
    spark: SparkSession, marked_ms: int | None, early: list[int]
) -> None:
    nothing = {"topic": None, "subscription": None, "entry_id": None, "fire_at_ms": None, "at_ms": None}
    nothing |= {"outcome": None, "below": None, "entries": None}
    told: dict[str, Any] = {"topic": "orders", "subscription": "shared"}
    facts = [
        {"fact": "mark", "at_ms": 1_000},
        {"fact": "subscribe", **told, "outcome": "shared"},
        {"fact": "entry", "topic": "orders", "entry_id": 0, "fire_at_ms": 2_000},
        {"fact": "ack", **told, "below": 0, "entries": [0]},
        *([] if marked_ms is None else [{"fact": "mark", "at_ms": marked_ms}]),
    ]
    rows = [nothing | fact | {"seq": seq} for seq, fact in enumerate(facts, 1)]
    schema = (
        "fact string, seq long, topic string, subscription string, entry_id long, fire_at_ms long, at_ms long, "
        "outcome string, below long, entries array<long>"
    )
    found = early_acks(spark.createDataFrame(rows, schema)).collect()
    assert [row.entry_id for row in found] == early


def test_good_books_balance(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    busy(writer)
    tables = tables_of(writer)
    adopted = staged(writer, "b", [[START_MS + HOUR_MS * 9 + n for n in range(4)]])
    kept = staged(writer, "c", [[START_MS + HOUR_MS * 9] * 2], FIRST_BATCH_SEQ + 4)
    record(writer, adopted, kept)
    index_locally(writer, tables)
    writer.run(HOUR_MS)
    writer.settle(writer.engine.cancel(writer.schedule(HOUR_MS).id))
    writer.schedule(HOUR_MS)
    first = Key(START_MS + HOUR_MS * 9, FIRST_BATCH_SEQ)
    # Of the batch one was being sent when it was cancelled, and was sent; another had ended before.
    record(
        writer,
        end(Key(first.fire_at_ms + 1, first.seq + 1), "failed", first.fire_at_ms + 1),
        CancelBatch("b", first.seq, 4, first.fire_at_ms + 3, START_MS, [Spared(first, "")]),
        end(first, "sent", first.fire_at_ms),
    )
    verdict = judged(spark, writer)
    assert verdict.offences == {}, verdict.shown
    assert verdict.balanced
    assert verdict.counts == {
        "accepted": 35, "scheduled": 3, "finalised": 32, "sent": 24, "cancelled": 7, "failed": 1, "sent by command": 1,
        "delayed entries waiting in topics": 3, "read in order before they were due": 1,
    }  # fmt: skip
    assert verdict.notes == []


def end(key: Key, outcome: str, at_ms: int, origin: Key | None = None) -> Finalise:
    """The record of an end that no engine has written."""
    return Finalise(
        key, origin or key, outcome, at_ms, None, None, 1, key.fire_at_ms, START_MS, "public/default", "orders", None,
        "", "http", None, False,
    )  # fmt: skip


def key_of(message: Scheduled) -> Key:
    found = Ids(bytes(32)).read(message.id)
    assert found is not None
    return Key(found[1], found[0])


def forged(writer: Writer) -> dict[str, Key]:
    """A ledger in which everything is wrong that can be wrong in a ledger."""
    names = (
        "twice", "cancelled", "early", "claimed", "lost", "doubled", "untold", "made up", "alive", "good",
    )  # fmt: skip
    keys = {name: key_of(writer.schedule(HOUR_MS)) for name in names}
    late_ms = START_MS + 2 * HOUR_MS
    writer.settle(writer.engine.topics.subscribe("orders", "shared", "shared", start="earliest"))
    writer.settle(
        writer.engine.topics.publish("orders", [NewEntry(payload=b"x", deliver_at_ms=START_MS + HOUR_MS)])
    )
    mark_seq = record(writer, Mark(Key(START_MS, 0), START_MS))
    keys["no version"] = Key(START_MS + 5, mark_seq)
    short = staged(writer, "short", [[START_MS + HOUR_MS] * 2])
    ended = staged(writer, "ended", [[START_MS + HOUR_MS] * 2], FIRST_BATCH_SEQ + 3)
    keys["of batch"] = Key(START_MS + HOUR_MS, FIRST_BATCH_SEQ + 3)
    topic = "persistent://public/default/orders"
    stray = Entry(topic, 0, START_MS, 7, None, msgspec.Raw(encode(put(START_MS)).body))
    records: list[Record] = [
        end(keys["twice"], "failed", late_ms), end(keys["twice"], "failed", late_ms),
        end(keys["cancelled"], "cancelled", START_MS), end(keys["cancelled"], "sent", late_ms),
        end(keys["early"], "sent", START_MS + HOUR_MS - 1),
        end(keys["claimed"], "cancelled", START_MS), Claim(keys["claimed"].seq, "g", "", START_MS),
        end(keys["untold"], "sent", late_ms), end(keys["alive"], "sent", late_ms),
        end(keys["no version"], "failed", late_ms), stray,
        Ack(topic, "shared", 0, [0]), Mark(Key(START_MS, 0), START_MS + 1),
        msgspec.structs.replace(short, count=3), ended,
        CancelBatch("ended", FIRST_BATCH_SEQ + 3, 2, START_MS + HOUR_MS, START_MS),
        end(keys["of batch"], "sent", late_ms),
    ]  # fmt: skip
    keys["last"] = Key(0, record(writer, *records))
    return keys


def with_forged_tables(books: Books, keys: dict[str, Key]) -> Books:
    """Tables that do not say what the ledger says."""
    waiting, ended = books.waiting, books.ended
    alive = waiting.filter(sf.col("seq") == keys["good"].seq)
    waiting = (
        waiting.filter(sf.col("seq") != keys["lost"].seq)
        .union(alive.withColumns({"seq": sf.lit(keys["alive"].seq), "origin_seq": sf.lit(keys["alive"].seq)}))
        .union(
            alive.withColumns({"seq": sf.lit(keys["good"].seq), "origin_seq": sf.lit(keys["doubled"].seq)})
        )
    )
    untold = ended.filter(sf.col("origin_seq") == keys["untold"].seq)
    made_up = untold.withColumns({"seq": sf.lit(1), "origin_seq": sf.lit(keys["made up"].seq)})
    ended = ended.filter(sf.col("origin_seq") != keys["untold"].seq).union(made_up)
    return msgspec.structs.replace(books, waiting=waiting, ended=ended)


def test_every_sort_of_offender_is_found(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    keys = forged(writer)
    index_locally(writer, tables_of(writer))
    books = open_books(spark, {"path": str(tmp_path)}, START_MS)
    verdict = judge(with_forged_tables(books, keys))
    assert not verdict.balanced
    found: dict[str, set[Any]] = {name: set() for name in OFFENCES}
    names = {key.seq: name for name, key in keys.items()}
    for one in verdict.shown:
        found[one.offence].add(names.get(one.origin_seq or 0, one.origin_seq))
    assert found == {
        "lost": {"lost", "untold"},
        "scheduled twice": {"doubled"},
        "finalised twice": {"twice"},
        "scheduled and finalised": {"alive", "made up"},
        "never accepted": {"no version"},
        "version ended twice": {"twice", "cancelled"},
        "unknown version ended": {"no version"},
        "dead version scheduled": {"alive"},
        "sent without an end": {None},
        "sent early": {"early", None},
        "sent after its cancel": {"cancelled", "claimed", "of batch"},
        "not in the history": {"untold"},
        "not in the ledger": {"made up"},
        "batch does not add up": {FIRST_BATCH_SEQ},
        "books do not balance": {None},
    }


def retried(writer: Writer) -> list[Key]:
    """Two messages that have failed and were retried: one waits, one has arrived. Gives the keys of their later versions."""
    far_ms = START_MS + 50 * HOUR_MS
    keys: list[Key] = []
    for n in range(2):
        first = key_of(writer.schedule(40 * HOUR_MS))
        again = msgspec.structs.replace(put(far_ms + n), origin=first)
        keys.append(Key(far_ms + n, record(writer, end(first, "failed", first.fire_at_ms), again)))
        if n:
            record(writer, end(keys[n], "sent", keys[n].fire_at_ms, first))
    return keys


def test_a_message_that_failed_may_be_retried(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    retried(writer)
    index_locally(writer, tables_of(writer))
    verdict = judged(spark, writer)
    assert verdict.offences == {}, verdict.shown
    assert (verdict.counts["accepted"], verdict.counts["failed"], verdict.counts["sent"]) == (4, 2, 1)


def test_a_retry_of_which_nothing_is_left_is_found(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    waiting, _ = retried(writer)
    index_locally(writer, tables_of(writer))
    books = open_books(spark, {"path": str(tmp_path)}, START_MS)
    without = books.waiting.filter(sf.col("seq") != waiting.seq)
    assert judge(msgspec.structs.replace(books, waiting=without)).offences == {
        "lost": 1,
        "books do not balance": 1,
    }


def test_without_tables_it_cannot_be_told(spark: SparkSession, tmp_path: Path) -> None:
    Writer(tmp_path).schedule(HOUR_MS)
    with pytest.raises(NotFound, match="run `tarry pipeline --once`"):
        audit(spark, {"path": str(tmp_path)})


def test_when_the_beginning_is_reclaimed_the_tables_stand_for_it(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path, segment_bytes=1 << 16)
    busy(writer)
    while len(writer.ledger.segments()) < 3:
        writer.schedule(HOUR_MS, payload=bytes(10_000))
    index_locally(writer, tables_of(writer))
    writer.settle(writer.engine.cancel(writer.schedule(HOUR_MS).id))
    second = writer.ledger.segments()[1]
    (Path(writer.folder) / "00000001.seg").unlink()
    books = open_books(spark, {"path": str(tmp_path)}, START_MS)
    assert books.first_seq == second.first_seq > 1
    verdict = judge(books)
    assert (verdict.offences, len(verdict.notes)) == ({}, 1), verdict.shown
    # A message of which no record is left goes missing: only the count tells.
    oldest = (
        books.waiting.filter(sf.col("origin_seq") < books.first_seq).agg(sf.min("origin_seq")).collect()[0][0]
    )
    without = books.waiting.filter((sf.col("origin_seq") != oldest) | sf.col("entry"))
    assert judge(msgspec.structs.replace(books, waiting=without)).offences == {"books do not balance": 1}
