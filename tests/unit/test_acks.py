"""Acknowledgements: exact, however many holes there are."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.engine.topics.cursor import AckSet
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Ack, decode
from tests.unit.engine_kit import Bench, full

MILLION = 1_000_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


steps = st.lists(
    st.tuples(st.just("add"), st.lists(st.integers(0, 60), max_size=8))
    | st.tuples(st.just("below"), st.integers(0, 70)),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20), st.integers(0, 60), steps)
def test_against_a_plain_set(start: int, stop: int, steps: list[tuple[str, object]]) -> None:
    acks = AckSet(start)
    done = set(range(start))
    for what, arg in steps:
        if what == "add":
            assert isinstance(arg, list)
            acks.add(arg, stop)
            done.update(entry for entry in arg if entry < stop)
        else:
            assert isinstance(arg, int)
            acks.add_below(arg, stop)
            done.update(range(min(arg, stop)))
        everything = np.arange(80)
        assert acks.contains_many(everything).tolist() == [entry in done for entry in range(80)]
        assert [entry in acks for entry in range(80)] == [entry in done for entry in range(80)]
        # What is below is closed up as far as it goes, up to the end of the topic.
        assert acks.below >= start
        assert acks.below == max(start, min((e for e in range(81) if e not in done), default=start))
        for first in (0, 5, 30):
            assert acks.count(first) == len([entry for entry in done if entry >= first])


def test_entries_that_do_not_exist_cannot_be_acknowledged() -> None:
    acks = AckSet(0)
    acks.add([5, 6, 7, -1], 6)
    acks.add_below(100, 6)
    assert acks.below == 6
    assert 6 not in acks


def big_bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=64 << 20))


@pytest.fixture(scope="module")
def holes() -> Bench:
    """A topic of two million entries of which every second one is acknowledged, after a restart."""
    bench = big_bench()
    sub = bench.subscribe("t")
    # The entries themselves are of no interest: they are placed as if they had been published.
    topic = bench.engine.topics.find("t")
    topic.place_many(topic.next, np.arange(1, 1 + 2 * MILLION), np.zeros(2 * MILLION, np.int64))
    topic.visible = topic.next
    started = time.perf_counter()
    for first in range(0, 2 * MILLION, 100_000):
        bench.ask(sub.ack(list(range(first, first + 100_000, 2))))
    assert time.perf_counter() - started < 30
    return bench


def test_a_million_holes_are_exact(holes: Bench) -> None:
    sub = holes.engine.topics.subscription("t", "sub")
    assert sub.acked.below == 1
    assert sub.backlog == MILLION
    ids = np.arange(2 * MILLION)
    np.testing.assert_array_equal(sub.acked.contains_many(ids), ids % 2 == 0)


def test_a_million_holes_survive_a_restart(holes: Bench) -> None:
    holes.wait(2000)
    holes.crash()
    holes.start()
    sub = holes.engine.topics.subscription("t", "sub")
    ids = np.arange(2 * MILLION)
    np.testing.assert_array_equal(sub.acked.contains_many(ids), ids % 2 == 0)
    assert (sub.acked.below, sub.backlog) == (1, MILLION)
    # Bits, not numbers: a quarter of a megabyte.
    assert sum(len(sub.acked.above.block(n) or b"") for n in sub.acked.above.numbers()) <= 260_000


def test_filling_the_holes_closes_them_up(holes: Bench) -> None:
    sub = holes.engine.topics.subscription("t", "sub")
    for first in range(1, 2 * MILLION, 200_000):
        holes.ask(sub.ack(list(range(first, first + 200_000, 2))))
    assert sub.acked.below == 2 * MILLION
    assert sub.backlog == 0
    holes.wait(2000)
    holes.reopen()
    assert holes.engine.topics.subscription("t", "sub").acked.below == 2 * MILLION


def test_an_acknowledgement_is_answered_when_it_is_durable(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    reader = bench.drain("t")
    answer = reader.handle.ack([0])
    before = answer.settled
    bench.commit()
    assert (before, answer.settled) == (False, True)
    _ = reader.handle.ack([1])
    bench.crash()
    bench.start()
    again = bench.reader(bench.engine.topics.subscription("t", "drain"))
    assert again.ids in ([1], [])


def test_individual_and_cumulative(bench: Bench) -> None:
    bench.publish("t", *[b"%d" % n for n in range(10)])
    sub = bench.subscribe("t", type="exclusive")
    reader = bench.reader(sub)
    reader.ack(7, 2)
    bench.ask(reader.sub.ack([], below=5))
    assert sub.acked.below == 5
    assert reader.handle.unacked == 4
    reader.ack(5, 6)
    assert sub.acked.below == 8
    reader.handle.close()
    assert bench.reader(sub, "next").ids == [8, 9]


def test_acknowledging_twice_or_what_is_not_there_changes_nothing(bench: Bench) -> None:
    bench.publish("t", b"a", b"b", b"c")
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    reader.ack(1, 1, 99)
    reader.ack(1)
    bench.ask(reader.sub.ack([], below=501))
    assert sub.acked.below == 3
    bench.publish("t", b"d")
    assert reader.ids == [0, 1, 2, 3]


def test_replaying_acknowledgements_gives_the_same_state(bench: Bench) -> None:
    bench.publish("t", *[b"x"] * 50)
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    reader.ack(*range(0, 50, 3))
    bench.ask(reader.sub.ack([], below=11))
    before = sub.acked.contains_many(np.arange(50)).tolist()
    bench.registry_disk.images.clear()
    bench.registry_disk.images.append(None)  # nothing was ever flushed: all of it is replayed
    bench.kill()
    bench.start()
    after = bench.engine.topics.subscription("t", "sub").acked.contains_many(np.arange(50)).tolist()
    assert after == before


def test_the_record_of_an_acknowledgement_names_what_it_says(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    reader = bench.drain("t")
    before = bench.next_seq
    reader.ack(1)
    found = decode(bench.bodies.one(before))
    assert found == Ack(full("t"), "drain", 0, [1])


@pytest.mark.parametrize("below", [65_534, 65_535, 65_536, 65_537, 131_071, 131_072])
def test_all_below_an_entry_at_the_edge_of_a_block(below: int) -> None:
    """A block of the bitmap goes when all of it is below, and not one entry before."""
    stop = 200_000
    singly = [65_534, 65_535, 65_536, 131_071, 131_072, 131_080]
    # Many holes elsewhere, so that it is a bitmap.
    holes = list(range(150_000, 150_400, 2))
    acks = AckSet(0)
    acks.add([*singly, *holes], stop)
    acks.add_below(below, stop)
    done = {*singly, *holes}
    for entry in (65_533, *range(65_530, 65_540), *range(131_065, 131_085), *holes):
        assert (entry in acks) == (entry < below or entry in done), entry
    first = next(entry for entry in range(below, stop) if entry not in done)
    assert acks.below == first


def test_an_entry_acknowledged_singly_at_the_edge_does_not_come_again() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=16 << 20))
    edge = 65_535
    sub = bench.subscribe("t", type="exclusive")
    for _ in range(0, edge + 5, 5_000):
        bench.publish("t", *[b"x"] * 5_000)
    bench.ask(sub.ack([edge, *range(edge + 2, edge + 200, 2)]))
    bench.ask(sub.ack([], below=edge))
    bench.reopen()
    reader = bench.reader(bench.engine.topics.subscription("t", "sub"), permits=10)
    assert reader.ids[:3] == [edge + 1, edge + 3, edge + 5]
