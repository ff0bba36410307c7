"""The wheel against a plain sorted list."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from tarry.core.limits import NEVER_MS
from tarry.core.timers import run, timer_queue
from tarry.core.timers.run import Due, Run, first_of, in_key_order, nth_key, sorted_runs
from tarry.core.timers.timer_queue import TimerQueue

Entry = tuple[int, int, int]

FIRES = st.integers(0, 12) | st.integers(0, NEVER_MS) | st.just(NEVER_MS)
SEQS = st.integers(0, 60) | st.integers(0, 1 << 47)
KEYS = st.tuples(FIRES, SEQS)
SMALL = {"fresh_limit": 3, "buffer_limit": 4, "run_limit": 8}


@pytest.fixture(scope="module", autouse=True)
def _small_numbers() -> Iterator[None]:
    """Make the ways that are meant for many entries be taken with few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SMALL_ENOUGH_TO_PARTITION", 3)
        patch.setattr(run, "SHORTEST_LOOK", 1)
        patch.setattr(timer_queue, "HEAP_POPS", 2)
        yield


def entry(fire_at_ms: int, seq: int) -> Entry:
    """The lane follows from the seq, so that an entry torn apart shows."""
    return fire_at_ms, seq, seq * 7919 % 65536


def columns(entries: list[Entry]) -> Due:
    fires, seqs, lanes = zip(*entries, strict=True) if entries else ((), (), ())
    return Due(np.array(fires, np.int64), np.array(seqs, np.int64), np.array(lanes, np.uint16))


def rows(due: Due) -> list[Entry]:
    assert [array.dtype for array in due] == [np.int64, np.int64, np.uint16]
    return list(zip(*(array.tolist() for array in due), strict=True))


class WheelAgainstList(RuleBasedStateMachine):
    """Every operation, in any order, with limits so small that spills and merges are common."""

    @initialize(
        fresh_limit=st.integers(1, 6),
        buffer_limit=st.integers(1, 8),
        run_limit=st.sampled_from([2, 3, 8, 32, 256]),
    )
    def begin(self, fresh_limit: int, buffer_limit: int, run_limit: int) -> None:
        self.wheel = TimerQueue(fresh_limit=fresh_limit, buffer_limit=buffer_limit, run_limit=run_limit)
        self.model: list[Entry] = []
        self.last_seq = 1000

    def remember(self, entries: list[Entry]) -> None:
        self.model = sorted(self.model + entries)

    def fresh_seqs(self, fires: list[int]) -> list[Entry]:
        first = self.last_seq + 1
        self.last_seq += len(fires)
        return [entry(fire_at_ms, seq) for seq, fire_at_ms in enumerate(fires, first)]

    @rule(fires=st.lists(FIRES, min_size=1, max_size=12))
    def add_as_they_come(self, fires: list[int]) -> None:
        for added in self.fresh_seqs(fires):
            self.wheel.add(*added)
            self.remember([added])

    @rule(key=KEYS)
    def add_an_old_seq(self, key: tuple[int, int]) -> None:
        self.wheel.add(*entry(*key))
        self.remember([entry(*key)])

    @rule(fires=st.lists(FIRES, max_size=40))
    def add_many_as_they_come(self, fires: list[int]) -> None:
        added = self.fresh_seqs(fires)
        self.wheel.add_many(*columns(added))
        self.remember(added)

    @rule(keys=st.lists(KEYS, max_size=40), prepared=st.booleans())
    def add_many_in_any_order(self, keys: list[tuple[int, int]], prepared: bool) -> None:
        added = [entry(*key) for key in keys]
        if prepared:
            self.wheel.add_runs(sorted_runs(columns(added), 5))
        else:
            self.wheel.add_many(*columns(added))
        self.remember(added)

    @rule(now_ms=st.integers(-1, 13) | FIRES, limit=st.integers(0, 3) | st.integers(4, 100))
    def pop_due(self, now_ms: int, limit: int) -> None:
        expected = [e for e in self.model if e[0] <= now_ms][:limit]
        assert rows(self.wheel.pop_due(now_ms, limit)) == expected
        self.model = self.model[len(expected) :]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), limit=st.integers(1, 5))
    def pop_at_the_instant_of_one(self, data: st.DataObject, limit: int) -> None:
        fire_at_ms = data.draw(st.sampled_from(self.model))[0]
        self.pop_due(fire_at_ms, limit)
        self.pop_due(fire_at_ms - 1, limit)

    @rule(key=KEYS)
    def take_below(self, key: tuple[int, int]) -> None:
        expected = [e for e in self.model if e[:2] < key]
        assert rows(self.wheel.take_below(*key)) == expected
        self.model = self.model[len(expected) :]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def take_below_one_that_is_there(self, data: st.DataObject) -> None:
        self.take_below(data.draw(st.sampled_from(self.model))[:2])

    @rule(n=st.integers(-1, 60))
    def nth_key(self, n: int) -> None:
        expected = self.model[n][:2] if 0 <= n < len(self.model) else None
        assert self.wheel.nth_key(n) == expected

    @rule(low=KEYS, limit=st.integers(0, 40))
    def list_entries(self, low: tuple[int, int], limit: int) -> None:
        listed = self.wheel.entries(low, limit)
        assert rows(listed) == [e for e in self.model if e[:2] >= low][:limit]
        for array in listed:
            array[:] = 0  # The answer is the caller's own.

    @rule(data=st.data())
    def drop_seqs_upto(self, data: st.DataObject) -> None:
        seq = data.draw(SEQS | st.sampled_from([e[1] for e in self.model] or [0]))
        kept = [e for e in self.model if e[1] > seq]
        assert self.wheel.drop_seqs_upto(seq) == len(self.model) - len(kept)
        self.model = kept

    @rule(divisor=st.integers(1, 5))
    def filter_out(self, divisor: int) -> None:
        kept = [e for e in self.model if e[1] % divisor]
        assert self.wheel.filter(lambda seqs: seqs % divisor != 0) == len(self.model) - len(kept)
        self.model = kept

    @rule(data=st.data())
    def seqs_between(self, data: st.DataObject) -> None:
        there = st.sampled_from([seq for _, seq, _ in self.model] or [0])
        first, last = data.draw(there | SEQS), data.draw(there | SEQS)
        found = self.wheel.seqs_between(first, last)
        assert found.tolist() == sorted(seq for _, seq, _ in self.model if first <= seq <= last)

    @invariant()
    def sizes_and_next(self) -> None:
        assert len(self.wheel) == len(self.model)
        assert self.wheel.next_fire_at_ms() == (self.model[0][0] if self.model else None)
        assert self.wheel.nbytes >= 18 * len(self.model)


