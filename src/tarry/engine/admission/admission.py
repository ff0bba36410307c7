"""Accepting messages: each by itself or all or none, as rows or as columns. Each call is one span of a trace."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from tarry.core.errors import Conflict, Invalid, TarryError, TooLarge
from tarry.core.messages.delivery import Outlet
from tarry.core.messages.ids import ID_CHARS, Ids
from tarry.core.messages.message import Message, NamedMessage, Scheduled
from tarry.core.telemetry.tracing import TRACEPARENT
from tarry.core.time.clock import Clock
from tarry.engine.admission.columns import Columns, ColumnsScheduled, Plan
from tarry.engine.admission.destinations import Destinations, OwnerLimits
from tarry.engine.admission.first_versions import Before, FirstVersions, waits_for_leader
from tarry.engine.admission.idempotency import Idempotency
from tarry.engine.admission.naming import Naming
from tarry.engine.admission.planner import Planner
from tarry.engine.answer import Answer, all_of, failed
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.commands import Commands
from tarry.engine.queries.finding import Finding
from tarry.engine.records.versions import past_due
from tarry.engine.state.engine_state import EngineState
from tarry.engine.tracing import Tracing
from tarry.ledger.frame import ROW_BYTES
from tarry.ledger.record import Put, encode

T = TypeVar("T")

UNIT_RECORDS: Final = 4096
UNIT_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of one unit of rows: a frame is written and synced as a whole."""

ROW_OVERHEAD_BYTES: Final = 512
"""Bytes of a row in a unit beside its payload and headers, about."""


