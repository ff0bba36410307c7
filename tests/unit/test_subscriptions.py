"""Subscriptions: the four types, permits, redelivery, seeking, and who holds what."""

from collections.abc import Sequence

import numpy as np
import pytest

from tarry.core.errors import Conflict, Invalid, NotFound
from tarry.engine.topics.entries import Received
from tarry.engine.topics.grace import GRACE_MS, STEP_MS
from tarry.engine.topics.topic import Topic
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench

TYPES = ["exclusive", "shared", "failover", "key_shared"]


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=2 << 20))


# Beginning


def test_where_a_subscription_begins(bench: Bench) -> None:
    bench.publish("t", *[b"%d" % n for n in range(5)])
    assert bench.reader(bench.subscribe("t", "earliest", start="earliest")).ids == [0, 1, 2, 3, 4]
    assert bench.reader(bench.subscribe("t", "latest", start="latest")).ids == []
    assert bench.reader(bench.subscribe("t", "third", start=3)).ids == [3, 4]
    assert bench.reader(bench.subscribe("t", "beyond", start=99)).ids == []
    bench.publish("t", b"5")
    assert bench.reader(bench.engine.topics.subscription("t", "latest"), "again").ids == []
    sub = bench.engine.topics.subscription("t", "latest")
    assert sub.stats()["unacked"] == 1


def test_subscribing_twice_finds_the_same_one(bench: Bench) -> None:
    one = bench.subscribe("t")
    assert bench.subscribe("t", start="latest") is one


def test_an_answer_about_a_subscription_waits_until_it_is_durable(bench: Bench) -> None:
    first = bench.engine.topics.subscribe("t", "s")
    again = bench.engine.topics.subscribe("t", "s")
    assert not first.settled
    assert not again.settled
    bench.commit()
    assert first.value() is again.value()


@pytest.mark.parametrize("flushed", [False, True])
def test_subscriptions_survive_a_restart(bench: Bench, flushed: bool) -> None:
    bench.publish("t", b"a", b"b", b"c")
    sub = bench.subscribe("t", "s", "failover", max_redeliveries=3, dead_letter_topic="dead")
    bench.reader(sub).ack(1)
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    again = bench.engine.topics.subscription("t", "s")
    assert (again.type, again.properties) == (sub.type, sub.properties)
    assert bench.reader(again).ids == [0, 2]


def test_unsubscribing_detaches_everybody_and_forgets(bench: Bench) -> None:
    bench.publish("t", b"a")
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    closed: list[bool] = []
    reader.handle.on_close = lambda: closed.append(True)
    reader.ack(0)
    bench.ask(bench.engine.topics.unsubscribe("t", "sub"))
    assert closed == [True]
    with pytest.raises(NotFound):
        bench.engine.topics.subscription("t", "sub")
    bench.refused(bench.engine.topics.unsubscribe("t", "sub"), NotFound)
    assert bench.reader(bench.subscribe("t")).ids == [0]
    bench.wait(2000)
    bench.reopen()
    assert bench.reader(bench.engine.topics.subscription("t", "sub")).ids == [0]


# Permits


@pytest.mark.parametrize("type_", TYPES)
def test_nobody_gets_more_than_its_permits(bench: Bench, type_: str) -> None:
    sub = bench.subscribe("t", type=type_)
    reader = bench.reader(sub, permits=0)
    bench.publish("t", *[b"x"] * 10)
    assert reader.ids == []
    reader.handle.flow(3)
    assert reader.ids == [0, 1, 2]
    reader.ack(0, 1, 2)
    assert reader.ids == [0, 1, 2]
    reader.handle.flow(1)
    reader.handle.flow(2)
    assert reader.ids == [0, 1, 2, 3, 4, 5]
    assert (reader.handle.permits, reader.handle.unacked) == (0, 3)
    reader.handle.flow(100)
    assert reader.ids == list(range(10))
    assert reader.handle.permits == 96
    bench.publish("t", b"y")
    assert reader.ids == list(range(11))


