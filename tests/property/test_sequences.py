"""The memory of stored sequence numbers against a plain set: it proves nothing that is not so, and forgets within bounds."""

from hypothesis import given
from hypothesis import strategies as st

from tarry.engine.records.changes import SentNumbers
from tarry.engine.topics import sequences
from tarry.engine.topics.sequences import Sequences

numbers = st.integers(0, 60)


@st.composite
def sends(draw: st.DrawFn) -> SentNumbers:
    first = draw(numbers)
    last = first + draw(st.integers(0, 8))
    messages = draw(st.sampled_from((1, last - first + 1, draw(st.integers(1, 12)))))
    return SentNumbers(first, last, messages)


@given(st.lists(sends(), max_size=60))
def test_it_proves_exactly_what_was_stored(sent: list[SentNumbers]) -> None:
    known = Sequences()
    single: set[int] = set()
    whole: set[SentNumbers] = set()
    for one in sent:
        stored = one in whole if not one.is_dense else single.issuperset(range(one.first, one.last + 1))
        assert (one in known) == stored
        known.add(one)
        if one.is_dense:
            single.update(range(one.first, one.last + 1))
        else:
            whole.add(one)
        known = Sequences.of_row(known.row())
        assert one in known
    assert known.last == max((one.last for one in sent), default=-1)


@given(st.lists(sends(), min_size=20, max_size=80))
def test_what_is_forgotten_is_taken_for_new_and_never_the_other_way_round(sent: list[SentNumbers]) -> None:
    known = Sequences()
    single: set[int] = set()
    whole: set[SentNumbers] = set()
    bounds = sequences.MAX_RANGES, sequences.MAX_BATCHES
    sequences.MAX_RANGES, sequences.MAX_BATCHES = 3, 3  # type: ignore[misc]
    try:
        for one in sent:
            if one in known:
                assert one in whole or single.issuperset(range(one.first, one.last + 1))
            known.add(one)
            if one.is_dense:
                single.update(range(one.first, one.last + 1))
            else:
                whole.add(one)
            row = known.row()
            assert len(row.ranges) <= 6
            assert len(row.batches) <= 3
    finally:
        sequences.MAX_RANGES, sequences.MAX_BATCHES = bounds  # type: ignore[misc]


def test_a_producer_that_sends_in_order_is_one_range() -> None:
    known = Sequences()
    for number in range(0, 10_000, 10):
        known.add(SentNumbers(number, number + 9, 10))
    assert known.row().ranges == [0, 10_000]
