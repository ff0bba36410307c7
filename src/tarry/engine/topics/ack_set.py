"""Which entries a subscription is done with, exactly, however many holes there are.

Everything below `below` is acknowledged, and so is each entry in a bitmap above it. A million holes cost
their bits, and the state is stored as those bits: nothing is rounded or summed up.
"""

import numpy as np
from numpy.typing import NDArray

from tarry.core.sets.savedset import SavedSet


class AckSet:
    """The acknowledged entries of one subscription."""

    def __init__(self, below: int) -> None:
        self.below = below
        self.above = SavedSet()

    def __contains__(self, entry_id: int) -> bool:
        return entry_id < self.below or entry_id in self.above

    def contains_many(self, entry_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each entry whether it is acknowledged."""
        return (entry_ids < self.below) | self.above.contains_many(entry_ids)

    def add(self, entry_ids: list[int], stop: int) -> None:
        """Acknowledge entries one by one; `stop` is the next entry id of the topic."""
        for entry_id in entry_ids:
            if self.below <= entry_id < stop:
                self.above.add(entry_id)
        self._close_up(stop)

    def add_below(self, below: int, stop: int) -> None:
        """Acknowledge everything below an entry."""
        below = min(below, stop)
        if below > self.below:
            self.below = below
            self.above.drop_upto(below - 1)
            self._close_up(stop)

    def _close_up(self, stop: int) -> None:
        if self.below in self.above:
            self.below = self.above.next_absent(self.below, stop)
            self.above.drop_upto(self.below - 1)

    def count(self, first: int) -> int:
        """How many entries from `first` on are acknowledged."""
        return max(0, self.below - first) + self.above.count_from(max(first, self.below))
