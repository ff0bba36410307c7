"""The place of a subscription in its topic: the entries that are acknowledged, and the cursor, by which it reads on.

Which entries a subscription is done with is known exactly, however many holes there are: everything below `AckSet.below`, and each
entry in a bitmap above it. A million holes cost their bits, and the state is stored as those bits: nothing is rounded or summed up.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.sets.savedset import SavedSet
from tarry.engine.topics.consumer import Leases
from tarry.engine.topics.entry_log import EntryLog


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


SCAN: Final = 4096
"""Entries looked at in one step of the scan."""

SCANS: Final = 64
"""Steps of the scan in one go: among millions that wait or are acknowledged there may be none to give out."""

FEW: Final = 16
"""Fewer than this are put into a heap one by one."""


class Cursor:
    """The next entries to give out: first entries that come again, the lowest first, then entries that were never read."""

    def __init__(self, log: EntryLog, start: int) -> None:
        self.at = start
        """Entries from here on were never read."""
        self._log = log
        self._again: list[int] = []
        """Entries below `at` to be given out: a heap; `_queued` says which are in it."""
        self._queued: set[int] = set()

    def __contains__(self, entry_id: int) -> bool:
        """Whether an entry comes again."""
        return entry_id in self._queued

    @property
    def has_again(self) -> bool:
        """Whether any entry comes again."""
        return bool(self._again)

    @property
    def at_end(self) -> bool:
        """Whether every entry that is visible was read."""
        return self.at >= self._log.visible

    def move(self, to: int) -> None:
        """Go to an entry; none of those before it comes again."""
        self._again.clear()
        self._queued.clear()
        self.at = to

    def pass_below(self, entry_id: int) -> None:
        """Read nothing below an entry that was not read yet."""
        self.at = max(self.at, entry_id)

    def queue(self, entry_id: int) -> None:
        """Have an entry come again."""
        if entry_id not in self._queued:
            self._queued.add(entry_id)
            heappush(self._again, entry_id)

    def queue_all(self, entry_ids: Iterable[int]) -> None:
        """Have entries come again."""
        new = {one for one in entry_ids if one not in self._queued}
        self._queued |= new
        if len(new) < FEW:
            for entry_id in new:
                heappush(self._again, entry_id)
        else:
            self._again += new
            heapify(self._again)

    def take(
        self, wanted: int, acked: AckSet, leases: Leases, *, passes_waiting: bool, again_only: bool
    ) -> NDArray[np.int64]:
        """Take the next entries, up to so many, that are neither acknowledged nor given out.

        With `passes_waiting` those that wait for their due instant are passed over; with `again_only` nothing new is read.
        """
        ids = np.array(self._take_again(wanted, acked, leases), np.int64)
        if again_only:
            return ids
        log = self._log
        for _ in range(SCANS):
            if len(ids) >= wanted or self.at >= log.visible:
                break
            start = max(self.at, log.first)
            stop = min(start + SCAN, log.visible)
            if start >= stop:
                self.at = start
                break
            fresh = np.arange(start, stop)
            skip = acked.contains_many(fresh)
            if passes_waiting:
                skip |= log.waiting.contains_many(fresh)
            fresh = fresh[~skip]
            lacking = wanted - len(ids)
            if len(fresh) > lacking:
                fresh = fresh[:lacking]
                self.at = int(fresh[-1]) + 1
            else:
                self.at = stop
            ids = np.concatenate((ids, fresh)) if len(ids) else fresh
        return ids

    def _take_again(self, wanted: int, acked: AckSet, leases: Leases) -> list[int]:
        """Take the lowest of the entries that come again, up to so many, that are still to be given out."""
        ids: list[int] = []
        while self._again and len(ids) < wanted:
            lacking = wanted - len(ids)
            if len(self._again) <= lacking:
                some, self._again = sorted(self._again), []
            else:
                some = [heappop(self._again) for _ in range(lacking)]
            self._queued.difference_update(some)
            done = acked.contains_many(np.array(some)).tolist()
            ids += [one for one, over in zip(some, done, strict=True) if not over and one not in leases]
        return ids
