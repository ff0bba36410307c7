"""Scheduling: from a message that a door hands over to a version in the ledger, or to the reason why not.

Checks limits, policies, rates, groups and idempotency keys; all of it is decided before anything is written, and the
answer comes when it is durable.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tarry.core import limits
from tarry.core.clock import Clock
from tarry.core.delivery import Outlet
from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    Invalid,
    RateLimited,
    TarryError,
    TooLarge,
    TooManyPending,
    Unavailable,
)
from tarry.core.holder import UNSCOPED, Holder
from tarry.core.ids import ID_CHARS
from tarry.core.message import Message, Scheduled
from tarry.core.names import DEFAULT_NAMESPACE, TOPIC_SCHEME, parse_destination, parse_namespace
from tarry.core.policy import Effective
from tarry.core.rates import Rates
from tarry.engine.admission.arrow import columns_of, frames_of
from tarry.engine.admission.columns import Columns, ColumnsScheduled, Plan, Planner
from tarry.engine.answer import Answer, all_of, failed, settled
from tarry.engine.journal import Journal
from tarry.engine.versions import past_due
from tarry.ledger.record import Put, encode_body
from tarry.registry.registry import Repeat

NOBODY: Final[Mapping[Holder, int]] = {}

UNIT_RECORDS: Final = 4096
UNIT_BYTES: Final = 4 * 1024 * 1024
"""What one unit of a batch holds at the most: a frame is written and synced as a whole."""

GROWTH_BYTES: Final = 256
"""By how much a record that fires, replaces or ends a version is larger than that, its destination's name apart."""


