"""All the runs under a timer queue: which of them hold the lowest keys, and when which are merged.

Invariants:
- Every entry added is in exactly one run until it is taken, dropped or filtered out.
- The heap of heads has the lowest key of each run, once, so that looking for what is not there is O(1).
- Runs of like size are merged, eight or more into one, up to `run_limit` entries, so there are few
  small ones, and an entry is copied a few times in all. Larger runs are left alone.
- Merging and giving memory back are cut into bounded pieces, at most one for each call.
- At most a fifth of a run is held after it was taken, but for what waits for its piece.

It is used from one thread. Where entries come from, and what the time is, it does not know.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.timers.run import RUN_LIMIT, Due, Run, TimerKey, Window, empty_entries, first_of, merged

MERGE_WIDTH: Final = 8
"""Runs of like size that are merged into one. Wider means fewer copies of an entry and more runs."""

Keep = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Asked with seqs; answers, for each, whether its entry is to be kept."""


class Runs:
    """Sorted runs of entries, from which entries are taken in the order of their keys over all runs."""

    def __init__(self, run_limit: int = RUN_LIMIT) -> None:
        self.run_limit = run_limit
        self._runs: dict[int, Run] = {}
        """None is empty. A number is not used again."""
        self._next_number = 0
        self._count = 0
        self._heads: list[tuple[int, int, int]] = []
        """A heap of (fire_at_ms, seq, number of the run)."""
        self._slack: set[int] = set()
        """Runs of which a fifth or more was taken and is still held. Some may be gone."""
        self._unsettled = False
        """Whether there may be runs to merge."""
        self._sweep = 0
        """How many times filtering was begun. A run's `sweep` tells how far it has been filtered."""

    def __len__(self) -> int:
        """How many entries there are."""
        return self._count

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def head_fire_at_ms(self) -> int | None:
        """The earliest fire time, or None if there are no entries."""
        return self._heads[0][0] if self._heads else None

    def add(self, entries: Due) -> None:
        """Take over entries: at least one, in key order, and not shared with anyone who changes them."""
        self._add(Run(entries, self._sweep))

    def _add(self, run: Run) -> None:
        self._runs[self._next_number] = run
        heappush(self._heads, (*run.key(run.start), self._next_number))
        self._next_number += 1
        self._count += len(run)
        self._unsettled |= 2 * len(run) <= self.run_limit

    # Taking

    def take(self, key: TimerKey, limit: int) -> Due:
        """Remove and return the first `limit` entries below `key`, in key order."""
        numbers = self._pop_heads(key, limit) if limit > 0 else []
        if not numbers:
            return empty_entries(0)
        # A cut across many runs costs the same for few entries as for many. So more are taken than
        # were asked for, and the rest goes back as a run in which the next calls find theirs.
        spare = self.run_limit // 4 if len(numbers) > MERGE_WIDTH else 0
        windows = []
        for number in numbers:
            run = self._runs[number]
            high = min(run.start + limit + spare, run.end)
            windows.append(Window(run, run.start, run.rank(key, run.start, high)))
        entries, counts = first_of(windows, limit, spare)
        for number, count in zip(numbers, counts, strict=True):
            self._advance(number, count)
        if len(entries.seqs) > limit:
            self.add(entries.at(slice(limit, None)).copy())
            entries = entries.at(slice(limit)).copy()
        self.tidy()
        return entries

    def _pop_heads(self, key: TimerKey, limit: int) -> list[int]:
        """Pop the heads of the runs that can hold any of the first `limit` entries below `key`."""
        numbers = []
        while self._heads and self._heads[0][:2] < key:
            number = heappop(self._heads)[2]
            numbers.append(number)
            run = self._runs[number]
            if len(run) >= limit:
                key = min(key, run.key(run.start + limit - 1))
        return numbers

    def _advance(self, number: int, count: int) -> None:
        """Take `count` entries off the front of a run whose head was popped."""
        run = self._runs[number]
        run.start += count
        self._count -= count
        if run.start == run.end:
            del self._runs[number]
            return
        heappush(self._heads, (*run.key(run.start), number))
        if 5 * run.start >= run.end:
            self._slack.add(number)

    # Dropping

    def drop_seqs_upto(self, seq: int) -> int:
        """Remove every entry whose seq is at most `seq`; gives how many."""
        before = self._count
        for number, run in list(self._runs.items()):
            if run.first_seq <= seq:
                self._keep(number, run.seqs > seq)
        self._rebuild_heads()
        self.tidy()
        return before - self._count

    def filter_stepwise(self, keep: Keep) -> Iterator[int]:
        """Remove the entries that are not to be kept, one run at a time: yields the number removed after each.

        Anything may be done between the steps. What was there at the first step, and was not taken
        meanwhile, has been asked about after the last. What was added meanwhile has perhaps not.
        """
        self._sweep += 1
        sweep = self._sweep
        while (number := next((n for n, run in self._runs.items() if run.sweep < sweep), None)) is not None:
            run = self._runs[number]
            run.sweep = sweep
            before = self._count
            self._keep(number, keep(run.seqs))
            dropped = before - self._count
            if dropped:
                self._rebuild_heads()
                self.tidy()
            yield dropped

    def _keep(self, number: int, mask: NDArray[np.bool_]) -> None:
        """Drop the entries of a run where `mask` is false. Heads are left as they were."""
        run = self._runs[number]
        kept = int(np.count_nonzero(mask))
        if kept == len(run):
            return
        self._count -= len(run) - kept
        self._unsettled = True
        if kept:
            self._runs[number] = Run(run.entries.at(slice(run.start, None)).at(mask), run.sweep)
        else:
            del self._runs[number]

    def _rebuild_heads(self) -> None:
        self._heads = [(*run.key(run.start), number) for number, run in self._runs.items()]
        heapify(self._heads)

    # Compaction

    def tidy(self) -> None:
        """Give back some memory and do at most one merge: a bounded piece of work for each call."""
        budget = self.run_limit
        while self._slack and budget > 0:
            run = self._runs.get(self._slack.pop())
            if run is not None:
                run.trim()
                budget -= len(run)
                self._unsettled = True
        if self._unsettled:
            crowd = self._crowd()
            if crowd:
                self._merge(crowd)
            else:
                self._unsettled = False

    def _crowd(self) -> list[int]:
        """Runs of like size that should be one, and fit into one; none if all is well.

        A level is a range of sizes, eight times as wide as it begins: (limit/16, limit/2] and so on down.
        """
        half = self.run_limit // 2
        levels: dict[int, list[tuple[int, int]]] = {}
        for number, run in self._runs.items():
            if len(run) <= half:
                level = ((half // len(run)).bit_length() - 1) // 3
                levels.setdefault(level, []).append((run.first_seq, number))
        for level in sorted(levels, reverse=True):
            members = levels[level]
            count = sum(len(self._runs[number]) for _, number in members)
            if len(members) < MERGE_WIDTH and count < self.run_limit:
                continue
            # Neighbours in seq go together, so that few runs straddle a seq that the tail lets go up to.
            crowd, count = [], 0
            for _, number in sorted(members):
                count += len(self._runs[number])
                if count > self.run_limit:
                    break
                crowd.append(number)
            return crowd
        return []

    def _merge(self, numbers: list[int]) -> None:
        runs = [self._runs.pop(number) for number in numbers]
        self._count -= sum(map(len, runs))
        self._add(Run(merged(runs), min(run.sweep for run in runs)))
        self._rebuild_heads()
