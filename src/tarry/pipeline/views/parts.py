"""Parts of a view: what can be read by itself, as Arrow record batches, and how much of it is read in one go.

No module of the views knows Spark: `tarry export` reads them without it. What Spark calls is `tarry.pipeline.spark_views`.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from tarry.core.errors import Invalid
from tarry.pipeline.views import history, records, scheduled
from tarry.pipeline.views.filters import Wanted
from tarry.pipeline.views.history import HISTORY_VIEW, History
from tarry.pipeline.views.place import Whereabouts
from tarry.pipeline.views.records import LEDGER, Records
from tarry.pipeline.views.scheduled import SCHEDULED, ScheduledViewFacts
from tarry.pipeline.views.shape import DataView

VIEWS: Final = {view.name: view for view in (SCHEDULED, HISTORY_VIEW, LEDGER)}

TASK_BYTES: Final = 16 << 20
"""Minimum that one task reads; a file is not divided."""


def view_of(options: Mapping[str, str]) -> DataView:
    """The view that the option `view` names."""
    name = options.get("view", SCHEDULED.name)
    if name not in VIEWS:
        raise Invalid("view", f"{name!r} is not one of {', '.join(VIEWS)}")
    return VIEWS[name]


class ViewParts:
    """Parts of a view that are read in one go, and how. They travel to the executors."""

    def __init__(self, view: ScheduledViewFacts | History | Records, parts: Sequence[Any]) -> None:
        self.view = view
        self.parts = parts

    def read(self) -> Iterator[pa.RecordBatch]:
        """Their rows."""
        for part in self.parts:
            yield from self.view.read(part)


def grouped(view: ScheduledViewFacts | History | Records, parts: Sequence[Any]) -> list[ViewParts]:
    """Small files together: a task costs more than most of them."""
    groups: list[ViewParts] = []
    group: list[Any] = []
    size_bytes = 0
    for part in parts:
        if group and size_bytes + part.size_bytes > TASK_BYTES:
            groups.append(ViewParts(view, group))
            group, size_bytes = [], 0
        group.append(part)
        size_bytes += part.size_bytes
    return [*groups, ViewParts(view, group)] if group else groups


def parts_of(view: DataView, place: Whereabouts, schema: pa.Schema, wanted: Wanted) -> list[ViewParts]:
    """A view at this moment, divided."""
    if view is SCHEDULED:
        parts, head = scheduled.plan(place, wanted)
        return grouped(ScheduledViewFacts(schema, wanted, head, time.time_ns() // 1_000_000), parts)
    if view is HISTORY_VIEW:
        return grouped(History(schema, wanted), history.plan(place, wanted))
    return grouped(Records(schema, wanted), records.plan(place, wanted))
