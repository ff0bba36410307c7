"""Delayed entries of topics that were acknowledged before they were due.

Exclusive and failover subscriptions read in publish order, and the delay does not apply to them: these are counted apart.
On a shared or key-shared subscription such an acknowledgement is an offence. An acknowledgement has no instant of its own;
it was before the next mark of the watermark, and that one has one. An acknowledgement that no mark follows yet is not judged: its
instant is not known. Where the clock was ahead and was set back, entries that had become due stay so: the latest reading up to
then counts.
"""

from bisect import bisect_left
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

EARLY: Final = "topic string, subscription string, type string, entry_id long, seq long, single boolean"

FIFO: Final = ("exclusive", "failover")
UNKNOWN: Final = "unknown"
"""The record that made the subscription was reclaimed."""


def early_acks(facts: DataFrame) -> DataFrame:
    """One row for each delayed entry and subscription that was done with it before it was due."""
    topics = facts.filter("fact = 'entry' and fire_at_ms > 0").select("topic").distinct()
    # The instant of the next mark. Marks come about once a second, and acknowledgements in groups.
    later = Window.orderBy("seq").rowsBetween(Window.currentRow, Window.unboundedFollowing)
    before = Window.orderBy("seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    next_mark, latest = sf.first("at_ms", ignorenulls=True).over(later), sf.max("at_ms").over(before)
    acks = (
        facts.filter("fact in ('ack', 'mark')")
        .withColumn("at_ms", sf.when(next_mark.isNotNull(), sf.greatest(next_mark, latest)))
        .filter("fact = 'ack'")
    )
    others = facts.filter("fact in ('entry', 'subscribe')")
    columns = (
        "fact",
        "seq",
        "topic",
        "subscription",
        "entry_id",
        "fire_at_ms",
        "at_ms",
        "outcome",
        "below",
        "entries",
    )
    told = acks.select(*columns).union(others.select(*columns)).join(topics, "topic", "left_semi")
    return told.groupBy("topic").applyInArrow(_early_in_topic, EARLY)


def _early_in_topic(facts: pa.Table) -> pa.Table:
    return pa.Table.from_pylist(
        early_in_topic(sorted(facts.to_pylist(), key=lambda fact: int(fact["seq"]))),
        pa.schema(
            [
                ("topic", pa.string()),
                ("subscription", pa.string()),
                ("type", pa.string()),
                ("entry_id", pa.int64()),
                ("seq", pa.int64()),
                ("single", pa.bool_()),
            ]
        ),
    )


def early_in_topic(facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Early acknowledgements of one topic, whose facts are in the order of the ledger."""
    entries = [fact for fact in facts if fact["fact"] == "entry"]
    # Of an entry that was rescheduled the last instant counts, and nobody waits for one that was cancelled.
    fires = {fact["entry_id"]: fact["fire_at_ms"] for fact in entries if fact["fire_at_ms"]}
    for fact in entries:
        if fact["outcome"] == "cancelled":
            fires.pop(fact["entry_id"], None)
    delayed = sorted(fires)
    types: dict[str, str] = {}
    below: dict[str, int] = {}
    early: list[dict[str, Any]] = []
    for fact in facts:
        name = fact["subscription"]
        if fact["fact"] == "subscribe":
            types[name] = fact["outcome"]
        elif fact["fact"] == "ack":
            upto = max(fact["below"], below.get(name, 0))
            passed = delayed[bisect_left(delayed, below.get(name, 0)) : bisect_left(delayed, upto)]
            below[name] = upto
            single = [entry_id for entry_id in fact["entries"] if entry_id in fires]
            early += [
                {
                    "topic": fact["topic"], "subscription": name, "type": types.get(name, UNKNOWN),
                    "entry_id": entry_id, "seq": fact["seq"], "single": entry_id in single,
                }
                for entry_id in (*single, *passed)
                if fact["at_ms"] is not None and fact["at_ms"] <= fires[entry_id]
            ]  # fmt: skip
    return early
