"""Scheduling: what is accepted, when it is due, and that nothing goes out before."""

from typing import Any

import pyarrow as pa
import pytest

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, NotFound, TarryError, TooLarge
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import Message, Scheduled
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, full, schedule_arrow


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_message_goes_out_at_its_instant_and_not_a_millisecond_before(bench: Bench) -> None:
    reader = bench.drain("orders")
    done = bench.schedule(payload=b"hi", headers={"h": "v"}, key="k", delay_ms=1000)
    assert (done.due_at_ms, done.past_due, done.repeated) == (bench.now_ms + 1000, False, False)
    bench.wait(999)
    assert not reader.got
    assert bench.state(done.id) == "scheduled"
    bench.wait(1)
    (entry,) = reader.got
    assert (entry.payload, entry.headers, entry.key, entry.message_id) == (b"hi", {"h": "v"}, "k", done.id)
    assert entry.due_at_ms == done.due_at_ms == bench.now_ms
    assert bench.state(done.id) == "sent"
    bench.wait(100_000)
    assert len(reader.got) == 1


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
@pytest.mark.parametrize("delay_ms", [1, 7, 600_000, limits.DAY_MS, limits.MAX_DELAY_MS])
def test_delays_of_every_size(bench: Bench, delay_ms: int, destination: str) -> None:
    reader = bench.drain("orders")
    bench.schedule(destination, payload=b"x", delay_ms=delay_ms)
    bench.leap(delay_ms - 1)
    assert not reader.got
    assert not bench.outlet.under_way
    bench.leap(1)
    assert len(reader.got) + len(bench.outlet.under_way) == 1


def test_nothing_is_answered_before_it_is_durable(bench: Bench) -> None:
    answer = bench.engine.schedule(Message(destination="orders", delay_ms=5))
    bench.tick()
    assert not answer.settled
    bench.commit()
    assert answer.settled


def test_what_was_answered_is_there_after_a_crash(bench: Bench) -> None:
    done = bench.schedule(payload=b"kept", delay_ms=50)
    bench.crash()
    bench.start()
    assert bench.view(done.id).payload == b"kept"
    bench.wait(50)
    assert bench.drain("orders").payloads == [b"kept"]


def test_due_in_the_past_is_due_now_and_said_so(bench: Bench) -> None:
    reader = bench.drain("orders")
    done = bench.schedule(due_at_ms=5)
    assert (done.due_at_ms, done.past_due) == (5, True)
    assert len(reader.got) == 1


def test_due_now_is_not_past(bench: Bench) -> None:
    assert not bench.schedule(due_at_ms=bench.now_ms).past_due
    assert not bench.schedule(delay_ms=0).past_due


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"delay_ms": limits.MAX_DELAY_MS + 1}, DelayTooLong),
        ({"due_at_ms": 1 << 62}, DelayTooLong),
        ({"delay_ms": -1}, Invalid),
        ({"due_at_ms": 5, "delay_ms": 5}, Invalid),
        ({}, Invalid),
        ({"delay_ms": 1, "destination": "http://nowhere/"}, Invalid),
        ({"delay_ms": 1, "destination": "a/b"}, Invalid),
        ({"delay_ms": 1, "namespace": "other/ns"}, Invalid),
        ({"delay_ms": 1, "destination": FOREIGN, "namespace": "bad"}, Invalid),
        ({"delay_ms": 1, "payload": bytes(limits.MAX_PAYLOAD_BYTES + 1)}, TooLarge),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    bench: Bench, fields: dict[str, object], error: type[TarryError]
) -> None:
    bench.rest()
    before = bench.engine.stats()
    message = Message(**{"destination": "orders", **fields})  # type: ignore[arg-type]
    bench.refused(bench.engine.schedule(message), error)
    after = bench.engine.stats()
    assert (after.pending, after.next_seq, after.topics) == (before.pending, before.next_seq, before.topics)


def test_a_message_can_be_looked_at(bench: Bench) -> None:
    done = bench.schedule(
        FOREIGN,
        payload=b"p",
        headers={"a": "b"},
        key="k",
        owner="ann",
        delay_ms=1000,
        ttl_ms=7,
        namespace="a/b",
    )
    view = bench.view(done.id)
    assert view.id == done.id
    assert view.state is State.SCHEDULED
    assert (view.destination, view.namespace, view.owner, view.key) == (FOREIGN, "a/b", "ann", "k")
    assert (view.payload, view.headers, view.ttl_ms, view.delay_ms) == (b"p", {"a": "b"}, 7, 1000)
    assert (view.due_at_ms, view.accepted_at_ms) == (done.due_at_ms, bench.now_ms)


def test_a_finalised_message_can_be_looked_at(bench: Bench) -> None:
    done = bench.schedule(delay_ms=10, owner="ann", key="k")
    bench.wait(10)
    view = bench.view(done.id)
    assert (view.state, view.finalised_at_ms, view.attempts) == (State.SENT, bench.now_ms, 1)
    assert (view.destination, view.owner, view.key) == (full("orders"), "ann", "k")
    bench.reopen()
    assert bench.view(done.id) == view


