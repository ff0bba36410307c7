"""Delayed entries as messages: found by id, listed, counted, cancelled, sent and restarted, through everything that happens.

Each test is run in every way in which the engine may have come to what it knows: it lives on, a crash has lost what the
registry had not flushed, the process was killed after a flush, or the index has all that waits.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.errors import Conflict, DelayTooLong, NotFound, RateLimited
from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.core.messages.message import MessageView
from tarry.core.rules.policy import Policy
from tarry.engine.settings import EngineSettings
from tests.unit.engine_kit import Bench, full

WAYS = ("alive", "crashed", "flushed", "indexed", "indexed and killed")


def through(bench: Bench, how: str) -> None:
    """Go on in one of the ways."""
    if how == "flushed" or how.startswith("indexed"):
        bench.wait(2000)
    if how.startswith("indexed"):
        bench.index.flush(bench.ledger)
        bench.wait(5000)
    if how in ("crashed", "flushed"):
        bench.crash()
        bench.start()
    elif how == "indexed and killed":
        bench.reopen()
    bench.rest()


every_way = pytest.mark.parametrize("how", WAYS)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def later(bench: Bench, *payloads: bytes, delay_ms: int = HOUR_MS, **fields: Any) -> list[str]:
    """Publish delayed entries; gives their ids."""
    fields.setdefault("door", "pulsar")
    known = {view.id for view in bench.listed()}
    bench.publish("orders", *payloads, deliver_at_ms=bench.now_ms + delay_ms, **fields)
    new = [view for view in bench.listed() if view.id not in known]
    assert [view.payload for view in new] == list(payloads)
    return [view.id for view in new]


def consumer(bench: Bench) -> Any:
    return bench.reader(bench.engine.topics.subscription("orders", "sub"))


@every_way
def test_it_is_shown_as_a_message_for_its_topic(bench: Bench, how: str) -> None:
    at_ms = bench.now_ms
    (id_,) = later(bench, b"a", key="k", headers={"h": "v"}, owner="ann", ttl_ms=MINUTE_MS)
    through(bench, how)
    view = bench.view(id_)
    assert view == MessageView(
        id=id_, state=view.state, destination=full("orders"), namespace="public/default", owner="ann", door="pulsar",
        key="k", group=None, due_at_ms=at_ms + HOUR_MS, accepted_at_ms=at_ms, delayed_since_ms=at_ms, delay_ms=HOUR_MS,
        ttl_ms=MINUTE_MS, headers={"h": "v"}, payload=b"a",
    )  # fmt: skip
    assert view.state == "scheduled"
    assert bench.listed() == [view]


@every_way
def test_it_is_listed_and_counted_among_the_others(bench: Bench, how: str) -> None:
    bench.schedule(delay_ms=2 * MINUTE_MS, payload=b"b")
    later(bench, b"a", b"d", delay_ms=MINUTE_MS, key="k")
    bench.schedule("sim://shop/in", delay_ms=3 * MINUTE_MS, payload=b"c")
    bench.publish("bills", b"e", deliver_at_ms=bench.now_ms + 4 * MINUTE_MS, door="pulsar")
    bench.publish("bills", b"at once")
    through(bench, how)
    assert [view.payload for view in bench.listed()] == [b"a", b"d", b"b", b"c", b"e"]
    assert [view.payload for view in bench.listed(door="pulsar")] == [b"a", b"d", b"e"]
    assert [view.payload for view in bench.listed(destination=full("orders"))] == [b"a", b"d", b"b"]
    assert [view.payload for view in bench.listed(key="k")] == [b"a", b"d"]
    assert [view.payload for view in bench.listed(limit=2)] == [b"a", b"d"]
    assert bench.listed(namespace="acme/other") == []
    stats = bench.engine.stats()
    assert (stats.pending, stats.counters["accepted"]) == (5, 5)


@every_way
def test_cancelled_by_id_it_never_arrives(bench: Bench, how: str) -> None:
    bench.subscribe("orders")
    first, second = later(bench, b"a", b"b")
    gone = bench.ask(bench.engine.cancel(first))
    assert (gone.id, gone.state, gone.finalised_at_ms) == (first, "cancelled", bench.now_ms)
    at_ms = bench.now_ms
    through(bench, how)
    for view in (bench.view(first), *bench.listed(state="finalised", outcome="cancelled")):
        assert (view.id, view.state, view.finalised_at_ms) == (first, "cancelled", at_ms)
        assert (view.destination, view.reason) == (full("orders"), "cancelled by command")
    assert [view.id for view in bench.listed()] == [second]
    stats = bench.engine.stats()
    assert (stats.pending, stats.counters["cancelled"]) == (1, 1)
    for command in commands(bench):
        assert bench.refused(command(first), Conflict).state == "cancelled"
    bench.leap(2 * HOUR_MS)
    assert consumer(bench).payloads == [b"b"]


def commands(bench: Bench) -> list[Callable[[str], Any]]:
    engine = bench.engine
    return [engine.cancel, engine.send, lambda id_: engine.restart(id_, delay_ms=1)]


@every_way
def test_sent_by_id_it_arrives_now(bench: Bench, how: str) -> None:
    bench.subscribe("orders")
    first, second = later(bench, b"a", b"b")
    sent = bench.ask(bench.engine.send(first))
    assert (sent.id, sent.state) == (first, "scheduled")
    through(bench, how)
    bench.wait(2)
    assert consumer(bench).payloads == [b"a"]
    view = bench.view(first)
    assert (view.id, view.state, view.attempts) == (first, "sent", 1)
    assert [view.id for view in bench.listed()] == [second]
    assert [view.id for view in bench.listed(state="finalised")] == [first]
    for command in commands(bench):
        assert bench.refused(command(first), Conflict).state == "sent"
    stats = bench.engine.stats()
    assert (stats.pending, stats.counters["sent"]) == (1, 1)


@every_way
def test_restarted_it_arrives_then_and_keeps_its_id(bench: Bench, how: str) -> None:
    bench.subscribe("orders")
    (id_,) = later(bench, b"a")
    for delay_ms in (3 * HOUR_MS, 20 * MINUTE_MS, 2 * HOUR_MS):
        view = bench.ask(bench.engine.restart(id_, delay_ms=delay_ms))
        assert (view.id, view.due_at_ms, view.delay_ms) == (id_, bench.now_ms + delay_ms, delay_ms)
    due_at_ms = bench.now_ms + 2 * HOUR_MS
    through(bench, how)
    assert [(view.id, view.due_at_ms) for view in bench.listed()] == [(id_, due_at_ms)]
    assert bench.view(id_).delay_ms == 2 * HOUR_MS
    reader = consumer(bench)
    bench.leap(due_at_ms - bench.now_ms - 1)
    assert reader.payloads == []
    bench.wait(1)
    assert reader.payloads == [b"a"]
    bench.wait(2000)
    assert bench.state(id_) == "sent"
    bench.reopen()
    assert bench.state(id_) == "sent"
    assert bench.engine.stats().pending == 0


def test_a_restart_without_a_time_begins_its_delay_again(bench: Bench) -> None:
    (id_,) = later(bench, b"a", delay_ms=HOUR_MS)
    bench.leap(40 * MINUTE_MS)
    assert bench.ask(bench.engine.restart(id_)).due_at_ms == bench.now_ms + HOUR_MS
    bench.leap(10 * MINUTE_MS)
    assert bench.ask(bench.engine.restart(id_)).due_at_ms == bench.now_ms + HOUR_MS
    bench.ask(bench.engine.restart(id_, delay_ms=MINUTE_MS))
    bench.wait(1000)
    assert bench.ask(bench.engine.restart(id_)).due_at_ms == bench.now_ms + MINUTE_MS


@every_way
def test_an_untouched_one_is_sent_once_it_is_ready(bench: Bench, how: str) -> None:
    bench.subscribe("orders")
    (id_,) = later(bench, b"a", delay_ms=20_000)
    through(bench, how)
    bench.wait(20_000)
    assert consumer(bench).payloads == [b"a"]
    for _ in range(2):
        view = bench.view(id_)
        assert (view.id, view.state, view.destination) == (id_, "sent", full("orders"))
        for command in commands(bench):
            assert bench.refused(command(id_), Conflict).state == "sent"
        bench.wait(3000)
        bench.reopen()
    assert bench.listed(state="finalised") == [], "no row is kept for it"
    assert (bench.engine.stats().pending, bench.engine.stats().counters["sent"]) == (0, 1)


def test_no_row_is_kept_for_those_that_nobody_touches(bench: Bench) -> None:
    later(bench, *(b"%d" % number for number in range(20)), delay_ms=MINUTE_MS)
    bench.wait(2000)
    registry = bench.registry
    assert not registry.live.select("1", ())
    assert not registry.finalised.select("1", ())
    bench.wait(2 * MINUTE_MS)
    assert not registry.live.select("1", ())
    assert not registry.finalised.select("1", ())


@pytest.mark.parametrize("end", ["cancel", "ready"])
def test_the_row_of_a_moved_one_goes_with_its_end(bench: Bench, end: str) -> None:
    (id_,) = later(bench, b"a")
    bench.ask(bench.engine.restart(id_, delay_ms=MINUTE_MS))
    bench.wait(2000)
    assert len(bench.registry.live.select("1", ())) == 1
    if end == "cancel":
        bench.ask(bench.engine.cancel(id_))
    bench.wait(MINUTE_MS)
    assert bench.registry.live.select("1", ()) == []
    assert len(bench.registry.finalised.select("1", ())) == 1


def test_carried_forward_it_keeps_its_id() -> None:
    bench = Bench(settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000))
    bench.subscribe("orders")
    ids = later(bench, b"a", b"b", b"c", delay_ms=HOUR_MS)
    bench.ask(bench.engine.restart(ids[1], delay_ms=2 * HOUR_MS))
    bench.subscribe("other", "s")
    for _ in range(20):
        bench.publish("other", b"x" * 50_000)
    bench.reader(bench.engine.topics.subscription("other", "s")).ack(*range(20))
    bench.wait(30_000)
    assert bench.first_seq > 6, "the records of their publication are gone"
    for _ in range(2):
        assert [bench.view(id_).payload for id_ in ids] == [b"a", b"b", b"c"]
        assert [view.id for view in bench.listed()] == [ids[0], ids[2], ids[1]]
        bench.wait(2000)
        bench.reopen()
    bench.ask(bench.engine.cancel(ids[0]))
    bench.leap(3 * HOUR_MS)
    assert sorted(consumer(bench).payloads) == [b"b", b"c"]


def test_exclusive_subscriptions_have_had_it_and_that_changes_nothing(bench: Bench) -> None:
    alone = bench.reader(bench.subscribe("orders", "alone", "exclusive"))
    bench.subscribe("orders")
    (id_,) = later(bench, b"a")
    assert alone.payloads == [b"a"]
    assert bench.state(id_) == "scheduled"
    bench.ask(bench.engine.restart(id_, delay_ms=2 * HOUR_MS))
    assert bench.state(id_) == "scheduled"
    bench.ask(bench.engine.cancel(id_))
    assert bench.state(id_) == "cancelled"
    bench.leap(3 * HOUR_MS)
    assert consumer(bench).payloads == []


def test_acknowledged_by_all_before_it_is_due_it_is_not_said_to_be_sent(bench: Bench) -> None:
    bench.publish("orders", b"before")
    bench.subscribe("orders", type="exclusive")
    (id_,) = later(bench, b"a")
    consumer(bench).ack(0, 1)
    assert bench.state(id_) == "scheduled"
    bench.wait(12 * MINUTE_MS)
    assert bench.engine.topics.stats("orders").first_entry == 2, "it was forgotten"
    bench.refused(bench.engine.get(id_), NotFound)
    bench.refused(bench.engine.cancel(id_), NotFound)
    assert (bench.engine.stats().pending, bench.listed()) == (0, [])


@pytest.mark.parametrize("indexed", [False, True])
def test_once_ready_it_is_ready_after_a_crash_with_the_clock_set_back(bench: Bench, indexed: bool) -> None:
    """An entry below the watermark was ready before, though no record says so, and the registry has not heard of it."""
    bench.subscribe("orders")
    (id_,) = later(bench, b"a", delay_ms=MINUTE_MS)
    bench.wait(5000)
    bench.registry.snapshot("while it waited")
    bench.wait(2 * MINUTE_MS)
    assert bench.state(id_) == "sent"
    if indexed:
        bench.index.flush(bench.ledger)
    bench.crash()
    bench.registry_disk.restore("while it waited")
    bench.clock.jump(-2 * MINUTE_MS)
    bench.start()
    bench.rest()
    assert (bench.engine.stats().pending, bench.listed()) == (0, [])
    assert bench.state(id_) == "sent"
    assert consumer(bench).payloads == [b"a"]


def test_one_whose_record_is_reclaimed_does_not_wait_after_a_snapshot_that_says_so() -> None:
    """Nobody needed it any more, and that it was ready no record says."""
    bench = Bench(settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000))
    reader = bench.reader(bench.subscribe("orders"))
    later(bench, b"a", delay_ms=MINUTE_MS)
    other = bench.reader(bench.subscribe("other"))
    for _ in range(40):
        bench.publish("other", b"x" * 50_000)
    other.ack(*range(40))
    bench.ask(bench.upkeep.flush())
    bench.registry.snapshot("while it waited")
    bench.leap(MINUTE_MS)
    reader.ack(0)
    bench.wait(30_000)
    assert bench.first_seq > 4, "the record of its publication is gone"
    bench.crash()
    bench.registry_disk.restore("while it waited")
    bench.start()
    bench.rest()
    assert (bench.engine.stats().pending, bench.listed()) == (0, [])


def test_the_same_commands_by_topic_and_entry_id(bench: Bench) -> None:
    first, second = later(bench, b"a", b"b")
    delayed = bench.engine.delayed
    assert [entry.id for entry in bench.ask(delayed.list("orders")).entries] == [first, second]
    bench.ask(delayed.reschedule("orders", 0, bench.now_ms + 2 * HOUR_MS))
    assert bench.view(first).due_at_ms == bench.now_ms + 2 * HOUR_MS
    assert bench.ask(delayed.get("orders", 0)).id == first
    bench.ask(bench.engine.restart(second, delay_ms=MINUTE_MS))
    assert bench.ask(delayed.get("orders", 1)).due_at_ms == bench.now_ms + MINUTE_MS
    bench.ask(delayed.cancel("orders", 0))
    assert bench.state(first) == "cancelled"


def test_limits_on_commands_hold_and_those_on_pending_messages_do_not(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(max_pending_per_owner=1)))
    first, second = later(bench, b"a", b"b", owner="ann")
    bench.schedule(delay_ms=HOUR_MS, owner="ann")
    bench.ask(bench.engine.set_policy("broker", "", Policy(command_per_second=0.001, max_delay_ms=HOUR_MS)))
    bench.refused(bench.engine.restart(first, delay_ms=HOUR_MS + 1), DelayTooLong)
    bench.refused(bench.engine.restart(second, delay_ms=1), RateLimited)
    bench.refused(bench.engine.delayed.cancel("orders", 1), RateLimited)


def test_with_its_topic_it_is_gone(bench: Bench) -> None:
    moved, untouched = later(bench, b"a", b"b")
    bench.ask(bench.engine.restart(moved, delay_ms=MINUTE_MS))
    bench.ask(bench.engine.topics.delete("orders"))
    for id_ in (moved, untouched):
        bench.refused(bench.engine.get(id_), NotFound)
        bench.refused(bench.engine.cancel(id_), NotFound)
    assert (bench.listed(), bench.engine.stats().pending) == ([], 0)
    bench.publish("orders", b"c", b"d", deliver_at_ms=bench.now_ms + HOUR_MS)
    for id_ in (moved, untouched):
        bench.refused(bench.engine.get(id_), NotFound)


def test_outside_its_namespace_it_is_not_found(bench: Bench) -> None:
    (id_,) = later(bench, b"a")
    bench.refused(bench.engine.cancel(id_, namespace="acme/other"), NotFound)
    bench.ask(bench.engine.cancel(id_, namespace="public/default"))
    bench.refused(bench.engine.get(id_, namespace="acme/other"), NotFound)


def test_what_is_no_delayed_entry_is_not_found_by_a_guessed_key(bench: Bench) -> None:
    bench.publish("orders", b"a")
    ids = bench.engine.ids
    for seq in range(4):
        for at_ms in (0, bench.now_ms):
            bench.refused(bench.engine.get(ids.make(seq, at_ms)), NotFound)


def test_who_waits_for_its_end_hears_of_it(bench: Bench) -> None:
    (id_,) = later(bench, b"a")
    answer = bench.engine.deliver(id_)
    bench.wait(2)
    assert answer.settled
    assert bench.state(id_) == "sent"


def test_entries_that_nobody_subscribed_to_are_not_counted_for_ever(bench: Bench) -> None:
    later(bench, b"a", delay_ms=30 * 24 * HOUR_MS)
    bench.leap(8 * 24 * HOUR_MS)
    bench.wait(120_000)
    assert bench.engine.topics.stats("orders").first_entry == 1, "it was forgotten"
    assert (bench.engine.stats().pending, bench.listed()) == (0, [])
