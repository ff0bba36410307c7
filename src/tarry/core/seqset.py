"""A set of dense, growing numbers (seqs, entry ids) as a bitmap in blocks.

One bit a number, whatever the pattern: a million holes cost their bits and no more. Blocks that are empty are not
kept. `dirty` names the blocks that changed, for whoever stores them.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_BITS: Final = 16
BLOCK: Final = 1 << BLOCK_BITS
"""Numbers in one block."""
BLOCK_BYTES: Final = BLOCK // 8


class SeqSet:
    """A set of non-negative integers."""

    def __init__(self) -> None:
        self.dirty: set[int] = set()
        """Numbers of blocks that changed since somebody cleared this."""
        self._blocks: dict[int, NDArray[np.uint8]] = {}
        self._counts: dict[int, int] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, seq: int) -> bool:
        block = self._blocks.get(seq >> BLOCK_BITS)
        return block is not None and bool(block[(seq & (BLOCK - 1)) >> 3] >> (seq & 7) & 1)

    def add(self, seq: int) -> None:
        """Add a number."""
        number = seq >> BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            block = self._new_block(number)
        at, bit = (seq & (BLOCK - 1)) >> 3, 1 << (seq & 7)
        if not block[at] & bit:
            block[at] |= bit
            self._counts[number] += 1
            self._length += 1
            self.dirty.add(number)

    def discard(self, seq: int) -> None:
        """Remove a number if it is there."""
        number = seq >> BLOCK_BITS
        block = self._blocks.get(number)
        if block is None:
            return
        at, bit = (seq & (BLOCK - 1)) >> 3, 1 << (seq & 7)
        if block[at] & bit:
            block[at] ^= bit
            self._counts[number] -= 1
            self._length -= 1
            self.dirty.add(number)
            if not self._counts[number]:
                self._drop_block(number)

    def add_many(self, seqs: NDArray[np.int64]) -> None:
        """Add many numbers."""
        for number, within in _by_block(seqs):
            block = self._blocks.get(number)
            if block is None:
                block = self._new_block(number)
            np.bitwise_or.at(block, within >> 3, np.left_shift(np.uint8(1), (within & 7).astype(np.uint8)))
            count = _popcount(block)
            self._length += count - self._counts[number]
            self._counts[number] = count
            self.dirty.add(number)

    def contains_many(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each number whether it is in the set."""
        result = np.zeros(len(seqs), np.bool_)
        if not self._length or not len(seqs):
            return result
        numbers = seqs >> BLOCK_BITS
        low, high = int(numbers.min()), int(numbers.max())
        for number in range(low, high + 1) if high - low < 8 else np.unique(numbers).tolist():
            block = self._blocks.get(number)
            if block is None:
                continue
            if low == high:
                within = seqs & (BLOCK - 1)
                return (block[within >> 3] >> (within & 7).astype(np.uint8) & 1).astype(np.bool_)
            chosen = np.flatnonzero(numbers == number)
            within = seqs[chosen] & (BLOCK - 1)
            result[chosen] = block[within >> 3] >> (within & 7).astype(np.uint8) & 1
        return result

    def next_absent(self, start: int, stop: int) -> int:
        """The first number from `start` on that is not in the set; `stop` if there is none below it."""
        while start < stop:
            block = self._blocks.get(start >> BLOCK_BITS)
            if block is None:
                return start
            within = start & (BLOCK - 1)
            # A byte that is not full holds the answer, or, in the first byte, may be below `start`.
            open_bytes = np.flatnonzero(block[within >> 3 :] != 0xFF)
            for at in open_bytes[:2].tolist():
                base = (start & ~(BLOCK - 1)) + ((within >> 3) + at) * 8
                for bit in range(8):
                    if base + bit >= start and base + bit not in self:
                        return min(base + bit, stop)
            start = (start | (BLOCK - 1)) + 1
        return stop

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """The numbers in a closed range, in order."""
        parts: list[NDArray[np.int64]] = []
        for number in sorted(self._blocks):
            base = number << BLOCK_BITS
            if base > last or base + BLOCK <= first:
                continue
            found = np.flatnonzero(np.unpackbits(self._blocks[number], bitorder="little")) + base
            parts.append(found[(found >= first) & (found <= last)])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def drop_upto(self, seq: int) -> None:
        """Forget the whole blocks that are wholly at or below a number."""
        for number in [number for number in self._blocks if ((number + 1) << BLOCK_BITS) - 1 <= seq]:
            self._length -= self._counts[number]
            self._drop_block(number)
            self.dirty.add(number)

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmaps."""
        return len(self._blocks) * BLOCK_BYTES

    # Storing

    def numbers(self) -> list[int]:
        """The numbers of the blocks that are not empty."""
        return list(self._blocks)

    def block(self, number: int) -> bytes | None:
        """One block as bytes; None if it is empty."""
        block = self._blocks.get(number)
        return None if block is None else block.tobytes()

    def load(self, number: int, data: bytes) -> None:
        """Take a block back."""
        block = np.frombuffer(data, np.uint8).copy()
        self._length += _popcount(block) - self._counts.get(number, 0)
        self._blocks[number] = block
        self._counts[number] = _popcount(block)

    def _new_block(self, number: int) -> NDArray[np.uint8]:
        self._counts[number] = 0
        block = self._blocks[number] = np.zeros(BLOCK_BYTES, np.uint8)
        return block

    def _drop_block(self, number: int) -> None:
        del self._blocks[number], self._counts[number]


def _popcount(block: NDArray[np.uint8]) -> int:
    return int(np.bitwise_count(block).sum())


def _by_block(seqs: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    if not len(seqs):
        return []
    numbers = seqs >> BLOCK_BITS
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return [(low, seqs & (BLOCK - 1))]
    return [(number, seqs[numbers == number] & (BLOCK - 1)) for number in np.unique(numbers).tolist()]
