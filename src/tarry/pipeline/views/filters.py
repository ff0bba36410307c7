"""Conditions on stored columns, as the options of a read name them.

They choose files by the Delta log, row groups by the statistics in Parquet's footers, and rows.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.names import TOPIC_SCHEME

Bounds = tuple[int | None, int | None]
OPEN: Final[Bounds] = (None, None)


class Wanted(Struct, frozen=True):
    """Conditions on rows, by stored column."""

    ranges: dict[str, Bounds] = {}
    """Both ends count; None is open."""
    values: dict[str, list[Any]] = {}

    def both(self, other: "Wanted") -> "Wanted":
        """The conditions of both."""
        ranges = {
            name: both_bounds(self.ranges.get(name, OPEN), other.ranges.get(name, OPEN))
            for name in {*self.ranges, *other.ranges}
        }
        values = self.values | other.values
        for name in self.values.keys() & other.values.keys():
            values[name] = [value for value in self.values[name] if value in other.values[name]]
        return Wanted(ranges, values)

    def overlaps(self, column: str, low: int, high: int) -> bool:
        """Whether values from low to high can be wanted."""
        least, most = self.ranges.get(column, OPEN)
        return (least is None or high >= least) and (most is None or low <= most)

    def row_groups(self, file: pq.ParquetFile, base: int = 0, floor_ms: int = 0) -> list[int]:
        """The row groups that can hold wanted rows, whose keys are what base and floor make of them (`schema.py`)."""
        return [
            number
            for number in range(file.metadata.num_row_groups)
            if self._in_group(file.metadata.row_group(number), base, floor_ms)
        ]

    def _in_group(self, group: Any, base: int, floor_ms: int) -> bool:
        for at in range(group.num_columns):
            column = group.column(at)
            name, statistics = column.path_in_schema, column.statistics
            if statistics is None or not statistics.has_min_max:
                continue
            low, high = statistics.min, statistics.max
            if name == "fire_at_ms":
                low, high = max(low, floor_ms), max(high, floor_ms)
            elif name == "seq":
                low, high = low + base, high + base
            if name in self.ranges and not self.overlaps(name, low, high):
                return False
            if name in self.values and not any(low <= value <= high for value in self.values[name]):
                return False
        return True

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is wanted, by its values of the filtered columns."""
        for name, (low, high) in self.ranges.items():
            if name in row and (
                row[name] is None
                or (low is not None and row[name] < low)
                or (high is not None and row[name] > high)
            ):
                return False
        return all(row[name] in values for name, values in self.values.items() if name in row)

    def rows(self, table: pa.Table) -> pa.Table:
        """The wanted rows of a table, as far as its columns tell."""
        for name, (low, high) in self.ranges.items():
            if name in table.column_names and low is not None:
                table = table.filter(pc.greater_equal(table.column(name), low))
            if name in table.column_names and high is not None:
                table = table.filter(pc.less_equal(table.column(name), high))
        for name, values in self.values.items():
            if name in table.column_names:
                kind = table.schema.field(name).type
                table = table.filter(pc.is_in(table.column(name), pa.array(values, kind)))
        return table


def wanted_by_options(options: Mapping[str, str], stored: Mapping[str, str]) -> Wanted:
    """The conditions in the options `is.COLUMN`, `min.COLUMN` and `max.COLUMN`. Both bounds count."""
    wanted = Wanted()
    for option, text in options.items():
        how, dot, name = option.partition(".")
        if not dot or how not in ("is", "min", "max"):
            continue
        if name not in stored:
            raise Invalid(option, "there is no such column")
        column = stored[name]
        if how != "is":
            bound = _number(option, text)
            wanted = wanted.both(Wanted({column: (bound, None) if how == "min" else (None, bound)}))
        elif may_be_masked(column, [text]):
            raise Invalid(option, "may be masked: only topics can be asked for")
        else:
            wanted = wanted.both(Wanted({}, {column: [text]}))
    return wanted


def _number(option: str, text: str) -> int:
    try:
        return int(text) if text.lstrip("-").isdigit() else instant_ms(datetime.fromisoformat(text))
    except ValueError:
        raise Invalid(option, f"{text!r} is neither a number nor an instant") from None


def may_be_masked(column: str, values: list[str]) -> bool:
    """Whether a row may show such a value though it holds another."""
    return column == "destination" and not all(value.startswith(TOPIC_SCHEME) for value in values)


def instant_ms(instant: datetime) -> int:
    """An instant in milliseconds, rounded down; without a zone it is in UTC."""
    aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1_000_000) // 1000


def both_bounds(one: Bounds, other: Bounds) -> Bounds:
    """The bounds that keep what both keep."""
    lows = [low for low in (one[0], other[0]) if low is not None]
    highs = [high for high in (one[1], other[1]) if high is not None]
    return max(lows, default=None), min(highs, default=None)
