"""Fresh entries: those that came to topics last, or became ready, as consumers get them.

Most consumers are at the head of their topic. For them nothing is read from the ledger and decoded again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from tarry.engine.consumer import Received

MAX_BYTES: Final = 32 * 1024 * 1024
EACH_BYTES: Final = 300
"""What an entry takes beside its payload, about."""


class Fresh:
    """Entries by the seqs of their records, the newest of them."""

    def __init__(self) -> None:
        self._entries: dict[int, Received] = {}
        # The first key of a dict from whose beginning many were taken takes long to find.
        self._order: deque[int] = deque()
        self._bytes = 0

    def add(self, seqs: Sequence[int], entries: Sequence[Received]) -> None:
        """Keep entries, in place of the oldest. Each seq is given once."""
        self._entries.update(zip(seqs, entries, strict=True))
        self._order.extend(seqs)
        self._bytes += sum([len(entry.payload) for entry in entries]) + EACH_BYTES * len(entries)
        while self._bytes > MAX_BYTES:
            gone = self._entries.pop(self._order.popleft(), None)
            if gone is not None:
                self._bytes -= len(gone.payload) + EACH_BYTES

    def find(self, seqs: Sequence[int]) -> list[Received | None]:
        """The entries that are kept; None for the others."""
        get = self._entries.get
        return [get(seq) for seq in seqs]
