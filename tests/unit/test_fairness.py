"""Fairness: an owner with very many messages due now does not delay another owner's single one."""

import pyarrow as pa
import pytest

from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, schedule_arrow

MANY = 100_000


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=64 << 20))


def schedule_many(bench: Bench, destination: str, owner: str, count: int, due_at_ms: int) -> None:
    batch = pa.record_batch({"payload": pa.array([b"%d" % n for n in range(count)], pa.binary())})
    defaults = Message(destination=destination, owner=owner, due_at_ms=due_at_ms)
    done = bench.ask(schedule_arrow(bench.engine, batch, defaults))
    assert not done.errors


def turns_until(bench: Bench, payload: bytes, got: list[bytes]) -> int:
    for turn in range(1, 1000):
        bench.tick()
        bench.commit()
        if payload in got:
            return turn
    raise AssertionError("it never came")


@pytest.mark.parametrize(("topic", "owner"), [("small", "bob"), ("persistent://another/tenant/small", "ann")])
def test_a_single_message_does_not_wait_for_a_hundred_thousand(bench: Bench, topic: str, owner: str) -> None:
    """Neither for those of another owner, nor for those of an owner who has the same name in another namespace."""
    due_at_ms = bench.now_ms + 1000
    schedule_many(bench, "big", "ann", MANY, due_at_ms)
    # Accepted after all of them, due at the same instant, so that its key is the very last.
    bench.schedule(topic, payload=b"single", owner=owner, due_at_ms=due_at_ms)
    reader = bench.reader(bench.subscribe(topic))
    bench.clock.advance(1000)
    got: list[bytes] = []
    reader.handle.deliver = lambda entries: got.extend(entry.payload for entry in entries)
    assert turns_until(bench, b"single", got) <= 2
    assert bench.engine.topics.stats("big").next_entry <= 3 * bench.settings.batch


def test_a_single_message_due_later_does_not_wait_for_those_that_are_overdue(bench: Bench) -> None:
    due_at_ms = bench.now_ms + 1000
    schedule_many(bench, "big", "ann", MANY, due_at_ms)
    reader = bench.reader(bench.subscribe("small"))
    bench.clock.advance(1000)
    for _ in range(3):
        bench.tick()
        bench.commit()
    _ = bench.engine.schedule(Message(destination="small", payload=b"single", owner="bob", delay_ms=0))
    got: list[bytes] = []
    reader.handle.deliver = lambda entries: got.extend(entry.payload for entry in entries)
    assert turns_until(bench, b"single", got) <= 3


def test_owners_share_a_batch_and_each_keeps_its_order() -> None:
    bench = Bench(settings=EngineSettings(batch=100), ledger_settings=LedgerSettings(segment_bytes=4 << 20))
    due_at_ms = bench.now_ms + 1000
    for owner, count in (("ann", 1000), ("bob", 1000), ("eve", 10)):
        messages = [
            Message(destination="t", owner=owner, key=owner, payload=b"%d" % n, due_at_ms=due_at_ms)
            for n in range(count)
        ]
        bench.ask(bench.engine.schedule_many(messages))
    reader = bench.drain("t")
    bench.clock.advance(1000)
    bench.tick()
    bench.commit()
    first = [entry.key for entry in reader.got]
    assert len(first) == 100
    assert first.count("eve") == 10
    assert first.count("ann") >= 33
    assert first.count("bob") >= 33
    bench.rest()
    for owner, count in (("ann", 1000), ("bob", 1000), ("eve", 10)):
        assert [int(entry.payload) for entry in reader.got if entry.key == owner] == list(range(count))


def test_a_single_webhook_does_not_wait_for_many(bench: Bench) -> None:
    due_at_ms = bench.now_ms + 1000
    schedule_many(bench, FOREIGN, "ann", 5000, due_at_ms)
    bench.schedule(FOREIGN, payload=b"single", owner="bob", due_at_ms=due_at_ms)
    bench.clock.advance(1000)
    bench.rest()
    # One round of the host's places later it is on its way.
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    sent = [attempt.delivery.payload for attempt in bench.outlet.under_way] + bench.arrived()
    assert b"single" in sent
    assert len(sent) <= 2 * bench.settings.concurrency_per_host
