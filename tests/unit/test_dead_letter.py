"""Entries that come too often end in a dead-letter topic, in the same unit as their acknowledgement."""

import errno

import pytest

from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench, full, use_up_space


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("type_", ["exclusive", "shared", "failover", "key_shared"])
def test_after_so_many_redeliveries_it_is_a_dead_letter(bench: Bench, type_: str) -> None:
    sub = bench.subscribe("t", "s", type_, max_redeliveries=2, dead_letter_topic="dead")
    reader = bench.reader(sub)
    bench.publish("t", b"bad", key="k", headers={"a": "b"})
    bench.publish("t", b"good", key="k")
    for _ in range(3):
        reader.handle.nack([0])
        bench.rest()
    assert [entry.redelivery_count for entry in reader.got if entry.entry_id == 0] == [0, 1, 2]
    (letter,) = bench.drain("dead").got
    assert (letter.payload, letter.key) == (b"bad", "k")
    assert letter.headers == {"a": "b", "tarry-origin-topic": full("t"), "tarry-origin-entry": "0"}
    assert sub.backlog == 1
    reader.ack(1)
    assert sub.acked.below == 2


def test_the_default_name_is_pulsars(bench: Bench) -> None:
    sub = bench.subscribe("t", "s", max_redeliveries=1)
    reader = bench.reader(sub)
    bench.publish("t", b"bad")
    for _ in range(2):
        reader.handle.nack()
    assert bench.drain("t-s-DLQ").payloads == [b"bad"]


def test_without_a_limit_it_comes_for_ever(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe("t"))
    bench.publish("t", b"x")
    for _ in range(50):
        reader.handle.nack()
    assert len(reader.got) == 51
    assert bench.engine.topics.names() == [full("t")]


def test_a_closing_consumer_does_not_count(bench: Bench) -> None:
    sub = bench.subscribe("t", "s", max_redeliveries=1)
    bench.publish("t", b"x")
    for n in range(5):
        reader = bench.reader(sub, str(n))
        assert reader.ids == [0]
        reader.handle.close()
    assert bench.engine.topics.names() == [full("t")]


def test_letter_and_acknowledgement_are_one(bench: Bench) -> None:
    sub = bench.subscribe("t", "s", max_redeliveries=1, dead_letter_topic="dead")
    bench.ask(bench.engine.topics.create("dead"))
    reader = bench.reader(sub)
    bench.publish("t", b"bad")
    bench.rest()
    for _ in range(2):
        reader.handle.nack()
    bench.crash()
    bench.start()
    letters = bench.drain("dead").payloads
    left = bench.reader(bench.engine.topics.subscription("t", "s")).payloads
    assert sorted(letters + left) == [b"bad"]
    bench.rest()


def test_many_at_once(bench: Bench) -> None:
    sub = bench.subscribe("t", "s", max_redeliveries=1, dead_letter_topic="dead")
    reader = bench.reader(sub)
    bench.publish("t", *[b"%d" % n for n in range(200)])
    for _ in range(2):
        reader.handle.nack()
    assert sorted(bench.drain("dead").payloads) == sorted(b"%d" % n for n in range(200))
    assert sub.backlog == 0


def test_with_a_failed_disk_giving_back_does_not_raise(bench: Bench) -> None:
    sub = bench.subscribe("t", "s", max_redeliveries=1)
    reader = bench.reader(sub)
    bench.publish("t", b"bad")
    reader.handle.nack()
    bench.disk.fail_next("sync", errno.EIO)
    _ = bench.engine.topics.create("new")
    bench.rest()
    reader.handle.nack()
    bench.crash()
    bench.start()
    assert bench.reader(bench.engine.topics.subscription("t", "s")).payloads == [b"bad"]


def test_counts_begin_anew_after_a_restart(bench: Bench) -> None:
    """They live in memory: after a restart an entry may come as often again, never less."""
    sub = bench.subscribe("t", "s", max_redeliveries=2)
    reader = bench.reader(sub)
    bench.publish("t", b"x")
    reader.handle.nack()
    bench.reopen()
    reader = bench.reader(bench.engine.topics.subscription("t", "s"))
    assert [entry.redelivery_count for entry in reader.got] == [0]


def test_an_entry_whose_dead_letter_has_no_room_comes_again_until_it_has() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 14))
    sub = bench.subscribe("t", "s", max_redeliveries=1, dead_letter_topic="dead")
    reader = bench.reader(sub)
    bench.publish("t", bytes(8_000))
    use_up_space(bench)
    for _ in range(3):
        reader.handle.nack([0])
        bench.rest()
    assert reader.ids == [0] * 4
    assert sub.backlog == 1
    bench.disk.capacity_bytes = None
    bench.wait(2_000)
    reader.handle.nack([0])
    assert bench.drain("dead").payloads == [bytes(8_000)]
    assert (reader.ids, sub.backlog) == ([0] * 4, 0)
