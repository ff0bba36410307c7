"""The watermark: which versions are dead by their keys alone, without a record that ends each of them (R9).

It rises with the clock. When the clock turns out to have been ahead, a `Lower` record takes it back for versions that are
accepted from then on; what it had passed until then stays passed, and is remembered as a ceiling. So a watermark is one key
for the versions to come, and a few ceilings for those that were there before it was lowered.

Pure. Server, index and views all ask here: a version that one of them took for dead and another for alive would be lost or sent twice.
"""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.ledger.record import FIRST_BATCH_SEQ, NO_KEY, Key, Lower, Mark

MAX_CEILINGS: Final = 16
"""Ceilings of a clock that is set back again and again, each time by less. Past that the watermark stays where it is."""


class Ceiling(Struct, array_like=True, frozen=True):
    """A watermark of earlier: of the versions up to a seq, those below the key are dead."""

    key: Key
    seq: int
    """The seq of the record that lowered the watermark."""
    batch_seq: int
    """Messages of batches that were adopted before it are numbered below this (`FIRST_BATCH_SEQ`)."""

    def covers(self, key: Key) -> bool:
        """Whether it says that a version is dead."""
        bound = self.batch_seq - 1 if key.seq >= FIRST_BATCH_SEQ else self.seq
        return key.seq <= bound and key < self.key


class Watermark(Struct, array_like=True, frozen=True):
    """The key below which every version is dead, and ceilings for older versions. A value: a record makes a new one."""

    key: Key = NO_KEY
    ceilings: tuple[Ceiling, ...] = ()
    """The highest first. All are above the key: a watermark that has risen past a ceiling says the same without it."""

    def after(self, seq: int, record: Mark | Lower) -> "Watermark":
        """The watermark after a record of the ledger, given with its seq."""
        if isinstance(record, Lower):
            key = min(self.key, record.watermark)
            ceilings = (*self.ceilings, Ceiling(self.key, seq, record.batch_seq))
        else:
            key, ceilings = max(self.key, record.watermark), self.ceilings
        return Watermark(key, tuple(one for one in ceilings if one.key > key))

    @property
    def may_be_lowered(self) -> bool:
        """Whether there is room for one more ceiling."""
        return len(self.ceilings) < MAX_CEILINGS

    def has_passed(self, key: Key) -> bool:
        """Whether a version is dead by its key."""
        return key < self.key or any(one.covers(key) for one in self.ceilings)

    def passed(self, fire_at_ms: NDArray[np.int64], seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which versions are dead by their keys."""
        dead = _below(fire_at_ms, seqs, self.key)
        for one in self.ceilings:
            bound = np.where(seqs >= FIRST_BATCH_SEQ, one.batch_seq - 1, one.seq)
            dead |= (seqs <= bound) & _below(fire_at_ms, seqs, one.key)
        return dead


NOTHING_PASSED: Final = Watermark()


def _below(fire_at_ms: NDArray[np.int64], seqs: NDArray[np.int64], key: Key) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = (fire_at_ms < key.fire_at_ms) | (
        (fire_at_ms == key.fire_at_ms) & (seqs < key.seq)
    )
    return below
