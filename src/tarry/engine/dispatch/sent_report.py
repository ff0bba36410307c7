"""Sent messages, with their lateness, are told to the door that counts them and to the tracer."""

from collections.abc import Callable, Mapping, Sequence

from tarry.engine.dispatch.burst import Burst, lateness
from tarry.engine.tracing import Tracing
from tarry.ledger.read_record import PutHead

OnSent = Callable[[str, int, int], None]
"""Told of messages sent: their door, their lateness in milliseconds, and how many."""


class SentReport:
    """Tells of sent messages. Their records are durable by then, but those of delayed entries, which have none."""

    def __init__(self, tracing: Tracing | None) -> None:
        self.on_sent: OnSent | None = None
        self._tracing = tracing

    def tell_heads(self, heads: Sequence[PutHead], now_ms: int) -> None:
        """Tell of messages that other systems have taken, or that were chosen of their groups."""
        if self.on_sent is not None:
            self._count(lateness(heads, now_ms))

    def tell_grouped(self, seq: int, head: PutHead, body: bytes, now_ms: int) -> None:
        """Tell of a member of a group that was fired into a topic."""
        self.tell_heads([head], now_ms)
        if self._tracing is not None:
            self._tracing.fired(seq, body, now_ms)

    def tell_burst(self, burst: Burst) -> None:
        """Tell of the messages of a burst."""
        if self._tracing is not None:
            for _, body, key in burst.items():
                self._tracing.fired(key.seq, body, burst.now_ms)
        if self.on_sent is not None:
            for alike, count in burst.kinds().items():
                self.on_sent(alike.door, alike.late_ms(burst.now_ms), count)

    def tell_ready(self, late: Mapping[tuple[str, int], int], bodies: Sequence[bytes], now_ms: int) -> None:
        """Tell of delayed entries that consumers may have now."""
        if self._tracing is not None:
            for body in bodies:
                self._tracing.ready(body, now_ms)
        self._count(late)

    def _count(self, late: Mapping[tuple[str, int], int]) -> None:
        if self.on_sent is not None:
            for (door, lateness_ms), count in late.items():
                self.on_sent(door, lateness_ms, count)
