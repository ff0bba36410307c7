"""A set of numbers that is stored block by block: it knows which of its blocks changed since they were saved.

Most topics have few such numbers or none, so that a few of them are a plain set; more of them are bitmaps (`SeqSet`).
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.sets.seqset import BLOCK_BITS, BLOCK_BYTES, BLOCK_SEQS, IN_BLOCK, SeqSet

FEW: Final = 64
"""So many numbers are a plain set: a bitmap costs eight thousand bytes for each block that has any."""

LISTED: Final = 1_024
"""A stored block of so many numbers or fewer is the list of their places, two bytes each."""

_PLACE: Final = np.dtype("<u2")

UNCHANGED: Final[frozenset[int]] = frozenset()
"""No blocks. One for all: of 100,000 topics nearly all have changed nothing, and each empty set is 216 bytes."""

_NOTHING: Final[set[int]] = set()
"""No numbers, shared likewise; never written to."""


class SavedSet:
    """A set of numbers, which are not negative, whose changed blocks are named in `dirty`."""

    __slots__ = ("_bits", "_few", "dirty")

    def __init__(self) -> None:
        self._few = _NOTHING
        self._bits: SeqSet | None = None
        """The numbers once they are many; then there are none in `_few`."""
        self.dirty = UNCHANGED
        """Numbers of the blocks that changed; whoever stores them says so by `saved`."""

    def __len__(self) -> int:
        return len(self._few) if self._bits is None else len(self._bits)

    def __contains__(self, number: int) -> bool:
        return number in self._few if self._bits is None else number in self._bits

    @property
    def nbytes(self) -> int:
        """Bytes held by the numbers, about."""
        return len(self._few) * 64 if self._bits is None else self._bits.nbytes

    def _many(self) -> SeqSet:
        """The numbers as bitmaps."""
        if self._bits is None:
            self._bits = SeqSet()
            self._bits.add_many(np.fromiter(self._few, np.int64, len(self._few)))
            self._few = _NOTHING
        return self._bits

    def saved(self) -> None:
        """The blocks that changed are stored."""
        self.dirty = UNCHANGED

    def touch(self, numbers: Iterable[int]) -> None:
        """Have these blocks stored, whether they changed or not."""
        self.dirty = self.dirty.union(numbers)

    def _settle(self) -> None:
        """Take no more room than is needed, after numbers went."""
        if self._bits is not None and not self._bits:
            self._bits = None

    def _mark(self, number: int) -> None:
        if number not in self.dirty:
            self.dirty |= {number}

    def add(self, number: int) -> None:
        """Put a number in."""
        if self._bits is None and len(self._few) < FEW:
            if not self._few:
                self._few = set()
            self._few.add(number)
        else:
            self._many().add(number)
        self._mark(number >> BLOCK_BITS)

    def discard(self, number: int) -> None:
        """Take a number out."""
        if self._bits is None:
            self._few.discard(number)
        else:
            self._bits.discard(number)
            self._settle()
        self._mark(number >> BLOCK_BITS)

    def add_many(self, numbers: NDArray[np.int64]) -> None:
        """Put numbers in."""
        if self._bits is None and len(self._few) + len(numbers) <= FEW:
            self._few = {*self._few, *numbers.tolist()}
        else:
            self._many().add_many(numbers)
            self._settle()
        self.touch(np.unique(numbers >> BLOCK_BITS).tolist())

    def discard_many(self, numbers: NDArray[np.int64]) -> None:
        """Take numbers out."""
        if self._bits is None:
            self._few.difference_update(numbers.tolist())
        else:
            self._bits.discard_many(numbers)
            self._settle()
        self.touch(np.unique(numbers >> BLOCK_BITS).tolist())

    def contains_many(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of the numbers, in any order, whether it is in the set."""
        if self._bits is not None:
            return self._bits.contains_many(numbers)
        if not self._few:
            return np.zeros(len(numbers), np.bool_)
        return np.isin(numbers, np.fromiter(self._few, np.int64, len(self._few)))

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """The numbers from `first` to `last`, both included, in order."""
        if self._bits is not None:
            return self._bits.between(first, last)
        return np.array(sorted(one for one in self._few if first <= one <= last), np.int64)

    def bitmap(self, number: int) -> NDArray[np.uint8] | None:
        """The bits of a block, which are not to be written to; None if it is empty."""
        if self._bits is not None:
            return self._bits.bitmap(number)
        places = [one & IN_BLOCK for one in self._few if one >> BLOCK_BITS == number]
        if not places:
            return None
        bits = np.zeros(BLOCK_BYTES, np.uint8)
        for place in places:
            bits[place >> 3] |= 1 << (place & 7)
        return bits

    def count_from(self, number: int) -> int:
        """How many of the numbers are not below one."""
        return (
            sum(one >= number for one in self._few) if self._bits is None else self._bits.count_from(number)
        )

    def drop_upto(self, number: int) -> int:
        """Forget the blocks that are wholly at or below a number; how many numbers were forgotten."""
        bound = (number + 1) >> BLOCK_BITS
        before = len(self)
        self.touch(one for one in self.numbers() if one < bound)
        if self._bits is None:
            self._few = {one for one in self._few if one >> BLOCK_BITS >= bound}
        else:
            self._bits.drop_upto(number)
            self._settle()
        return before - len(self)

    def next_absent(self, start: int, stop: int) -> int:
        """The first number from `start` on that is not in the set; `stop` if there is none below it."""
        if self._bits is not None:
            return self._bits.next_absent(start, stop)
        while start < stop and start in self._few:
            start += 1
        return start

    def numbers(self) -> list[int]:
        """The numbers of the blocks that are not empty."""
        if self._bits is not None:
            return self._bits.numbers()
        return list({one >> BLOCK_BITS for one in self._few})

    def block(self, number: int) -> bytes | None:
        """One block as bytes, a list of places or a bitmap; None if it is empty."""
        first = number << BLOCK_BITS
        here = self.between(first, first + BLOCK_SEQS - 1)
        if not len(here):
            return None
        if len(here) <= LISTED:
            return (here & IN_BLOCK).astype(_PLACE).tobytes()
        bits = np.zeros(BLOCK_SEQS, np.uint8)
        bits[here & IN_BLOCK] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def load(self, number: int, data: bytes) -> None:
        """Take a block back that `block` gave, of this version or of one that stored bitmaps alone."""
        if len(data) == BLOCK_BYTES:
            places = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
        else:
            places = np.frombuffer(data, _PLACE).astype(np.int64)
        dirty = self.dirty
        self.add_many(places + (number << BLOCK_BITS))
        self.dirty = dirty