class Scheduling:
    """Accepts messages."""

    def __init__(self, journal: Journal, clock: Clock, outlets: Mapping[str, Outlet]) -> None:
        self._journal = journal
        self._clock = clock
        self._ids = journal.ids
        self._outlets = outlets
        self._rates = Rates()
        self.in_flight: dict[tuple[str, str, str], tuple[bytes, Answer[Scheduled]]] = {}
        """Idempotency keys whose first request is not durable yet."""

    def schedule(self, message: Message, trace: bytes | None = None) -> Answer[Scheduled]:
        """Accept a message; the answer comes when that is durable. The trace is kept with it."""
        try:
            self.check(message)
            repeat = self.repeated(message) if message.idempotency_key is not None else None
            if repeat is not None:
                return repeat
            put, due_at_ms = self.plan(message, self._clock.now_ms(), trace=trace)
        except TarryError as error:
            return failed(error)
        answer: Answer[Scheduled] = Answer()
        key = None
        if message.idempotency_key is not None:
            key = put.namespace, put.owner, message.idempotency_key
            self.in_flight[key] = (put.fingerprint, answer)

        def durable(error: TarryError | None) -> None:
            if key is not None:
                self.in_flight.pop(key, None)
            if error is not None:
                answer.fail(error)
            else:
                answer.settle(Scheduled(self._ids.make(seq, put.fire_at_ms), due_at_ms, past_due(put)))

        try:
            seq = self._journal.append([put], durable)
        except TarryError as error:
            if key is not None:
                self.in_flight.pop(key, None)
            return failed(error)
        return answer

    def schedule_many(
        self, messages: Sequence[Message | TarryError], trace: bytes | None = None
    ) -> Answer[list[Scheduled | TarryError]]:
        """Accept many messages, each by itself; what is not one is given back in its place."""
        results: list[Any] = list(messages)
        parts: list[Answer[Any]] = []

        def came(at: int, single: Answer[Scheduled]) -> None:
            error = single.error()
            results[at] = single.value() if error is None else error

        now_ms = self._clock.now_ms()
        batch: list[tuple[int, Put, int | None]] = []
        ahead: Counter[Holder] = Counter()
        for at, message in enumerate(messages):
            if isinstance(message, TarryError):
                continue
            if message.idempotency_key is not None or message.group is not None:
                # These look at each other: what is before them must be decided first.
                parts += self._append_many(batch, results)
                batch = []
                ahead.clear()
                single = self.schedule(message, trace)
                single.then(partial(came, at))
                parts.append(single)
                continue
            try:
                self.check(message)
                put, due_at_ms = self.plan(message, now_ms, ahead, trace=trace)
                batch.append((at, put, due_at_ms))
                ahead[Holder(put.namespace, put.owner)] += 1
            except TarryError as error:
                results[at] = error
        parts += self._append_many(batch, results)
        return all_of(parts).turned(lambda _: results)

    def _append_many(
        self, batch: list[tuple[int, Put, int | None]], results: list[Any]
    ) -> list[Answer[None]]:
        """Write a batch in units that fit a frame; an answer for each unit comes when its results are there."""
        units: list[Answer[None]] = []
        for unit in _units(batch):
            answer: Answer[None] = Answer()

            def durable(error: TarryError | None, unit: Any = unit, answer: Answer[None] = answer) -> None:
                for at, put, due_at_ms in unit:
                    results[at] = error or Scheduled(results[at], due_at_ms, past_due(put))
                answer.settle(None)

            try:
                first = self._journal.append([put for _, put, _ in unit], durable)
            except TarryError as error:
                for at, _, _ in unit:
                    results[at] = error
                continue
            units.append(answer)
            for offset, (at, put, _) in enumerate(unit):
                results[at] = self._ids.make(first + offset, put.fire_at_ms)
        return units

    def schedule_arrow(
        self, batch: pa.RecordBatch, defaults: Message, trace: bytes | None = None
    ) -> Answer[ColumnsScheduled]:
        """Accept a record batch (see `tarry.engine.admission.arrow` for its columns); rows that cannot be are said."""
        pieces: list[tuple[int, int, Columns | TarryError]] = []
        for start, piece in frames_of(batch):
            try:
                pieces.append((start, piece.num_rows, columns_of(piece, defaults)))
            except TarryError as error:
                if not start:
                    return failed(error)
                # What cannot be read later on is refused by itself.
                pieces.append((start, piece.num_rows, error))
        return self._schedule_pieces(batch.num_rows, pieces, defaults, trace)

    def schedule_columns(
        self, columns: Columns, defaults: Message, trace: bytes | None = None
    ) -> Answer[ColumnsScheduled]:
        """Accept messages that fit a frame together; rows that cannot be taken are said."""
        count = columns.contents.count
        return self._schedule_pieces(count, [(0, count, columns)], defaults, trace)

    def _schedule_pieces(
        self,
        count: int,
        pieces: list[tuple[int, int, Columns | TarryError]],
        defaults: Message,
        trace: bytes | None,
    ) -> Answer[ColumnsScheduled]:
        """Accept pieces of a batch of `count` rows: where each begins, how many rows it has, and its columns."""
        result = ColumnsScheduled(np.zeros(count, f"S{ID_CHARS}"), np.zeros(count, np.int64), {})
        parts: list[Answer[None]] = []

        def decided(
            plan: Plan, start: int, answer: Answer[None], first: int, error: TarryError | None
        ) -> None:
            if error is None:
                due = plan.due(first)
                result.ids[start + plan.rows] = self._ids.make_many(due.seqs, due.fire_at_ms)
                result.due_at_ms[start + plan.rows] = plan.due_at_ms
            else:
                result.errors.update(dict.fromkeys((start + plan.rows).tolist(), error))
            answer.settle(None)

        for start, rows, columns in pieces:
            if isinstance(columns, TarryError):
                result.errors.update(dict.fromkeys(range(start, start + rows), columns))
                continue
            plan, errors = self._planner().plan(columns, defaults, trace)
            result.errors.update((start + row, error) for row, error in errors.items())
            if plan is not None:
                part: Answer[None] = Answer()
                parts.append(part)
                try:
                    self._journal.append_plan(plan, partial(decided, plan, start, part))
                except TarryError as error:
                    decided(plan, start, part, 0, error)
        return all_of(parts).turned(lambda _: result)

    def _planner(self) -> Planner:
        journal = self._journal
        floor_ms = journal.watermark.fire_at_ms
        return Planner(
            self._place, floor_ms, self._clock.now_ms(), journal.pending.by_holder, self._rates.wait_ms,
            journal.ledger.unit_max_bytes,
        )  # fmt: skip

    def repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The first answer again, if this idempotency key was seen with the same request (R13)."""
        holder, key = self.holder(message), message.idempotency_key or ""
        print_ = fingerprint(message)
        pending = self.in_flight.get((*holder, key))
        if pending is not None:
            first_print, first = pending
            self._check_print(first_print, print_)
            return first.turned(lambda scheduled: msgspec.structs.replace(scheduled, repeated=True))
        known = self._journal.registry.idempotency.get(*holder, key)
        if known is None:
            known = self._unscoped(holder.owner, key, print_)
        if known is None:
            return None
        self._check_print(known.fingerprint, print_)
        if known.origin.seq > self._journal.ledger.durable_seq:
            # The disk failed under the first request: whether it is stored is not known.
            raise Unavailable("the first request with this idempotency key is not known to be stored")
        id_ = self._ids.make(known.origin.seq, known.origin.fire_at_ms)
        return settled(Scheduled(id_, known.due_at_ms, known.past_due, repeated=True))

    def check(self, message: Message) -> None:
        """Raise what is wrong with a message wherever it goes; a delay that is too long is told the longest one there."""
        try:
            message.check()
        except DelayTooLong:
            _, _, policy = self._place(message.destination, message.namespace)
            raise DelayTooLong(policy.longest_ms) from None

    def _unscoped(self, owner: str, key: str, print_: bytes) -> Repeat | None:
        """The row of a request in format 1. Another request may be another namespace's, and is none of its business."""
        if not self._journal.pending.scoped_from:
            return None
        known = self._journal.registry.idempotency.get(UNSCOPED, owner, key)
        return known if known is not None and known.fingerprint == print_ else None

    def holder(self, message: Message) -> Holder:
        """The holder of a message; raises what is wrong with its namespace or destination."""
        if message.namespace is not None:
            # One that is not its topic's own is refused later.
            return Holder(parse_namespace(message.namespace), message.owner)
        return Holder(self._place(message.destination, None)[1], message.owner)

    @staticmethod
    def _check_print(first: bytes, again: bytes) -> None:
        if first != again:
            raise Conflict("this idempotency key was used with another request", "reused")

    def plan(
        self,
        message: Message,
        now_ms: int,
        ahead: Mapping[Holder, int] = NOBODY,
        joining: Sequence[bool] = (),
        trace: bytes | None = None,
    ) -> tuple[Put, int | None]:
        """The version that accepts a message, and the due instant to answer; raises what forbids it.

        `ahead` is how many of each holder, and `joining` which members of its group (timed or not), come before it.
        """
        destination, namespace, policy = self._place(message.destination, message.namespace)
        holder = Holder(namespace, message.owner)
        if message.subject is not None and destination.startswith(TOPIC_SCHEME):
            raise Invalid("subject", "is not for messages that are bound for a topic")
        if policy.max_pending_per_owner and not message.follows:
            pending = self._journal.pending.by_holder.get(holder, 0) + ahead.get(holder, 0)
            if pending >= policy.max_pending_per_owner:
                raise TooManyPending(policy.max_pending_per_owner)
        timed = message.due_at_ms is not None or message.delay_ms is not None
        if message.group is not None:
            self._journal.groups.check(holder, message.group, timed, limits.MAX_GROUP_MEMBERS, joining)
        due_at_ms, fire_at_ms = self._times(message, now_ms, policy) if timed else (None, limits.NEVER_MS)
        if policy.accept_per_second and not message.follows:
            wait_ms = self._rates.wait_ms(holder, policy.accept_per_second, now_ms)
            if wait_ms:
                raise RateLimited(wait_ms)
        delay_ms = message.delay_ms
        if message.due_at_ms is not None:
            delay_ms = max(0, message.due_at_ms - now_ms)
        put = Put(
            fire_at_ms, due_at_ms, now_ms, namespace, destination, message.key, message.owner, message.door,
            message.group, message.ttl_ms, None, 0, message.listed, message.payload, message.headers, now_ms,
            delay_ms,
            None, message.idempotency_key,
            fingerprint(message) if message.idempotency_key is not None else b"",
            subject=message.subject, trace=trace,
        )  # fmt: skip
        self._check_size(put)
        return put, due_at_ms

    def _check_size(self, put: Put) -> None:
        """Raise `TooLarge` for a message whose later records may not fit into a segment of the ledger.

        It is written once more when it is fired, carried or a dead letter, then a little larger; and of a group, with the
        ends of all others in the same unit. A unit has half of its room for the one, and half for the others.
        """
        unit_max_bytes = self._journal.ledger.unit_max_bytes
        content_bytes = len(put.payload) + sum(len(name) + len(value) for name, value in put.headers.items())
        if put.group is None and 4 * content_bytes < unit_max_bytes:
            # As nearly every message: it need not be measured.
            return
        limit = unit_max_bytes // 2 if put.group is not None else unit_max_bytes
        if len(encode_body(put)) + GROWTH_BYTES + len(put.destination.encode()) > limit:
            raise TooLarge("a message of a group" if put.group is not None else "the message", limit)
        # Of a listed message all that it was is in its end.
        limit = unit_max_bytes // 2 // limits.MAX_GROUP_MEMBERS
        if put.group is not None and put.listed and len(put.payload) + _header_bytes(put) > limit:
            raise TooLarge("a listed message of a group", limit)

    def _times(self, message: Message, now_ms: int, policy: Effective) -> tuple[int, int]:
        """The due instant and the fire instant of a timed message."""
        due_at_ms = message.due_at_ms if message.due_at_ms is not None else now_ms + (message.delay_ms or 0)
        if not policy.delayed_delivery:
            # At once means at once: the tick is for delays.
            return min(due_at_ms, now_ms), max(now_ms, self._journal.watermark.fire_at_ms)
        fire_at_ms = self._journal.fire_at(due_at_ms, now_ms, policy)
        return (max(due_at_ms, policy.round_up(due_at_ms)) if due_at_ms >= now_ms else due_at_ms), fire_at_ms

    def _place(self, destination: str, namespace: str | None) -> tuple[str, str, Effective]:
        """The full destination, its namespace and the policy there; raises `Invalid`, or `Conflict` for one topic too many."""
        if not destination.startswith(TOPIC_SCHEME):
            scheme, separator, _ = destination.partition(":")
            outlet = self._outlets.get(scheme) if separator else None
            if outlet is not None:
                outlet.check(destination)
                namespace = DEFAULT_NAMESPACE if namespace is None else parse_namespace(namespace)
                return destination, namespace, self._journal.policies.effective(None, namespace)
            if separator and "://" in destination:
                raise Invalid("destination", f"there is no outlet for {scheme}:// here")
        topic = parse_destination(destination)
        full, within = topic.full, topic.namespace_name
        if namespace is not None and namespace != within:
            raise Invalid("namespace", f"the destination is in {within}")
        if full not in self._journal.topics.records.by_name:
            self._journal.topics.check_room(full)
        return full, within, self._journal.policies.effective(full, within)


def _header_bytes(put: Put) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in put.headers.items())


def fingerprint(message: Message) -> bytes:
    """What tells a repeated request from another one: everything that was asked for."""
    if message.any_repeat:
        return b""
    body = msgspec.msgpack.encode(msgspec.structs.replace(message, idempotency_key=None))
    return hashlib.blake2b(body, digest_size=16).digest()


def _units(batch: list[tuple[int, Put, int | None]]) -> list[list[tuple[int, Put, int | None]]]:
    """A batch in pieces that fit a frame."""
    units: list[list[tuple[int, Put, int | None]]] = []
    size = UNIT_BYTES
    for item in batch:
        put = item[1]
        length = len(put.payload) + sum(len(name) + len(value) for name, value in put.headers.items()) + 512
        if size + length > UNIT_BYTES or len(units[-1]) >= UNIT_RECORDS:
            units.append([])
            size = 0
        units[-1].append(item)
        size += length
    return units
