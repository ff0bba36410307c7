"""Key-shared subscriptions: a key's entries go to one consumer at a time, in order, and nobody stalls."""

import pytest

from tarry.core.murmur import murmur3_32
from tarry.engine.topics.key_shares import HASH_SLOTS, MAX_PARKED
from tarry.engine.topics.subscription import Subscription
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench, Reader


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=8 << 20))


@pytest.fixture
def sub(bench: Bench) -> Subscription:
    return bench.subscribe("t", type="key_shared")


def keys_of_half(half: int, count: int) -> list[str]:
    """Keys that belong to the first or second of two consumers."""
    found: list[str] = []
    n = 0
    while len(found) < count:
        key = f"key-{n}"
        if murmur3_32(key.encode()) % HASH_SLOTS * 2 // HASH_SLOTS == half:
            found.append(key)
        n += 1
    return found


def publish(bench: Bench, *keys: str | None) -> None:
    for key in keys:
        bench.publish("t", (key or "none").encode(), key=key)


def by_key(readers: list[Reader]) -> dict[str | None, list[int]]:
    order: dict[str | None, list[int]] = {}
    for reader in readers:
        for entry in reader.got:
            order.setdefault(entry.key, []).append(entry.entry_id)
    return order


def test_a_key_goes_to_one_consumer_and_keeps_its_order(bench: Bench, sub: Subscription) -> None:
    readers = [bench.reader(sub, str(n)) for n in range(4)]
    keys = [f"k{n % 20}" for n in range(400)]
    publish(bench, *keys)
    for key in set(keys):
        holders = [reader for reader in readers if any(entry.key == key for entry in reader.got)]
        assert len(holders) == 1
        ids = [entry.entry_id for entry in holders[0].got if entry.key == key]
        assert ids == sorted(ids)
        assert len(ids) == 20
    assert all(reader.got for reader in readers)
    assert sum(len(reader.got) for reader in readers) == 400


def test_entries_without_a_key_are_spread(bench: Bench, sub: Subscription) -> None:
    readers = [bench.reader(sub, str(n)) for n in range(2)]
    publish(bench, *[None] * 100)
    assert all(30 <= len(reader.got) <= 70 for reader in readers)


def test_a_consumer_without_permits_does_not_hold_up_the_others(bench: Bench, sub: Subscription) -> None:
    idle, busy = bench.reader(sub, "idle", permits=1), bench.reader(sub, "busy")
    (mine,), theirs = keys_of_half(0, 1), keys_of_half(1, 5)
    publish(bench, mine, mine, mine, *theirs, mine, *theirs)
    assert [entry.key for entry in idle.got] == [mine]
    assert [entry.key for entry in busy.got] == theirs * 2
    idle.handle.flow(2)
    assert idle.ids == [0, 1, 2]
    idle.handle.flow(10)
    assert idle.ids == [0, 1, 2, 8]


def test_a_backlog_for_an_idle_consumer_does_not_hold_up_the_others(bench: Bench, sub: Subscription) -> None:
    (mine,), (other,) = keys_of_half(0, 1), keys_of_half(1, 1)
    bench.publish("t", *[b"x"] * 5000, key=mine)
    bench.publish("t", *[b"y"] * 10, key=other)
    bench.reader(sub, "idle", permits=0)
    busy = bench.reader(sub, "busy", permits=1)
    assert busy.ids == [5000]
    busy.handle.flow(100)
    assert busy.ids == list(range(5000, 5010))


def test_how_far_it_looks_is_bounded(bench: Bench, sub: Subscription) -> None:
    (mine,), (other,) = keys_of_half(0, 1), keys_of_half(1, 1)
    for _ in range(5):
        bench.publish("t", *[b"x"] * 4000, key=mine)
    idle = bench.reader(sub, "idle", permits=0)
    bench.reader(sub, "busy", permits=100_000)
    for _ in range(20):
        bench.publish("t", *[b"x"] * 200, key=mine)
        bench.publish("t", b"y", key=other)
    assert sum(map(len, sub._key_shares._parked.values())) <= MAX_PARKED + 1024
    # And nothing of it is lost.
    idle.handle.flow(100_000)
    bench.rest()
    assert idle.ids == [n for n in range(24_020) if n < 20_000 or (n - 20_000) % 201 != 200]