class Admission:
    """Accepts messages; answers come when they are durable."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        ids: Ids,
        outlets: Mapping[str, Outlet],
        finding: Finding,
        commands: Commands,
        tracing: Tracing | None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._ids = ids
        self._tracing = tracing
        destinations = Destinations(state, outlets)
        owner_limits = OwnerLimits(state.pending)
        self._idempotency = Idempotency(journal, state, ids, destinations)
        self.versions = FirstVersions(journal, state, destinations, owner_limits)
        """Makes the first versions of messages, also of those that repeats accept."""
        self._planner = Planner(journal, state, destinations, owner_limits)
        self._naming = Naming(
            journal,
            state,
            bodies,
            clock,
            ids,
            finding,
            commands,
            self.versions,
            self._idempotency,
            self._write,
        )

    # Operations

    def schedule(self, message: Message) -> Answer[Scheduled]:
        """Accept a message: a batch of one."""
        if self._tracing is not None:
            return self._traced([message], lambda trace: self._schedule(message, trace))
        return self._schedule(message, None)

    def schedule_many(
        self, messages: Sequence[Message | TarryError], *, all_or_none: bool = False
    ) -> Answer[Any]:
        """Accept messages, each by itself: an error stands in the place of its message.

        With `all_or_none` they are one unit of the ledger, or the answer is the error of the first that cannot be taken.
        """
        take: Callable[[bytes | None], Answer[Any]] = partial(
            self._all_or_none if all_or_none else self._each, messages
        )
        if self._tracing is None:
            return take(None)
        return self._traced([one for one in messages if isinstance(one, Message)], take)

    def schedule_columns(self, columns: Columns, defaults: Message) -> Answer[ColumnsScheduled]:
        """Accept the rows of columns, each by itself; `defaults` has what no row can say."""
        if self._tracing is None:
            return self._columns(columns, defaults, None)
        take = partial(self._columns, columns, defaults)
        return self._tracing.accepted("schedule", defaults.door, columns.contents.count, (), take)

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The answer to an earlier request with a message's idempotency key; None if there was none, or it failed."""
        try:
            return self._idempotency.repeated(message)
        except TarryError as error:
            return failed(error)

    def any_repeated(self, columns: Columns, defaults: Message) -> bool:
        """Whether one of these requests may have come before: then they have to be accepted as messages, not as columns."""
        return self._idempotency.any_seen(columns, defaults.namespace)

    def _traced(self, messages: Sequence[Message], take: Callable[[bytes | None], Answer[T]]) -> Answer[T]:
        if not messages or self._tracing is None:
            # Nothing of it can be accepted, and so nothing is told.
            return take(None)
        callers = [one.headers[TRACEPARENT] for one in messages if TRACEPARENT in one.headers]
        return self._tracing.accepted("schedule", messages[0].door, len(messages), callers, take)

    # Rows

    def _schedule(self, message: Message, trace: bytes | None) -> Answer[Scheduled]:
        if isinstance(message, NamedMessage):
            return self._naming.schedule(message, trace)
        try:
            message.check()
            repeat = None if message.idempotency_key is None else self._idempotency.repeated(message)
            if repeat is not None:
                return repeat
            put = self.versions.make(message, self._clock.now_ms(), trace=trace)
        except TarryError as error:
            return failed(error)
        answer: Answer[Scheduled] = Answer()
        self._write([put], [answer])
        return answer

    def _each(
        self, messages: Sequence[Message | TarryError], trace: bytes | None
    ) -> Answer[list[Scheduled | TarryError]]:
        unit = _Unit(self._clock.now_ms(), trace)
        unit_bytes = min(UNIT_BYTES, self._journal.unit_max_bytes)
        answers: list[Answer[Scheduled]] = []
        for message in messages:
            if isinstance(message, TarryError):
                answers.append(failed(message))
            elif isinstance(message, NamedMessage) or message.group is not None or message.leads is not None:
                # It looks at others: what is before it must be decided first.
                unit = self._written(unit)
                answers.append(self._schedule(message, trace))
            else:
                size_bytes = _size_of(message)
                if unit.is_full(size_bytes, unit_bytes) or unit.has_key(message.idempotency_key):
                    unit = self._written(unit)
                answers.append(self._add(message, unit))
                unit.size_bytes += size_bytes
        self._written(unit)
        return all_of(answers).map(lambda settled: [_outcome(one) for one in settled])

    def _all_or_none(
        self, messages: Sequence[Message | TarryError], trace: bytes | None
    ) -> Answer[list[Scheduled | TarryError]]:
        unit = _Unit(self._clock.now_ms(), trace)
        try:
            good = _checked(messages)
            answers = self._all_repeated(good)
            if answers is None:
                led = {(self._idempotency.holder(one), one.leads) for one in good if one.leads is not None}
                for message in good:
                    put = self.versions.make(message, unit.now_ms, unit.before, trace)
                    is_led = (
                        message.group is not None
                        and (self._idempotency.holder(message), message.group) in led
                    )
                    unit.add(waits_for_leader(put) if is_led else put)
                if led:
                    self._check_led(unit)
                answers = unit.answers
        except TarryError as error:
            return failed(error)
        self._written(unit)
        return all_of(answers).map(lambda settled: [one.value() for one in settled])

    def _all_repeated(self, messages: Sequence[Message]) -> list[Answer[Scheduled]] | None:
        """The first answers again, if the idempotency keys of all messages were seen with the same requests."""
        repeats = [self._idempotency.repeated(one) for one in messages if one.idempotency_key is not None]
        if len(repeats) not in (0, len(messages)):
            raise Invalid("idempotency_key", "all messages have one, or none has")
        known = [repeat for repeat in repeats if repeat is not None]
        if known and len(known) != len(messages):
            raise Conflict("an idempotency key was used with another request; use a new one", "reused")
        return known or None

    def _check_led(self, unit: "_Unit") -> None:
        """Raise unless a led group can be written once more, in one unit, when its leader is sent."""
        limit = self._journal.unit_max_bytes // 2
        if sum(len(encode(put).body) + ROW_BYTES for put in unit.puts) > limit:
            raise TooLarge("a group that is led", limit)

    def _add(self, message: Message, unit: "_Unit") -> Answer[Scheduled]:
        try:
            message.check()
            repeat = None if message.idempotency_key is None else self._idempotency.repeated(message)
            if repeat is not None:
                return repeat
            unit.add(self.versions.make(message, unit.now_ms, unit.before, unit.trace))
        except TarryError as error:
            return failed(error)
        return unit.answers[-1]

    def _written(self, unit: "_Unit") -> "_Unit":
        """Write a unit; gives the next one."""
        if unit.puts:
            self._write(unit.puts, unit.answers)
        return _Unit(unit.now_ms, unit.trace)

    def _write(self, puts: Sequence[Put], answers: Sequence[Answer[Scheduled]]) -> None:
        """Enqueue first versions as one unit, and settle their answers when it is durable."""

        def durable(error: TarryError | None) -> None:
            for seq, (put, answer) in enumerate(zip(puts, answers, strict=True), first):
                if error is not None:
                    answer.fail(error)
                else:
                    id_ = self._ids.make(seq, put.fire_at_ms)
                    answer.settle(Scheduled(id_, put.due_at_ms, past_due(put)))

        try:
            first = self._journal.append(puts, durable)
        except TarryError as error:
            for answer in answers:
                answer.fail(error)

    # Columns

    def _columns(self, columns: Columns, defaults: Message, trace: bytes | None) -> Answer[ColumnsScheduled]:
        rows = columns.contents.count
        result = ColumnsScheduled(np.zeros(rows, f"S{ID_CHARS}"), np.zeros(rows, np.int64), {})
        units: list[Answer[None]] = []

        def decided(plan: Plan, first_seq: int, error: TarryError | None) -> None:
            if error is None:
                seqs = np.arange(first_seq, first_seq + len(plan.rows))
                result.ids[plan.rows] = self._ids.make_many(seqs, plan.fire_at_ms)
                result.due_at_ms[plan.rows] = plan.due_at_ms
            else:
                result.errors.update(dict.fromkeys(plan.rows.tolist(), error))

        plans, errors = self._planner.plan(columns, defaults, self._clock.now_ms(), trace)
        result.errors.update(errors)
        units = [self._write_plan(plan, partial(decided, plan)) for plan in plans]
        return all_of(units).map(lambda _: result)

    def _write_plan(self, plan: Plan, decided: Callable[[int, TarryError | None], None]) -> Answer[None]:
        """Enqueue a plan; `decided` is told its first seq once it is durable, or why it was not taken."""
        answer: Answer[None] = Answer()

        def durable(error: TarryError | None) -> None:
            decided(first, error)
            answer.settle(None)

        first = 0
        try:
            first = self._journal.append(plan.written, durable)
        except TarryError as error:
            durable(error)
        return answer


