"""A sorted run of entries, and the pure arithmetic on runs: cutting, ranking and merging them.

An entry is (fire_at_ms, seq, lane) and costs 18 bytes. Its key is (fire_at_ms, seq). A run's arrays
are in key order and are never changed in place; taking from a run moves its `start`, and `trim`
gives the bytes before it back.

Nothing here knows when entries are taken or when runs are merged (`tarry.core.timers.runs` does), what a
seq stands for, or what time it is.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

TimerKey = tuple[int, int]
"""(fire_at_ms, seq): the order of everything that waits."""

RUN_LIMIT: Final = 1 << 16
"""Runs grow by merging up to this many entries. Such a merge takes 2 ms, or 5 where the machine is slow
to hand out memory, and no operation may hold the event loop for longer than 10 ms."""

SMALL_ENOUGH_TO_PARTITION: Final = 1 << 15
"""Below this many values, copying them out and partitioning beats bisecting each array again."""

SHORTEST_LOOK: Final = 16
"""How many entries of each window to look at before counting, at the least; not less than 1."""


class Due(NamedTuple):
    """Entries in key order, as three arrays of the same length."""

    fire_at_ms: NDArray[np.int64]
    seqs: NDArray[np.int64]
    lanes: NDArray[np.uint16]

    def at(self, index: slice | NDArray[Any]) -> "Due":
        """The entries at a slice (a view), or at positions or where a mask is true (copies)."""
        return Due(self.fire_at_ms[index], self.seqs[index], self.lanes[index])

    def copy(self) -> "Due":
        """A copy whose entries have memory of their own."""
        return Due(self.fire_at_ms.copy(), self.seqs.copy(), self.lanes.copy())


def empty_entries(count: int) -> Due:
    """Room for `count` entries."""
    return Due(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.uint16))


class Run:
    """Entries in key order, consumed from the front."""

    __slots__ = ("end", "entries", "first_seq", "last_seq", "start", "sweep")

    def __init__(self, entries: Due, sweep: int = 0) -> None:
        """Take over `entries`: not empty, in key order, and not shared with anyone who changes them."""
        self.entries = entries
        self.start = 0
        self.end = len(entries.seqs)
        self.first_seq = int(entries.seqs.min())
        """No seq here is lower. It may have been taken since: a bound for skipping whole runs."""
        self.last_seq = int(entries.seqs.max())
        self.sweep = sweep
        """The latest sweep of the queue's filter that has covered all of these entries."""

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def nbytes(self) -> int:
        """Bytes held, including those before `start`."""
        return sum(array.nbytes for array in self.entries)

    @property
    def seqs(self) -> NDArray[np.int64]:
        """The seqs still in the run."""
        return self.entries.seqs[self.start :]

    def window(self) -> "Window":
        """All that is still in the run."""
        return Window(self, self.start, self.end)

    def key(self, position: int) -> TimerKey:
        """The key at a position of the arrays."""
        return int(self.entries.fire_at_ms[position]), int(self.entries.seqs[position])

    def rank(self, key: TimerKey, low: int, high: int) -> int:
        """The first position from `low` up to `high` whose key is not below `key`, or `high`."""
        fires, seqs, _ = self.entries
        place = low + int(fires[low:high].searchsorted(key[0]))
        if place == high or fires[place] != key[0]:
            return place
        ties = int(fires[place:high].searchsorted(key[0], "right"))
        return place + int(seqs[place : place + ties].searchsorted(key[1]))

    def trim(self) -> None:
        """Give back the bytes of entries that were taken."""
        self.entries = self.entries.at(slice(self.start, None)).copy()
        self.start, self.end = 0, len(self)


class Window(NamedTuple):
    """The entries of a run from position `low` up to, not including, `high`."""

    run: Run
    low: int
    high: int

    def entries(self) -> Due:
        """The window's entries, as a view."""
        return self.run.entries.at(slice(self.low, self.high))


def first_of(windows: Sequence[Window], limit: int, spare: int = 0) -> tuple[Due, list[int]]:
    """Copies of the lowest entries in all the windows, and how many of each window they are.

    They are `limit`, or all if there are fewer, and up to `spare` more where those come cheaply.
    """
    most = limit + spare
    if size(windows) <= most:
        return _lowest(windows, most)
    # Look at little of each window first. What is not above the end of any look is certain.
    width = 2 * most // len(windows) + SHORTEST_LOOK
    looks = [Window(run, low, min(high, low + width)) for run, low, high in windows]
    cut = [look for look, window in zip(looks, windows, strict=True) if look.high < window.high]
    if not cut:
        return _lowest(windows, most)
    certain = _upto(looks, min(run.key(high - 1) for run, _, high in cut))
    if size(certain) >= limit:
        return _lowest(certain, most)
    # Some run holds much more than its share.
    return _lowest(_upto(windows, nth_key(windows, most - 1)), most)


def size(windows: Sequence[Window]) -> int:
    """How many entries the windows show."""
    return sum(high - low for _, low, high in windows)


