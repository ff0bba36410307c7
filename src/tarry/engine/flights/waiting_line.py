"""A waiting line: flights that wait together for places. Namespaces take turns, and within each its lanes, flight after flight.

So an owner waits for no other's backlog, and a tenant with very many owners has no more turns than one with a single one.
"""

from collections import deque
from collections.abc import Iterable

from tarry.engine.flights.flight import Flight

Lanes = dict[int, deque[Flight]]


class WaitingLine:
    """Flights in the order in which they get places."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lanes] = {}
        """By namespace; the first one is next."""

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, flight: Flight) -> None:
        """One more waits, behind those of its lane."""
        lanes = self._lanes.setdefault(flight.head.namespace, {})
        lanes.setdefault(flight.lane, deque()).append(flight)

    def take(self) -> Flight:
        """The first flight of the first lane of the namespace whose turn it is; both go to the back."""
        namespace, lanes = next(iter(self._lanes.items()))
        if len(self._lanes) > 1:
            self._lanes[namespace] = self._lanes.pop(namespace)
        lane, queue = next(iter(lanes.items()))
        if len(lanes) > 1:
            lanes[lane] = lanes.pop(lane)
        flight = queue.popleft()
        # Those whose turn it was are the last ones now.
        if not queue:
            lanes.popitem()
            if not lanes:
                self._lanes.popitem()
        return flight

    def part(self, namespace: str) -> "WaitingLine":
        """Take out all that wait of a namespace, however many, as a line of their own."""
        part = WaitingLine()
        if lanes := self._lanes.pop(namespace, None):
            part._lanes[namespace] = lanes
        return part

    def put_back(self, part: "WaitingLine") -> None:
        """Flights that were taken out wait again, before those of their lanes that came since; their namespaces are last."""
        for namespace, lanes in part._lanes.items():
            for lane, queue in self._lanes.pop(namespace, {}).items():
                lanes.setdefault(lane, deque()).extend(queue)
            self._lanes[namespace] = lanes

    def put_first(self, flights: Iterable[Flight]) -> None:
        """Flights that were looked at and left wait again, before those of their lanes; given in order."""
        for flight in reversed(list(flights)):
            lanes = self._lanes.setdefault(flight.head.namespace, {})
            lanes.setdefault(flight.lane, deque()).appendleft(flight)
