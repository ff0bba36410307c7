"""One message on its way to another system, and those that leave with it."""

from functools import lru_cache
from typing import Final

import msgspec

from tarry.core.messages.delivery import Outlet
from tarry.core.messages.lifecycle import Event, State, next_state
from tarry.core.telemetry.tracing import SendSpan
from tarry.ledger.lanes import lane_of
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Key, Put, Tried

DEPARTURE_BYTES: Final = 1024 * 1024
"""With so much, a departure waits for nobody else."""


class Flight:
    """One message on its way."""

    __slots__ = (
        "again_at_ms", "attempts", "departure", "head", "host", "key", "lane", "order", "outlet", "put", "reference",
        "size_bytes", "span", "state", "together", "tried_last", "uncertain",
    )  # fmt: skip

    def __init__(self, key: Key, head: PutHead, outlet: Outlet, together: int, size_bytes: int) -> None:
        self.key = key
        # However many wait, their payloads are not in memory.
        self.head = head_of(head)
        self.outlet = outlet
        self.together = together
        """How many the outlet takes in one call."""
        self.size_bytes = size_bytes
        """Bytes of the body."""
        self.lane = lane_of(head.namespace, head.owner, head.door)
        self.host = host_of(head.destination)
        self.order = outlet.order_key(head.destination, head.key)
        self.attempts = head.attempts
        self.state = State.SCHEDULED
        self.tried_last: Tried | None = None
        """The last attempt that did not arrive, also of earlier versions, and some before it."""
        self.again_at_ms: int | None = None
        """When the next one is made."""
        self.uncertain = False
        """An attempt may have arrived although its verdict does not say so."""
        self.put: Put | None = None
        """The whole version of a listed message, which is remembered when it ends."""
        self.reference: str | None = None
        """The receiver's name for the message."""
        self.span: SendSpan | None = None
        """The attempt under way, where somebody is told of it."""
        self.departure: Departure | None = None
        """With whom it is under way."""

    @property
    def origin(self) -> Key:
        """The key of the first version."""
        return self.head.origin or self.key

    @property
    def tried(self) -> bool:
        """Whether there was an attempt since it became a flight."""
        return self.attempts > self.head.attempts

    @property
    def needs_claim(self) -> bool:
        """Whether its siblings have to end, durably, before it goes out (R11)."""
        return self.head.group is not None and self.attempts == 0

    def told(self, put: Put) -> Put:
        """A version of the message with what the flight alone knows: attempts that no version tells yet."""
        return msgspec.structs.replace(
            put,
            attempts=self.attempts,
            tried=self.tried_last or put.tried,
            uncertain=put.uncertain or self.uncertain,
        )

    def becomes(self, event: Event) -> None:
        """Take the step that the table allows for an event of the dispatcher; it never has to wait."""
        after = next_state(self.state, event)
        assert isinstance(after, State)
        self.state = after


class Departure:
    """Flights to one destination that leave in one call of their outlet, in one place."""

    __slots__ = ("away", "flights", "host", "namespace", "outlet", "room", "room_bytes")

    def __init__(self, first: Flight) -> None:
        self.outlet = first.outlet
        self.host = first.host
        self.namespace = first.head.namespace
        """Whose share of the places it is in."""
        self.flights: list[Flight] = []
        self.away = 0
        """How many have not landed."""
        self.room = 1 if first.needs_claim else first.together
        self.room_bytes = DEPARTURE_BYTES

    def add(self, flight: Flight) -> None:
        """One more leaves with it."""
        self.flights.append(flight)
        self.away += 1
        self.room -= 1
        self.room_bytes -= flight.size_bytes
        flight.departure = self

    @property
    def is_full(self) -> bool:
        """Whether nobody else fits."""
        return self.room <= 0 or self.room_bytes <= 0


def head_of(put: PutHead) -> PutHead:
    """The beginning of a version alone."""
    return PutHead(
        put.fire_at_ms, put.due_at_ms, put.accepted_at_ms, put.namespace, put.destination, put.key, put.owner,
        put.door, put.group, put.ttl_ms, put.origin, put.attempts, put.listed,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def host_of(destination: str) -> str:
    """The part of a destination that is one receiver: the host of an address."""
    parts = destination.split("/", 3)
    return parts[2] if len(parts) > 2 else parts[0]
