"""Boarding: who may leave when. There are so many places as a whole and for each host; a departure has one, however many leave in it.

Flights wait in lines, in which namespaces and owners take turns. Three things keep them there:

- All places are taken.
- Their host has all that it may have. It is crowded: flights to it wait in a line of their own, so that they hold up nobody
  else, and have the first place that is given back.
- Their namespace has its share of the places, where several tenants share the server. Its flights are passed over as a whole,
  however many wait.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from tarry.engine.flights.flight import Departure, Flight
from tarry.engine.flights.waiting_line import WaitingLine

LOOKED_AT: Final = 1024
"""Flights passed over, at the most, in search of those that fit a departure which has room."""

IsWithinShare = Callable[[int, int, int], bool]
"""Whether a namespace may have one more place: of so many, so many are taken, and so many of these are its own."""


class Boarding:
    """The flights that wait for a place, and the places that are taken."""

    def __init__(self, concurrency: int, concurrency_per_host: int, is_within_share: IsWithinShare) -> None:
        self._concurrency = concurrency
        self._per_host = concurrency_per_host
        self._is_within_share = is_within_share
        self._taken = 0
        self._taken_at: Counter[str] = Counter()
        """By host."""
        self._taken_by: Counter[str] = Counter()
        """By the namespace of the first flight of a departure."""
        self._ready = WaitingLine()
        self._crowds: dict[str, WaitingLine] = {}
        """By host."""
        self._freed: set[str] = set()
        """Crowded hosts that have a place: it was given back, and who waits there found none since, for want of a share."""

    def wait(self, flight: Flight) -> None:
        """Let a flight wait for a place."""
        self._ready.add(flight)

    def land(self, flight: Flight) -> None:
        """Take a flight off: it is under way no more, and the last of a departure gives the place back."""
        departure, flight.departure = flight.departure, None
        assert departure is not None
        departure.away -= 1
        if not departure.away:
            self._taken -= 1
            _give_back(self._taken_at, departure.host)
            _give_back(self._taken_by, departure.namespace)
            if departure.host in self._crowds:
                self._freed.add(departure.host)

    def board(self, may_leave: Callable[[Flight], bool]) -> list[Departure]:
        """Choose the flights that leave now. A flight is asked when it is its turn, and if it may not leave it is dropped."""
        leaving: list[Departure] = []
        for host in list(self._freed):
            crowd = self._crowds[host]
            self._fill(crowd, host, may_leave, leaving)
            if not crowd:
                del self._crowds[host]
            if not crowd or self._is_full(host):
                self._freed.remove(host)
        if self._ready:
            self._fill(self._ready, None, may_leave, leaving)
        return leaving

    def _fill(
        self,
        line: WaitingLine,
        host: str | None,
        may_leave: Callable[[Flight], bool],
        leaving: list[Departure],
    ) -> None:
        """Give places to flights of a line, which is a host's crowd or, without one, all that are ready."""
        boarding: dict[str, Departure] = {}
        over: list[WaitingLine] = []
        while line and self._has_place(host):
            flight = line.take()
            if not may_leave(flight) or self._join(flight, boarding):
                continue
            namespace = flight.head.namespace
            # The share first: a crowd is of those who were kept by their host alone.
            if not self._is_within_share(self._concurrency, self._taken, self._taken_by[namespace]):
                line.put_first([flight])
                over.append(line.part(namespace))
            elif self._is_full(flight.host):
                self._crowds.setdefault(flight.host, WaitingLine()).add(flight)
            else:
                self._begin(flight, boarding, leaving)
        for part in over:
            line.put_back(part)
        if boarding:
            self._fill_up(line, boarding, may_leave)

    def _fill_up(
        self, line: WaitingLine, boarding: dict[str, Departure], may_leave: Callable[[Flight], bool]
    ) -> None:
        """Look for flights that need no place, since they fit departures which have room, among those of their namespaces."""
        passed: list[Flight] = []
        for namespace in dict.fromkeys(departure.namespace for departure in boarding.values()):
            part = line.part(namespace)
            while part and boarding and len(passed) < LOOKED_AT:
                flight = part.take()
                if may_leave(flight) and not self._join(flight, boarding):
                    passed.append(flight)
            line.put_back(part)
        line.put_first(passed)

    def _join(self, flight: Flight, boarding: dict[str, Departure]) -> bool:
        """Have a flight leave with others to its destination, if a departure has room."""
        destination = flight.head.destination
        departure = None if flight.needs_claim else boarding.get(destination)
        if departure is None:
            return False
        departure.add(flight)
        if departure.is_full:
            del boarding[destination]
        return True

    def _begin(self, flight: Flight, boarding: dict[str, Departure], leaving: list[Departure]) -> None:
        """Take a place for a departure that begins with a flight."""
        departure = Departure(flight)
        leaving.append(departure)
        self._taken += 1
        self._taken_at[departure.host] += 1
        self._taken_by[departure.namespace] += 1
        departure.add(flight)
        if not departure.is_full:
            boarding[flight.head.destination] = departure

    def _has_place(self, host: str | None) -> bool:
        return self._taken < self._concurrency and (host is None or not self._is_full(host))

    def _is_full(self, host: str) -> bool:
        return self._taken_at[host] >= self._per_host


def _give_back(taken: Counter[str], whose: str) -> None:
    taken[whose] -= 1
    if not taken[whose]:
        del taken[whose]
