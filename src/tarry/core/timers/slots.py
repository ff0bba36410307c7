"""Slots of due time, in sizes: the levels through which a message comes nearer.

A far message goes into a coarse slot, and a slot that comes near is split into finer ones, as a whole: a hierarchical
timing wheel on a table. The finest size is a namespace's granularity (PIP-26's time-partition granularity); one that is
coarser than a level ends the cascade there. Nothing but speed depends on which slot a message is in.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS

LEVELS: Final = (365 * DAY_MS, 30 * DAY_MS, DAY_MS, HOUR_MS, MINUTE_MS)
"""Sizes above the granularity, from coarse to fine. The two coarsest keep a batch that spans a century in few files, the
finest keeps a granularity of seconds from making thousands."""


def lead_of(size_ms: int) -> int:
    """How long before its start a slot is split: a quarter of its size."""
    return size_ms // 4


class Slot(NamedTuple):
    """A half-open interval of due time: [start, start + size)."""

    size_ms: int
    start_ms: int

    @property
    def end_ms(self) -> int:
        """The first instant after it."""
        return self.start_ms + self.size_ms

    @property
    def name(self) -> str:
        """How it is written in the index: size and start, both in milliseconds."""
        return f"{self.size_ms}_{self.start_ms}"


def parse_slot(name: str) -> Slot:
    """Read a slot's name back; raises ValueError."""
    size, _, start = name.partition("_")
    return Slot(int(size), int(start))


def sizes_for(
    fire_at_ms: NDArray[np.int64], now_ms: int, granularity_ms: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The sizes of the slots in which messages belong now: the coarsest that need not be split yet."""
    sizes = granularity_ms.astype(np.int64, copy=True)
    for level_ms in reversed(LEVELS):
        # The first start that lies far enough ahead: whatever fires from there on is in this level or a coarser one.
        from_ms = -(-(now_ms + lead_of(level_ms)) // level_ms) * level_ms
        sizes[(level_ms > granularity_ms) & (fire_at_ms >= from_ms)] = level_ms
    return sizes