@pytest.mark.parametrize("type_", TYPES)
def test_permits_given_while_being_served_count_at_once(bench: Bench, type_: str) -> None:
    sub = bench.subscribe("t", type=type_)
    bench.publish("t", *[b"x"] * 3000)
    reader = bench.reader(sub, permits=0)
    got: list[int] = []

    def deliver(entries: Sequence[Received]) -> None:
        got.extend(entry.entry_id for entry in entries)
        reader.handle.flow(len(entries))

    reader.handle.deliver = deliver
    reader.handle.flow(7)
    assert got == list(range(3000))


def test_a_consumer_that_closes_while_being_served(bench: Bench) -> None:
    sub = bench.subscribe("t")
    bench.publish("t", *[b"x"] * 10)
    first = bench.reader(sub, "first", permits=0)
    got: list[int] = []

    def deliver(entries: Sequence[Received]) -> None:
        got.extend(entry.entry_id for entry in entries)
        first.handle.close()

    first.handle.deliver = deliver
    first.handle.flow(3)
    assert got == [0, 1, 2]
    assert bench.reader(sub, "second").ids == list(range(10))


# Exclusive


def test_exclusive_means_one(bench: Bench) -> None:
    sub = bench.subscribe("t", type="exclusive")
    reader = bench.reader(sub)
    with pytest.raises(Conflict) as caught:
        sub.attach("second", lambda _: None)
    assert caught.value.state == "taken"
    assert reader.handle.active
    reader.handle.close()
    bench.reader(sub, "second")


def test_an_exclusive_reader_takes_over_where_the_other_stopped(bench: Bench) -> None:
    bench.publish("t", *[b"x"] * 6)
    sub = bench.subscribe("t", type="exclusive")
    first = bench.reader(sub, permits=4)
    first.ack(0, 2)
    first.handle.close()
    assert bench.reader(sub, "second").ids == [1, 3, 4, 5]


# Shared


def test_shared_consumers_take_turns(bench: Bench) -> None:
    sub = bench.subscribe("t")
    readers = [bench.reader(sub, str(n)) for n in range(3)]
    for n in range(9):
        bench.publish("t", b"%d" % n)
    assert [len(reader.ids) for reader in readers] == [3, 3, 3]
    assert sorted(entry for reader in readers for entry in reader.ids) == list(range(9))


def test_shared_consumers_share_a_backlog(bench: Bench) -> None:
    sub = bench.subscribe("t")
    readers = [bench.reader(sub, str(n), permits=0) for n in range(3)]
    bench.publish("t", *[b"x"] * 90)
    for reader in readers:
        reader.handle.permits = 50
    sub.pump()
    assert [len(reader.ids) for reader in readers] == [30, 30, 30]


def test_a_shared_consumer_without_permits_does_not_hold_up_the_others(bench: Bench) -> None:
    sub = bench.subscribe("t")
    idle, busy = bench.reader(sub, "idle", permits=1), bench.reader(sub, "busy")
    bench.publish("t", *[b"x"] * 10)
    assert len(idle.ids) == 1
    assert len(busy.ids) == 9


def test_what_a_closed_consumer_held_goes_to_the_others(bench: Bench) -> None:
    sub = bench.subscribe("t")
    one = bench.reader(sub, "one")
    bench.publish("t", *[b"x"] * 4)
    two = bench.reader(sub, "two")
    one.ack(1)
    one.handle.close()
    assert two.ids == [0, 2, 3]
    # It did not fail at them: that is no redelivery that counts.
    assert {entry.redelivery_count for entry in two.got} == {0}
    one.handle.close()
    assert two.ids == [0, 2, 3]


# Failover


