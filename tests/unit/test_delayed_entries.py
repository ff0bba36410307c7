"""Delayed entries of topics: listed, looked at, cancelled and rescheduled, through crashes and carrying forward."""

from typing import Any

import pytest

from tarry.core.errors import Conflict, DelayTooLong, Invalid, NotFound
from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.queries import delayed_entries
from tarry.engine.settings import EngineSettings
from tests.unit.engine_kit import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def later(bench: Bench, *payloads: bytes, delay_ms: int = MINUTE_MS, **fields: Any) -> list[int]:
    return bench.publish("orders", *payloads, deliver_at_ms=bench.now_ms + delay_ms, **fields)


def again(bench: Bench, how: str) -> None:
    if how != "alive":
        if how == "flushed":
            bench.wait(2000)
        bench.crash()
        bench.start()


EVERY_WAY = pytest.mark.parametrize("how", ["alive", "crashed", "flushed"])


@EVERY_WAY
def test_a_cancelled_entry_reaches_nobody(bench: Bench, how: str) -> None:
    sub = bench.subscribe("orders")
    later(bench, b"a", b"b", b"c")
    gone = bench.ask(bench.engine.delayed.cancel("orders", 1))
    assert (gone.entry_id, gone.payload) == (1, b"b")
    assert bench.engine.topics.stats("orders").delayed == 2, "it is still counted among those that wait"
    again(bench, how)
    sub = bench.engine.topics.subscription("orders", "sub")
    assert sub.backlog == 2
    bench.wait(2 * MINUTE_MS)
    assert bench.reader(sub).payloads == [b"a", b"c"]
    # Whoever comes later, and whatever the type of the subscription.
    assert bench.drain("orders", "newer").payloads == [b"a", b"c"]
    exclusive = bench.subscribe("orders", "alone", "exclusive")
    assert bench.reader(exclusive).payloads == [b"a", b"c"]
    bench.refused(bench.engine.delayed.cancel("orders", 1), NotFound)


def test_a_cancelled_entry_holds_no_acknowledgement_back(bench: Bench) -> None:
    sub = bench.subscribe("orders")
    later(bench, b"a")
    bench.publish("orders", b"b")
    bench.reader(sub).ack(1)
    assert sub.acked.below == 0
    bench.ask(bench.engine.delayed.cancel("orders", 0))
    assert (sub.acked.below, sub.backlog) == (2, 0)


@EVERY_WAY
@pytest.mark.parametrize("to_ms", [HOUR_MS, 1000])
def test_a_rescheduled_entry_comes_at_its_new_instant(bench: Bench, how: str, to_ms: int) -> None:
    sub = bench.subscribe("orders")
    later(bench, b"a", b"b", key="k", headers={"h": "v"})
    due_at_ms = bench.now_ms + to_ms + 5000
    moved = bench.ask(bench.engine.delayed.reschedule("orders", 0, due_at_ms))
    assert (moved.due_at_ms, moved.payload) == (due_at_ms, b"a")
    again(bench, how)
    reader = bench.reader(bench.engine.topics.subscription("orders", "sub"))
    bench.leap(due_at_ms - bench.now_ms - 1)
    assert b"a" not in reader.payloads
    bench.wait(1)
    got = reader.got[-1]
    assert (got.payload, got.entry_id, got.key, got.headers) == (b"a", 0, "k", {"h": "v"})
    bench.leap(2 * HOUR_MS)
    assert sorted(reader.payloads) == [b"a", b"b"]
    assert sub.topic.name == "persistent://public/default/orders"


def test_rescheduling_hides_no_newer_entry(bench: Bench) -> None:
    later(bench, b"a")
    bench.publish("orders", b"b", b"c")
    bench.ask(bench.engine.delayed.reschedule("orders", 0, bench.now_ms + HOUR_MS))
    assert bench.drain("orders").payloads == [b"b", b"c"]
    assert bench.reader(bench.subscribe("orders", "alone", "exclusive")).payloads == [b"a", b"b", b"c"]


def test_rescheduling_into_the_past_is_now(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe("orders"))
    later(bench, b"a")
    bench.ask(bench.engine.delayed.reschedule("orders", 0, 1))
    bench.wait(1)
    assert reader.payloads == [b"a"]


def test_rescheduling_again_and_cancelling_after_that(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe("orders"))
    later(bench, b"a")
    for minutes in (5, 3, 7):
        bench.ask(bench.engine.delayed.reschedule("orders", 0, bench.now_ms + minutes * MINUTE_MS))
    bench.wait(6 * MINUTE_MS)
    assert reader.payloads == []
    bench.ask(bench.engine.delayed.cancel("orders", 0))
    bench.leap(HOUR_MS)
    assert reader.payloads == []
    assert bench.engine.stats().in_wheel + bench.engine.stats().in_tail == 0


