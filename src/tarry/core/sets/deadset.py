"""The dead: seqs of versions that will not fire, in two generations, so that they can be forgotten.

A dead seq may be forgotten once nothing can bring its version back: it is in no wheel, its record is reclaimed, and
the index that is read knows of its end. That is found out long after the fact and for all of them together. So they are
given an age: `age` makes everything known by now *old*, `forget_old` forgets old ones, and what dies in between is young
and stays.

It is used from one thread, like the `SeqSet`s that it is made of.
"""

import numpy as np
from numpy.typing import NDArray

from tarry.core.sets.seqset import BLOCK_BITS, FrozenSeqs, SeqSet


class DeadSet:
    """A set of seqs that grows, and forgets old low ones."""

    def __init__(self, block_bits: int = BLOCK_BITS) -> None:
        self._block_bits = block_bits
        self._young = SeqSet(block_bits)
        self._old = SeqSet(block_bits)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, seq: int) -> bool:
        return seq in self._young or seq in self._old

    @property
    def nbytes(self) -> int:
        """Bytes held by the bitmaps."""
        return self._young.nbytes + self._old.nbytes

    def add(self, seq: int) -> None:
        """Put a seq in."""
        self._young.add(seq)

    def add_many(self, seqs: NDArray[np.int64]) -> None:
        """Put seqs in, in any order."""
        self._young.add_many(seqs)

    def add_range(self, first: int, count: int) -> None:
        """Put in `count` seqs from `first` on."""
        self._young.add_range(first, count)

    def discard(self, seq: int) -> None:
        """Take a seq out."""
        self._young.discard(seq)
        self._old.discard(seq)

    def drop_range(self, first: int, count: int) -> None:
        """Take out `count` seqs from `first` on."""
        self._young.drop_range(first, count)
        self._old.drop_range(first, count)

    def contains_many(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each of the seqs whether it is in the set."""
        found = self._young.contains_many(seqs)
        if len(self._old):
            found |= self._old.contains_many(seqs)
        return found

    def between(self, first: int, last: int) -> NDArray[np.int64]:
        """The seqs from `first` to `last`, both included, in order."""
        return np.union1d(self._young.between(first, last), self._old.between(first, last))

    def frozen(self) -> FrozenSeqs:
        """The dead seqs of this moment, for another thread to ask."""
        both = self._old.copy()
        both.merge(self._young.copy())
        return both.frozen()

    def age(self) -> None:
        """Everything in the set is old from now on."""
        if not len(self._old):
            self._young, self._old = self._old, self._young
        else:
            self._old.merge(self._young)
            self._young = SeqSet(self._block_bits)

    def forget_old(self, upto_seq: int) -> None:
        """Forget dead seqs up to a seq by whole blocks; the block of that seq stays."""
        self._old.drop_upto(upto_seq)
