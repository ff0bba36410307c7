"""How large bodies are, roughly: enough to know how many can be read together within a bound.

Kept for stretches of seqs, so that a few huge messages slow down only what lies beside them.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tarry.ledger.frame import Unit

STRETCH_BITS: Final = 12
SMALL_BYTES: Final = 16 * 1024
"""Bodies up to this size are not worth remembering."""

TOGETHER_BYTES: Final = 32 * 1024 * 1024
"""How much is read at once, about."""


class BodySizes:
    """The largest body in each stretch of seqs that has a large one."""

    def __init__(self) -> None:
        self._largest: dict[int, int] = {}

    def add(self, seq: int, size_bytes: int) -> None:
        """Take note of a body."""
        if size_bytes > SMALL_BYTES:
            stretch = seq >> STRETCH_BITS
            self._largest[stretch] = max(size_bytes, self._largest.get(stretch, 0))

    def add_unit(self, first_seq: int, unit: Unit) -> None:
        """Take note of the bodies of a unit."""
        if len(unit.bodies) > SMALL_BYTES:
            self.add_many(first_seq, unit.fixed["size"])

    def add_many(self, first_seq: int, sizes: NDArray[np.integer[Any]]) -> None:
        """Take note of bodies that follow each other."""
        for at in np.flatnonzero(sizes > SMALL_BYTES).tolist():
            self.add(first_seq + at, int(sizes[at]))

    def saved(self) -> dict[int, int]:
        """The sizes that the registry keeps."""
        return dict(self._largest)

    def load(self, saved: dict[int, int]) -> None:
        """Take over the sizes that the registry has."""
        self._largest.update(saved)

    def forget_upto(self, seq: int) -> None:
        """Forget stretches that are wholly at or below a seq."""
        self._largest = {
            stretch: size
            for stretch, size in self._largest.items()
            if (stretch + 1) << STRETCH_BITS > seq + 1
        }

    def together(self, seqs: NDArray[np.int64]) -> int:
        """How many of these can be read together: all of them, unless large ones may be among them."""
        if not self._largest:
            return max(1, len(seqs))
        stretches = np.unique(seqs >> STRETCH_BITS).tolist()
        largest = max((self._largest.get(stretch, 0) for stretch in stretches), default=0)
        return max(1, len(seqs) if not largest else TOGETHER_BYTES // largest)
