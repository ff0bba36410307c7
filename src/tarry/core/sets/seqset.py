"""A set of seqs, as bitmaps: one bit for each seq of a block, usually of 65,536, that has any.

Seqs are dense and growing, so a block fills up and is then forgotten as a whole (`drop_upto`).
Invariants: a block that is held has a bit set; the counts are those of the bits.

It is used from one thread. It knows nothing of what being in the set means.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

BLOCK_BITS: Final = 16
"""A block has two to the power of so many seqs, unless a set is told otherwise."""
SMALLEST_BLOCK_BITS: Final = 6
"""Bits are counted 64 at a time."""
BLOCK_SEQS: Final = 1 << BLOCK_BITS
BLOCK_BYTES: Final = BLOCK_SEQS // 8
IN_BLOCK: Final = BLOCK_SEQS - 1
BITS: Final = tuple(1 << bit for bit in range(8))

FEW_PER_BLOCK: Final = 16
"""With no more seqs than this for each block, asking one at a time beats work on whole blocks."""

BLOCKS_AT_ONCE: Final = 64
"""So that what is copied together to be asked about fits a processor's cache."""

LONGEST_GAP: Final = 1 << 16
"""Blocks that are not held between two that are, at most, for one table of them all."""


class SeqSet:
    """A set of seqs, which are not negative."""

    def __init__(self, block_bits: int = BLOCK_BITS) -> None:
        if block_bits < SMALLEST_BLOCK_BITS:
            raise ValueError(f"a block has at least {1 << SMALLEST_BLOCK_BITS} seqs, not {1 << block_bits}")
        self._bits = block_bits
        self._seqs = 1 << block_bits
        self._in_block = self._seqs - 1
        self._blocks: dict[int, bytearray] = {}
        self._counts: dict[int, int] = {}
        """How many seqs each block has."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, seq: int) -> bool:
        block = self._blocks.get(seq >> self._bits)
        return block is not None and block[(seq & self._in_block) >> 3] & BITS[seq & 7] != 0

    @property
    def nbytes(self) -> int:
        """Bytes held by the bitmaps."""
        return len(self._blocks) * (self._seqs >> 3)

    def add(self, seq: int) -> None:
        """Put a seq in, if it is not there."""
        number = seq >> self._bits
        block = self._blocks.get(number)
        if block is None:
            block = self._new_block(number)
        place = (seq & self._in_block) >> 3
        bit = BITS[seq & 7]
        if not block[place] & bit:
            block[place] |= bit
            self._counts[number] += 1
            self._count += 1

    def discard(self, seq: int) -> None:
        """Take a seq out, if it is there."""
        if seq not in self:
            return
        number = seq >> self._bits
        self._blocks[number][(seq & self._in_block) >> 3] &= ~BITS[seq & 7]
        self._counts[number] -= 1
        self._count -= 1
        if self._counts[number] == 0:
            del self._blocks[number], self._counts[number]

    def add_many(self, seqs: NDArray[np.int64]) -> None:
        """Put seqs in. They may be in any order, repeat, and be there already."""
        ordered = np.sort(seqs)
        for number, low, high in _by_block(ordered, self._bits):
            if high - low <= FEW_PER_BLOCK:
                for seq in ordered[low:high].tolist():
                    self.add(seq)
            else:
                self._add_to_block(number, ordered[low:high] & self._in_block)

    def discard_many(self, seqs: NDArray[np.int64]) -> None:
        """Take seqs out, wherever they are there."""
        ordered = np.sort(seqs)
        for number, low, high in _by_block(ordered, self._bits):
            block = self._blocks.get(number)
            if block is not None:
                bits = np.zeros(self._seqs, np.uint8)
                bits[ordered[low:high] & self._in_block] = 1
                bitmap = np.frombuffer(block, np.uint8)
                bitmap &= ~np.packbits(bits, bitorder="little")
                self._count_block(number)

    def add_range(self, first: int, count: int) -> None:
        """Put in `count` seqs from `first` on."""
        for number, low, high in blocks_of(first, count, self._bits):
            bitmap = np.frombuffer(self._blocks.get(number) or self._new_block(number), np.uint8)
            bitmap |= bits_between(low, high, self._seqs)
            self._count_block(number)

    def drop_range(self, first: int, count: int) -> None:
        """Take out `count` seqs from `first` on, wherever they are there."""
        for number, low, high in blocks_of(first, count, self._bits):
            if number in self._blocks:
                bitmap = np.frombuffer(self._blocks[number], np.uint8)
                bitmap &= ~bits_between(low, high, self._seqs)
                self._count_block(number)

    def _add_to_block(self, number: int, places: NDArray[np.int64]) -> None:
        block = self._blocks.get(number)
        if block is None:
            block = self._new_block(number)
        bits = np.zeros(self._seqs, np.uint8)
        bits[places] = 1
        bitmap = np.frombuffer(block, np.uint8)
        bitmap |= np.packbits(bits, bitorder="little")
        self._count_block(number)

    def _count_block(self, number: int) -> None:
        """Count a block's bits again after they changed; an empty one is not held."""
        count = int(np.bitwise_count(np.frombuffer(self._blocks[number], np.uint64)).sum())
        self._count += count - self._counts[number]
        self._counts[number] = count
        if not count:
            del self._blocks[number], self._counts[number]

    def _new_block(self, number: int) -> bytearray:
        """An empty block, into which the caller puts something."""
        block = self._blocks[number] = bytearray(self._seqs >> 3)
        self._counts[number] = 0
        return block

    def contains_many(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of the seqs, in any order, whether it is in the set."""
        if not self._blocks:
            return np.zeros(len(seqs), np.bool_)
        if len(seqs) <= FEW_PER_BLOCK:
            return self._each_contained(seqs)
        numbers = self._held_between(int(seqs.min()) >> self._bits, int(seqs.max()) >> self._bits)
        if len(seqs) <= FEW_PER_BLOCK * len(numbers):
            return self._each_contained(seqs)
        if len(numbers) <= BLOCKS_AT_ONCE:
            return self._contained_in(numbers, seqs)
        found = np.zeros(len(seqs), np.bool_)
        order = np.argsort(seqs)
        ordered = seqs[order]
        for i in range(0, len(numbers), BLOCKS_AT_ONCE):
            some = numbers[i : i + BLOCKS_AT_ONCE]
            low, high = ordered.searchsorted([some[0] << self._bits, (some[-1] + 1) << self._bits])
            found[order[low:high]] = self._contained_in(some, ordered[low:high])
        return found

    def _held_between(self, first: int, last: int) -> list[int]:
        """The numbers, in order, of the blocks that are held from `first` to `last`, both included."""
        if last - first < len(self._blocks):
            return [number for number in range(first, last + 1) if number in self._blocks]
        return sorted(number for number in self._blocks if first <= number <= last)

    def _each_contained(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.fromiter(map(self.__contains__, seqs.tolist()), np.bool_, len(seqs))

    def _contained_in(self, numbers: list[int], seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`contains_many`, looking only into the blocks of these numbers, which are in order."""
        if not numbers:
            return np.zeros(len(seqs), np.bool_)
        # All these blocks as one bitmap, and before them an empty one for seqs of any other block.
        bitmap = np.frombuffer(
            b"".join([bytes(self._seqs >> 3), *(self._blocks[number] for number in numbers)]), np.uint8
        )
        held = np.array(numbers)
        asked = seqs >> self._bits
        rows = held.searchsorted(asked)
        rows[rows == len(held)] = 0
        rows = np.where(held[rows] == asked, rows + 1, 0)
        found = bitmap[rows * (self._seqs >> 3) + ((seqs & self._in_block) >> 3)]
        return (found >> (seqs & 7).astype(np.uint8) & 1).astype(np.bool_)

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """The seqs from `first` to `last`, both included, in order."""
        parts = [np.empty(0, np.int64)]
        for number in self._held_between(first >> self._bits, last >> self._bits):
            bits = np.unpackbits(np.frombuffer(self._blocks[number], np.uint8), bitorder="little")
            parts.append(np.flatnonzero(bits) + (number << self._bits))
        seqs = np.concatenate(parts)
        return seqs[seqs.searchsorted(first) : seqs.searchsorted(last, "right")]

    def bitmap(self, number: int) -> NDArray[np.uint8] | None:
        """The bits of a block, which are not to be written to; None if it is empty."""
        block = self._blocks.get(number)
        return None if block is None else np.frombuffer(block, np.uint8)

    def count_from(self, seq: int) -> int:
        """How many of the seqs are not below one."""
        number = seq >> self._bits
        count = sum(here for one, here in self._counts.items() if one >= number)
        if (block := self.bitmap(number)) is not None:
            below = block & bits_between(0, seq & self._in_block, self._seqs)
            count -= int(np.bitwise_count(below.view(np.uint64)).sum())
        return count

    def drop_upto(self, seq: int) -> int:
        """Forget the blocks that are wholly at or below `seq`; the number of seqs forgotten.

        Seqs at or below `seq` in the block of `seq` itself stay, unless it is the last of its block.
        """
        before = self._count
        for number in [number for number in self._blocks if number < (seq + 1) >> self._bits]:
            del self._blocks[number]
            self._count -= self._counts.pop(number)
        return before - self._count

    def next_absent(self, start: int, stop: int) -> int:
        """The first seq from `start` on that is not in the set; `stop` if there is none below it."""
        while start < stop:
            block = self._blocks.get(start >> BLOCK_BITS)
            if block is None:
                return start
            at = (start & IN_BLOCK) >> 3
            # The byte of `start` itself may have its gap below `start`; any later one that is not full holds the answer.
            gaps = np.flatnonzero(np.frombuffer(block, np.uint8)[at:] != 0xFF)[:2].tolist()
            for gap in gaps:
                base = (start & ~IN_BLOCK) + (at + gap) * 8
                for seq in range(max(base, start), base + 8):
                    if seq not in self:
                        return min(seq, stop)
            start = (start | IN_BLOCK) + 1
        return stop

    def numbers(self) -> list[int]:
        """The numbers of the blocks that are not empty."""
        return list(self._blocks)

    def merge(self, other: "SeqSet") -> None:
        """Put in everything that another set with blocks of the same size has. The other one is not to be used any more."""
        for number, block in other._blocks.items():
            mine = self._blocks.get(number)
            if mine is None:
                self._blocks[number], self._counts[number] = block, other._counts[number]
                self._count += other._counts[number]
                continue
            bitmap = np.frombuffer(mine, np.uint8)
            bitmap |= np.frombuffer(block, np.uint8)
            count = int(np.bitwise_count(bitmap.view(np.uint64)).sum())
            self._count += count - self._counts[number]
            self._counts[number] = count

    def copy(self) -> "SeqSet":
        """A copy whose seqs have memory of their own."""
        copied = SeqSet(self._bits)
        copied._blocks = {number: bytearray(block) for number, block in self._blocks.items()}
        copied._counts, copied._count = dict(self._counts), self._count
        return copied

    def frozen(self) -> "FrozenSeqs":
        """A copy that does not change, for another thread to ask."""
        return FrozenSeqs({number: bytes(block) for number, block in self._blocks.items()}, self._bits)


class FrozenSeqs:
    """A set of seqs as it was at one moment, as one bitmap: many can be asked about at once, in any order."""

    def __init__(self, blocks: Mapping[int, bytes], block_bits: int = BLOCK_BITS) -> None:
        self._bits = block_bits
        self._seqs = 1 << block_bits
        numbers = sorted(blocks)
        # An empty one first, for seqs of any other block.
        self._bitmap = np.frombuffer(
            b"".join([bytes(self._seqs >> 3), *(blocks[number] for number in numbers)]), np.uint8
        )
        self._stretches = _stretches(numbers)

    def contains_many(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of the seqs whether it was in the set."""
        asked = seqs >> self._bits
        rows = np.zeros(len(seqs), np.int64)
        for first, table in self._stretches:
            place = asked - first
            inside = (place >= 0) & (place < len(table))
            np.copyto(rows, table[np.where(inside, place, 0)], where=inside)
        found = self._bitmap[rows * (self._seqs >> 3) + ((seqs & (self._seqs - 1)) >> 3)]
        return (found >> (seqs & 7).astype(np.uint8) & 1).astype(np.bool_)


def _stretches(numbers: list[int]) -> list[tuple[int, NDArray[np.int64]]]:
    """Where the blocks of each stretch of numbers are: the first number, and a place for each one from there on."""
    stretches: list[tuple[int, NDArray[np.int64]]] = []
    if not numbers:
        return stretches
    held = np.array(numbers)
    cuts = (np.flatnonzero(np.diff(held) > LONGEST_GAP) + 1).tolist()
    for low, high in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
        table = np.zeros(numbers[high - 1] - numbers[low] + 1, np.int64)
        table[held[low:high] - numbers[low]] = np.arange(low, high) + 1
        stretches.append((numbers[low], table))
    return stretches


def blocks_of(first: int, count: int, bits: int) -> Iterator[tuple[int, int, int]]:
    """The blocks that a range of seqs touches: (number, first place in it, place after the last)."""
    end = first + count
    while first < end:
        number = first >> bits
        stop = min(end, (number + 1) << bits)
        yield number, first - (number << bits), stop - (number << bits)
        first = stop


def bits_between(low: int, high: int, seqs: int) -> NDArray[np.uint8]:
    """The bitmap of a block of so many seqs with the bits from `low` to before `high` set."""
    bits = np.zeros(seqs, np.uint8)
    bits[low:high] = 1
    return np.packbits(bits, bitorder="little")


def _by_block(ordered: NDArray[np.int64], bits: int) -> list[tuple[int, int, int]]:
    """For seqs in order: (number of the block, first position, position after the last) of each block."""
    if not len(ordered):
        return []
    numbers = ordered >> bits
    cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
    return [
        (int(numbers[low]), low, high) for low, high in zip([0, *cuts], [*cuts, len(ordered)], strict=True)
    ]
