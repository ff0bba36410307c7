"""The timer queue: entries that wait, in key order, for the instant they are due.

One instance holds what is below the horizon, another the un-indexed tail. It is a small
log-structured merge: new entries wait in a heap (one at a time) or in a buffer (many at once) until
those are full or hold something that is asked for; then they become a sorted run (`tarry.core.timers.runs`).

Invariants:
- An entry that is not due is never popped, whatever the clock does, and what is popped is in key order.
- No entry is lost or doubled. A seq is expected once; a key that is added twice is there twice.
- No call takes longer than about 10 ms, except where it must touch as much as it is asked for
  (`take_below`, `filter`, a large `add_many`): `nth_key`, `filter_stepwise` and `add_runs` are
  there to do that in pieces or in a worker thread.
- 18 bytes an entry, up to 23 while entries are being taken, and 2 MB.

It is used from one thread. It knows nothing of messages, of who is dead or of what the time is.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.timers.run import (
    RUN_LIMIT,
    Due,
    Run,
    TimerKey,
    Window,
    empty_entries,
    first_of,
    in_key_order,
    nth_key,
    sorted_runs,
)
from tarry.core.timers.runs import Keep, Runs

FRESH_LIMIT: Final = 1 << 12
"""Turning so many tuples into arrays takes about a millisecond."""

BUFFER_LIMIT: Final = RUN_LIMIT
"""So that what comes in batches is sorted once and not merged."""

HEAP_POPS: Final = 512
"""When more than this are due in the heap, making it a run is cheaper than popping them."""

FRESH_ENTRY_BYTES: Final = 184
"""A tuple of three in a heap: its slot (8), itself (80) and its numbers (3 × 32)."""

LOWEST_SEQ: Final = -(1 << 63)


class TimerQueue:
    """Entries (fire_at_ms, seq, lane) in the order of their keys (fire_at_ms, seq)."""

    def __init__(
        self, *, fresh_limit: int = FRESH_LIMIT, buffer_limit: int = BUFFER_LIMIT, run_limit: int = RUN_LIMIT
    ) -> None:
        """The limits are in entries; tests make them small."""
        self._fresh_limit = fresh_limit
        self._fresh: list[tuple[int, int, int]] = []
        self._buffer = empty_entries(buffer_limit)
        self._buffered = 0
        self._buffer_fire_at_ms = 0
        """The earliest fire time in the buffer, if it is not empty."""
        self._runs = Runs(run_limit)

    def __len__(self) -> int:
        return len(self._fresh) + self._buffered + len(self._runs)

    @property
    def nbytes(self) -> int:
        """Bytes held by the entries, by the space for more, and by memory that was taken and not given back yet."""
        arrays = sum(run.nbytes for run in self._runs) + sum(array.nbytes for array in self._buffer)
        return arrays + len(self._fresh) * FRESH_ENTRY_BYTES

    # Adding

    def add(self, fire_at_ms: int, seq: int, lane: int) -> None:
        """Add one entry."""
        heappush(self._fresh, (fire_at_ms, seq, lane))
        if len(self._fresh) >= self._fresh_limit:
            self._spill_fresh()
            self._runs.tidy()

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
            self.add_runs(sorted_runs(Due(fire_at_ms, seqs, lanes), self._runs.run_limit))
            return
        if self._buffered + count > len(self._buffer.seqs):
            self._spill_buffer()
            self._runs.tidy()
        earliest = int(fire_at_ms.min())
        if not self._buffered or earliest < self._buffer_fire_at_ms:
            self._buffer_fire_at_ms = earliest
        at = slice(self._buffered, self._buffered + count)
        self._buffer.fire_at_ms[at] = fire_at_ms
        self._buffer.seqs[at] = seqs
        self._buffer.lanes[at] = lanes
        self._buffered += count

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Add what `sorted_runs` prepared, perhaps in another thread. The runs are taken over."""
        for run in runs:
            self._runs.add(run.entries)
        self._runs.tidy()

    # Taking

    def pop_due(self, now_ms: int, limit: int) -> Due:
        """Remove and return the first `limit` entries that are due: fire_at_ms ≤ now_ms, in key order."""
        key = (now_ms + 1, LOWEST_SEQ)
        self._spill_below(key)
        return self._runs.take(key, limit)

    def take_below(self, fire_at_ms: int, seq: int) -> Due:
        """Remove and return every entry whose key is below (fire_at_ms, seq), in key order."""
        key = (fire_at_ms, seq)
        self._spill_below(key)
        return self._runs.take(key, len(self._runs))

    def drop_seqs_upto(self, seq: int) -> int:
        """Remove every entry whose seq is at most `seq`; gives how many."""
        self._spill_all()
        return self._runs.drop_seqs_upto(seq)

    def filter(self, keep: Keep) -> int:
        """Remove the entries for whose seq `keep` is not true; gives how many."""
        return sum(self.filter_stepwise(keep))

    def filter_stepwise(self, keep: Keep) -> Iterator[int]:
        """Like `filter`, in steps of a few milliseconds: yields the number removed after each.

        The queue may be used between the steps. What was in it at the first step, and was not taken
        meanwhile, has been asked about after the last. What was added meanwhile has perhaps not.
        """
        self._spill_all()
        yield from self._runs.filter_stepwise(keep)

    # Looking

    def next_fire_at_ms(self) -> int | None:
        """The earliest fire time, or None if the queue is empty."""
        earliest = self._runs.head_fire_at_ms()
        if self._fresh and (earliest is None or self._fresh[0][0] < earliest):
            earliest = self._fresh[0][0]
        if self._buffered and (earliest is None or self._buffer_fire_at_ms < earliest):
            earliest = self._buffer_fire_at_ms
        return earliest

    def nth_key(self, n: int) -> TimerKey | None:
        """The key that has `n` keys below it, or None if there are not that many."""
        if not 0 <= n < len(self):
            return None
        self._spill_all()
        return nth_key([run.window() for run in self._runs], n)

    def entries(self, low: TimerKey, limit: int) -> Due:
        """The first `limit` entries whose key is at or above `low`. Nothing is removed."""
        self._spill_all()
        windows = []
        for run in self._runs:
            start = run.rank(low, run.start, run.end)
            windows.append(Window(run, start, min(start + limit, run.end)))
        return first_of(windows, limit)[0] if limit > 0 and windows else empty_entries(0)

    def parts(self, low_ms: int, high_ms: int) -> list[Due]:
        """The entries with low ≤ fire_at_ms < high as parts in key order each; arrays that nobody changes any more."""
        self._spill_all()
        found = []
        for run in self._runs:
            fires = run.entries.fire_at_ms[run.start :]
            start, end = fires.searchsorted([low_ms, high_ms]).tolist()
            if start < end:
                found.append(run.entries.at(slice(run.start + start, run.start + end)))
        return found

    def last_fire_at_ms(self) -> int:
        """The latest fire time, or 0 if the queue is empty."""
        self._spill_all()
        return max((int(run.entries.fire_at_ms[-1]) for run in self._runs), default=0)

    def seqs_between(self, first_seq: int, last_seq: int) -> NDArray[np.int64]:
        """The seqs from `first_seq` to `last_seq`, both included, in order."""
        self._spill_all()
        found = [np.empty(0, np.int64)]
        for run in self._runs:
            if run.first_seq <= last_seq and first_seq <= run.last_seq:
                found.append(run.seqs[(run.seqs >= first_seq) & (run.seqs <= last_seq)])
        return np.sort(np.concatenate(found))

    # Making runs

    def _spill_below(self, key: TimerKey) -> None:
        """Move every entry below `key` into a run, and perhaps others."""
        fresh = self._fresh
        if fresh and fresh[0] < key:
            due: list[tuple[int, int, int]] = []
            while fresh and fresh[0] < key and len(due) < HEAP_POPS:
                due.append(heappop(fresh))
            self._runs.add(_columns(due))
            if fresh and fresh[0] < key:
                self._spill_fresh()
        if self._buffered and self._buffer_fire_at_ms <= key[0]:
            self._spill_buffer()

    def _spill_all(self) -> None:
        self._spill_fresh()
        self._spill_buffer()
        self._runs.tidy()

    def _spill_fresh(self) -> None:
        if self._fresh:
            self._runs.add(in_key_order(_columns(self._fresh)))
            self._fresh.clear()

    def _spill_buffer(self) -> None:
        if self._buffered:
            self._runs.add(in_key_order(self._buffer.at(slice(self._buffered))))
            self._buffered = 0


def _columns(entries: list[tuple[int, int, int]]) -> Due:
    """The entries as arrays, in the same order."""
    table = np.fromiter(chain.from_iterable(entries), np.int64, 3 * len(entries)).reshape(-1, 3)
    return Due(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].astype(np.uint16))
