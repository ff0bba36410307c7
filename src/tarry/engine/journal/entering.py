"""Units that are entering: enqueued, and not durable yet; and who waits until they are."""

from collections import deque

from tarry.core.errors import TarryError, Unavailable
from tarry.engine.journal.tenure import DOUBT, Tenure
from tarry.ledger.frame import Unit
from tarry.ledger.ledger import Ledger
from tarry.ledger.writer import OnDurable


class Entering:
    """The units between the head that was enqueued and the one that is durable, in the order of their seqs."""

    def __init__(self, ledger: Ledger, tenure: Tenure | None) -> None:
        """With a tenure the ledger may get another owner (R15)."""
        self.effective_seq = 0
        """Everything up to here is durable and has taken effect."""
        self._ledger = ledger
        self._tenure = tenure
        self._units: deque[tuple[int, Unit, int]] = deque()
        """Each with its last seq, and the elapsed time when it was enqueued."""
        self._waiting: list[tuple[int, OnDurable]] = []

    def add(self, last_seq: int, unit: Unit) -> None:
        """Take the newest unit."""
        self._units.append((last_seq, unit, 0 if self._tenure is None else self._tenure.now_ms()))

    def tell(self, last_seq: int, error: TarryError | None) -> None:
        """The units up to a seq have taken effect, or with an error never will."""
        while self._units and self._units[0][0] <= last_seq:
            _, _, enqueued_ms = self._units.popleft()
            if self._tenure is not None and error is None:
                self._tenure.proved(enqueued_ms)
        if error is None:
            self.effective_seq = last_seq
        while self._waiting and (error is not None or self._waiting[0][0] <= last_seq):
            self._waiting.pop(0)[1](error)

    def check_shown(self) -> None:
        """Raise `Unavailable` if nothing of the state may be shown.

        Once the disk has failed memory may hold more than it; and while another server may own the ledger that one knows better.
        """
        if self._ledger.failed is not None:
            raise Unavailable(f"the disk failed ({self._ledger.failed})")
        if self.in_doubt:
            raise Unavailable(f"{DOUBT}; try again in a moment")

    @property
    def in_doubt(self) -> bool:
        """Whether another server may own the ledger by now (R15)."""
        return self._tenure is not None and self._tenure.in_doubt

    def when_durable(self, seq: int, callback: OnDurable) -> None:
        """Call back once everything up to a seq is durable and has taken effect, or never will be."""
        if self.effective_seq >= seq:
            callback(None)
        elif self._ledger.failed is not None:
            callback(Unavailable(f"the disk failed ({self._ledger.failed})"))
        else:
            self._waiting.append((seq, callback))

    def lowest_fire_ms(self) -> int | None:
        """The lowest fire instant of a version that is not in the wheel, the tail or the view yet."""
        return min((unit.lowest_fire_ms for _, unit, _ in self._units if unit.lowest_fire_ms), default=None)
