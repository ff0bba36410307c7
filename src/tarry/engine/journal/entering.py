"""Units that are entering: enqueued, and not durable yet; and who waits until they are."""

from collections import deque
from collections.abc import Callable

from tarry.core.errors import TarryError, Unavailable
from tarry.ledger.frame import Unit
from tarry.ledger.ledger import Ledger

Done = Callable[[TarryError | None], None]
"""Told when a unit is durable, or why it never will be."""


class Entering:
    """The units between the head that was enqueued and the one that is durable, in the order of their seqs."""

    def __init__(self, ledger: Ledger) -> None:
        self.effective_seq = 0
        """Everything up to here is durable and has taken effect."""
        self._ledger = ledger
        self._units: deque[tuple[int, Unit]] = deque()
        """Each with its last seq."""
        self._waiting: list[tuple[int, Done]] = []

    def add(self, last_seq: int, unit: Unit) -> None:
        """Take the newest unit."""
        self._units.append((last_seq, unit))

    def tell(self, last_seq: int, error: TarryError | None) -> None:
        """The units up to a seq have taken effect, or with an error never will."""
        while self._units and self._units[0][0] <= last_seq:
            self._units.popleft()
        if error is None:
            self.effective_seq = last_seq
        while self._waiting and (error is not None or self._waiting[0][0] <= last_seq):
            self._waiting.pop(0)[1](error)

    def check_disk(self) -> None:
        """Raise `Unavailable` once the disk has failed: memory may hold more than it, and nothing of it is shown."""
        if self._ledger.failed is not None:
            raise Unavailable(f"the disk failed ({self._ledger.failed})")

    def when_durable(self, seq: int, callback: Done) -> None:
        """Call back once everything up to a seq is durable and has taken effect, or never will be."""
        if self.effective_seq >= seq:
            callback(None)
        elif self._ledger.failed is not None:
            callback(Unavailable(f"the disk failed ({self._ledger.failed})"))
        else:
            self._waiting.append((seq, callback))

    def lowest_fire_ms(self) -> int | None:
        """The lowest fire instant of a version that is not in the wheel, the tail or the view yet."""
        return min((unit.lowest_fire_ms for _, unit in self._units if unit.lowest_fire_ms), default=None)
