"""Recent entries: the entries that came to topics last, or became ready, as consumers get them.

Most consumers are at the head of their topic. For them nothing is read from the ledger and decoded again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.tricks import TRICKS
from tarry.engine.topics.entries import Received
from tarry.engine.topics.entry_batch import EntryBatch

MAX_BYTES: Final = 32 * 1024 * 1024
"""For single entries."""
MAX_BATCH_BYTES: Final = 128 * 1024 * 1024
"""For batches: as much as stands by at the most, since a burst is fired faster than any consumer takes it."""
KEPT_BYTES: Final = 24 * 1024 * 1024
AGED_BYTES: Final = 4 * 1024 * 1024
"""For batches that are not young any more; and how much above that is let go of at a time, which takes milliseconds."""
MAX_RUNS: Final = 64
"""Maximum number of places in which entries that are asked for together may lie and still be one batch."""
EACH_BYTES: Final = 300
"""Bytes of an entry beside its payload, about."""


class RecentEntries:
    """The newest entries, by the seqs of their records."""

    def __init__(self) -> None:
        self._entries: dict[int, Received] = {}
        # The first key of a dict from whose beginning many were taken takes long to find.
        self._order: deque[int] = deque()
        self._bytes = 0
        self._batches: list[EntryBatch] = []
        self._first_seqs: list[int] = []
        """Where the batches begin, in order: their records lie one after another."""
        self._sizes: deque[int] = deque()
        """Sizes of the batches, in bytes."""
        self.batches_bytes = 0
        """Bytes of all batches, about."""
        self._old = 0
        """How many of the batches are not young any more."""

    def add(self, seqs: Sequence[int], entries: Sequence[Received]) -> None:
        """Keep entries, in place of the oldest. Each seq is given once."""
        self._entries.update(zip(seqs, entries, strict=True))
        self._order.extend(seqs)
        self._bytes += sum(map(_size_bytes, entries))
        while self._bytes > MAX_BYTES:
            gone = self._entries.pop(self._order.popleft(), None)
            if gone is not None:
                self._bytes -= _size_bytes(gone)

    def add_batch(self, first_seq: int, batch: EntryBatch, payload_bytes: int) -> None:
        """Keep a batch, in place of the oldest; its records are the newest of the ledger."""
        if not TRICKS.recent_entries:
            return
        self._batches.append(batch)
        self._first_seqs.append(first_seq)
        self._sizes.append(payload_bytes + EACH_BYTES * len(batch))
        self.batches_bytes += self._sizes[-1]
        if self.batches_bytes > MAX_BATCH_BYTES:
            # Several at a time, because all that stay move up.
            self._let_go(MAX_BATCH_BYTES - AGED_BYTES, len(self._batches))

    def age(self) -> None:
        """A second has passed: of the batches that there were the last time some go; the others are old the next time."""
        self._let_go(max(KEPT_BYTES, self.batches_bytes - AGED_BYTES), self._old)
        self._old = len(self._batches)

    def _let_go(self, left_bytes: int, most: int) -> None:
        """Let the oldest batches go, until there is so much left, but not more than so many."""
        gone = 0
        while gone < most and self.batches_bytes > left_bytes:
            self.batches_bytes -= self._sizes.popleft()
            gone += 1
        del self._first_seqs[:gone], self._batches[:gone]
        self._old = max(0, self._old - gone)

    def find(self, seqs: NDArray[np.int64]) -> Sequence[Received | None]:
        """The entries that are kept, None for the others; a batch, if they are in batches and follow one another."""
        if self._batches and len(seqs):
            batch = self._together(seqs)
            if batch is not None:
                return batch
        return [self._entries.get(seq) or self._in_batch(seq) for seq in seqs.tolist()]

    def _together(self, seqs: NDArray[np.int64]) -> EntryBatch | None:
        """The entries as one batch. Between their records there may be others, such as an acknowledgement."""
        starts = [0, *(np.flatnonzero(np.diff(seqs) != 1) + 1).tolist(), len(seqs)]
        if len(starts) > MAX_RUNS:
            return None
        whole: EntryBatch | None = None
        for start, stop in pairwise(starts):
            batch = self._bound(int(seqs[start]), stop - start)
            if batch is None or len(batch) < stop - start:
                return None
            if whole is not None and whole.entry_ids.stop != batch.entry_ids.start:
                return None
            whole = batch if whole is None else whole + batch
        return whole

    def _in_batch(self, seq: int) -> Received | None:
        number = bisect_right(self._first_seqs, seq) - 1
        if number < 0:
            return None
        batch, at = self._batches[number], seq - self._first_seqs[number]
        return batch[at] if at < len(batch) else None

    def _bound(self, first_seq: int, count: int) -> EntryBatch | None:
        """The entries from a seq on, up to so many, as far as batches of their topic follow one another."""
        number = bisect_right(self._first_seqs, first_seq) - 1
        if number < 0:
            return None
        start = first_seq - self._first_seqs[number]
        found = self._batches[number][start : start + count]
        while found and len(found) < count:
            number += 1
            follows = self._first_seqs[number : number + 1] == [first_seq + len(found)]
            if not follows or self._batches[number].entry_ids.start != found.entry_ids.stop:
                break
            found += self._batches[number][: count - len(found)]
        return found or None


def _size_bytes(entry: Received) -> int:
    return len(entry.payload) + EACH_BYTES
