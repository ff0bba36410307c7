"""Which records of a Kafka partition a group is done with."""

from hypothesis import given
from hypothesis import strategies as st

from tarry.outlets.dapr.brokers.kafka.offsets import MAX_NOTE_CHARS, Offsets


def test_the_number_moves_on_with_the_lowest_record_that_is_not_done() -> None:
    offsets = Offsets(5)
    for offset in (7, 6, 9):
        offsets.finish(offset)
    assert offsets.below == 5
    offsets.finish(5)
    assert offsets.below == 8
    assert offsets.done(4)
    assert offsets.done(9)
    assert not offsets.done(8)


@given(st.sets(st.integers(0, 300)), st.integers(0, 2**40))
def test_what_was_done_above_the_number_is_known_after_a_restart(done: set[int], base: int) -> None:
    offsets = Offsets(base)
    for offset in done:
        offsets.finish(base + offset)
    again = Offsets(offsets.below, offsets.note())
    assert len(offsets.note()) <= MAX_NOTE_CHARS
    for offset in range(310):
        assert (
            again.done(base + offset)
            == offsets.done(base + offset)
            == (offset in done or base + offset < again.below)
        )


def test_a_note_that_is_full_forgets_the_highest_first() -> None:
    offsets = Offsets(0)
    for offset in range(2, 20_000, 2):
        offsets.finish(offset)
    again = Offsets(0, offsets.note())
    assert len(offsets.note()) <= MAX_NOTE_CHARS
    assert again.done(2)
    assert not again.done(19_998)


def test_a_note_of_somebody_else_says_nothing() -> None:
    for note in ("", "sarama", "tarry1 x+1", "tarry1 1", "tarry0 1+1"):
        assert not Offsets(0, note).done(1)


def test_records_that_do_not_exist_are_not_waited_for() -> None:
    offsets = Offsets(3)
    offsets.skip_to(10, iter(()))
    assert offsets.below == 10
    offsets.finish(12)
    offsets.skip_to(20, iter((11,)))
    assert offsets.below == 11
    offsets.finish(11)
    assert offsets.below == 13


def test_a_group_without_a_number_begins_where_it_is_put() -> None:
    offsets = Offsets(-1)
    offsets.first_seen(40)
    offsets.finish(40)
    assert offsets.below == 41