def test_failover_serves_one_and_the_next_takes_over_in_order(bench: Bench) -> None:
    sub = bench.subscribe("t", type="failover")
    told: list[tuple[str, bool]] = []
    a, b, c = (bench.reader(sub, name) for name in "abc")
    for reader in (a, b, c):
        reader.handle.on_active = lambda now, name=reader.handle.name: told.append((name, now))
    bench.publish("t", *[b"x"] * 5)
    assert (a.ids, b.ids, c.ids) == ([0, 1, 2, 3, 4], [], [])
    assert [reader.handle.active for reader in (a, b, c)] == [True, False, False]
    a.ack(0, 1)
    a.handle.close()
    assert told == [("b", True)]
    assert (b.ids, c.ids) == ([2, 3, 4], [])
    bench.publish("t", b"y")
    assert b.ids == [2, 3, 4, 5]
    c.handle.close()
    b.handle.close()
    assert told == [("b", True)]
    assert bench.reader(sub, "d").ids == [2, 3, 4, 5]


def test_a_failover_consumer_of_higher_priority_takes_over_and_order_is_kept(bench: Bench) -> None:
    sub = bench.subscribe("t", type="failover")
    low = bench.reader(sub, "low", priority=5)
    bench.publish("t", *[b"x"] * 4)
    told: list[bool] = []
    low.handle.on_active = told.append
    high = bench.reader(sub, "high", permits=0, priority=1)
    assert told == [False]
    assert not low.handle.active
    low.ack(0)
    bench.publish("t", b"y")
    assert low.ids == [0, 1, 2, 3]
    high.handle.flow(100)
    assert high.ids == [1, 2, 3, 4]
    # What the old one acknowledges late still counts.
    low.ack(1)
    high.handle.nack()
    assert high.ids == [1, 2, 3, 4, 2, 3, 4]


def test_failover_goes_by_name_where_priorities_are_equal(bench: Bench) -> None:
    sub = bench.subscribe("t", type="failover")
    b = bench.reader(sub, "b")
    a = bench.reader(sub, "a")
    assert (a.handle.active, b.handle.active) == (True, False)


def test_failover_consumers_of_the_first_priority_share_partitions_by_number(bench: Bench) -> None:
    active: dict[str, list[str]] = {}
    for number in range(6):
        sub = bench.subscribe(f"t-partition-{number}", type="failover")
        for name in "cab":
            bench.reader(sub, name)
        bench.reader(sub, "spare", priority=1)
        (chosen,) = [one.name for one in sub.consumers if one.active]
        active.setdefault(chosen, []).append(sub.topic.name[-1])
    assert active == {"a": ["0", "3"], "b": ["1", "4"], "c": ["2", "5"]}


def test_a_partition_goes_over_to_a_consumer_that_was_there_with_what_the_old_one_held(bench: Bench) -> None:
    sub = bench.subscribe("t-partition-1", type="failover")
    a, b, c = (bench.reader(sub, name) for name in "abc")
    bench.publish("t-partition-1", b"x", b"y")
    assert (a.ids, b.ids, c.ids) == ([], [0, 1], [])
    a.handle.close()
    # Of two that are left, partition 1 is the second one's.
    assert (b.handle.active, c.handle.active) == (False, True)
    assert c.ids == [0, 1]
    b.handle.close()
    bench.publish("t-partition-1", b"z")
    assert c.ids == [0, 1, 2]


# Redelivery


@pytest.mark.parametrize("type_", TYPES)
def test_what_is_given_back_comes_again_with_a_count(bench: Bench, type_: str) -> None:
    sub = bench.subscribe("t", type=type_)
    reader = bench.reader(sub)
    bench.publish("t", b"a", b"b", b"c", key="k")
    reader.handle.nack([1])
    reader.handle.nack([1, 99])
    assert [(e.entry_id, e.redelivery_count) for e in reader.got] == [(0, 0), (1, 0), (2, 0), (1, 1), (1, 2)]
    reader.ack(0, 1, 2)
    reader.handle.nack()
    assert len(reader.got) == 5
    assert sub.backlog == 0


