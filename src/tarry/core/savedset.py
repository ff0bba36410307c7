"""A `SeqSet` that is stored block by block: it knows which of its blocks changed since they were saved."""

import numpy as np
from numpy.typing import NDArray

from tarry.core.seqset import BLOCK_BITS, IN_BLOCK, SeqSet


class SavedSet(SeqSet):
    """A set of numbers whose changed blocks are named in `dirty`."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty: set[int] = set()
        """Numbers of the blocks that changed; whoever stores them clears it."""

    def add(self, seq: int) -> None:
        """Put a number in."""
        super().add(seq)
        self.dirty.add(seq >> BLOCK_BITS)

    def discard(self, seq: int) -> None:
        """Take a number out."""
        super().discard(seq)
        self.dirty.add(seq >> BLOCK_BITS)

    def add_many(self, seqs: NDArray[np.int64]) -> None:
        """Put numbers in."""
        super().add_many(seqs)
        self.dirty.update(np.unique(seqs >> BLOCK_BITS).tolist())

    def discard_many(self, seqs: NDArray[np.int64]) -> None:
        """Take numbers out."""
        super().discard_many(seqs)
        self.dirty.update(np.unique(seqs >> BLOCK_BITS).tolist())

    def add_range(self, first: int, count: int) -> None:
        """Put in `count` numbers from `first` on."""
        super().add_range(first, count)
        self.dirty.update(range(first >> BLOCK_BITS, (first + count - 1 >> BLOCK_BITS) + 1))

    def drop_range(self, first: int, count: int) -> None:
        """Take out `count` numbers from `first` on."""
        super().drop_range(first, count)
        self.dirty.update(range(first >> BLOCK_BITS, (first + count - 1 >> BLOCK_BITS) + 1))

    def drop_upto(self, seq: int) -> int:
        """Forget the blocks that are wholly at or below a number."""
        self.dirty.update(number for number in self._blocks if number < (seq + 1) >> BLOCK_BITS)
        return super().drop_upto(seq)

    def next_absent(self, start: int, stop: int) -> int:
        """The first number from `start` on that is not in the set; `stop` if there is none below it."""
        while start < stop:
            block = self._blocks.get(start >> BLOCK_BITS)
            if block is None:
                return start
            at = (start & IN_BLOCK) >> 3
            # The byte of `start` itself may have its gap below `start`; any later one that is not full holds the answer.
            gaps = np.flatnonzero(np.frombuffer(block, np.uint8)[at:] != 0xFF)[:2].tolist()
            for gap in gaps:
                base = (start & ~IN_BLOCK) + (at + gap) * 8
                for number in range(max(base, start), base + 8):
                    if number not in self:
                        return min(number, stop)
            start = (start | IN_BLOCK) + 1
        return stop

    def numbers(self) -> list[int]:
        """The numbers of the blocks that are not empty."""
        return list(self._blocks)

    def block(self, number: int) -> bytes | None:
        """One block as bytes; None if it is empty."""
        block = self._blocks.get(number)
        return None if block is None else bytes(block)

    def load(self, number: int, data: bytes) -> None:
        """Take a block back that `block` gave."""
        count = int(np.bitwise_count(np.frombuffer(data, np.uint8)).sum())
        self._count += count - self._counts.get(number, 0)
        self._blocks[number] = bytearray(data)
        self._counts[number] = count
