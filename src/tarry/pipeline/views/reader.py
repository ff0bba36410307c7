"""The readers behind `spark.read.format("tarry")` and, on the history, `spark.readStream.format("tarry")`.

Who is called where: `pushFilters`, `partitions` and the offsets in the driver's planner process, `read` in the executors.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tarry.core.errors import Invalid
from tarry.pipeline.views import history, records, scheduled
from tarry.pipeline.views.filters import Wanted, wanted_by_options, wanted_of
from tarry.pipeline.views.history import HISTORY_VIEW, History
from tarry.pipeline.views.place import Whereabouts, find, table_state
from tarry.pipeline.views.records import LEDGER, Records
from tarry.pipeline.views.scheduled import SCHEDULED, ScheduledViewFacts
from tarry.pipeline.views.shape import DataView, stored_columns

VIEWS: Final = {view.name: view for view in (SCHEDULED, HISTORY_VIEW, LEDGER)}

TASK_BYTES: Final = 16 << 20
"""Minimum that one task reads; a file is not divided."""

STREAM_ROWS: Final = 100_000
"""Records of the ledger whose ends one streaming batch covers, unless the option `rows` says otherwise."""


def view_of(options: Mapping[str, str]) -> DataView:
    """The view that the option `view` names."""
    name = options.get("view", SCHEDULED.name)
    if name not in VIEWS:
        raise Invalid("view", f"{name!r} is not one of {', '.join(VIEWS)}")
    return VIEWS[name]


class ViewParts(InputPartition):
    """Parts of a view that one task reads, and how."""

    def __init__(self, view: ScheduledViewFacts | History | Records, parts: Sequence[Any]) -> None:
        super().__init__(None)
        self.view = view
        self.parts = parts

    def read(self) -> Iterator[pa.RecordBatch]:
        """Their rows."""
        for part in self.parts:
            yield from self.view.read(part)


def grouped(view: ScheduledViewFacts | History | Records, parts: Sequence[Any]) -> list[InputPartition]:
    """Small files together: a task costs more than most of them."""
    groups: list[InputPartition] = []
    group: list[Any] = []
    size_bytes = 0
    for part in parts:
        if group and size_bytes + part.size_bytes > TASK_BYTES:
            groups.append(ViewParts(view, group))
            group, size_bytes = [], 0
        group.append(part)
        size_bytes += part.size_bytes
    return [*groups, ViewParts(view, group)] if group else groups


class ViewReader(DataSourceReader):
    """One read of a view."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._view = view_of(options)
        self._place = find(options)
        self._schema = schema
        self._wanted = wanted_by_options(options, stored_columns(self._view.every()))

    def partitions(self) -> list[InputPartition]:
        """The files and ranges that can hold wanted rows."""
        return partitions_of(self._view, self._place, self._schema, self._wanted)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one part, on an executor."""
        return partition.read() if isinstance(partition, ViewParts) else iter(())


class PushedReader(ViewReader):
    """A reader for a data frame that is read once: it takes the filters that Spark pushes down.

    PySpark keeps the last filters pushed into a data frame and reads it with these ever after, also where it is used again
    without them or with others: `df.filter(…).count()` makes a later `df.count()` wrong, and so is a join of two parts of one
    frame. So it must be asked for, by the option `pushdown`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what leaves out files, row groups and rows; Spark looks at every row again."""
        self._wanted = self._wanted.both(wanted_of(filters, stored_columns(self._schema)))
        return filters


def reader_of(options: Mapping[str, str], schema: StructType) -> ViewReader:
    """The reader that the option `pushdown` asks for."""
    pushed = options.get("pushdown", "false").lower() == "true"
    return (PushedReader if pushed else ViewReader)(options, schema)


def partitions_of(
    view: DataView, place: Whereabouts, schema: StructType, wanted: Wanted
) -> list[InputPartition]:
    """A view at this moment, divided."""
    if view is SCHEDULED:
        parts, head = scheduled.plan(place, wanted)
        return grouped(ScheduledViewFacts(schema, wanted, head, time.time_ns() // 1_000_000), parts)
    if view is HISTORY_VIEW:
        return grouped(History(schema, wanted), history.plan(place, wanted))
    return grouped(Records(schema, wanted), records.plan(place, wanted))


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The history as it grows: by seq, so that each row comes once."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        if view_of(options) is not HISTORY_VIEW:
            raise Invalid("view", "only the history can be read as a stream")
        self._options = dict(options)
        self._schema = schema
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
        asked = wanted_by_options(self._options, stored_columns(HISTORY_VIEW.every()))
        wanted = asked.both(Wanted({"seq": (start["seq"] + 1, end["seq"])}))
        return (
            [] if table is None else grouped(History(self._schema, wanted), history.files_of(table, wanted))
        )

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one part, on an executor."""
        return partition.read() if isinstance(partition, ViewParts) else iter(())

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for a reader."""
