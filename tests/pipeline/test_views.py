"""The views: what waits, what has ended and what was recorded, as of the durable head, without anybody's secrets."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tarry.core.limits import DAY_MS, HOUR_MS
from tests.pipeline.kit import START_MS, Writer
from tests.pipeline.test_stream import index, tables_of


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def view(spark: SparkSession, writer: Writer, name: str, **options: Any) -> DataFrame:
    reader = spark.read.format("tarry").option("view", name)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return reader.load(str(Path(writer.folder).parent))


def by_owner(frame: DataFrame) -> dict[str, Row]:
    return {row.owner: row for row in frame.collect()}


def test_what_waits_is_true_at_the_head_however_much_of_it_is_indexed(
    spark: SparkSession, writer: Writer
) -> None:
    tables = tables_of(writer)
    writer.schedule(HOUR_MS, owner="stays", key="k")
    doomed, moved = writer.schedule(HOUR_MS, owner="doomed"), writer.schedule(2 * HOUR_MS, owner="moved")
    index(spark, writer, tables)
    gone = writer.schedule(3 * HOUR_MS, owner="gone")
    index(spark, writer, tables)
    # From here on nothing is indexed.
    writer.settle(writer.engine.cancel(doomed.id))
    writer.settle(writer.engine.restart(moved.id, delay_ms=3 * DAY_MS))
    writer.settle(writer.engine.cancel(gone.id))
    writer.schedule(40 * DAY_MS, owner="new")
    ended = writer.schedule(50 * DAY_MS, owner="ended")
    writer.settle(writer.engine.cancel(ended.id))
    for _ in range(2):
        rows = by_owner(view(spark, writer, "scheduled"))
        assert set(rows) == {"stays", "moved", "new"}
        assert rows["moved"].due_at_ms == START_MS + 3 * DAY_MS
        stays = rows["stays"]
        assert stays.due_at == datetime.fromtimestamp((START_MS + HOUR_MS) / 1000, UTC).replace(tzinfo=None)
        assert (stays.key, stays.destination, stays.entry) == (
            "k", "persistent://public/default/orders", False,
        )  # fmt: skip
        assert {row.as_of_seq for row in rows.values()} == {writer.ledger.durable_seq}
        index(spark, writer, tables)


def test_there_is_a_view_before_there_are_tables(spark: SparkSession, writer: Writer) -> None:
    writer.schedule(HOUR_MS, owner="a")
    assert set(by_owner(view(spark, writer, "scheduled"))) == {"a"}