@pytest.mark.parametrize("type_", TYPES)
def test_what_came_again_is_forgotten_once_it_is_acknowledged(bench: Bench, type_: str) -> None:
    """Also what nobody holds then: it was given back, and all below a later one is done with."""
    bench.publish("t", b"a", b"b", b"c")
    reader = bench.reader(bench.subscribe("t", "s", type_))
    reader.handle.nack([0, 1])
    sub = reader.sub
    assert set(sub.redeliveries) == {0, 1}
    reader.handle.close()
    bench.ask(sub.ack([0]))
    assert set(sub.redeliveries) <= {1, 2}
    bench.ask(sub.ack([], below=3))
    assert sub.redeliveries == {}


def test_giving_everything_back(bench: Bench) -> None:
    sub = bench.subscribe("t", type="exclusive")
    reader = bench.reader(sub)
    bench.publish("t", *[b"x"] * 4)
    reader.ack(1)
    reader.got.clear()
    reader.handle.nack()
    assert reader.ids == [0, 2, 3]


def test_only_the_holder_can_give_back(bench: Bench) -> None:
    sub = bench.subscribe("t")
    one, two = bench.reader(sub, "one"), bench.reader(sub, "two", permits=0)
    bench.publish("t", b"a")
    two.handle.nack([0])
    assert one.ids == [0]


def test_what_is_given_back_comes_before_what_is_new(bench: Bench) -> None:
    sub = bench.subscribe("t")
    reader = bench.reader(sub, permits=2)
    bench.publish("t", *[b"x"] * 5)
    reader.handle.nack([1])
    reader.handle.flow(3)
    assert reader.ids == [0, 1, 1, 2, 3]


def test_what_was_given_back_and_then_acknowledged_does_not_come(bench: Bench) -> None:
    sub = bench.subscribe("t")
    reader = bench.reader(sub, permits=2)
    bench.publish("t", b"a", b"b")
    reader.handle.nack([0])
    reader.ack(0)
    reader.handle.flow(10)
    assert reader.ids == [0, 1]


# Seeking


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("durable", [True, False])
def test_seek_to_an_entry(bench: Bench, type_: str, durable: bool) -> None:
    bench.publish("t", *[b"x"] * 6)
    sub = bench.subscribe("t", type=type_, durable=durable)
    reader = bench.reader(sub)
    reader.ack(0, 1, 2, 3)
    reader.got.clear()
    bench.ask(sub.seek(2))
    assert reader.ids == [2, 3, 4, 5]
    assert (sub.acked.below, sub.backlog, reader.handle.unacked) == (2, 4, 4)
    bench.ask(sub.seek(99))
    assert sub.backlog == 0
    bench.publish("t", b"y")
    assert reader.ids == [2, 3, 4, 5, 6]
    reader.got.clear()
    bench.ask(sub.seek(0))
    assert reader.ids == list(range(7))


def test_seek_by_time(bench: Bench) -> None:
    times = []
    for n in range(20):
        times.append(bench.now_ms)
        bench.publish("t", b"%d" % n)
        bench.wait(10)
    sub = bench.subscribe("t", start="latest")
    reader = bench.reader(sub)
    for n in (0, 7, 19):
        reader.got.clear()
        bench.ask(sub.seek(at_ms=times[n]))
        assert reader.ids == list(range(n, 20))
    reader.got.clear()
    bench.ask(sub.seek(at_ms=times[7] + 1))
    assert reader.ids == list(range(8, 20))
    bench.ask(sub.seek(at_ms=0))
    assert sub.acked.below == 0
    bench.ask(sub.seek(at_ms=bench.now_ms + 1000))
    assert sub.acked.below == 20