def test_what_is_due_cannot_be_changed(bench: Bench) -> None:
    bench.subscribe("orders")
    later(bench, b"a")
    bench.publish("orders", b"b")
    bench.wait(MINUTE_MS)
    operations = bench.engine.delayed
    for entry_id in (0, 1):
        bench.refused(operations.cancel("orders", entry_id), Conflict)
        bench.refused(operations.reschedule("orders", entry_id, bench.now_ms), Conflict)
    bench.refused(operations.cancel("orders", 2), NotFound)
    bench.refused(operations.cancel("bills", 0), NotFound)
    bench.refused(operations.get("orders", -1), NotFound)


def test_the_longest_delay_holds_for_rescheduling(bench: Bench) -> None:
    later(bench, b"a")
    bench.ask(bench.engine.set_policy("topic", "orders", Policy(max_delay_ms=HOUR_MS)))
    too_late = bench.engine.delayed.reschedule("orders", 0, bench.now_ms + HOUR_MS + 1)
    assert bench.refused(too_late, DelayTooLong).max_delay_ms == HOUR_MS
    bench.refused(bench.engine.delayed.reschedule("orders", 0, -1), Invalid)


def test_a_page_of_what_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_entries, "LOOK_AT", 4)
    later(bench, *(b"%d" % n for n in range(6)), key="even")
    bench.publish("orders", b"at once")
    later(bench, b"7", key="odd")

    def listed(*place: str, **asked: Any) -> Any:
        return bench.ask(bench.engine.delayed.list(*place, **asked))

    assert [entry.entry_id for entry in listed("orders", limit=4).entries] == [0, 1, 2, 3]
    page = listed("orders", limit=4, start=listed("orders", limit=4).next or -1)
    assert ([entry.payload for entry in page.entries], page.next) == ([b"4", b"5", b"7"], None)
    # A page of one key looks at so many, and goes on where it stopped.
    page = listed("orders", key="odd")
    assert (page.entries, page.next) == ([], 4)
    assert [entry.entry_id for entry in listed("orders", key="odd", start=4).entries] == [7]
    assert listed("orders", key="even", limit=2).next == 2
    assert bench.ask(bench.engine.delayed.get("orders", 7)).key == "odd"
    for bad in ({"limit": 0}, {"limit": 1001}, {"start": -1}):
        with pytest.raises(Invalid):
            listed("orders", **bad)


def test_carried_forward_it_is_still_as_it_was_changed() -> None:
    bench = Bench(settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000))
    sub = bench.subscribe("orders")
    later(bench, b"a", b"b", b"c", delay_ms=HOUR_MS)
    bench.ask(bench.engine.delayed.cancel("orders", 0))
    bench.ask(bench.engine.delayed.reschedule("orders", 1, bench.now_ms + 2 * HOUR_MS))
    bench.subscribe("other", "s")
    for _ in range(20):
        bench.publish("other", b"x" * 50_000)
    bench.reader(bench.engine.topics.subscription("other", "s")).ack(*range(20))
    bench.wait(30_000)
    assert bench.first_seq > 6
    bench.reopen()
    sub = bench.engine.topics.subscription("orders", "sub")
    reader = bench.reader(sub)
    bench.leap(HOUR_MS)
    assert reader.payloads == [b"c"]
    bench.leap(HOUR_MS)
    assert reader.payloads == [b"c", b"b"]


def test_nothing_is_told_of_a_command_that_a_crash_may_undo(bench: Bench) -> None:
    """Another client that was told of a cancel must not find the entry alive after a crash."""
    bench.subscribe("orders")
    later(bench, b"a", b"b")
    delayed = bench.engine.delayed
    first: list[Answer[Any]] = [
        delayed.cancel("orders", 0),
        delayed.reschedule("orders", 1, bench.now_ms + HOUR_MS),
    ]
    others: list[Answer[Any]] = [
        delayed.get("orders", 0), delayed.get("orders", 1), delayed.list("orders"), delayed.cancel("orders", 0),
        delayed.reschedule("orders", 0, bench.now_ms), delayed.get("nowhere", 0),
    ]  # fmt: skip
    assert not any(answer.settled for answer in (*first, *others)), "nothing is durable yet"
    for answer in first:
        bench.ask(answer)
    assert all(answer.settled for answer in others)
    assert bench.ask(others[1]).due_at_ms == bench.now_ms + HOUR_MS
    assert [entry.entry_id for entry in bench.ask(others[2]).entries] == [1]
    for refused in (others[0], others[3], others[4], others[5]):
        bench.refused(refused, NotFound)
