"""Deferral: what cannot be sent for long goes on as new versions at its next attempt, in order (R9).

A chain of flights with one order key is carried as a whole. Until all of it is durable, and until the instant it was carried
to, what is due with the same order stays behind it.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tarry.core.errors import Damage
from tarry.core.time.clock import Clock
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.flights.end_writer import EndWriter
from tarry.engine.flights.flight import Flight
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.units import pieces_of
from tarry.engine.records.versions import end_of, new_version, tries_bytes
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Key, Record

MAX_HELD: Final = 10_000
"""Orders remembered whose chain waits for a later attempt; beyond it those whose instant has passed are let go of."""

RECORD_BYTES: Final = 256
"""Maximum bytes of a record that ends or replaces a version, beyond the body of that version."""


class Deferral:
    """Chains on their way to a later instant."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        bodies: Bodies,
        clock: Clock,
        writing: EndWriter,
        later: Callable[[Key, int, int], None],
    ) -> None:
        self._journal = journal
        self._state = state
        self._bodies = bodies
        self._clock = clock
        self._end_writer = writing
        self._later = later
        self._held: dict[str, int] = {}
        """By order: the instant to which its chain was carried. What is due before then stays behind it."""
        self._carrying: Counter[str] = Counter()
        """By order: the units that carry its versions and are not durable yet."""

    def keeps_back(self, flight: Flight, order: str, now_ms: int) -> bool:
        """Whether its chain was carried to a later instant: then it follows there, in order."""
        if order in self._carrying and flight.head.origin is None:
            # Those before it are in no wheel now: it comes again when they can be.
            self._later(flight.key, flight.lane, now_ms + 1)
            return True
        held_ms = self._held.get(order)
        if held_ms is None:
            return False
        if flight.key.fire_at_ms >= held_ms:
            del self._held[order]
            return False
        if flight.head.origin is not None:
            # It was moved by command, or is one of the carried itself.
            return False
        self._carry_part([flight], max(held_ms, now_ms))
        return True

    def carry(self, chain: list[Flight], at_ms: int) -> None:
        """Give flights, which are all there is of their order, new versions at an instant."""
        order = chain[0].order
        if order is not None:
            self._hold(order, at_ms)
        for part in flight_parts(chain, self._journal.unit_max_bytes):
            self._carry_part(part, at_ms)

    def _carry_part(self, part: list[Flight], at_ms: int) -> None:
        order = part[0].order
        if order is not None:
            self._carrying[order] += 1

        def written() -> None:
            if order is not None:
                self._carrying[order] -= 1
                if not self._carrying[order]:
                    del self._carrying[order]

        def failed(reason: str) -> list[Record]:
            now_ms = self._clock.now_ms()
            return [
                end_of(one.head, one.key, "failed", now_ms, reason, None, one.attempts)
                for one in part
                if one.key.seq not in self._state.dead
            ]

        keys = [one.key for one in part]
        self._end_writer.write(partial(self._next_versions, part, at_ms), keys, written, failed)

    def _next_versions(self, flights: list[Flight], at_ms: int) -> list[Record]:
        dead = self._state.dead
        return [self._next_version(one, at_ms) for one in flights if one.key.seq not in dead]

    def _next_version(self, flight: Flight, at_ms: int) -> Record:
        try:
            put = self._bodies.version(flight.key.seq)
        except Damage as damage:
            self._state.counters["damaged"] += 1
            now_ms = self._clock.now_ms()
            return end_of(flight.head, flight.key, "failed", now_ms, str(damage), None, flight.attempts)
        # The new version is not overdue, so that it has to say itself what its message went through (R11).
        overdue = not flight.tried and self._state.may_have_been_sent(flight.key, put)
        uncertain = put.uncertain or flight.uncertain or overdue
        # One that waited behind others may not be due any more: the clock may have been set back.
        fire_at_ms = max(at_ms, flight.key.fire_at_ms)
        tried = flight.tried_last or put.tried
        return new_version(
            put, flight.key, fire_at_ms, attempts=flight.attempts, uncertain=uncertain, tried=tried
        )

    def _hold(self, order: str, at_ms: int) -> None:
        if len(self._held) >= MAX_HELD:
            now_ms = self._clock.now_ms()
            self._held = {one: at for one, at in self._held.items() if at > now_ms}
        self._held[order] = at_ms


def flight_parts(flights: Iterable[Flight], unit_max_bytes: int) -> list[list[Flight]]:
    """Flights in pieces whose ends, or next versions, each fit one unit of the ledger."""
    return pieces_of(flights, _record_bytes, unit_max_bytes // 2)


def _record_bytes(flight: Flight) -> int:
    return (
        flight.size_bytes
        + len((flight.reference or "").encode())
        + RECORD_BYTES
        + tries_bytes(flight.tried_last)
    )
