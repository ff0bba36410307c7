"""A saved set against a plain Python set: the same members, and storing only its dirty blocks loses nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.sets.absent import Absent
from tarry.core.sets.savedset import SavedSet
from tarry.core.sets.seqset import BLOCK_SEQS

near = st.integers(0, 40)
blocky = st.builds(
    lambda block, at: block * BLOCK_SEQS + at, st.integers(0, 3), near | st.integers(65_500, 65_535)
)
numbers = near | blocky
steps = st.lists(
    st.tuples(st.just("add"), numbers)
    | st.tuples(st.just("discard"), numbers)
    | st.tuples(st.just("add_many"), st.lists(numbers, max_size=40))
    | st.tuples(st.just("discard_many"), st.lists(numbers, max_size=40))
    | st.tuples(st.just("fill"), st.tuples(numbers, st.sampled_from([0, 3, 65_536, 70_000])))
    | st.tuples(st.just("drop_upto"), numbers)
    | st.tuples(st.just("save"), st.none()),
    max_size=30,
)


class Store:
    """Rows by block, as the registry keeps them."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}

    def save(self, bits: SavedSet) -> None:
        for number in bits.dirty:
            block = bits.block(number)
            if block is None:
                self.rows.pop(number, None)
            else:
                self.rows[number] = block
        bits.saved()

    def load(self) -> SavedSet:
        bits = SavedSet()
        for number, data in self.rows.items():
            bits.load(number, data)
        return bits


def members(bits: SavedSet) -> set[int]:
    return set(bits.between(0, 1 << 40).tolist())


@settings(max_examples=60, deadline=None)
@given(steps)
def test_what_is_stored_is_what_is_there(steps: list[tuple[str, object]]) -> None:
    bits, model, store = SavedSet(), set[int](), Store()
    for what, arg in steps:
        match what, arg:
            case "add", int(number):
                bits.add(number)
                model.add(number)
            case "discard", int(number):
                bits.discard(number)
                model.discard(number)
            case "discard_many", list(many):
                bits.discard_many(np.array(many, np.int64))
                model.difference_update(many)
            case "add_many", list(many):
                bits.add_many(np.array(many, np.int64))
                model.update(many)
            case "fill", (int(start), int(count)):
                bits.add_many(np.arange(start, start + count))
                model.update(range(start, start + count))
            case "drop_upto", int(number):
                bits.drop_upto(number)
                # Whole blocks only; the rest stays.
                model = {one for one in model if one // BLOCK_SEQS >= (number + 1) // BLOCK_SEQS}
            case _:
                store.save(bits)
                assert members(store.load()) == model
        assert len(bits) == len(model)
    store.save(bits)
    loaded = store.load()
    assert members(loaded) == members(bits) == model
    assert len(loaded) == len(model)
    assert not loaded.dirty


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(numbers, st.sampled_from([0, 5, 9, 17, 65_530, 66_000])), max_size=4),
    st.lists(numbers, max_size=4),
    numbers,
    numbers,
)
def test_the_next_absent_one(
    filled: list[tuple[int, int]], holes: list[int], start: int, beyond: int
) -> None:
    bits, model = SavedSet(), set[int]()
    for first, count in filled:
        bits.add_many(np.arange(first, first + count))
        model.update(range(first, first + count))
    for hole in holes:
        bits.discard(hole)
        model.discard(hole)
    stop = start + beyond
    expected = next((number for number in range(start, stop) if number not in model), stop)
    assert bits.next_absent(start, stop) == expected


filled_sets = st.lists(
    st.tuples(numbers, st.sampled_from([1, 5, 9, 17, 65_530, 66_000])), max_size=3
) | st.lists(st.tuples(numbers, st.just(1)), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(filled_sets, max_size=2), numbers, numbers, st.integers(0, 70_000))
def test_numbers_that_no_set_has(
    filled: list[list[tuple[int, int]]], start: int, more: int, count: int
) -> None:
    sets, model = [SavedSet() for _ in filled], set[int]()
    for bits, ranges in zip(sets, filled, strict=True):
        for first, length in ranges:
            bits.add_many(np.arange(first, first + length))
            model.update(range(first, first + length))
        assert bits.count_from(start) == sum(one >= start for one in members(bits))
    absent = Absent(sets, start, start + more)
    expected = [number for number in range(start, start + more) if number not in model]
    assert len(absent) == len(expected)
    assert absent.first(count).tolist() == expected[:count]
    for place in (0, 1, count, len(expected), len(expected) + 1):
        assert absent.nth(place) == (expected[place - 1] if 1 <= place <= len(expected) else None)


def test_a_block_that_is_dropped_is_not_stored_any_more() -> None:
    bits, store = SavedSet(), Store()
    bits.add_many(np.array([5, BLOCK_SEQS + 5]))
    store.save(bits)
    bits.drop_upto(BLOCK_SEQS - 1)
    store.save(bits)
    assert members(store.load()) == {BLOCK_SEQS + 5}


def test_loading_a_block_twice_counts_it_once() -> None:
    bits = SavedSet()
    bits.add_many(np.arange(10))
    data = bits.block(0)
    assert data is not None
    bits.load(0, data)
    assert len(bits) == 10
    assert bits.numbers() == [0]
    assert bits.block(1) is None
