"""Finding messages by their ids: in memory, in the ledger, in the index, or among those that are finalised.

An id says where the first version of its message is; what became of that is looked up from there. A message that only the
index knows of is fetched from it, and then looked for again: it may have changed meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import Struct

from tarry.core.errors import Conflict, Damage, NotFound, TarryError
from tarry.core.messages.ids import Ids
from tarry.core.messages.lifecycle import Event, State
from tarry.core.messages.message import MessageView
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, all_of, failed, settled
from tarry.engine.bodies.bodies import Bodies, Body, BodyNotAtHand
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.flight import Flight
from tarry.engine.journal.journal import Journal
from tarry.engine.queries.views import view_of_ended
from tarry.engine.records.delayed_entry import as_entry, as_message, cancelled, ended_row
from tarry.engine.records.versions import end_of
from tarry.engine.state.engine_state import EngineState
from tarry.engine.upkeep.upkeep import Upkeep
from tarry.ledger.record import FIRST_BATCH_SEQ, Entry, Key, Put, Record, decode
from tarry.registry.registry import EndedRow

T = TypeVar("T")

_NONE: Final = "there is no such message"
_PASSED_OVER: Final = (NotFound, Conflict, Damage)
"""Refusals that are about one message alone: it is not there any more, is not meant, or can be neither read nor sent."""


class Found(Struct, frozen=True):
    """A message that is not finalised: its keys, its version, and where it is in its life."""

    origin: Key
    current: Key
    put: Put
    """As the version has it, and with the attempts since."""
    state: State
    entry: Entry | None = None
    """The record of a delayed entry, which `put` shows as a message."""

    def record_of(self, version: Put) -> Record:
        """The record of a new version of the message."""
        return version if self.entry is None else as_entry(version, self.entry)

    def cancelled(self, now_ms: int, reason: str, error: str | None) -> Record:
        """The record that ends the message as cancelled."""
        if self.entry is not None:
            return cancelled(self.entry, self.current, now_ms)
        return end_of(self.put, self.current, "cancelled", now_ms, reason, error=error)


class Elsewhere(Struct, frozen=True):
    """The present version of a message; only the index knows whether it lives."""

    current: Key


class Fetched(Struct, frozen=True):
    """A version as the index has it."""

    key: Key
    body: Body


class Finding:
    """Finds messages by their ids and names."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        clock: Clock,
        ids: Ids,
        dispatcher: Dispatcher,
        upkeep: Upkeep,
    ) -> None:
        self._journal = journal
        self._state = state
        self._horizon = horizon
        self._bodies = bodies
        self._clock = clock
        self._dispatcher = dispatcher
        self._upkeep = upkeep
        self._ids = ids

    def after_flush(self, read: Callable[[], Any]) -> Answer[Any]:
        """The result of a look into the registry, once that is up to date and may be shown."""

        def look() -> Any:
            self._journal.check_shown()
            return read()

        return self._upkeep.flush().map(lambda _: look())

    def find(
        self,
        id_: str,
        act: Callable[[Found], Answer[T]],
        namespace: str | None = None,
        *,
        ended: bool = False,
        fetched: Fetched | None = None,
    ) -> Answer[T]:
        """Find a message and act on it. A finalised one is shown if `ended`, else a conflict."""
        try:
            self._journal.check_shown()
            found = self._find(id_, fetched)
            if isinstance(found, Found):
                _check_namespace(found.put.namespace, namespace)
                return act(found)
        except TarryError as error:
            return failed(error)
        answer: Answer[T] = Answer()
        if isinstance(found, Elsewhere):

            def look_again(body: Body) -> None:
                again = Fetched(found.current, body)
                self.find(id_, act, namespace, ended=ended, fetched=again).forward_to(answer)

            self._bodies.look_up(found.current, look_again)
            return answer
        origin = found

        def look() -> Answer[T]:
            row = self._ended_row(origin)
            if row is None and not isinstance(self.at(origin, fetched), Key):
                # A retry began it again while the registry was brought up to date.
                return self.find(id_, act, namespace, ended=ended)
            if row is None:
                view = self._ready(id_, origin)
            else:
                view = view_of_ended(row, id_, self._state.names.name_of(origin))
            _check_namespace(view.namespace, namespace)
            if not ended:
                raise Conflict(f"the message is {view.state} already", view.state)
            return cast(Answer[T], settled(view))

        return self.after_flush(look).and_then(lambda again: again)

    def find_ended(
        self, id_: str, act: Callable[[EndedRow], Answer[T]], namespace: str | None = None
    ) -> Answer[T]:
        """Find a message that is finalised and act on it; one that is not is a conflict."""

        def waits(found: Found) -> Answer[MessageView]:
            raise Conflict(f"the message is {found.state}, and has not ended", found.state)

        def look(view: MessageView) -> Answer[T]:
            if view.finalised_at_ms is None:
                raise Conflict(f"the message is {view.state}, and has not ended", view.state)
            place = self._ids.read(id_)
            row = None if place is None else self._ended_row(Key(place[1], place[0]))
            if row is None:
                raise Conflict(f"the message is {view.state} already", view.state)
            return act(row)

        answer: Answer[T] = Answer()

        def looked(of: Answer[MessageView]) -> None:
            try:
                look(of.value()).forward_to(answer)
            except TarryError as error:
                answer.fail(error)

        self.find(id_, waits, namespace, ended=True).then(looked)
        return answer

    def _ended_row(self, origin: Key) -> EndedRow | None:
        """The end of a message, as the registry has it."""
        registry = self._state.registry
        row = registry.finalised.get(origin.seq)
        if row is None and (live := registry.live.get(origin.seq)) is not None and live.origin == origin:
            # A later version that could not be read ended under its own key.
            return registry.finalised.get(live.current.seq)
        return None if row is not None and row.origin != origin else row

    def _find(self, id_: str, fetched: Fetched | None) -> Found | Elsewhere | Key:
        place = self._ids.read(id_)
        if place is None or place[0] == 0 or not self._was_given_out(place[0]):
            raise NotFound(_NONE)
        return self.at(Key(place[1], place[0]), fetched)

    def at(self, origin: Key, fetched: Fetched | None = None) -> Found | Elsewhere | Key:
        """A message by the key of its first version; one that is finalised is given by that key alone."""
        current = self._state.current(origin)
        if current.seq in self._state.dead or self._state.passed.has_passed(current):
            return origin
        body: Body | Elsewhere = self._body(current)
        if isinstance(body, Elsewhere):
            if fetched is None or fetched.key != current:
                return body
            body = fetched.body
        if isinstance(body, Damage):
            raise body
        if body is None:
            # The index has none that lives.
            return origin
        record = decode(body)
        if (
            not isinstance(record, Put | Entry)
            or max(record.fire_at_ms, self._floor_ms(current.seq)) != current.fire_at_ms
            or (record.origin or current) != origin
        ):
            raise NotFound(_NONE)
        if isinstance(record, Put):
            flight = self._dispatcher.flights.by_seq.get(current.seq)
            put = record if flight is None else flight.told(record)
            return Found(origin, current, put, self._life(current, record, flight))
        if not self._state.topics.waits(record, current.seq):
            return origin
        return Found(origin, current, as_message(record), State.SCHEDULED, record)

    def _ready(self, id_: str, origin: Key) -> MessageView:
        """A delayed entry that was sent without a row for it, as long as its topic has its first record."""
        try:
            entry = decode(self._bodies.one(origin.seq))
        except (BodyNotAtHand, NotFound):
            entry = None
        if (
            not isinstance(entry, Entry)
            or not entry.fire_at_ms == origin.fire_at_ms > 0
            or entry.origin is not None
        ):
            raise NotFound(_NONE)
        topic = self._state.topics.by_name.get(entry.topic)
        if topic is None or topic.seq(entry.entry_id) != origin.seq:
            raise NotFound(_NONE)
        if entry.entry_id < topic.first and not self._was_due(origin):
            # Every subscription was done with it before it was due, and the topic has forgotten it.
            raise NotFound(_NONE)
        _, _, ended = ended_row(msgspec.structs.replace(entry, origin=origin), Event.READY, entry.fire_at_ms)
        return view_of_ended(ended, id_)

    def _was_due(self, key: Key) -> bool:
        return self._state.passed.has_passed(key) or key.fire_at_ms <= self._clock.now_ms()

    def _was_given_out(self, seq: int) -> bool:
        return seq < self._journal.next_seq or self._state.batches.of(seq) is not None

    def _floor_ms(self, seq: int) -> int:
        """Before which instant a version does not fire, whatever its body says: that of its batch."""
        batch = self._state.batches.of(seq) if seq >= FIRST_BATCH_SEQ else None
        return 0 if batch is None else batch.floor_ms

    def _body(self, current: Key) -> Body | Elsewhere:
        """The body of a version, or where else to look: ends of long ago are known only to the index."""
        if current.seq >= FIRST_BATCH_SEQ:
            return Elsewhere(current)
        if current.seq < self._state.replayed_from and self._horizon.view.identity:
            return Elsewhere(current)
        try:
            return self._bodies.one(current.seq)
        except BodyNotAtHand:
            return Elsewhere(current) if self._horizon.view.identity else None
        except NotFound:
            return None

    def _life(self, current: Key, put: Put, flight: Flight | None) -> State:
        if flight is not None and flight.state is State.SENDING:
            return State.SENDING
        tried_again = flight is not None and flight.tried
        if self._state.may_have_been_sent(current, put) and not tried_again:
            return State.SENDING
        return State.SCHEDULED


def those_found(answers: Sequence[Answer[T]]) -> Answer[list[T]]:
    """An answer with the values of those that are there, once the last answer is settled.

    It fails with any error that is not about one message: nobody knows then what became of that one.
    """

    def came(all_: Sequence[Answer[T]]) -> Answer[list[T]]:
        errors = (one.error() for one in all_)
        unknown = next((error for error in errors if error and not isinstance(error, _PASSED_OVER)), None)
        if unknown is not None:
            return failed(unknown)
        return settled([one.value() for one in all_ if one.error() is None])

    return all_of(answers).and_then(came)


def _check_namespace(of_message: str, wanted: str | None) -> None:
    """Raise `NotFound` for a message outside the namespace that a command is meant for."""
    if wanted is not None and of_message != wanted:
        raise NotFound(_NONE)
