"""The engine: what doors call. It decides, writes through the journal, and answers when that is durable.

All of it runs on one thread. Time comes from the clock that it was given, slow work goes through `Offload`
and sending through `Launch`, so that a simulation can run it with none of the real things behind.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from tarry.core import limits
from tarry.core.clock import Clock
from tarry.core.delivery import Outlet
from tarry.core.errors import (
    Conflict,
    DelayTooLong,
    Invalid,
    NotFound,
    RateLimited,
    TarryError,
    TooManyPending,
)
from tarry.core.ids import ID_CHARS, Ids
from tarry.core.lifecycle import Event, State, Wait, next_state
from tarry.core.message import Message, MessagePage, MessageQuery, MessageView, Scheduled
from tarry.core.names import DEFAULT_NAMESPACE, TOPIC_SCHEME, parse_namespace, parse_topic
from tarry.core.policy import Effective, Policy, Scope
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.arrow import ArrowScheduled, Plan, Planner, due_of, frames_of
from tarry.engine.dispatcher import Dispatcher
from tarry.engine.flights import Launch
from tarry.engine.journal import Journal, past_due
from tarry.engine.listing import list_finalised, list_scheduled
from tarry.engine.rates import Rates
from tarry.engine.settings import EngineSettings
from tarry.engine.topics import Topics
from tarry.engine.upkeep import Offload, Upkeep
from tarry.engine.versions import end_of, new_version
from tarry.engine.views import view_of_ended, view_of_put
from tarry.index.index import Index
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Key, PolicySet, Put, Record, decode
from tarry.registry.registry import Registry


class EngineStats(Struct, frozen=True, kw_only=True):
    """Figures of the engine."""

    pending: int
    in_wheel: int
    in_tail: int
    sending: int
    next_seq: int
    durable_seq: int
    watermark_ms: int
    low_space: bool
    failed: str | None
    owners: int
    topics: int
    next_due_at_ms: int | None
    counters: dict[str, int]
    """accepted, sent, cancelled, failed, retried, damaged: since the ledger began."""


class Found(Struct, frozen=True):
    """A message that is not finalised: its keys, its version, and where it is in its life."""

    origin: Key
    current: Key
    put: Put
    state: State


class Engine:
    """The façade of everything behind the doors."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        registry: Registry,
        index: Index,
        clock: Clock,
        ids: Ids,
        outlets: Mapping[str, Outlet],
        launch: Launch,
        offload: Offload,
        settings: EngineSettings,
        broker_policy: Policy | None = None,
        snapshot_folder: str | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = clock
        self.ready = False
        self.journal = Journal(
            ledger, registry, index, clock, ids, broker_policy or Policy(), settings.lead_ms
        )
        self.dispatcher = Dispatcher(self.journal, outlets, settings, launch, seed)
        self.upkeep = Upkeep(self.journal, self.dispatcher, settings, offload, snapshot_folder)
        self._ids = ids
        self._outlets = outlets
        self._rates = Rates()
        self._in_flight: dict[tuple[str, str], tuple[bytes, Answer[Scheduled]]] = {}
        """Idempotency keys whose first request is not durable yet."""

    @property
    def topics(self) -> Topics:
        """Tarry's own topics."""
        return self.journal.topics

    # Running

    def recover(self) -> None:
        """Arrive at the state of the ledger; then the engine takes work."""
        self.journal.recover()
        self.ready = True

    def tick(self) -> int:
        """One turn of everything: gives the instant at which to come again, or 0 for at once."""
        now_ms = self.clock.now_ms()
        self.journal.horizon.advance(now_ms)
        more = self.dispatcher.turn(now_ms)
        self.topics.pump()
        again_ms = self.upkeep.tick(now_ms)
        if more:
            return 0
        next_ms = self.journal.horizon.next_fire_at_ms()
        return again_ms if next_ms is None else min(again_ms, next_ms)

    def stats(self) -> EngineStats:
        """Figures of the moment."""
        journal = self.journal
        return EngineStats(
            pending=journal.owners.total(),
            in_wheel=len(journal.horizon.wheel),
            in_tail=len(journal.horizon.tail),
            sending=len(self.dispatcher.flights.by_seq),
            next_seq=journal.ledger.next_seq,
            durable_seq=journal.ledger.durable_seq,
            watermark_ms=journal.watermark.fire_at_ms,
            low_space=journal.ledger.low_space,
            failed=None if journal.ledger.failed is None else str(journal.ledger.failed),
            owners=len(journal.owners),
            topics=len(journal.topics.names()),
            next_due_at_ms=journal.horizon.next_fire_at_ms(),
            counters=dict(journal.counters),
        )

    # Scheduling

    def schedule(self, message: Message) -> Answer[Scheduled]:
        """Accept a message; the answer comes when that is durable."""
        try:
            message.check()
            repeat = self._repeated(message) if message.idempotency_key is not None else None
            if repeat is not None:
                return repeat
            put, due_at_ms = self._plan(message, self.clock.now_ms())
        except TarryError as error:
            return failed(error)
        answer: Answer[Scheduled] = Answer()
        key = None if message.idempotency_key is None else (message.owner, message.idempotency_key)
        if key is not None:
            self._in_flight[key] = (put.fingerprint, answer)

        def durable(error: TarryError | None) -> None:
            if key is not None:
                self._in_flight.pop(key, None)
            if error is not None:
                answer.fail(error)
            else:
                answer.settle(Scheduled(self._ids.make(seq, put.fire_at_ms), due_at_ms, past_due(put)))

        try:
            seq = self.journal.append([put], durable)
        except TarryError as error:
            if key is not None:
                self._in_flight.pop(key, None)
            return failed(error)
        return answer

    def schedule_many(self, messages: Sequence[Message | TarryError]) -> Answer[list[Scheduled | TarryError]]:
        """Accept many messages, each by itself; what is not one is given back in its place."""
        results: list[Any] = list(messages)
        answer: Answer[list[Scheduled | TarryError]] = Answer()
        waiting = 1

        def arrived() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                answer.settle(results)

        def settle(at: int, single: Answer[Scheduled]) -> None:
            error = single.error()
            results[at] = single.value() if error is None else error
            arrived()

        now_ms = self.clock.now_ms()
        batch: list[tuple[int, Put, int | None]] = []
        for at, message in enumerate(messages):
            if isinstance(message, TarryError):
                continue
            if message.idempotency_key is not None or message.group is not None:
                # These look at each other: what is before them must be decided first.
                waiting += self._append_many(batch, results, arrived)
                batch = []
                waiting += 1
                self.schedule(message).then(partial(settle, at))
                continue
            try:
                message.check()
                batch.append((at, *self._plan(message, now_ms, len(batch))))
            except TarryError as error:
                results[at] = error
        waiting += self._append_many(batch, results, arrived)
        arrived()
        return answer

    def _append_many(
        self, batch: list[tuple[int, Put, int | None]], results: list[Any], arrived: Callable[[], None]
    ) -> int:
        """Write a batch in units that fit a frame; gives how many times `arrived` will be called later."""
        units = 0
        for unit in _units(batch):

            def durable(error: TarryError | None, unit: Any = unit) -> None:
                for at, put, due_at_ms in unit:
                    results[at] = error or Scheduled(results[at], due_at_ms, past_due(put))
                arrived()

            try:
                first = self.journal.append([put for _, put, _ in unit], durable)
            except TarryError as error:
                for at, _, _ in unit:
                    results[at] = error
                continue
            units += 1
            for offset, (at, put, _) in enumerate(unit):
                results[at] = self._ids.make(first + offset, put.fire_at_ms)
        return units

    def schedule_arrow(self, batch: pa.RecordBatch, defaults: Message) -> Answer[ArrowScheduled]:
        """Accept a record batch (see `tarry.engine.arrow` for its columns); rows that cannot be are said."""
        count = batch.num_rows
        result = ArrowScheduled(np.zeros(count, f"S{ID_CHARS}"), np.zeros(count, np.int64), {})
        answer: Answer[ArrowScheduled] = Answer()
        waiting = 1

        def arrived(plan: Plan | None, start: int, first: int, error: TarryError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if plan is not None and error is None:
                due = due_of(plan, first)
                result.ids[start + plan.rows] = self._ids.make_many(due.seqs, due.fire_at_ms)
                result.due_at_ms[start + plan.rows] = plan.due_at_ms
            elif plan is not None and error is not None:
                result.errors.update(dict.fromkeys((start + plan.rows).tolist(), error))
            if not waiting:
                answer.settle(result)

        try:
            for start, piece in frames_of(batch):
                plan, errors = self._planner().plan(piece, defaults)
                result.errors.update((start + row, error) for row, error in errors.items())
                if plan is not None:
                    waiting += 1
                    try:
                        self.journal.append_plan(plan, partial(arrived, plan, start))
                    except TarryError as error:
                        arrived(plan, start, 0, error)
        except TarryError as error:
            if waiting == 1:
                return failed(error)
            raise
        arrived(None, 0, 0, None)
        return answer

    def _planner(self) -> Planner:
        journal = self.journal
        floor_ms = journal.watermark.fire_at_ms
        return Planner(self._place, floor_ms, self.clock.now_ms(), journal.owners, self._rates.wait_ms)

    def _repeated(self, message: Message) -> Answer[Scheduled] | None:
        """The first answer again, if this idempotency key was seen with the same request (R13)."""
        key = (message.owner, message.idempotency_key or "")
        print_ = fingerprint(message)
        pending = self._in_flight.get(key)
        if pending is not None:
            first_print, first = pending
            self._check_print(first_print, print_)
            answer: Answer[Scheduled] = Answer()

            def repeat(of: Answer[Scheduled]) -> None:
                error = of.error()
                if error is not None:
                    answer.fail(error)
                else:
                    answer.settle(msgspec.structs.replace(of.value(), repeated=True))

            first.then(repeat)
            return answer
        known = self.journal.registry.idempotency.get(*key)
        if known is None:
            return None
        self._check_print(known.fingerprint, print_)
        id_ = self._ids.make(known.origin.seq, known.origin.fire_at_ms)
        return settled(Scheduled(id_, known.due_at_ms, known.past_due, repeated=True))

    @staticmethod
    def _check_print(first: bytes, again: bytes) -> None:
        if first != again:
            raise Conflict("this idempotency key was used with another request", "reused")

    def _plan(self, message: Message, now_ms: int, ahead: int = 0) -> tuple[Put, int | None]:
        """The version that accepts a message, and the due instant to answer; raises what forbids it."""
        destination, namespace, policy = self._place(message.destination, message.namespace)
        if policy.max_pending_per_owner:
            pending = self.journal.owners.get(message.owner, 0) + ahead
            if pending >= policy.max_pending_per_owner:
                raise TooManyPending(policy.max_pending_per_owner)
        timed = message.due_at_ms is not None or message.delay_ms is not None
        if message.group is not None:
            self.journal.check_group(message.owner, message.group, timed, limits.MAX_GROUP_MEMBERS)
        due_at_ms, fire_at_ms = self._times(message, now_ms, policy) if timed else (None, limits.NEVER_MS)
        if policy.accept_per_second:
            wait_ms = self._rates.wait_ms((namespace, message.owner), policy.accept_per_second, now_ms)
            if wait_ms:
                raise RateLimited(wait_ms)
        put = Put(
            fire_at_ms, due_at_ms, now_ms, namespace, destination, message.key, message.owner, message.door,
            message.group, message.ttl_ms, None, 0, message.listed, message.payload, message.headers, now_ms,
            message.delay_ms if due_at_ms is None or message.delay_ms is not None else max(0, due_at_ms - now_ms),
            None, message.idempotency_key,
            fingerprint(message) if message.idempotency_key is not None else b"",
        )  # fmt: skip
        return put, due_at_ms

    def _times(self, message: Message, now_ms: int, policy: Effective) -> tuple[int, int]:
        """The due instant and the fire instant of a timed message."""
        due_at_ms = message.due_at_ms if message.due_at_ms is not None else now_ms + (message.delay_ms or 0)
        if not policy.delayed_delivery:
            due_at_ms = min(due_at_ms, now_ms)
        fire_at_ms = self.journal.fire_at(due_at_ms, now_ms, policy)
        return (max(due_at_ms, policy.round_up(due_at_ms)) if due_at_ms >= now_ms else due_at_ms), fire_at_ms

    def _place(self, destination: str, namespace: str | None) -> tuple[str, str, Effective]:
        """The full destination, its namespace and the policy there; raises `Invalid`."""
        scheme, separator, _ = destination.partition(":")
        outlet = self._outlets.get(scheme) if separator else None
        if outlet is not None:
            outlet.check(destination)
            namespace = DEFAULT_NAMESPACE if namespace is None else parse_namespace(namespace)
            return destination, namespace, self.journal.policies.effective(None, namespace)
        if separator and "://" in destination and not destination.startswith(TOPIC_SCHEME):
            raise Invalid("destination", f"there is no outlet for {scheme}:// here")
        topic = parse_topic(destination, "destination")
        full = topic.full
        if namespace is not None and namespace != topic.namespace_name:
            raise Invalid("namespace", f"the destination is in {topic.namespace_name}")
        return full, topic.namespace_name, self.journal.policies.effective(full, topic.namespace_name)

    # Looking

    def get(self, id: str) -> Answer[MessageView]:
        """A message as it is now."""
        return self._with(id, lambda found: settled(view_of_put(found.put, id, found.state)), ended=True)

    def list_messages(self, query: MessageQuery) -> Answer[MessagePage]:
        """A page of messages."""
        try:
            if query.state == "finalised":
                return self._after_flush(lambda: list_finalised(self.journal, query))
            return settled(list_scheduled(self.journal, self.dispatcher, query))
        except TarryError as error:
            return failed(error)

    def _after_flush(self, read: Callable[[], Any]) -> Answer[Any]:
        answer: Answer[Any] = Answer()

        def flushed(flush: Answer[None]) -> None:
            try:
                flush.value()
                answer.settle(read())
            except TarryError as error:
                answer.fail(error)

        self.upkeep.flush().then(flushed)
        return answer

    # Commands

    def cancel(self, id: str) -> Answer[MessageView]:
        """End a message unsent. Once this is answered it never goes out."""
        return self._with(id, lambda found: self._cancel(id, found))

    def send(self, id: str) -> Answer[MessageView]:
        """Make a message due now."""
        return self._with(id, lambda found: self._send(id, found))

    def restart(
        self, id: str, *, delay_ms: int | None = None, due_at_ms: int | None = None
    ) -> Answer[MessageView]:
        """Begin a message's delay again, or give it a new delay or due instant."""
        if delay_ms is not None and due_at_ms is not None:
            return failed(Invalid("delay_ms", "give a due instant or a delay, not both"))
        if (delay_ms or 0) < 0 or (due_at_ms or 0) < 0:
            return failed(Invalid("delay_ms" if delay_ms else "due_at_ms", "is negative"))
        return self._with(id, lambda found: self._restart(id, found, delay_ms, due_at_ms))

    def _with(
        self, id_: str, act: Callable[[Found], Answer[MessageView]], *, ended: bool = False
    ) -> Answer[MessageView]:
        """Find a message and act on it. A finalised one is shown if `ended`, else a conflict."""
        try:
            found = self._find(id_)
            if isinstance(found, Found):
                return act(found)
        except TarryError as error:
            return failed(error)
        origin = found

        def look() -> MessageView:
            row = self.journal.registry.finalised.get(origin.seq)
            if row is None or row.origin != origin:
                raise NotFound("there is no such message")
            if not ended:
                raise Conflict(f"the message is {row.outcome} already", row.outcome)
            return view_of_ended(row, id_)

        return self._after_flush(look)

    def _find(self, id_: str) -> Found | Key:
        """A message by its id; one that is finalised is given by its origin alone."""
        place = self._ids.read(id_)
        if place is None or place[0] >= self.journal.ledger.next_seq or place[0] == 0:
            raise NotFound("there is no such message")
        origin = Key(place[1], place[0])
        current = self.journal.current(origin)
        if current.seq in self.journal.dead or current.seq < self.journal.ledger.first_seq:
            return origin
        record = decode(self.journal.body(current.seq))
        if (
            not isinstance(record, Put)
            or record.fire_at_ms != current.fire_at_ms
            or (record.origin or current) != origin
        ):
            raise NotFound("there is no such message")
        return Found(origin, current, record, self._state(current, record))

    def _state(self, current: Key, put: Put) -> State:
        if current.seq in self.dispatcher.firing:
            return State.SENDING
        flight = self.dispatcher.flights.by_seq.get(current.seq)
        if flight is not None and flight.state is State.SENDING:
            return State.SENDING
        journal = self.journal
        if (
            current.seq <= journal.recovered_seq
            and current.fire_at_ms <= journal.recovered_at_ms
            and not put.destination.startswith(TOPIC_SCHEME)
            and (flight is None or flight.attempts == put.attempts)
        ):
            # It was overdue at the last recovery: it may have been handed out before the crash (R11).
            return State.SENDING
        return State.SCHEDULED

    def _decide(
        self, id_: str, found: Found, event: Event, again: Callable[[Found], Answer[MessageView]]
    ) -> Any:
        """None if the event may happen now; else an answer that waits for the verdict and tries again."""
        after = next_state(found.state, event)
        flight = self.dispatcher.flights.by_seq.get(found.current.seq)
        if flight is not None and flight.uncertain and found.state is State.SCHEDULED:
            raise Conflict(
                "the message may have been sent already: an attempt ended without a reply", "uncertain"
            )
        if not isinstance(after, Wait):
            return None
        answer: Answer[MessageView] = Answer()

        def look_again() -> None:
            def pass_on(of: Answer[MessageView]) -> None:
                error = of.error()
                if error is None:
                    answer.settle(of.value())
                else:
                    answer.fail(error)

            self._with(id_, again).then(pass_on)

        self.dispatcher.writing.when_settled(found.current.seq, look_again)
        return answer

    def _cancel(self, id_: str, found: Found) -> Answer[MessageView]:
        try:
            waiting = self._decide(id_, found, Event.CANCEL, lambda again: self._cancel(id_, again))
            if waiting is not None:
                return waiting  # type: ignore[no-any-return]
            now_ms = self.clock.now_ms()
            end = end_of(found.put, found.current, "cancelled", now_ms, "cancelled by command")
            records: list[Record] = [end, *self._group_ends(found, now_ms)]
            row = msgspec.structs.replace(
                view_of_put(found.put, id_, State.CANCELLED), finalised_at_ms=now_ms, reason=end.reason
            )
            return self._write(found, records, row)
        except TarryError as error:
            return failed(error)

    def _group_ends(self, found: Found, now_ms: int) -> list[Record]:
        """When the last timed member of a group goes, the whole group is discarded."""
        put = found.put
        group = None if put.group is None else self.journal.registry.groups.get(put.owner, put.group)
        if group is None:
            return []
        left = [member for member in group.members if member.origin != found.origin]
        if any(member.timed for member in left):
            return []
        ends: list[Record] = []
        for member in left:
            record = decode(self.journal.body(member.current.seq))
            assert isinstance(record, Put)
            ends.append(
                end_of(
                    record,
                    member.current,
                    "cancelled",
                    now_ms,
                    "its group lost its last message with a due instant",
                )
            )
        return ends

    def _send(self, id_: str, found: Found) -> Answer[MessageView]:
        try:
            waiting = self._decide(id_, found, Event.SEND, lambda again: self._send(id_, again))
            if waiting is not None:
                return waiting  # type: ignore[no-any-return]
            fire_at_ms = max(self.clock.now_ms(), self.journal.watermark.fire_at_ms)
            put = new_version(found.put, found.current, fire_at_ms)
            return self._write(found, [put], view_of_put(put, id_, State.SCHEDULED))
        except TarryError as error:
            return failed(error)

    def _restart(
        self, id_: str, found: Found, delay_ms: int | None, due_at_ms: int | None
    ) -> Answer[MessageView]:
        try:
            waiting = self._decide(
                id_, found, Event.RESTART, lambda again: self._restart(id_, again, delay_ms, due_at_ms)
            )
            if waiting is not None:
                return waiting  # type: ignore[no-any-return]
            now_ms = self.clock.now_ms()
            topic = found.put.destination if found.put.destination.startswith(TOPIC_SCHEME) else None
            policy = self.journal.policies.effective(topic, found.put.namespace)
            if due_at_ms is None:
                delay_ms = found.put.delay_ms if delay_ms is None else delay_ms
                if delay_ms is None:
                    raise Conflict("the message has no delay to begin again", "untimed")
                due_at_ms = now_ms + delay_ms
            if due_at_ms - now_ms > limits.MAX_DELAY_MS:
                raise DelayTooLong(limits.MAX_DELAY_MS)
            put = new_version(
                found.put, found.current, self.journal.fire_at(due_at_ms, now_ms, policy),
                due_at_ms=max(due_at_ms, policy.round_up(due_at_ms)), delay_ms=max(0, due_at_ms - now_ms),
                delayed_since_ms=now_ms, attempts=0,
            )  # fmt: skip
            return self._write(found, [put], view_of_put(put, id_, State.SCHEDULED))
        except TarryError as error:
            return failed(error)

    def _write(self, found: Found, records: list[Record], view: MessageView) -> Answer[MessageView]:
        answer: Answer[MessageView] = Answer()

        def durable(error: TarryError | None) -> None:
            if error is None:
                answer.settle(view)
            else:
                answer.fail(error)

        self.journal.append(records, durable, essential=view.state is State.CANCELLED)
        self.dispatcher.killed(found.current.seq)
        return answer

    # Policies

    def policy(self, scope: Scope, name: str) -> Policy | None:
        """What was set at a place itself; raises `Invalid` for a bad name."""
        return self.journal.policies.get(scope, name)

    def set_policy(self, scope: Scope, name: str, policy: Policy | None) -> Answer[None]:
        """Set a policy, or remove it with None."""
        try:
            full = self.journal.policies.check_name(scope, name)
            if policy is not None:
                policy.check()
            body = None if policy is None else msgspec.to_builtins(policy)
            answer: Answer[None] = Answer()
            self.journal.append(
                [PolicySet(scope, full, body)],
                lambda error: answer.settle(None) if error is None else answer.fail(error),
            )
            return answer
        except TarryError as error:
            return failed(error)

    def effective_policy(self, topic: str | None, namespace: str) -> Effective:
        """What is in force at a topic or in a namespace."""
        if topic is not None:
            parsed = parse_topic(topic)
            return self.journal.policies.effective(parsed.full, parsed.namespace_name)
        return self.journal.policies.effective(None, parse_namespace(namespace))


def fingerprint(message: Message) -> bytes:
    """What tells a repeated request from another one: everything that was asked for."""
    body = msgspec.msgpack.encode(msgspec.structs.replace(message, idempotency_key=None))
    return hashlib.blake2b(body, digest_size=16).digest()


UNIT_RECORDS = 4096
UNIT_BYTES = 4 * 1024 * 1024


def _units(batch: list[tuple[int, Put, int | None]]) -> list[list[tuple[int, Put, int | None]]]:
    """A batch in pieces that fit a frame."""
    units: list[list[tuple[int, Put, int | None]]] = []
    size = UNIT_BYTES
    for item in batch:
        length = len(item[1].payload) + 512
        if size + length > UNIT_BYTES or len(units[-1]) >= UNIT_RECORDS:
            units.append([])
            size = 0
        units[-1].append(item)
        size += length
    return units