def test_a_seek_is_one_or_the_other(bench: Bench) -> None:
    sub = bench.subscribe("t")
    bench.refused(sub.seek(), Invalid)
    bench.refused(sub.seek(1, at_ms=1), Invalid)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_seek_survives_a_restart(bench: Bench, flushed: bool) -> None:
    bench.publish("t", *[b"x"] * 6)
    bench.subscribe("t", "keeper")
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    reader.ack(0, 1, 3, 5)
    bench.wait(2000)
    bench.ask(sub.seek(1))
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    assert bench.reader(bench.engine.topics.subscription("t", "sub")).ids == [1, 2, 3, 4, 5]


def test_a_seek_does_not_go_below_what_is_kept(bench: Bench) -> None:
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    bench.publish("t", *[b"x"] * 5000)
    bench.ask(reader.sub.ack([], below=4_500))
    bench.wait(2000)
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(2000)
    reader.got.clear()
    bench.ask(sub.seek(0))
    assert reader.ids == list(range(4500, 5000))


# Changing type


def test_the_type_changes_only_while_nobody_is_attached(bench: Bench) -> None:
    sub = bench.subscribe("t", type="shared")
    reader = bench.reader(sub)
    changed = bench.engine.topics.subscribe("t", "sub", "exclusive")
    assert bench.refused(changed, Conflict).state == "shared"
    reader.handle.close()
    assert bench.subscribe("t", type="exclusive").type == "exclusive"
    bench.reopen()
    assert bench.engine.topics.subscription("t", "sub").type == "exclusive"


@pytest.mark.parametrize("durable", [True, False])
def test_from_shared_to_exclusive_nothing_is_passed_over(bench: Bench, durable: bool) -> None:
    keeper = bench.reader(bench.subscribe("t", durable=durable), "keeper", permits=0)
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 1000)
    bench.publish("t", b"now")
    sub = bench.engine.topics.subscription("t", "sub")
    keeper.handle.flow(10)
    assert keeper.payloads == [b"now"]
    if durable:
        keeper.handle.close()
        ordered = bench.reader(bench.subscribe("t", type="exclusive"), "ordered")
        assert ordered.payloads == [b"late", b"now"]
    else:
        assert sub.type == "shared"


def test_from_exclusive_to_shared_nothing_is_early(bench: Bench) -> None:
    ordered = bench.reader(bench.subscribe("t", type="exclusive"), "ordered")
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 1000)
    bench.publish("t", b"now")
    assert ordered.payloads == [b"late", b"now"]
    ordered.handle.close()
    shared = bench.reader(bench.subscribe("t", type="shared"), "shared")
    assert shared.payloads == [b"now"]
    bench.wait(1000)
    assert shared.payloads == [b"now", b"late"]


# Readers: subscriptions that are not durable


