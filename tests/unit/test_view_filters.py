"""Filters that Spark pushes down: they leave out only what cannot match."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tarry.pipeline.spark_views import spark_schema, wanted_of
from tarry.pipeline.views.filters import Wanted
from tarry.pipeline.views.parts import VIEWS
from tarry.pipeline.views.shape import arrow_schema

STORED = {"due_at": "due_at_ms", "fire_at_ms": "fire_at_ms", "owner": "owner", "destination": "destination"}
AT = datetime(2026, 11, 15, 11, 0, 0, 500, UTC)
AT_MS = 1_794_740_400_000


@pytest.mark.parametrize(
    ("filters", "ranges"),
    [
        ([GreaterThan(("fire_at_ms",), 5)], {"fire_at_ms": (5, None)}),
        ([GreaterThanOrEqual(("due_at",), AT)], {"due_at_ms": (AT_MS, None)}),
        ([LessThan(("due_at",), AT)], {"due_at_ms": (None, AT_MS + 1)}),
        ([GreaterThan(("fire_at_ms",), 5), LessThanOrEqual(("fire_at_ms",), 9)], {"fire_at_ms": (5, 10)}),
        ([EqualTo(("fire_at_ms",), 5), GreaterThan(("fire_at_ms",), 3)], {"fire_at_ms": (5, 5)}),
        ([In(("fire_at_ms",), (7, 3))], {"fire_at_ms": (3, 7)}),
        ([Not(EqualTo(("fire_at_ms",), 5)), EqualTo(("fire_at_ms", "x"), 5), EqualTo(("other",), 5)], {}),
    ],
)
def test_ranges(filters: list[Filter], ranges: dict[str, Any]) -> None:
    assert wanted_of(filters, STORED) == Wanted(ranges)


def test_values() -> None:
    assert wanted_of([EqualTo(("owner",), "a")], STORED) == Wanted({}, {"owner": ["a"]})
    assert wanted_of([In(("owner",), ("a", None))], STORED) == Wanted()
    topic = "persistent://public/default/orders"
    assert wanted_of([EqualTo(("destination",), topic)], STORED) == Wanted({}, {"destination": [topic]})


def test_an_address_that_may_be_masked_is_left_to_spark() -> None:
    assert wanted_of([EqualTo(("destination",), "https://example.org/?a=********")], STORED) == Wanted()


def test_what_an_option_and_a_filter_ask_for_must_both_be_so() -> None:
    asked = Wanted({"seq": (3, None)}, {"owner": ["a", "b"], "door": ["http"]})
    pushed = Wanted({"seq": (1, 9)}, {"owner": ["b", "c"], "key": ["k"]})
    both = asked.both(pushed)
    assert (
        both
        == pushed.both(asked)
        == Wanted({"seq": (3, 9)}, {"owner": ["b"], "door": ["http"], "key": ["k"]})
    )
    table = pa.table({"owner": ["a", "b", "c"]})
    assert both.rows(table).column("owner").to_pylist() == ["b"]
    neither = asked.both(Wanted({}, {"owner": ["c"]}))
    assert neither.rows(table).num_rows == 0
    assert not neither.holds({"owner": "c"})


def test_row_groups_are_chosen_by_their_statistics(tmp_path: Path) -> None:
    table = pa.table(
        {
            "fire_at_ms": list(range(100)),
            "seq": list(range(100)),
            "owner": [f"o{n // 10}" for n in range(100)],
        }
    )
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=10)
    with pq.ParquetFile(tmp_path / "f.parquet") as file:
        assert Wanted({"fire_at_ms": (25, 41)}).row_groups(file) == [2, 3, 4]
        assert Wanted({}, {"owner": ["o3", "o9"]}).row_groups(file) == [3, 9]
        # Nothing fires before the floor.
        assert Wanted({"fire_at_ms": (25, 50)}).row_groups(file, floor_ms=50) == [0, 1, 2, 3, 4, 5]
        assert Wanted({"fire_at_ms": (25, 49)}).row_groups(file, floor_ms=50) == []
        # The rows of a batch are counted from zero in its file.
        assert Wanted({"seq": (1025, 1041)}).row_groups(file, base=1000) == [2, 3, 4]
    assert Wanted({"fire_at_ms": (25, 41)}, {"owner": ["o3"]}).rows(table).column(
        "fire_at_ms"
    ).to_pylist() == [*range(30, 40)]


def test_spark_and_arrow_have_the_same_columns_of_each_view() -> None:
    for view in VIEWS.values():
        columns = view.every()
        assert to_arrow_schema(spark_schema(columns), timezone="UTC") == arrow_schema(columns)
