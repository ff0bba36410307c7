"""Postponed versions: entries of the wheel that wait there for a later instant than that of their key.

A retry within a minute and a limit on sending write no record: the version keeps its key, and with it its place below or above
the watermark, and the wheel has it at the instant at which it comes again.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from tarry.ledger.record import Key

Later = Callable[[Key, int, int], None]
"""Has a version come again: its key, its lane, and the instant."""


class Postponed:
    """The keys of postponed versions, by seq."""

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}
        self._heap: list[Key] = []
        """The keys in order; those that are not postponed any more are dropped late."""

    def __contains__(self, seq: int) -> bool:
        return seq in self._keys

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def key_of(self, fire_at_ms: int, seq: int) -> Key:
        """The key of an entry of the wheel."""
        return self._keys.get(seq) or Key(fire_at_ms, seq)

    def has_any(self, seqs: NDArray[np.int64]) -> bool:
        """Whether any of these is postponed."""
        return bool(self._keys) and not self._keys.keys().isdisjoint(seqs.tolist())

    def in_order(self) -> list[Key]:
        """The keys, in the order in which the versions were postponed."""
        return list(self._keys.values())

    def add(self, key: Key) -> None:
        """A version comes again later."""
        self._keys[key.seq] = key
        heappush(self._heap, key)

    def add_again(self, key: Key) -> None:
        """A version that was taken out is there again, as if it had not been."""
        self._keys[key.seq] = key

    def pop(self, seq: int) -> Key | None:
        """A version comes again now, or has ended; gives its key if it was postponed."""
        return self._keys.pop(seq, None)

    def lowest(self) -> Key | None:
        """The lowest key of a postponed version."""
        while self._heap and self._heap[0].seq not in self._keys:
            heappop(self._heap)
        return self._heap[0] if self._heap else None
