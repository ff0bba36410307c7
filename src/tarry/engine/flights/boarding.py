"""Boarding: who may leave when. There are so many as a whole and for each host; a departure has one, however many leave in it.

Lanes take turns, flight after flight, so that owners do not wait for one another. A host that has all that it may
have is crowded: flights to it wait apart, so that they hold up nobody else, and have the first place that is given back.
Invariant: where there is a crowd, its host has no place.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from tarry.engine.flights.flight import Departure, Flight

LOOKED_AT: Final = 1024
"""Flights passed over, at the most, in search of those that fit a departure which has room."""

Lanes = dict[int, deque[Flight]]


class Boarding:
    """The flights that wait for a place, and the places that are taken."""

    def __init__(self, concurrency: int, concurrency_per_host: int) -> None:
        self._concurrency = concurrency
        self._per_host = concurrency_per_host
        self._taken = 0
        self._taken_at: dict[str, int] = {}
        self._ready: Lanes = {}
        self._crowds: dict[str, Lanes] = {}
        """By host."""
        self._freed: set[str] = set()
        """Crowded hosts at which a place was given back."""

    def wait(self, flight: Flight) -> None:
        """Let a flight wait for a place."""
        self._ready.setdefault(flight.lane, deque()).append(flight)

    def land(self, flight: Flight) -> None:
        """Take a flight off: it is under way no more, and the last of a departure gives the place back."""
        departure, flight.departure = flight.departure, None
        assert departure is not None
        departure.away -= 1
        if not departure.away:
            host = departure.host
            self._taken -= 1
            self._taken_at[host] -= 1
            if not self._taken_at[host]:
                del self._taken_at[host]
            if host in self._crowds:
                self._freed.add(host)

    def board(self, may_leave: Callable[[Flight], bool]) -> list[Departure]:
        """Choose the flights that leave now. A flight is asked when it is its turn, and if it may not leave it is dropped."""
        leaving: list[Departure] = []
        while self._freed:
            host = self._freed.pop()
            crowd = self._crowds.pop(host)
            self._fill(crowd, host, may_leave, leaving)
            if crowd:
                self._crowds[host] = crowd
        if self._ready:
            self._fill(self._ready, None, may_leave, leaving)
        return leaving

    def _fill(
        self, lanes: Lanes, host: str | None, may_leave: Callable[[Flight], bool], leaving: list[Departure]
    ) -> None:
        """Give places to flights of some lanes, which are a host's crowd or, without one, all that are ready."""
        boarding: dict[str, Departure] = {}
        passed: list[Flight] = []
        while lanes and (boarding or self._has_place(host)) and len(passed) < LOOKED_AT:
            flight = _next_in_turn(lanes)
            if not may_leave(flight) or self._seat(flight, boarding, leaving):
                continue
            if host is None and self._is_full(flight.host):
                self._crowds.setdefault(flight.host, {}).setdefault(flight.lane, deque()).append(flight)
            else:
                passed.append(flight)
        for flight in reversed(passed):
            lanes.setdefault(flight.lane, deque()).appendleft(flight)

    def _seat(self, flight: Flight, boarding: dict[str, Departure], leaving: list[Departure]) -> bool:
        destination = flight.head.destination
        departure = None if flight.needs_claim else boarding.get(destination)
        if departure is None:
            if not self._has_place(flight.host):
                return False
            departure = Departure(flight)
            leaving.append(departure)
            self._taken += 1
            self._taken_at[flight.host] = self._taken_at.get(flight.host, 0) + 1
            departure.add(flight)
            if not departure.is_full:
                boarding[destination] = departure
        else:
            departure.add(flight)
            if departure.is_full:
                del boarding[destination]
        return True

    def _has_place(self, host: str | None) -> bool:
        return self._taken < self._concurrency and (host is None or not self._is_full(host))

    def _is_full(self, host: str) -> bool:
        return self._taken_at.get(host, 0) >= self._per_host


def _next_in_turn(lanes: Lanes) -> Flight:
    """The first flight of the first lane, which goes to the back."""
    lane = next(iter(lanes))
    queue = lanes.pop(lane)
    flight = queue.popleft()
    if queue:
        lanes[lane] = queue
    return flight
