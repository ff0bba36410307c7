"""The figures of a report: functions from data frame to data frame, over the views `scheduled` and `history`."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tarry.core.limits import NEVER_MS

LATENESS: Final = (0.5, 0.99, 0.999)
TOP: Final = 20
"""Rows of a table; the rest is left out, the heaviest first."""


def coming(scheduled: DataFrame, unit_ms: int, from_ms: int, units: int) -> DataFrame:
    """How many messages go out in each of the next units of time, as `at_ms` and `messages`; empty ones are left out."""
    first_ms = from_ms // unit_ms * unit_ms
    # What is overdue goes out now.
    at_ms = sf.expr(f"greatest(fire_at_ms, {from_ms}) div {unit_ms} * {unit_ms}")
    return (
        scheduled.filter(sf.col("fire_at_ms") < first_ms + units * unit_ms)
        .groupBy(at_ms.alias("at_ms"))
        .agg(sf.count("*").alias("messages"))
        .orderBy("at_ms")
    )


def waiting(scheduled: DataFrame) -> DataFrame:
    """One row: all that waits, what of it only goes out by command, and the delayed entries of topics."""
    return scheduled.select(
        sf.count("*").alias("messages"),
        sf.count_if(sf.col("fire_at_ms") >= NEVER_MS).alias("by_command"),
        sf.count_if("entry").alias("entries"),
    )


def outcomes(history: DataFrame) -> DataFrame:
    """How messages ended."""
    return history.groupBy("outcome").agg(sf.sum("messages").alias("messages"))


def lateness(history: DataFrame, by: str) -> DataFrame:
    """How long after their due instant messages were sent, by a column. Those sent early by command are left out."""
    sent = history.filter("outcome = 'sent' and lateness_ms >= 0")
    return (
        sent.groupBy(sf.col(by).alias("name"))
        .agg(
            sf.count("*").alias("messages"),
            sf.percentile_approx("lateness_ms", list(LATENESS), 100_000).alias("late"),
            sf.max("lateness_ms").alias("worst_ms"),
        )
        .select(
            sf.lit(by).alias("by"),
            "name",
            "messages",
            *(sf.col("late")[at].alias(name) for at, name in enumerate(("p50_ms", "p99_ms", "p999_ms"))),
            "worst_ms",
        )
        .orderBy(sf.desc("messages"), "name")
        .limit(TOP)
    )


def failures(history: DataFrame) -> DataFrame:
    """Why messages failed."""
    return (
        history.filter("outcome = 'failed'")
        .groupBy("reason")
        .agg(sf.sum("messages").alias("messages"))
        .orderBy(sf.desc("messages"), "reason")
        .limit(TOP)
    )


def owners(scheduled: DataFrame, history: DataFrame) -> DataFrame:
    """Which owners, each within its namespace, have the most messages: waiting, sent and failed."""
    waits = scheduled.selectExpr("namespace", "owner", "1 as scheduled", "0 as sent", "0 as failed")
    ended = history.selectExpr(
        "namespace", "owner", "0", "if(outcome = 'sent', 1, 0)", "if(outcome = 'failed', 1, 0)"
    )
    return (
        waits.union(ended)
        .filter("owner is not null")
        .groupBy("namespace", "owner")
        .agg(*(sf.sum(name).alias(name) for name in ("scheduled", "sent", "failed")))
        .orderBy(sf.desc(sf.expr("scheduled + sent + failed")), "namespace", "owner")
        .limit(TOP)
    )