def _upto(windows: Sequence[Window], key: TimerKey) -> list[Window]:
    """The windows without the entries above `key`."""
    after = key[0], key[1] + 1
    return [Window(run, low, run.rank(after, low, high)) for run, low, high in windows]


def _lowest(windows: Sequence[Window], most: int) -> tuple[Due, list[int]]:
    """The `most` lowest of the windows' entries, which are not many more, and how many of each window."""
    entries, sources = _merge(windows)
    return entries.at(slice(most)), np.bincount(sources[:most], minlength=len(windows)).tolist()


def merged(runs: Sequence[Run]) -> Due:
    """Copies of all that is still in the runs, in key order."""
    return _merge([run.window() for run in runs])[0]


def _merge(windows: Sequence[Window]) -> tuple[Due, NDArray[np.intp]]:
    """Copies of all the windows' entries in key order, and the number of the window each is from."""
    # Windows in order of seq leave entries of one fire time in order of seq, mostly, for `_key_order`.
    numbers = sorted(range(len(windows)), key=lambda number: windows[number].run.first_seq)
    parts = [windows[number].entries() for number in numbers]
    sources = np.repeat(numbers, [len(part.seqs) for part in parts])
    entries = Due(
        np.concatenate([part.fire_at_ms for part in parts]),
        np.concatenate([part.seqs for part in parts]),
        np.concatenate([part.lanes for part in parts]),
    )
    if len(parts) == 1:
        return entries, sources
    order = _key_order(entries)
    return entries.at(order), sources[order]


def in_key_order(entries: Due) -> Due:
    """Copies of the entries, in key order."""
    return entries.at(_key_order(entries))


def _key_order(entries: Due) -> NDArray[np.intp]:
    """The positions of the entries in key order."""
    order = _stable_order(entries.fire_at_ms)
    fires, seqs = entries.fire_at_ms[order], entries.seqs[order]
    if ((fires[1:] == fires[:-1]) & (seqs[1:] < seqs[:-1])).any():
        # They did not come in order of seq, and some fire at the same time.
        by_seq = _stable_order(entries.seqs)
        order = by_seq[_stable_order(entries.fire_at_ms[by_seq])]
    return order


def _stable_order(values: NDArray[np.int64]) -> NDArray[np.intp]:
    """The positions of the values in order, equal ones as they came."""
    if not len(values):
        return np.empty(0, np.intp)
    lowest, spread = int(values.min()), int(values.max()) - int(values.min())
    position_bits = len(values).bit_length()
    if spread.bit_length() + position_bits > 63:
        return np.argsort(values, kind="stable")
    # Sorting numbers that carry their position takes a third of the time of an argsort.
    packed = values - lowest
    packed <<= position_bits
    packed |= np.arange(len(values))
    packed.sort()
    packed &= (1 << position_bits) - 1
    return packed


def nth_key(windows: Sequence[Window], n: int) -> TimerKey:
    """The key of rank `n`, counted from 0, in all the windows; there must be more than `n` entries."""
    fire_at_ms, rank = _nth([run.entries.fire_at_ms[low:high] for run, low, high in windows], n)
    tied = []
    for run, low, high in windows:
        fires = run.entries.fire_at_ms[low:high]
        ties = slice(low + fires.searchsorted(fire_at_ms), low + fires.searchsorted(fire_at_ms, "right"))
        tied.append(run.entries.seqs[ties])
    return fire_at_ms, _nth(tied, rank)[0]


def _nth(arrays: Sequence[NDArray[np.int64]], n: int) -> tuple[int, int]:
    """The value of rank `n` in several sorted arrays, and its rank among the values equal to it.

    Each turn splits at the weighted median of the arrays' middles, which leaves at most about three
    quarters, so some turns are enough whatever the values are.
    """
    parts = [array for array in arrays if len(array)]
    while (left := sum(map(len, parts))) > SMALL_ENOUGH_TO_PARTITION:
        middles = np.array([part[len(part) // 2] for part in parts])
        order = np.argsort(middles)
        weights = np.cumsum(np.array([len(part) for part in parts])[order])
        pivot = middles[order[weights.searchsorted((left + 1) // 2)]]
        lows = [int(part.searchsorted(pivot)) for part in parts]
        highs = [int(part.searchsorted(pivot, "right")) for part in parts]
        if n < sum(lows):
            parts = [part[:low] for part, low in zip(parts, lows, strict=True) if low]
        elif n < sum(highs):
            return int(pivot), n - sum(lows)
        else:
            n -= sum(highs)
            parts = [part[high:] for part, high in zip(parts, highs, strict=True) if high < len(part)]
    values = np.concatenate(parts)
    value = np.partition(values, n)[n]
    return int(value), n - int(np.count_nonzero(values < value))


def sorted_runs(entries: Due, run_limit: int = RUN_LIMIT) -> list[Run]:
    """Copies of the entries, which may be in any order, as runs that follow one another.

    Pure, and most of its time is spent outside the interpreter lock: a worker thread can prepare
    millions of entries and the owner of the queue then adds them in no time (`TimerQueue.add_runs`).
    """
    order = _key_order(entries)
    return [Run(entries.at(order[low : low + run_limit])) for low in range(0, len(order), run_limit)]