TestWheelAgainstList = WheelAgainstList.TestCase
TestWheelAgainstList.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(
    before=st.lists(FIRES, max_size=40),
    between=st.lists(st.tuples(st.integers(-1, 13), st.lists(FIRES, max_size=12)), max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_filter_stepwise_covers_what_was_there_whatever_happens_between_the_steps(
    before: list[int], between: list[tuple[int, list[int]]]
) -> None:
    tested = TimerQueue(**SMALL)
    first = [entry(fire_at_ms, seq) for seq, fire_at_ms in enumerate(before)]
    tested.add_many(*columns(first))
    steps = tested.filter_stepwise(lambda seqs: seqs % 2 == 0)
    dropped = next(steps, 0)
    added: list[Entry] = []
    popped: list[Entry] = []
    for now_ms, fires in between:
        popped += rows(tested.pop_due(now_ms, 5))
        new = [entry(fire_at_ms, 1000 + len(added) + i) for i, fire_at_ms in enumerate(fires)]
        for one in new:
            tested.add(*one)
        added += new
        dropped += next(steps, 0)
    dropped += sum(steps)

    left = rows(tested.take_below(NEVER_MS + 1, 0))
    assert len(left) + len(popped) + dropped == len(first) + len(added)
    assert not [e for e in left if e in first and e[1] % 2]
    kept = {e for e in first + added if e[1] % 2 == 0}
    assert kept <= set(left + popped)
    assert max(Counter(left + popped).values(), default=1) == 1


WIDE = st.integers(0, 9) | st.integers(0, (1 << 62))


@given(st.lists(st.tuples(WIDE, WIDE), min_size=1, max_size=60))
@settings(deadline=None)
def test_in_key_order_for_any_spread(keys: list[tuple[int, int]]) -> None:
    entries = [entry(*key) for key in keys]
    assert rows(in_key_order(columns(entries))) == sorted(entries)


@pytest.mark.parametrize("bits", range(54, 64))
def test_in_key_order_where_positions_hardly_fit_beside_the_times(bits: int) -> None:
    fires = [0, (1 << bits) - 1, *(seq * 0x9E3779B97F4A7C15 % (1 << bits) for seq in range(30))]
    entries = [entry(fire_at_ms, seq) for seq, fire_at_ms in enumerate(fires)]
    assert rows(in_key_order(columns(entries))) == sorted(entries)


@given(
    st.lists(st.lists(st.tuples(FIRES, SEQS), min_size=1, max_size=40), min_size=1, max_size=12),
    st.integers(1, 200),
    st.sampled_from([0, 7, 50]),
)
@settings(deadline=None)
def test_first_of_runs_of_any_shape(lists: list[list[tuple[int, int]]], limit: int, spare: int) -> None:
    sorted_lists = [sorted(entry(*key) for key in keys) for keys in lists]
    windows = [Run(columns(entries)).window() for entries in sorted_lists]
    everything = sorted(e for entries in sorted_lists for e in entries)
    lowest, counts = first_of(windows, limit, spare)
    assert min(limit, len(everything)) <= sum(counts) <= limit + spare
    assert rows(lowest) == everything[: sum(counts)]
    assert sorted(e for es, n in zip(sorted_lists, counts, strict=True) for e in es[:n]) == rows(lowest)
    for n in {0, len(everything) // 2, len(everything) - 1}:
        assert nth_key(windows, n) == everything[n][:2]


def random_entries(count: int, spread_ms: int, first_seq: int, seed: int) -> Due:
    fires = np.random.default_rng(seed).integers(1_000_000, 1_000_000 + spread_ms, count)
    seqs = np.arange(first_seq, first_seq + count)
    return Due(fires, seqs, (seqs * 7919 % 65536).astype(np.uint16))


def joined(parts: list[Due]) -> list[NDArray[Any]]:
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@pytest.mark.parametrize("spread_ms", [1, 500, 10_000_000])
def test_many_entries_at_the_real_limits(spread_ms: int) -> None:
    tested = TimerQueue()
    recent = random_entries(300_000, spread_ms, 1_000_000, seed=1)
    loaded = random_entries(200_000, spread_ms, 0, seed=2)  # From the index: lower seqs, added later.
    for low in range(0, 280_000, 1000):
        tested.add_many(*recent.at(slice(low, low + 1000)))
    for one in rows(recent.at(slice(280_000, None))):
        tested.add(*one)
    tested.add_runs(sorted_runs(loaded))
    assert tested.nbytes <= 20 * len(tested) + 2_000_000

    popped = []
    now_ms = 1_000_000 + spread_ms // 2
    while len(part := tested.pop_due(now_ms, 4096).seqs):
        popped.append(part)
        assert tested.nbytes <= 24 * len(tested) + 2_500_000
    popped.append(tested.take_below(NEVER_MS, 0).seqs)

    fires, seqs, _ = joined([recent, loaded])
    expected = seqs[np.lexsort((seqs, fires))]
    assert np.array_equal(np.concatenate(popped), expected)
    assert len(tested) == 0
    assert tested.next_fire_at_ms() is None


def test_a_run_much_denser_than_the_others_is_cut_where_it_should() -> None:
    tested = TimerQueue(run_limit=64)
    dense = [entry(5, seq) for seq in range(64)]
    sparse = [[entry(fire_at_ms, 1000 + 100 * i + fire_at_ms) for fire_at_ms in range(40)] for i in range(12)]
    for entries in [dense, *sparse]:
        tested.add_runs(sorted_runs(columns(entries)))
    expected = sorted(dense + [e for entries in sparse for e in entries])
    popped: list[Entry] = []
    while part := rows(tested.pop_due(100, 30)):
        assert len(part) == min(30, len(expected) - len(popped))
        popped += part
    assert popped == expected


@pytest.mark.parametrize("count", [3, 50])
def test_arrays_given_to_add_many_stay_the_callers_own(count: int) -> None:
    tested = TimerQueue(**SMALL)
    given_entries = columns([entry(fire_at_ms, fire_at_ms) for fire_at_ms in range(count)])
    before = given_entries.copy()
    tested.add_many(*given_entries)
    for array in given_entries:
        array[:] = 7
    assert rows(tested.take_below(count, 0)) == rows(before)


def test_add_many_refuses_arrays_of_different_lengths() -> None:
    tested = TimerQueue()
    fires, seqs, lanes = columns([entry(1, 1), entry(2, 2)])
    for wrong in [(fires[:1], seqs, lanes), (fires, seqs[:1], lanes), (fires, seqs, lanes[:1])]:
        with pytest.raises(ValueError, match="different lengths"):
            tested.add_many(*wrong)
    assert len(tested) == 0


def test_what_is_taken_is_given_back() -> None:
    """Stragglers of many runs end up together, not each in what is left of its own run."""
    tested = TimerQueue(fresh_limit=16, buffer_limit=64, run_limit=64)
    empty_bytes = tested.nbytes
    for turn in range(200):
        fires = [turn] * 63 + [NEVER_MS]
        tested.add_many(*columns([entry(f, turn * 64 + i) for i, f in enumerate(fires)]))
        assert len(tested.pop_due(turn, 64).seqs) == 63
    assert len(tested) == 200
    assert tested.nbytes - empty_bytes <= 23 * 200
    assert len(list(tested._runs)) <= 16


@pytest.mark.parametrize("waiting", ["heap", "buffer", "run"])
def test_a_cut_within_one_millisecond_wherever_the_entries_wait(waiting: str) -> None:
    """R8: the horizon cuts at a key, so that any number of messages due in one millisecond fit."""
    tested = TimerQueue(fresh_limit=100, buffer_limit=100)
    entries = [entry(5, seq) for seq in range(10)]
    if waiting == "heap":
        for one in entries:
            tested.add(*one)
    elif waiting == "buffer":
        tested.add_many(*columns(entries))
    else:
        tested.add_runs(sorted_runs(columns(entries)))
    assert rows(tested.take_below(5, 4)) == entries[:4]
    assert tested.nth_key(3) == (5, 7)
    assert rows(tested.pop_due(4, 100)) == []
    assert rows(tested.pop_due(5, 100)) == entries[4:]
