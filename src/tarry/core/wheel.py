"""The timing wheel: entries that wait, in key order, for the instant they are due.

It holds what is below the horizon and, as a second instance, the un-indexed tail. It is a small
log-structured merge of sorted runs. New entries wait in a heap (one at a time) or in a buffer (many
at once) until those are full, or hold something that is asked for; then they become a run. Runs of
like size are merged, up to `RUN_LIMIT` entries.

Invariants:
- An entry that is not due is never popped, whatever the clock does, and what is popped is in key order.
- No entry is lost or doubled. A seq is expected once; adding one twice keeps it twice.
- No call takes longer than about 10 ms, except where it must touch as much as it is asked for
  (`take_below`, `filter`, a large `add_many`): `nth_key`, `filter_stepwise` and `add_runs` are
  there to do that in pieces or in a worker thread.
- At most 24 bytes an entry, and 18 where nothing was taken yet.

It is used from one thread. It knows nothing of messages, of who is dead or of what the time is.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.runs import (
    RUN_LIMIT,
    Due,
    Key,
    Run,
    Window,
    empty_entries,
    first_of,
    in_key_order,
    merged,
    nth_key,
    sorted_runs,
)

__all__ = ["Due", "Key", "Wheel", "sorted_runs"]

FRESH_LIMIT: Final = 1 << 12
"""Turning so many tuples into arrays takes about a millisecond."""

BUFFER_LIMIT: Final = RUN_LIMIT
"""So that what comes in batches is sorted once and never merged."""

MERGE_WIDTH: Final = 8
"""Runs of like size that are merged into one. Wider means fewer copies of an entry and more runs."""

HEAP_POPS: Final = 512
"""When more than this are due in the heap, making it a run is cheaper than popping them."""

FRESH_ENTRY_BYTES: Final = 184
"""A tuple of three in a heap: its slot (8), itself (80) and its numbers (3 × 32)."""

LOWEST_SEQ: Final = -(1 << 63)


class Wheel:
    """Entries (fire_at_ms, seq, lane) in the order of their keys (fire_at_ms, seq)."""

    def __init__(
        self, *, fresh_limit: int = FRESH_LIMIT, buffer_limit: int = BUFFER_LIMIT, run_limit: int = RUN_LIMIT
    ) -> None:
        """The limits are in entries; tests make them small."""
        self._fresh_limit = fresh_limit
        self._run_limit = run_limit
        self._fresh: list[tuple[int, int, int]] = []
        self._buffer = empty_entries(buffer_limit)
        self._buffered = 0
        self._buffer_fire_at_ms = 0
        """The earliest fire time in the buffer, if it is not empty."""
        self._runs: dict[int, Run] = {}
        """None is empty. The numbers only grow."""
        self._next_number = 0
        self._in_runs = 0
        self._heads: list[tuple[int, int, int]] = []
        """A heap of (fire_at_ms, seq, number): the head of each run, once."""
        self._slack: set[int] = set()
        """Runs of which a quarter or more was taken and is still held."""
        self._unsettled = False
        """Whether there may be runs to merge."""
        self._sweep = 0

    def __len__(self) -> int:
        return len(self._fresh) + self._buffered + self._in_runs

    @property
    def nbytes(self) -> int:
        """Bytes held by the entries, by the room for more, and by what was taken and not yet given back."""
        arrays = sum(run.nbytes for run in self._runs.values()) + sum(array.nbytes for array in self._buffer)
        return arrays + len(self._fresh) * FRESH_ENTRY_BYTES

    # Adding

    def add(self, fire_at_ms: int, seq: int, lane: int) -> None:
        """Add one entry."""
        heappush(self._fresh, (fire_at_ms, seq, lane))
        if len(self._fresh) >= self._fresh_limit:
            self._spill_fresh()
            self._tidy()

    def add_many(
        self, fire_at_ms: NDArray[np.int64], seqs: NDArray[np.int64], lanes: NDArray[np.uint16]
    ) -> None:
        """Add entries in any order. The arrays are copied."""
        count = len(seqs)
        if not len(fire_at_ms) == len(lanes) == count:
            raise ValueError(f"arrays of different lengths: {len(fire_at_ms)}, {count}, {len(lanes)}")
        if count == 0:
            return
        if count >= len(self._buffer.seqs):
            self.add_runs(sorted_runs(Due(fire_at_ms, seqs, lanes), self._run_limit))
            return
        if self._buffered + count > len(self._buffer.seqs):
            self._spill_buffer()
            self._tidy()
        earliest = int(fire_at_ms.min())
        if not self._buffered or earliest < self._buffer_fire_at_ms:
            self._buffer_fire_at_ms = earliest
        room = slice(self._buffered, self._buffered + count)
        self._buffer.fire_at_ms[room] = fire_at_ms
        self._buffer.seqs[room] = seqs
        self._buffer.lanes[room] = lanes
        self._buffered += count

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Add what `sorted_runs` prepared, perhaps in another thread. The runs are taken over."""
        for run in runs:
            self._add_run(run.entries)
        self._tidy()

    # Taking

    def pop_due(self, now_ms: int, limit: int) -> Due:
        """Remove and return the first `limit` entries that are due: fire_at_ms ≤ now_ms, in key order."""
        return self._take((now_ms + 1, LOWEST_SEQ), limit)

    def take_below(self, fire_at_ms: int, seq: int) -> Due:
        """Remove and return every entry whose key is below (fire_at_ms, seq), in key order."""
        return self._take((fire_at_ms, seq), len(self))

    def drop_seqs_upto(self, seq: int) -> int:
        """Remove every entry whose seq is at most `seq`; the number of them."""
        self._spill_all()
        dropped = 0
        for number, run in list(self._runs.items()):
            if run.last_seq <= seq:
                dropped += len(run)
                self._replace_run(number, None)
            elif run.first_seq <= seq:
                dropped += self._keep(number, run.seqs > seq)
        self._rebuild_heads()
        self._tidy()
        return dropped

    def filter(self, keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> int:
        """Remove the entries whose seq `keep` does not answer with true; the number of them."""
        return sum(self.filter_stepwise(keep))

    def filter_stepwise(self, keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> Iterator[int]:
        """Like `filter`, one run at a time: yields the number removed after each.

        The wheel may be used between the steps. What is in it at the first step, and is not taken
        meanwhile, has been asked about at the last; what comes later has not.
        """
        self._spill_all()
        self._sweep += 1
        sweep = self._sweep
        while (number := next((n for n, run in self._runs.items() if run.sweep < sweep), None)) is not None:
            run = self._runs[number]
            run.sweep = sweep
            dropped = self._keep(number, keep(run.seqs))
            if dropped:
                self._rebuild_heads()
                self._tidy()
            yield dropped

    # Looking

    def next_fire_at_ms(self) -> int | None:
        """The earliest fire time, or None if the wheel is empty."""
        fires = [heap[0][0] for heap in (self._fresh, self._heads) if heap]
        if self._buffered:
            fires.append(self._buffer_fire_at_ms)
        return min(fires, default=None)

    def count_below(self, fire_at_ms: int, seq: int) -> int:
        """How many keys are below (fire_at_ms, seq)."""
        key = (fire_at_ms, seq)
        self._spill_below(key)
        return sum(run.rank(key, run.start, run.end) - run.start for run in self._runs.values())

    def nth_key(self, n: int) -> Key | None:
        """The key that has `n` keys below it, or None if there are not that many."""
        if not 0 <= n < len(self):
            return None
        self._spill_all()
        return nth_key([run.window() for run in self._runs.values()], n)

    def entries(self, low: Key, limit: int) -> Due:
        """The first `limit` entries whose key is at or above `low`. Nothing is removed."""
        self._spill_all()
        windows = []
        for run in self._runs.values():
            start = run.rank(low, run.start, run.end)
            windows.append(Window(run, start, min(start + limit, run.end)))
        return first_of(windows, limit)[0] if limit > 0 and windows else empty_entries(0)

    def seqs_between(self, first_seq: int, last_seq: int) -> NDArray[np.int64]:
        """The seqs from `first_seq` to `last_seq`, both included, in order."""
        self._spill_all()
        found = [np.empty(0, np.int64)]
        for run in self._runs.values():
            if run.first_seq <= last_seq and first_seq <= run.last_seq:
                found.append(run.seqs[(run.seqs >= first_seq) & (run.seqs <= last_seq)])
        return np.sort(np.concatenate(found))

    # Inside

    def _take(self, key: Key, limit: int) -> Due:
        """Remove and return the first `limit` entries below `key`."""
        if limit <= 0:
            return empty_entries(0)
        self._spill_below(key)
        numbers = self._pop_heads(key, limit)
        if not numbers:
            return empty_entries(0)
        # Cutting across many runs costs the same for few entries as for many, so more are taken
        # than were asked for, and the rest goes back as a run that the next calls find by itself.
        spare = self._run_limit // 4 if len(numbers) > MERGE_WIDTH else 0
        windows = []
        for number in numbers:
            run = self._runs[number]
            windows.append(
                Window(run, run.start, run.rank(key, run.start, min(run.start + limit + spare, run.end)))
            )
        entries, counts = first_of(windows, limit, spare)
        for number, taken in zip(numbers, counts, strict=True):
            self._advance(number, taken)
        if len(entries.seqs) > limit:
            self._add_run(entries.at(slice(limit, None)).copy())
            entries = entries.at(slice(limit)).copy()
        self._tidy()
        return entries

    def _pop_heads(self, key: Key, limit: int) -> list[int]:
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
        """Take `count` entries off the front of a run whose head is not in the heap of heads."""
        run = self._runs[number]
        run.start += count
        self._in_runs -= count
        if run.start == run.end:
            del self._runs[number]
            return
        heappush(self._heads, (*run.key(run.start), number))
        if run.start * 4 >= run.end:
            self._slack.add(number)

    def _spill_below(self, key: Key) -> None:
        """Move every entry below `key` into a run, and perhaps others."""
        fresh = self._fresh
        if fresh and fresh[0] < key:
            due: list[tuple[int, int, int]] = []
            while fresh and fresh[0] < key and len(due) < HEAP_POPS:
                due.append(heappop(fresh))
            self._add_run(_columns(due))
            if fresh and fresh[0] < key:
                self._spill_fresh()
        if self._buffered and self._buffer_fire_at_ms <= key[0]:
            self._spill_buffer()

    def _spill_all(self) -> None:
        self._spill_fresh()
        self._spill_buffer()

    def _spill_fresh(self) -> None:
        if self._fresh:
            self._add_run(in_key_order(_columns(self._fresh)))
            self._fresh.clear()

    def _spill_buffer(self) -> None:
        if self._buffered:
            self._add_run(in_key_order(self._buffer.at(slice(self._buffered))))
            self._buffered = 0

    def _add_run(self, entries: Due) -> None:
        run = Run(entries, self._sweep)
        self._runs[self._next_number] = run
        heappush(self._heads, (*run.key(run.start), self._next_number))
        self._next_number += 1
        self._in_runs += len(run)
        self._unsettled |= len(run) * 2 <= self._run_limit

    def _keep(self, number: int, mask: NDArray[np.bool_]) -> int:
        """Drop the entries of a run where `mask` is false; the number of them. Heads are left as they were."""
        run = self._runs[number]
        kept = int(np.count_nonzero(mask))
        dropped = len(run) - kept
        if dropped:
            self._replace_run(number, run.keep(mask))
        return dropped

    def _replace_run(self, number: int, run: Run | None) -> None:
        self._in_runs -= len(self._runs[number])
        self._unsettled = True
        if run is None:
            del self._runs[number]
        else:
            self._runs[number] = run
            self._in_runs += len(run)

    def _rebuild_heads(self) -> None:
        self._heads = [(*run.key(run.start), number) for number, run in self._runs.items()]
        heapify(self._heads)

    def _tidy(self) -> None:
        """Give back some memory and do at most one merge: a bounded piece of work for each call."""
        budget = self._run_limit
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
        """Runs of like size that should be one, and fit into one."""
        half = self._run_limit // 2
        levels: dict[int, list[tuple[int, int]]] = {}
        for number, run in self._runs.items():
            if len(run) <= half:
                level = ((half // len(run)).bit_length() - 1) // 3
                levels.setdefault(level, []).append((run.first_seq, number))
        for level in sorted(levels, reverse=True):
            members = levels[level]
            size = sum(len(self._runs[number]) for _, number in members)
            if len(members) < MERGE_WIDTH and size < self._run_limit:
                continue
            # Neighbours in seq go together, so that few runs straddle a seq that the tail lets go up to.
            crowd, size = [], 0
            for _, number in sorted(members):
                size += len(self._runs[number])
                if size > self._run_limit:
                    break
                crowd.append(number)
            return crowd
        return []

    def _merge(self, numbers: list[int]) -> None:
        runs = [self._runs.pop(number) for number in numbers]
        self._in_runs -= sum(map(len, runs))
        self._add_run(merged(runs))
        self._runs[self._next_number - 1].sweep = min(run.sweep for run in runs)
        self._rebuild_heads()


def _columns(entries: list[tuple[int, int, int]]) -> Due:
    table = np.fromiter(chain.from_iterable(entries), np.int64, 3 * len(entries)).reshape(-1, 3)
    return Due(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.uint16))