@pytest.mark.parametrize("id_", ["", "nonsense", "a" * 32])
def test_there_is_no_such_message(bench: Bench, id_: str) -> None:
    for answer in (
        bench.engine.get(id_), bench.engine.cancel(id_), bench.engine.send(id_), bench.engine.restart(id_)
    ):  # fmt: skip
        bench.refused(answer, NotFound)


def test_an_id_of_this_key_that_was_never_given_out_finds_nothing(bench: Bench) -> None:
    done = bench.schedule(delay_ms=1000)
    bench.publish("orders", b"not a message")
    ids = bench.ids
    seq, fire_at_ms = ids.read(done.id) or (0, 0)
    for forged in (
        ids.make(seq, fire_at_ms + 1), ids.make(seq + 1, fire_at_ms), ids.make(seq + 2, 0), ids.make(0, 0),
        ids.make(seq + 1000, fire_at_ms),
    ):  # fmt: skip
        bench.refused(bench.engine.get(forged), NotFound)
        bench.refused(bench.engine.cancel(forged), NotFound)
    assert bench.state(done.id) == "scheduled"


def test_many_are_answered_each_by_itself(bench: Bench) -> None:
    unparsed = Invalid("line", "is not JSON")
    answers = bench.ask(
        bench.engine.schedule_many(
            [
                Message(destination="orders", payload=b"1", delay_ms=5),
                unparsed,
                Message(destination="orders", delay_ms=-5),
                Message(destination="orders", payload=b"2", delay_ms=5, group="g"),
                Message(destination="orders", payload=b"3", delay_ms=5, idempotency_key="i"),
                Message(destination="orders", payload=b"3", delay_ms=5, idempotency_key="i"),
                Message(destination="orders", payload=b"4", due_at_ms=1),
            ]
        )
    )
    assert answers[1] is unparsed
    assert isinstance(answers[2], Invalid)
    taken = [answer for answer in answers if isinstance(answer, Scheduled)]
    assert len(taken) == 5
    assert taken[2].id == taken[3].id
    assert taken[3].repeated
    assert taken[4].past_due
    bench.wait(5)
    assert sorted(bench.drain("orders").payloads) == [b"1", b"2", b"3", b"4"]


def test_none_at_all_is_answered_too(bench: Bench) -> None:
    assert bench.ask(bench.engine.schedule_many([])) == []


def test_a_batch_larger_than_a_frame_is_taken_whole() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=4 << 20))
    messages = [Message(destination="orders", payload=b"%d" % n, delay_ms=1 + n % 7) for n in range(9000)]
    answers = bench.ask(bench.engine.schedule_many(messages))
    assert len({answer.id for answer in answers if isinstance(answer, Scheduled)}) == 9000
    bench.wait(10)
    assert sorted(int(payload) for payload in bench.drain("orders").payloads) == list(range(9000))


def test_what_is_due_together_goes_out_in_the_order_of_due_time_and_acceptance(bench: Bench) -> None:
    reader = bench.drain("orders")
    start = bench.now_ms
    for n, due in enumerate([30, 10, 20, 10, 30, 10]):
        bench.schedule(payload=b"%d-%d" % (due, n), due_at_ms=start + due)
    bench.leap(50)
    assert reader.payloads == [b"10-1", b"10-3", b"10-5", b"20-2", b"30-0", b"30-4"]


def test_counters_and_pending_follow(bench: Bench) -> None:
    first = bench.schedule(delay_ms=10, owner="ann")
    bench.schedule(delay_ms=10, owner="bob")
    bench.schedule(delay_ms=1000, owner="bob")
    assert (bench.engine.stats().pending, bench.engine.stats().owners) == (3, 2)
    bench.ask(bench.engine.cancel(first.id))
    bench.wait(10)
    stats = bench.engine.stats()
    assert (stats.pending, stats.owners) == (1, 1)
    assert stats.counters == {"accepted": 3, "cancelled": 1, "sent": 1}
    bench.reopen()
    again = bench.engine.stats()
    assert (again.pending, again.owners, again.counters) == (1, 1, stats.counters)


def test_one_message_is_told_of_by_its_lateness(bench: Bench) -> None:
    told: list[tuple[str, int, int]] = []
    bench.dispatcher.sent.on_sent = lambda *args: told.append(args)
    for _ in range(3):
        bench.schedule(delay_ms=10, door="http")
    bench.schedule(due_at_ms=1, door="pulsar")
    bench.leap(25)
    assert sorted(told) == [("http", 15, 3), ("pulsar", 0, 1)]


@pytest.mark.parametrize("way", ["single", "columns", "entries"])
def test_what_the_ledger_has_and_memory_cannot_follow_is_a_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Going on would answer from a state that no restart arrives at."""
    bench.publish("orders", b"there is a topic")
    told: list[Exception] = []
    monkeypatch.setattr(bench.journal, "_on_fault", told.append)
    broken = RuntimeError("broken")

    def fail(*_: Any) -> None:
        raise broken

    monkeypatch.setattr(bench.sizes, "add_unit", fail)
    with pytest.raises(RuntimeError, match="broken"):
        if way == "single":
            bench.schedule(delay_ms=1)
        elif way == "columns":
            bench.ask(
                schedule_arrow(bench.engine, pa.record_batch({"delay_ms": [1]}), Message(destination="t"))
            )
        else:
            _ = bench.engine.topics.publish("orders", [NewEntry(payload=b"")])
    assert told == [broken]
