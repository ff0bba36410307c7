"""Spark's side of the views: what `spark.read.format("tarry")` and, on the history, `spark.readStream.format("tarry")` call.

Who is called where: `pushFilters`, `partitions` and the offsets in the driver's planner process, `read` in the executors.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tarry.core.errors import Invalid
from tarry.pipeline.views import history
from tarry.pipeline.views.filters import (
    OPEN,
    Bounds,
    Wanted,
    both_bounds,
    instant_ms,
    may_be_masked,
    wanted_by_options,
)
from tarry.pipeline.views.history import HISTORY_VIEW, History
from tarry.pipeline.views.parts import ViewParts, grouped, parts_of, view_of
from tarry.pipeline.views.place import find, table_state
from tarry.pipeline.views.shape import ViewColumn, stored_columns

STREAM_ROWS: Final = 100_000
"""Records of the ledger whose ends one streaming batch covers, unless the option `rows` says otherwise."""

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "long": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def spark_schema(columns: Iterable[ViewColumn]) -> StructType:
    """The columns of a view as Spark has them. Spark's own reading of such a text needs a JVM, which a planner process lacks."""
    return StructType([StructField(one.name, _TYPES[one.kind], one.nullable) for one in columns])


def _partitions(parts: list[ViewParts]) -> list[InputPartition]:
    return [InputPartition(one) for one in parts]


def _rows(partition: Any) -> Iterator[pa.RecordBatch]:
    """The rows of one partition; where there are none to read, Spark asks once for those of nothing."""
    parts = getattr(partition, "value", None)
    return parts.read() if isinstance(parts, ViewParts) else iter(())


class ViewReader(DataSourceReader):
    """One read of a view."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._view = view_of(options)
        self._place = find(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._wanted = wanted_by_options(options, stored_columns(self._view.names()))

    def partitions(self) -> list[InputPartition]:
        """The files and ranges that can hold wanted rows."""
        return _partitions(parts_of(self._view, self._place, self._schema, self._wanted))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one part, on an executor."""
        return _rows(partition)


class PushedReader(ViewReader):
    """A reader for a data frame that is read once: it takes the filters that Spark pushes down.

    PySpark keeps the last filters pushed into a data frame and reads it with these ever after, also where it is used again
    without them or with others: `df.filter(…).count()` makes a later `df.count()` wrong, and so is a join of two parts of one
    frame. So it must be asked for, by the option `pushdown`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what leaves out files, row groups and rows; Spark looks at every row again."""
        self._wanted = self._wanted.both(wanted_of(filters, stored_columns(self._schema.names)))
        return filters


def reader_of(options: Mapping[str, str], schema: StructType) -> ViewReader:
    """The reader that the option `pushdown` asks for."""
    pushed = options.get("pushdown", "false").lower() == "true"
    return (PushedReader if pushed else ViewReader)(options, schema)


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history as it grows: by seq, so that each row comes once."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if view_of(options) is not HISTORY_VIEW:
            raise Invalid("view", "only the history can be read as a stream")
        self._options = dict(options)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._upto: int | None = None
        """Where a query ends that takes what is there now."""

    def _cursor(self) -> int:
        table = table_state(find(self._options), "history")
        return 0 if table is None else table.cursor

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The seq before the first: the beginning, `latest`, or the option `from`."""
        begin = self._options.get("from", "1")
        return {"seq": self._cursor() if begin == "latest" else int(begin) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How many records of the ledger one batch covers; each ends one message at most, or one batch."""
        return ReadMaxRows(int(self._options.get("rows", STREAM_ROWS)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what the table holds at this moment, and no more."""
        self._upto = self._cursor()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """As far as this batch goes."""
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        upto = self._cursor() if self._upto is None else self._upto
        return {"seq": max(start["seq"], min(upto, start["seq"] + rows))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The files that hold rows of a batch."""
        table = table_state(find(self._options), "history")
        asked = wanted_by_options(self._options, stored_columns(HISTORY_VIEW.names()))
        wanted = asked.both(Wanted({"seq": (start["seq"] + 1, end["seq"])}))
        if table is None:
            return []
        return _partitions(grouped(History(self._schema, wanted), history.files_of(table, wanted)))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one part, on an executor."""
        return _rows(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for a reader."""


def wanted_of(filters: Iterable[Filter], stored: Mapping[str, str]) -> Wanted:
    """The conditions of pushed filters on stored columns; `stored` names the one behind a column of the view."""
    ranges: dict[str, Bounds] = {}
    values: dict[str, list[Any]] = {}
    for one in filters:
        if not isinstance(one, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            continue
        column = stored.get(one.attribute[0]) if len(one.attribute) == 1 else None
        asked = list(one.value) if isinstance(one, In) else [one.value]
        if column is None or any(value is None for value in asked):
            continue
        if isinstance(asked[0], str):
            if isinstance(one, EqualTo | In) and not may_be_masked(column, asked):
                values[column] = asked
        elif (bounds := _bounds(one, asked)) is not None:
            ranges[column] = both_bounds(ranges.get(column, OPEN), bounds)
    return Wanted(ranges, values)


def _bounds(one: Filter, values: list[Any]) -> Bounds | None:
    numbers = [instant_ms(value) if isinstance(value, datetime) else value for value in values]
    if not all(isinstance(number, int) for number in numbers):
        return None
    low: int | None = min(numbers)
    high: int | None = max(numbers)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        high = None
    elif isinstance(one, LessThan | LessThanOrEqual):
        # An instant was rounded down; the millisecond that it lies in counts.
        high = None if high is None else high + 1
        low = None
    return low, high
