"""Holding: due messages of paused places are set aside, and come back when their place is resumed (ADR 0027).

As a stranded one, a held message gets a new version (R4) at one instant behind all due instants: it is durable, holds
back neither the watermark nor anybody else, and takes no memory beyond its place in the tail. It comes back in the order in
which it was held, at its own due instant, or later where a rate says so.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tarry.core.errors import Damage
from tarry.core.limits import HELD_MS
from tarry.core.rules import admission
from tarry.core.tenants.rates import Rates
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.due.horizon import Horizon
from tarry.engine.flights.deferral import RECORD_BYTES
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.flight import Flight
from tarry.engine.flights.returning import Returning
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.units import pieces_of
from tarry.engine.namespaces.pauses import paused
from tarry.engine.records.delayed_entry import as_entry, as_message
from tarry.engine.records.versions import end_unread, new_version, tries_bytes, wanted_at_ms
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Entry, Key, Put, Record, decode

HELD_TOGETHER: Final = 100
"""Messages that are held by one unit of the ledger."""


class DueMessage(NamedTuple):
    """A due message that is to be held, and its flight if it was tried before."""

    key: Key
    flight: Flight | None


class Holding:
    """Sets due messages aside whose place is paused, and brings them back."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        horizon: Horizon,
        bodies: Bodies,
        clock: Clock,
        writing: EndWriter,
        rates: Rates,
    ) -> None:
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._clock = clock
        self._end_writer = writing
        self._rates = rates
        self.returning = Returning(
            journal, state, horizon, bodies, clock, writing, HELD_MS, self._returned, self._all_returned
        )

    # Holding

    def hold(self, due: Sequence[DueMessage], held: Callable[[], None]) -> None:
        """Set messages aside, and tell when they are. A command that ends one before there is space holds."""
        pieces = pieces_of(due, self._bytes_of, self._journal.unit_max_bytes // 2, HELD_TOGETHER)
        for piece in pieces:
            done = held if piece is pieces[-1] else None
            self._end_writer.write(partial(self._held_versions, piece), [one.key for one in piece], done)

    def _bytes_of(self, due: DueMessage) -> int:
        try:
            body_bytes = len(self._bodies.one(due.key.seq))
        except Damage:
            body_bytes = 0
        tried_bytes = 0 if due.flight is None else tries_bytes(due.flight.tried_last)
        return body_bytes + RECORD_BYTES + tried_bytes

    def _held_versions(self, due: Sequence[DueMessage]) -> list[Record]:
        return [self._held(one) for one in due if one.key.seq not in self._state.dead]

    def _held(self, due: DueMessage) -> Record:
        key, flight = due
        try:
            waiting = decode(self._bodies.one(key.seq))
        except Damage as damage:
            self._state.counters["damaged"] += 1
            return end_unread(key, self._clock.now_ms(), str(damage))
        if isinstance(waiting, Entry):
            message = as_message(waiting)
            return as_entry(new_version(message, key, self._instant(message, is_entry=True)), waiting)
        assert isinstance(waiting, Put)
        put = waiting if flight is None else flight.told(waiting)
        uncertain = put.uncertain
        if flight is None or not flight.tried:
            # The new version is not overdue, so that it has to say itself what its message went through (R11).
            uncertain |= self._state.may_have_been_sent(key, waiting)
        return new_version(put, key, self._instant(waiting, is_entry=False), uncertain=uncertain)

    def _instant(self, message: Put, *, is_entry: bool) -> int:
        """The instant at which a message waits: that of the held, or where its place is not paused any more, its own."""
        if self._state.pauses.at(message.namespace, message.destination, message.owner) is not None:
            return HELD_MS
        now_ms = self._clock.now_ms()
        policy = self._state.policies.of(message.destination, message.namespace)
        asked_ms = wanted_at_ms(message)
        if policy.send_per_second > 0 and not is_entry:
            # It has had its turn then, and is not charged again.
            holder = message.namespace, message.owner
            asked_ms = max(asked_ms, self._rates.reserve(holder, policy.send_per_second, now_ms))
        return int(admission.earliest(asked_ms, message.accepted_at_ms, self._state.floor_ms))

    # Returning

    def begin(self, now_ms: int) -> None:
        """The state of the ledger is known: go on bringing back messages of places that were resumed."""
        if self._state.pauses.resumed:
            self.resumed(now_ms)

    def resumed(self, now_ms: int) -> None:
        """A place was resumed: bring its messages back."""
        self.returning.begin(now_ms)

    def _returned(self, key: Key, waiting: Put | Entry) -> Record | None:
        message = as_message(waiting) if isinstance(waiting, Entry) else waiting
        at_ms = self._instant(message, is_entry=isinstance(waiting, Entry))
        if at_ms == HELD_MS:
            return None
        version = new_version(message, key, at_ms)
        return as_entry(version, waiting) if isinstance(waiting, Entry) else version

    def _all_returned(self) -> None:
        """Every message is back that was held by a place that is not paused any more: the pauses are over."""
        by_place = self._state.pauses.by_place
        over = [(place, by_place[place]) for place in self._state.pauses.resumed]

        def ends() -> list[Record]:
            # Once there is space: a place that was paused again meanwhile has another pause, which is not over.
            return [paused(place, None) for place, pause in over if by_place.get(place) is pause]

        if over:
            self._end_writer.write(ends, [Key(HELD_MS, 0)])
