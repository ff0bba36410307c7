"""The report as a job: the figures of one moment, as values that a terminal and a page can show."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.pipeline.report import figures
from tarry.pipeline.views.place import find, need_tables

COMING: Final = {"minute": (MINUTE_MS, 60), "hour": (HOUR_MS, 48), "day": (DAY_MS, 30)}
"""How far is looked ahead: by unit, its length and how many of them."""


class Bar(Struct, frozen=True):
    """The messages that go out in one unit of time."""

    at_ms: int
    messages: int


class LatenessFigures(Struct, frozen=True):
    """How late messages were sent, of one door, one destination, or all (`by` is empty)."""

    by: str
    name: str
    messages: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    worst_ms: int


class Failure(Struct, frozen=True):
    """Why messages failed."""

    reason: str
    messages: int


class Owner(Struct, frozen=True):
    """One owner's messages in a namespace."""

    namespace: str
    owner: str
    scheduled: int
    sent: int
    failed: int


class Report(Struct, frozen=True):
    """Everything that is reported."""

    as_of_ms: int
    since_ms: int
    """Ends from here on are counted."""
    scheduled: int
    by_command: int
    """Number of those that were sent by command."""
    entries: int
    """Number of those that are delayed entries of topics."""
    coming: dict[str, list[Bar]]
    """By unit: every one of the next, also those with nothing in them."""
    outcomes: dict[str, int]
    lateness: list[LatenessFigures]
    failures: list[Failure]
    owners: list[Owner]


def report(
    spark: SparkSession,
    options: Mapping[str, str],
    since_ms: int = 0,
    step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make the report on a data folder, or on tables and a ledger. `step` is told what is done next."""
    step("reading the ledger and the tables")
    need_tables(find(options))
    scheduled = _view(spark, options, "scheduled", "fire_at_ms,namespace,owner,entry")
    history = _view(
        spark, {**options, "min.finalised_at_ms": str(since_ms)}, "history",
        "outcome,reason,door,namespace,destination,owner,lateness_ms,messages",
    )  # fmt: skip
    return report_of(scheduled, history, time.time_ns() // 1_000_000, since_ms, step)


def _view(spark: SparkSession, options: Mapping[str, str], view: str, columns: str) -> DataFrame:
    return spark.read.format("tarry").options(**options, view=view, columns=columns).load()


def report_of(
    scheduled: DataFrame,
    history: DataFrame,
    as_of_ms: int,
    since_ms: int = 0,
    step: Callable[[str], None] = lambda _: None,
) -> Report:
    """Make the report on these rows of the two views."""
    scheduled.persist()
    history.persist()
    try:
        step("counting scheduled messages")
        waits = figures.waiting(scheduled).collect()[0]
        coming = {unit: _bars(scheduled, as_of_ms, *lengths) for unit, lengths in COMING.items()}
        step("reading the history")
        outcomes = {row.outcome: row.messages for row in figures.outcomes(history).collect()}
        step("sorting lateness")
        every = history.selectExpr("*", "'' as every")
        late = figures.lateness(every, "every").union(figures.lateness(history, "door"))
        late = late.union(figures.lateness(history, "destination"))
        lateness = [
            LatenessFigures(
                "" if row.by == "every" else row.by, row.name or "", row.messages, row.p50_ms, row.p99_ms,
                row.p999_ms, row.worst_ms,
            )
            for row in late.collect()
        ]  # fmt: skip
        step("adding up failures and owners")
        failures = [Failure(row.reason or "", row.messages) for row in figures.failures(history).collect()]
        owners = [
            Owner(row.namespace or "", row.owner, row.scheduled, row.sent, row.failed)
            for row in figures.owners(scheduled, history).collect()
        ]
        return Report(
            as_of_ms, since_ms, waits.messages, waits.by_command, waits.entries, coming, outcomes, lateness, failures,
            owners,
        )  # fmt: skip
    finally:
        scheduled.unpersist()
        history.unpersist()


def _bars(scheduled: DataFrame, as_of_ms: int, unit_ms: int, units: int) -> list[Bar]:
    found = {row.at_ms: row.messages for row in figures.coming(scheduled, unit_ms, as_of_ms, units).collect()}
    first_ms = as_of_ms // unit_ms * unit_ms
    return [Bar(at_ms, found.get(at_ms, 0)) for at_ms in range(first_ms, first_ms + units * unit_ms, unit_ms)]
