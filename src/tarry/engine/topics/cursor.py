"""The cursor of a subscription: where it reads on, and the entries before that place which come again."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.engine.topics.ack_set import AckSet
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.leases import Leases

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
            room = wanted - len(ids)
            if len(fresh) > room:
                fresh = fresh[:room]
                self.at = int(fresh[-1]) + 1
            else:
                self.at = stop
            ids = np.concatenate((ids, fresh)) if len(ids) else fresh
        return ids

    def _take_again(self, wanted: int, acked: AckSet, leases: Leases) -> list[int]:
        """Take the lowest of the entries that come again, up to so many, that are still to be given out."""
        ids: list[int] = []
        while self._again and len(ids) < wanted:
            room = wanted - len(ids)
            if len(self._again) <= room:
                some, self._again = sorted(self._again), []
            else:
                some = [heappop(self._again) for _ in range(room)]
            self._queued.difference_update(some)
            done = acked.contains_many(np.array(some)).tolist()
            ids += [one for one, over in zip(some, done, strict=True) if not over and one not in leases]
        return ids
