"""Accepting messages while somebody is told of it: the same calls as those of `Scheduling` and `Together`, each as one span."""

from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from tarry.core.errors import TarryError
from tarry.core.message import Message, Scheduled
from tarry.core.tracing import TRACEPARENT, Tracer
from tarry.engine.admission.columns import Columns, ColumnsScheduled
from tarry.engine.admission.scheduling import Scheduling
from tarry.engine.admission.together import Together
from tarry.engine.answer import Answer
from tarry.engine.tracing import T, accepted


class TracedScheduling:
    """Accepts messages."""

    def __init__(self, scheduling: Scheduling, together: Together, tracer: Tracer) -> None:
        self._scheduling = scheduling
        self._together = together
        self._tracer = tracer

    def schedule(self, message: Message) -> Answer[Scheduled]:
        """Accept a message."""
        return self._accept([message], partial(self._scheduling.schedule, message))

    def together(self, messages: Sequence[Message]) -> Answer[list[Scheduled]]:
        """Accept messages as one, all or none."""
        return self._accept(messages, partial(self._together.schedule, messages))

    def schedule_many(self, messages: Sequence[Message | TarryError]) -> Answer[list[Scheduled | TarryError]]:
        """Accept many messages, each by itself."""
        given = [one for one in messages if isinstance(one, Message)]
        return self._accept(given, partial(self._scheduling.schedule_many, messages))

    def schedule_arrow(self, batch: pa.RecordBatch, defaults: Message) -> Answer[ColumnsScheduled]:
        """Accept a record batch."""
        take = partial(self._scheduling.schedule_arrow, batch, defaults)
        return accepted(self._tracer, "schedule", defaults.door, batch.num_rows, (), take)

    def schedule_columns(self, columns: Columns, defaults: Message) -> Answer[ColumnsScheduled]:
        """Accept messages that fit a frame together."""
        take = partial(self._scheduling.schedule_columns, columns, defaults)
        return accepted(self._tracer, "schedule", defaults.door, columns.contents.count, (), take)

    def _accept(self, messages: Sequence[Message], take: Callable[[bytes | None], Answer[T]]) -> Answer[T]:
        if not messages:
            # Nothing of it can be accepted, and so nothing is told.
            return take(None)
        callers = [one.headers[TRACEPARENT] for one in messages if TRACEPARENT in one.headers]
        return accepted(self._tracer, "schedule", messages[0].door, len(messages), callers, take)