def test_a_reader_lives_as_long_as_somebody_is_attached(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    sub = bench.subscribe("t", "r", durable=False)
    reader = bench.reader(sub)
    assert reader.ids == [0, 1]
    reader.ack(0)
    assert sub.backlog == 1
    reader.handle.close()
    with pytest.raises(NotFound):
        bench.engine.topics.subscription("t", "r")


def test_a_reader_writes_nothing_and_is_gone_after_a_restart(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    bench.rest()
    before = bench.next_seq
    sub = bench.subscribe("t", "r", durable=False)
    reader = bench.reader(sub)
    reader.ack(0)
    bench.ask(sub.seek(0))
    assert bench.next_seq == before
    bench.reopen()
    with pytest.raises(NotFound):
        bench.engine.topics.subscription("t", "r")


def test_a_reader_of_a_new_topic_makes_it(bench: Bench) -> None:
    sub = bench.subscribe("new", "r", durable=False)
    reader = bench.reader(sub)
    bench.publish("new", b"a")
    assert reader.ids == [0]
    bench.ask(bench.engine.topics.unsubscribe("new", "r"))
    assert reader.handle.closed


def test_a_reader_does_not_keep_entries(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe("t", "r", durable=False), permits=0)
    keeper = bench.reader(bench.subscribe("t", "keeper"))
    bench.publish("t", *[b"x"] * 5000)
    bench.ask(keeper.sub.ack([], below=5_000))
    bench.wait(2000)
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(2000)
    assert bench.engine.topics.stats("t").first_entry == 5000
    reader.handle.flow(10)
    assert reader.ids == []


# Many consumers and entries


def test_everything_comes_once_to_a_crowd_that_comes_and_goes(bench: Bench) -> None:
    sub = bench.subscribe("t")
    bench.publish("t", *[b"x"] * 2000)
    acked: list[int] = []
    for round_ in range(50):
        readers = [bench.reader(sub, f"{round_}-{n}", permits=17 + n) for n in range(3)]
        for reader in readers:
            done = reader.ids[::2]
            acked += done
            reader.ack(*done)
            reader.handle.close()
    last = bench.reader(sub, "last")
    assert sorted(acked + last.ids) == list(range(2000))


@pytest.mark.parametrize("permits", [7, 1000])
def test_of_many_delayed_entries_that_are_ready_the_lowest_comes_first(permits: int) -> None:
    bench = Bench()
    sub = bench.subscribe("orders")
    reader = bench.reader(sub, permits=1)
    early, late = bench.now_ms + 1_000, bench.now_ms + 2_000
    for number in range(60):
        bench.publish("orders", b"%d" % number, deliver_at_ms=late if number < 30 else early)
    bench.wait(1_000)
    assert reader.ids == [30]
    bench.wait(1_000)
    # What was acknowledged unread does not come.
    bench.ask(sub.ack([3, 44]))
    for _ in range(-(-58 // permits)):
        reader.handle.flow(permits)
    assert reader.ids == [30, *(number for number in range(60) if number not in (3, 30, 44))]


def test_a_durable_subscription_does_not_take_a_readers_name_nor_a_reader_its(bench: Bench) -> None:
    """An answer of yes would have no record behind it: a reader's place lives in memory."""
    topics = bench.engine.topics
    bench.reader(bench.subscribe("orders", "me", durable=False))
    bench.refused(topics.subscribe("orders", "me"), Conflict)
    bench.subscribe("orders", "kept")
    bench.refused(topics.subscribe("orders", "kept", durable=False), Conflict)


def test_looking_for_a_time_passes_over_what_is_gone_in_one_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries whose segments were reclaimed, millions of them behind one that nobody acknowledges."""
    sub = bench.subscribe("orders")
    bench.publish("orders", b"first")
    topic, topics = sub.topic, bench.engine.topics
    topic.place(topic.next, 0)
    for _ in range(5):
        topic.place_many(topic.next, np.arange(1, 4097), np.zeros(4096, np.int64))
    topic.visible = topic.next
    bench.clock.advance(1000)
    last = bench.publish("orders", b"last")
    asked = 0
    topic.place(last[0], 5000)
    monkeypatch.setattr(type(bench.ledger), "first_seq", 5000)

    def published_at_ms(_: Topic, entry_id: int) -> int | None:
        nonlocal asked
        asked += 1
        return bench.now_ms if entry_id == last[0] else None

    monkeypatch.setattr(topics._reader, "published_at_ms", published_at_ms)
    # Whoever goes there gets the last one.
    assert topics.first_published(topic, bench.now_ms - 10) <= last[0]
    assert topics.first_published(topic, bench.now_ms + 10) == topic.next
    assert asked < 40


def test_of_an_entry_that_is_acknowledged_as_a_whole_no_part_is_kept(bench: Bench) -> None:
    sub = bench.subscribe("orders")
    bench.publish("orders", b"a", b"b", b"c", messages=2)
    bench.ask(sub.ack([0, 2]))
    bench.ask(sub.ack([], 0, [(0, [1]), (1, [1]), (2, [1])]))
    assert list(sub.partial) == [1]
    bench.ask(sub.ack([], 2))
    assert sub.partial == {}
    assert sub.acked.below == 3
