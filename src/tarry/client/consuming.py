"""Entries in the hands of a consuming loop, and the acknowledgements that it has not told the server yet.

Without I/O, for both clients. An entry is acknowledged when the program says so (`Entry.ack`, or the end of a `with`
block) and never because the loop went on: whoever hands an entry to a task or a thread acknowledges it there.
"""

import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, Self

from tarry.client.shapes import Received

MAX_UNACKED: Final = 100
"""Entries in the hands of one loop."""
ACK_TIMEOUT_MS: Final = 60_000
MAX_IDS: Final = 10_000
"""Entries of one acknowledgement."""


def consumer_name() -> str:
    """A name that no other consumer has."""
    return f"client-{secrets.token_hex(6)}"


class Entry:
    """An entry of a topic in the hands of a consumer. It comes again until it is acknowledged.

    `ack` and `nack` return at once, also in a coroutine: they are told to the server together with those of other entries.
    `with entry:` acknowledges it when the block ends, and gives it back when the block raises.
    """

    __slots__ = ("_received", "_settle", "_settled")

    def __init__(self, received: Received, settle: "Callable[[int, bool], None]") -> None:
        self._received = received
        self._settle = settle
        self._settled = False

    @property
    def entry_id(self) -> int:
        """Its number in its topic."""
        return self._received.entry_id

    @property
    def payload(self) -> bytes:
        """Its payload."""
        return self._received.payload

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        return self._received.headers

    @property
    def key(self) -> str | None:
        """Its order key."""
        return self._received.key

    @property
    def redelivery_count(self) -> int:
        """How often it was given back or not acknowledged in time."""
        return self._received.redelivery_count

    @property
    def published_at_ms(self) -> int:
        """When it came into its topic."""
        return self._received.published_at_ms

    @property
    def due_at_ms(self) -> int | None:
        """When it was due, if it was scheduled."""
        return self._received.due_at_ms

    def ack(self) -> None:
        """Be done with it: it does not come again."""
        self._end(acked=True)

    def nack(self) -> None:
        """Give it back: it comes again at once, here or to another consumer."""
        self._end(acked=False)

    def _end(self, *, acked: bool) -> None:
        if not self._settled:
            self._settled = True
            self._settle(self.entry_id, acked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(acked=kind is None)

    def __repr__(self) -> str:
        return f"Entry(entry_id={self.entry_id}, key={self.key!r}, redelivery_count={self.redelivery_count})"


class Told(NamedTuple):
    """Entries that the server is told of together: acknowledged ones, and those that are given back."""

    acked: list[int]
    given_back: list[int]


class Settlements:
    """Acknowledgements and returns between the program's word and the server's knowledge."""

    def __init__(self) -> None:
        self._acked: list[int] = []
        self._given_back: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._acked or self._given_back)

    def add(self, entry_id: int, acked: bool) -> None:
        """Note the program's word about an entry."""
        (self._acked if acked else self._given_back).append(entry_id)

    def take(self) -> Told:
        """Everything that is to be told now; bounded, so that there may be more."""
        told = Told(self._acked[:MAX_IDS], self._given_back[:MAX_IDS])
        del self._acked[: len(told.acked)], self._given_back[: len(told.given_back)]
        return told