class _Unit:
    """Rows that are written together."""

    __slots__ = ("_keys", "answers", "before", "now_ms", "puts", "size_bytes", "trace")

    def __init__(self, now_ms: int, trace: bytes | None) -> None:
        self.now_ms = now_ms
        self.trace = trace
        self.puts: list[Put] = []
        self._keys: set[str] = set()
        """Idempotency keys of these, which nobody else knows of before they are written."""
        self.answers: list[Answer[Scheduled]] = []
        self.before = Before()
        self.size_bytes = 0

    def is_full(self, more_bytes: int, unit_bytes: int) -> bool:
        """Whether there is no room for so many bytes more."""
        return len(self.puts) >= UNIT_RECORDS or self.size_bytes + more_bytes > unit_bytes

    def has_key(self, key: str | None) -> bool:
        """Whether one of these may be the first request with an idempotency key."""
        return key is not None and key in self._keys

    def add(self, put: Put) -> None:
        """One more version, and the answer to come."""
        self.puts.append(put)
        if put.idempotency_key is not None:
            self._keys.add(put.idempotency_key)
        self.answers.append(Answer())
        self.before.add(put)


def _checked(messages: Sequence[Message | TarryError]) -> list[Message]:
    """The requests as messages; raises the first error."""
    for message in messages:
        if isinstance(message, TarryError):
            raise message
        if isinstance(message, NamedMessage):
            # Whether a message of its name waits may take time to find out, and the others would wait with it.
            raise Invalid("name", "is not for messages that are accepted together")
        message.check()
    return [message for message in messages if isinstance(message, Message)]


def _size_of(message: Message) -> int:
    headers = message.headers
    headers_bytes = sum(len(name) + len(value) for name, value in headers.items()) if headers else 0
    return len(message.payload) + headers_bytes + ROW_OVERHEAD_BYTES


def _outcome(answer: Answer[Scheduled]) -> Scheduled | TarryError:
    error = answer.error()
    return error if isinstance(error, TarryError) else answer.value()
