"""Fresh entries: those that came to topics last, or became ready, as consumers get them.

Most consumers are at the head of their topic. For them nothing is read from the ledger and decoded again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.engine.consumer import Received
from tarry.engine.sheaf import Sheaf

MAX_BYTES: Final = 32 * 1024 * 1024
"""For single entries, and as much for sheaves."""
KEPT_BYTES: Final = MAX_BYTES * 3 // 4
"""What is left when sheaves make room for others."""
EACH_BYTES: Final = 300
"""What an entry takes beside its payload, about."""


class Fresh:
    """Entries by the seqs of their records, the newest of them."""

    def __init__(self) -> None:
        self._entries: dict[int, Received] = {}
        # The first key of a dict from whose beginning many were taken takes long to find.
        self._order: deque[int] = deque()
        self._bytes = 0
        self._sheaves: list[Sheaf] = []
        self._first_seqs: list[int] = []
        """Where the sheaves begin, in order: their records lie one after another."""
        self._sizes: deque[int] = deque()
        """Of the sheaves, in bytes."""
        self._sheaf_bytes = 0

    def add(self, seqs: Sequence[int], entries: Sequence[Received]) -> None:
        """Keep entries, in place of the oldest. Each seq is given once."""
        self._entries.update(zip(seqs, entries, strict=True))
        self._order.extend(seqs)
        self._bytes += sum(map(_size_bytes, entries))
        while self._bytes > MAX_BYTES:
            gone = self._entries.pop(self._order.popleft(), None)
            if gone is not None:
                self._bytes -= _size_bytes(gone)

    def add_sheaf(self, first_seq: int, sheaf: Sheaf, payload_bytes: int) -> None:
        """Keep a sheaf, in place of the oldest; its records are the newest of the ledger."""
        self._sheaves.append(sheaf)
        self._first_seqs.append(first_seq)
        self._sizes.append(payload_bytes + EACH_BYTES * len(sheaf))
        self._sheaf_bytes += self._sizes[-1]
        if self._sheaf_bytes > MAX_BYTES:
            # Several at a time, because all that stay move up.
            gone = 0
            while self._sheaf_bytes > KEPT_BYTES:
                self._sheaf_bytes -= self._sizes.popleft()
                gone += 1
            del self._first_seqs[:gone], self._sheaves[:gone]

    def find(self, seqs: NDArray[np.int64]) -> Sequence[Received | None]:
        """The entries that are kept, None for the others; a sheaf, if they are in sheaves and follow one another."""
        if self._sheaves and len(seqs):
            first, count = int(seqs[0]), len(seqs)
            if (seqs == np.arange(first, first + count)).all():
                sheaf = self._bound(first, count)
                if sheaf is not None and len(sheaf) == count:
                    return sheaf
        return [self._entries.get(seq) or self._in_sheaf(seq) for seq in seqs.tolist()]

    def _in_sheaf(self, seq: int) -> Received | None:
        sheaf = self._bound(seq, 1)
        return None if sheaf is None else sheaf[0]

    def _bound(self, first_seq: int, count: int) -> Sheaf | None:
        """The entries from a seq on, up to so many, as far as sheaves of their topic follow one another."""
        number = bisect_right(self._first_seqs, first_seq) - 1
        if number < 0:
            return None
        start = first_seq - self._first_seqs[number]
        found = self._sheaves[number][start : start + count]
        while found and len(found) < count:
            number += 1
            follows = self._first_seqs[number : number + 1] == [first_seq + len(found)]
            if not follows or self._sheaves[number].entry_ids.start != found.entry_ids.stop:
                break
            found += self._sheaves[number][: count - len(found)]
        return found or None


def _size_bytes(entry: Received) -> int:
    return len(entry.payload) + EACH_BYTES
