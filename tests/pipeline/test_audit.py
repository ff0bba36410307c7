"""The audit: good books balance, and every sort of offender is found."""

from pathlib import Path

from pyspark.sql import SparkSession

from tarry.core.limits import HOUR_MS
from tarry.engine.topics import NewEntry
from tarry.pipeline.audit.audit import Verdict, audit
from tests.pipeline.kit import START_MS, Writer, index_locally, tables_of


def judged(spark: SparkSession, writer: Writer) -> Verdict:
    return audit(spark, {"path": str(Path(writer.folder).parent)})


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
    writer.settle(writer.engine.topics.subscription("orders", "fifo").ack([ids[0]]))
    writer.run(1_000)


def test_good_books_balance(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    busy(writer)
    tables = tables_of(writer)
    index_locally(writer, tables)
    writer.run(HOUR_MS)
    writer.settle(writer.engine.cancel(writer.schedule(HOUR_MS).id))
    writer.schedule(HOUR_MS)
    verdict = judged(spark, writer)
    assert verdict.offences == {}, verdict.shown
    assert verdict.balanced
    assert verdict.counts == {
        "accepted": 29, "scheduled": 1, "finalised": 28, "sent": 23, "cancelled": 5, "failed": 0, "sent by command": 1,
        "delayed entries waiting in topics": 3, "read in order before they were due": 1,
    }  # fmt: skip
    assert verdict.notes == []