def test_a_second_consumer_that_joins_late_gets_its_keys_when_they_are_free(
    bench: Bench, sub: Subscription
) -> None:
    first = bench.reader(sub, "a")
    (stays,), (moves,) = keys_of_half(0, 1), keys_of_half(1, 1)
    publish(bench, stays, moves, moves)
    assert first.ids == [0, 1, 2]
    second = bench.reader(sub, "b")
    publish(bench, stays, moves)
    # The key is still with the first, who has not acknowledged it all: the new one must wait.
    assert (first.ids, second.ids) == ([0, 1, 2, 3], [])
    first.ack(1)
    assert second.ids == []
    first.ack(2)
    assert second.ids == [4]
    publish(bench, moves)
    assert second.ids == [4, 5]


def test_when_a_consumer_goes_its_keys_move_in_order(bench: Bench, sub: Subscription) -> None:
    a, b = bench.reader(sub, "a"), bench.reader(sub, "b", permits=3)
    keys = keys_of_half(1, 2)
    publish(bench, *keys * 4)
    assert len(b.got) == 3
    b.ack(0)
    b.handle.close()
    assert [entry.entry_id for entry in a.got if entry.key == keys[0]] == [2, 4, 6]
    assert [entry.entry_id for entry in a.got if entry.key == keys[1]] == [1, 3, 5, 7]


def test_what_is_given_back_comes_to_the_same_consumer(bench: Bench, sub: Subscription) -> None:
    a, b = bench.reader(sub, "a"), bench.reader(sub, "b")
    (key,) = keys_of_half(1, 1)
    publish(bench, key, key, key)
    b.handle.nack([0, 1, 2])
    assert b.ids == [0, 1, 2, 0, 1, 2]
    assert a.ids == []
    assert [entry.redelivery_count for entry in b.got] == [0, 0, 0, 1, 1, 1]


def test_giving_back_with_others_parked_keeps_the_order(bench: Bench, sub: Subscription) -> None:
    reader = bench.reader(sub, "a", permits=2)
    publish(bench, *["k"] * 6)
    assert reader.ids == [0, 1]
    reader.handle.nack([0, 1])
    reader.handle.flow(100)
    assert reader.ids == [0, 1, 0, 1, 2, 3, 4, 5]


def test_delayed_entries_of_a_key_come_when_due(bench: Bench, sub: Subscription) -> None:
    reader = bench.reader(sub, "a")
    bench.publish("t", b"late", key="k", deliver_at_ms=bench.now_ms + 100)
    bench.publish("t", b"now", key="k")
    bench.wait(100)
    assert reader.payloads == [b"now", b"late"]


def test_a_crowd_that_comes_and_goes_keeps_every_key_in_order(bench: Bench, sub: Subscription) -> None:
    """Whatever is acknowledged of a key was acknowledged in order, by whoever had it."""
    keys = [f"k{n % 11}" for n in range(600)]
    publish(bench, *keys)
    done: dict[str | None, list[int]] = {}
    for round_ in range(60):
        readers = [bench.reader(sub, f"{round_}-{n}", permits=3 + 5 * n) for n in range(1 + round_ % 4)]
        for reader in readers:
            for entry in reader.got[: 2 + round_ % 5]:
                done.setdefault(entry.key, []).append(entry.entry_id)
                reader.ack(entry.entry_id)
        for reader in readers:
            reader.handle.close()
    last = bench.reader(sub, "last")
    for entry in last.got:
        done.setdefault(entry.key, []).append(entry.entry_id)
    assert sorted(entry for ids in done.values() for entry in ids) == list(range(600))
    for ids in done.values():
        assert ids == sorted(ids)
