"""The report: its figures from rows that can be counted by hand, and all of it from a real ledger."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, NEVER_MS
from tarry.pipeline.report import figures
from tarry.pipeline.report.report import Failure, Owner, Report, report, report_of
from tests.pipeline.kit import START_MS, Writer, index_locally, tables_of

NOW_MS = START_MS + 30_000


@pytest.fixture(scope="module")
def scheduled(spark: SparkSession) -> DataFrame:
    rows = [
        (START_MS, "n", "a", False),  # overdue
        (START_MS + MINUTE_MS, "n", "a", False),
        (START_MS + MINUTE_MS + 1, "n", "b", False),
        (START_MS + 3 * HOUR_MS, "m", "b", True),
        (START_MS + 29 * DAY_MS, "n", "a", False),
        (START_MS + 400 * DAY_MS, "n", "a", False),
        (NEVER_MS, "n", "c", False),
    ]
    return spark.createDataFrame(
        rows, "fire_at_ms long, namespace string, owner string, entry boolean"
    ).coalesce(1)


@pytest.fixture(scope="module")
def history(spark: SparkSession) -> DataFrame:
    sent: list[tuple[Any, ...]] = [
        ("sent", None, "http", "orders" if late < 990 else "mails", "n", "a", late, 1) for late in range(1000)
    ]
    others: list[tuple[Any, ...]] = [
        ("sent", None, "http", "orders", "n", "a", -500, 1),  # by command
        ("failed", "gone <410>", "matrix", "mails", "n", "b", None, 1),
        ("failed", "gone <410>", "matrix", "mails", "n", "b", None, 1),
        ("failed", "too late", "matrix", "mails", "n", "c", None, 1),
        ("cancelled", "its batch was cancelled", None, None, None, None, None, 70),
    ]
    columns = "outcome string, reason string, door string, destination string, namespace string, owner string, lateness_ms long, messages long"
    return spark.createDataFrame(sent + others, columns).coalesce(1)


@pytest.fixture(scope="module")
def made(scheduled: DataFrame, history: DataFrame) -> Report:
    return report_of(scheduled, history, NOW_MS)


def test_what_is_coming_is_counted_by_minute_hour_and_day(made: Report) -> None:
    assert (made.scheduled, made.by_command, made.entries) == (7, 1, 1)
    minutes, hours, days = (made.coming[unit] for unit in ("minute", "hour", "day"))
    assert [len(minutes), len(hours), len(days)] == [60, 48, 30]
    assert [(bar.at_ms - START_MS, bar.messages) for bar in minutes if bar.messages] == [
        (0, 1),
        (MINUTE_MS, 2),
    ]
    assert [(bar.at_ms - START_MS, bar.messages) for bar in hours if bar.messages] == [
        (0, 3),
        (3 * HOUR_MS, 1),
    ]
    assert [bar.messages for bar in days if bar.messages] == [4, 1]


def test_lateness_is_told_by_door_and_destination(made: Report) -> None:
    told = {(one.by, one.name): one for one in made.lateness}
    assert set(told) == {("", ""), ("door", "http"), ("destination", "orders"), ("destination", "mails")}
    every = told["", ""]
    assert (every.messages, every.p50_ms, every.p99_ms, every.p999_ms, every.worst_ms) == (
        1000,
        499,
        989,
        998,
        999,
    )
    assert told["destination", "mails"].p50_ms == 994


def test_failures_owners_and_outcomes(made: Report) -> None:
    assert made.outcomes == {"sent": 1001, "failed": 3, "cancelled": 70}
    assert made.failures == [Failure("gone <410>", 2), Failure("too late", 1)]
    assert made.owners == [
        Owner("n", "a", 4, 1001, 0), Owner("n", "b", 1, 0, 2), Owner("n", "c", 1, 0, 1), Owner("m", "b", 1, 0, 0),
    ]  # fmt: skip


def test_the_next_units_do_not_reach_further_than_they_should(scheduled: DataFrame) -> None:
    rows = figures.coming(scheduled, MINUTE_MS, NOW_MS, 1).collect()
    assert [(row.at_ms, row.messages) for row in rows] == [(START_MS, 1)]


def test_a_report_on_a_real_ledger(spark: SparkSession, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.schedule(5, owner="a")
    writer.run(7)
    index_locally(writer, tables_of(writer))
    writer.schedule(400 * DAY_MS, owner="a")
    found = report(spark, {"path": str(tmp_path)}, since_ms=START_MS)
    assert (found.scheduled, found.outcomes, found.owners) == (
        1,
        {"sent": 1},
        [Owner("public/default", "a", 1, 1, 0)],
    )
    assert [(one.by, one.worst_ms) for one in found.lateness] == [("", 2), ("door", 2), ("destination", 2)]
