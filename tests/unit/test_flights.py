"""Flights: messages on their way to other systems, with retries, order, bounds and the end of their patience."""

import pytest

from tarry.core import limits
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench, NoSpace


@pytest.fixture
def bench() -> Bench:
    return Bench()


# One attempt


def test_the_receiver_gets_the_whole_message(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"p", headers={"a": "b"}, key="k", owner="ann", delay_ms=10)
    accepted_at_ms = bench.now_ms
    bench.wait(10)
    delivery = bench.attempt().delivery
    assert delivery.id == done.id
    assert (delivery.destination, delivery.payload, delivery.headers) == (FOREIGN, b"p", {"a": "b"})
    assert (delivery.key, delivery.owner, delivery.attempt) == ("k", "ann", 1)
    assert (delivery.due_at_ms, delivery.scheduled_at_ms) == (done.due_at_ms, accepted_at_ms)
    bench.verdict(Delivered("their-name"))
    view = bench.view(done.id)
    assert (view.state, view.reference, view.attempts) == ("sent", "their-name", 1)


def test_a_verdict_is_durable_before_anybody_is_told(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.attempt().answer(Delivered())
    look = bench.engine.get(done.id)
    assert not look.settled
    bench.crash()
    bench.start()
    # The verdict was lost: it goes out again, with the same id for the receiver to know it by.
    bench.rest()
    assert bench.attempt().delivery.id == done.id


def test_a_durable_verdict_is_kept(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Delivered())
    bench.crash()
    bench.start()
    bench.wait(limits.MINUTE_MS)
    assert not bench.outlet.under_way
    assert bench.state(done.id) == "sent"


# Failing


def letters(bench: Bench) -> list[tuple[bytes, str]]:
    return [(entry.payload, entry.headers["tarry-reason"]) for entry in bench.drain("dead-letters").got]


def test_what_is_refused_fails_and_goes_to_the_dead_letters_in_one_unit(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"p", headers={"a": "b"}, key="k", delay_ms=1)
    bench.wait(1)
    bench.attempt().answer(Refused("410 gone"))
    before = bench.durable_seq
    assert bench.commit() == 2
    assert bench.durable_seq == before + 2
    view = bench.view(done.id)
    assert (view.state, view.reason, view.attempts) == ("failed", "410 gone", 1)
    (letter,) = bench.drain("dead-letters").got
    assert (letter.payload, letter.key) == (b"p", "k")
    assert letter.headers == {
        "a": "b", "tarry-id": done.id, "tarry-destination": FOREIGN, "tarry-reason": "410 gone", "tarry-attempts": "1",
    }  # fmt: skip
    bench.wait(limits.MINUTE_MS)
    assert not bench.outlet.under_way


def test_dead_letters_stay_in_the_namespace(bench: Bench) -> None:
    bench.schedule(FOREIGN, namespace="acme/eu", delay_ms=1)
    bench.wait(1)
    bench.verdict(Refused("no"))
    assert bench.drain("acme/eu/dead-letters").ids == [0]


def test_without_a_dead_letter_topic_there_are_none() -> None:
    bench = Bench(settings=EngineSettings(dead_letter_topic=""))
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Refused("no"))
    assert bench.state(done.id) == "failed"
    assert bench.engine.topics.names() == []


def test_attempts_are_exhausted_and_counted() -> None:
    bench = Bench(settings=EngineSettings(attempts=4, backoff_min_ms=10, backoff_max_ms=20))
    done = bench.schedule(FOREIGN, payload=b"p", delay_ms=1)
    bench.wait(1)
    for attempt in range(1, 5):
        assert bench.attempt().delivery.attempt == attempt
        bench.verdict(Retry("503"))
        bench.wait(20)
    assert not bench.outlet.under_way
    view = bench.view(done.id)
    assert (view.state, view.attempts) == ("failed", 4)
    assert view.reason is not None
    assert "503" in view.reason
    assert letters(bench) == [(b"p", view.reason)]
    assert bench.engine.stats().counters["retried"] == 3


def test_attempts_are_counted_through_versions_and_restarts() -> None:
    bench = Bench(settings=EngineSettings(attempts=3))
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=100_000))
    bench.reopen()
    bench.leap(100_000)
    assert bench.attempt().delivery.attempt == 2
    bench.verdict(Retry("no", after_ms=100_000))
    bench.leap(100_000)
    assert bench.attempt().delivery.attempt == 3
    bench.verdict(Retry("no"))
    assert bench.state(done.id) == "failed"


# Backoff


def next_attempt_after(bench: Bench, limit_ms: int) -> int:
    """How long until the next attempt begins."""
    before = bench.now_ms
    while not bench.outlet.under_way:
        bench.wait(1)
        assert bench.now_ms - before <= limit_ms
    return bench.now_ms - before


def test_backoff_doubles_within_its_bounds_and_has_jitter() -> None:
    waits: list[list[int]] = []
    for seed in range(8):
        bench = Bench(seed, settings=EngineSettings(backoff_min_ms=8, backoff_max_ms=50))
        bench.schedule(FOREIGN, delay_ms=1)
        bench.wait(1)
        waits.append([])
        for _ in range(6):
            bench.verdict(Retry("no"))
            waits[-1].append(next_attempt_after(bench, 50))
    for at, ceiling in enumerate((8, 16, 32, 50, 50, 50)):
        column = [row[at] for row in waits]
        assert all(ceiling / 2 <= wait <= ceiling for wait in column), (ceiling, column)
    assert len({tuple(row) for row in waits}) == 8


def test_a_receivers_wish_stands_over_the_backoff(bench: Bench) -> None:
    bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("429", after_ms=7_777))
    assert next_attempt_after(bench, 10_000) == 7_777
    bench.verdict(Retry("429", after_ms=0))
    assert next_attempt_after(bench, 10_000) == 1


# Time to live


def test_the_time_to_live_counts_from_the_due_instant(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1000, ttl_ms=100)
    bench.wait(1000)
    bench.verdict(Retry("no", after_ms=100))
    bench.wait(100)
    # At the last millisecond it is still in time.
    bench.verdict(Retry("no", after_ms=1))
    bench.wait(1)
    assert not bench.outlet.under_way
    view = bench.view(done.id)
    assert (view.state, view.attempts) == ("failed", 2)
    assert "time to live" in (view.reason or "")


def test_what_waits_for_a_place_expires_too() -> None:
    bench = Bench(settings=EngineSettings(concurrency=1))
    bench.schedule(FOREIGN, payload=b"slow", delay_ms=1)
    late = bench.schedule(FOREIGN, payload=b"late", delay_ms=2, ttl_ms=50)
    bench.wait(500)
    bench.verdict(Delivered())
    assert bench.state(late.id) == "failed"
    assert not bench.outlet.under_way


def test_what_waits_behind_another_of_its_order_expires_too(bench: Bench) -> None:
    bench.schedule(FOREIGN, payload=b"slow", key="k", delay_ms=1)
    late = bench.schedule(FOREIGN, payload=b"late", key="k", delay_ms=2, ttl_ms=50)
    last = bench.schedule(FOREIGN, payload=b"last", key="k", delay_ms=3)
    bench.wait(500)
    bench.verdict(Delivered())
    assert bench.state(late.id) == "failed"
    assert bench.attempt().delivery.id == last.id


def test_a_message_for_a_topic_expires_when_the_server_was_down(bench: Bench) -> None:
    late = bench.schedule("orders", delay_ms=10, ttl_ms=100)
    good = bench.schedule("orders", delay_ms=10, ttl_ms=1000)
    bench.crash()
    bench.clock.advance(500)
    bench.start()
    bench.rest()
    assert (bench.state(late.id), bench.state(good.id)) == ("failed", "sent")


# Order


def test_one_order_key_goes_out_one_after_another(bench: Bench) -> None:
    for n in range(4):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1 + n)
    bench.schedule(FOREIGN, payload=b"other", key="other", delay_ms=1)
    bench.wait(10)
    assert [attempt.delivery.payload for attempt in bench.outlet.under_way] == [b"0", b"other"]
    bench.outlet.under_way[1].answer(Delivered())
    for n in range(4):
        assert bench.attempt().delivery.payload == b"%d" % n
        bench.verdict(Delivered())
    assert bench.arrived() == [b"other", b"0", b"1", b"2", b"3"]


def test_the_next_goes_only_when_the_verdict_before_it_is_durable(bench: Bench) -> None:
    for n in range(2):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1)
    bench.wait(1)
    bench.attempt().answer(Delivered())
    assert not bench.outlet.under_way
    bench.rest()
    assert bench.attempt().delivery.payload == b"1"


def test_the_others_wait_while_one_is_retried(bench: Bench) -> None:
    for n in range(3):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1)
    bench.wait(1)
    for _ in range(3):
        assert bench.attempt().delivery.payload == b"0"
        bench.verdict(Retry("no", after_ms=100))
        assert not bench.outlet.under_way
        bench.wait(100)
    bench.run(100)
    assert bench.arrived() == [b"0", b"1", b"2"]


def test_one_that_ends_makes_room_for_the_next(bench: Bench) -> None:
    ids = [bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1).id for n in range(5)]
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=1000))
    bench.ask(bench.engine.cancel(ids[2]))
    bench.ask(bench.engine.cancel(ids[0]))
    assert bench.attempt().delivery.payload == b"1"
    bench.verdict(Refused("no"))
    assert bench.attempt().delivery.payload == b"3"
    bench.verdict(Delivered())
    bench.verdict(Delivered())
    assert bench.arrived() == [b"3", b"4"]


def test_after_a_minute_it_is_carried_by_a_new_version_and_the_watermark_passes(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"p", delay_ms=1)
    bench.wait(1)
    due_at_ms = bench.now_ms
    bench.verdict(Retry("no", after_ms=59_999))
    bench.wait(30_000)
    assert bench.watermark.fire_at_ms <= due_at_ms
    bench.wait(29_999)
    bench.verdict(Retry("no", after_ms=100_000))
    assert bench.state(done.id) == "scheduled"
    # An idle server marks once a minute.
    bench.wait(70_000)
    assert bench.watermark.fire_at_ms > due_at_ms + 60_000
    bench.wait(30_000)
    delivery = bench.attempt().delivery
    assert (delivery.id, delivery.attempt, delivery.payload) == (done.id, 3, b"p")
    assert delivery.due_at_ms == done.due_at_ms
    bench.verdict(Delivered())
    assert bench.state(done.id) == "sent"
    assert bench.engine.stats().pending == 0


@pytest.mark.parametrize("reopen", [False, True])
def test_an_ordered_chain_is_carried_as_a_whole_and_in_order(bench: Bench, reopen: bool) -> None:
    for n in range(5):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=1 + n)
    bench.wait(10)
    bench.verdict(Retry("no", after_ms=100_000))
    assert not bench.outlet.under_way
    if reopen:
        bench.reopen()
    bench.wait(99_990)
    assert not bench.outlet.under_way
    bench.run(100)
    assert bench.arrived() == [b"0", b"1", b"2", b"3", b"4"]


def test_what_is_due_while_its_chain_is_carried_stays_behind_it(bench: Bench) -> None:
    bench.schedule(FOREIGN, payload=b"0", key="k", delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=100_000))
    bench.schedule(FOREIGN, payload=b"1", key="k", delay_ms=1)
    bench.schedule(FOREIGN, payload=b"other", key="other", delay_ms=1)
    bench.run(50_000)
    assert bench.arrived() == [b"other"]
    bench.run(60_000)
    assert bench.arrived() == [b"other", b"0", b"1"]


def test_a_chain_larger_than_a_segment_is_carried() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 18))
    for n in range(12):
        bench.schedule(FOREIGN, payload=b"%02d" % n + bytes(50_000), key="k", delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=100_000))
    bench.run(100_000)
    assert [payload[:2] for payload in bench.arrived()] == [b"%02d" % n for n in range(12)]


# Bounds


def test_concurrency_is_bounded_as_a_whole_and_for_each_host() -> None:
    bench = Bench(settings=EngineSettings(concurrency=5, concurrency_per_host=3))
    for n in range(10):
        bench.schedule("sim://slow/in", payload=b"s%d" % n, delay_ms=1)
    bench.wait(1)
    assert len(bench.outlet.under_way) == 3
    for n in range(10):
        bench.schedule("sim://quick/in", payload=b"q%d" % n, delay_ms=1)
    bench.wait(1)
    hosts = [attempt.delivery.destination for attempt in bench.outlet.under_way]
    assert (hosts.count("sim://slow/in"), hosts.count("sim://quick/in")) == (3, 2)
    while bench.outlet.under_way:
        hosts = [attempt.delivery.destination for attempt in bench.outlet.under_way]
        assert len(hosts) <= 5
        assert max(hosts.count(host) for host in hosts) <= 3
        bench.outlet.under_way[0].answer(Delivered())
        bench.rest()
    assert [p for p in bench.arrived() if p[:1] == b"s"] == [b"s%d" % n for n in range(10)]
    assert [p for p in bench.arrived() if p[:1] == b"q"] == [b"q%d" % n for n in range(10)]


def test_a_slow_host_does_not_hold_up_its_owners_other_hosts() -> None:
    bench = Bench(settings=EngineSettings(concurrency=10, concurrency_per_host=2))
    for n in range(50):
        bench.schedule("sim://slow/in", payload=b"s%d" % n, owner="ann", delay_ms=1)
    bench.schedule("sim://quick/in", payload=b"q", owner="ann", delay_ms=2)
    bench.wait(2)
    assert sorted(attempt.delivery.payload for attempt in bench.outlet.under_way) == [b"q", b"s0", b"s1"]


def test_owners_take_turns_for_places() -> None:
    bench = Bench(settings=EngineSettings(concurrency=1))
    for n in range(20):
        bench.schedule(FOREIGN, payload=b"a%d" % n, owner="ann", delay_ms=1)
    bench.wait(1)
    bench.schedule(FOREIGN, payload=b"b", owner="bob", delay_ms=1)
    bench.wait(1)
    for _ in range(3):
        bench.attempt().answer(Delivered())
        bench.rest()
    assert b"b" in bench.arrived()


def test_owners_take_turns_for_the_places_of_one_host() -> None:
    bench = Bench(settings=EngineSettings(concurrency=10, concurrency_per_host=1))
    for n in range(20):
        bench.schedule(FOREIGN, payload=b"a%d" % n, owner="ann", delay_ms=1)
    bench.wait(1)
    bench.schedule(FOREIGN, payload=b"b", owner="bob", delay_ms=1)
    bench.wait(1)
    for _ in range(3):
        bench.attempt().answer(Delivered())
        bench.rest()
    assert b"b" in bench.arrived()


def test_many_waiting_flights_cost_the_same_each() -> None:
    """Places are given out in constant time, however many wait: eight thousand are quick."""
    bench = Bench(
        settings=EngineSettings(concurrency=4), ledger_settings=LedgerSettings(segment_bytes=16 << 20)
    )
    many = [Message(destination=f"sim://host{n % 7}/in", payload=b"%d" % n, delay_ms=1) for n in range(8_000)]
    bench.ask(bench.engine.schedule_many(many))
    bench.leap(1)
    while bench.outlet.under_way:
        for attempt in list(bench.outlet.under_way):
            attempt.answer(Delivered())
        if bench.next_seq - bench.durable_seq > 2000:
            bench.rest()
    bench.rest()
    assert bench.engine.stats().pending == 0
    assert len(bench.outlet.arrivals) == 8_000


def test_an_expired_message_ends_its_wait_in_a_chain_with_a_full_ledger(bench: Bench) -> None:
    """The end of a flight is never given up: when there is no room for it, it is written as soon as there is."""
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    shortage = NoSpace(bench)
    bench.attempt().answer(Delivered())
    bench.clock.advance(5000)
    bench.tick()
    shortage.end()
    bench.wait(1000)
    assert bench.state(done.id) == "sent"


@pytest.mark.parametrize("reopen", [False, True])
def test_a_message_that_is_tried_again_says_why_and_when(bench: Bench, reopen: bool) -> None:
    """From the first attempt that fails on, and in the versions that it is carried by."""
    done = bench.schedule(FOREIGN, payload=b"x", delay_ms=10)
    view = bench.view(done.id)
    assert (view.attempts, view.last_error, view.next_attempt_at_ms) == (0, None, None)
    bench.wait(10)
    tried_at_ms = bench.now_ms
    bench.verdict(Retry("the host is away", 30_000))
    view = bench.view(done.id)
    assert (view.attempts, view.last_error) == (1, "the host is away")
    assert (view.last_attempt_at_ms, view.next_attempt_at_ms) == (tried_at_ms, tried_at_ms + 30_000)
    assert [one.last_error for one in bench.listed()] == ["the host is away"]
    bench.leap(30_000)
    assert bench.view(done.id).next_attempt_at_ms is None, "it is being tried just now"
    bench.verdict(Retry("still away", 600_000))
    bench.rest()
    if reopen:
        bench.reopen()
    view = bench.view(done.id)
    assert (view.attempts, view.last_error) == (2, "still away")
    assert view.next_attempt_at_ms == tried_at_ms + 630_000


@pytest.mark.parametrize("wait_ms", [1_000, 600_000])
@pytest.mark.parametrize("end", ["cancelled", "expired", "sent by command", "restarted"])
def test_attempts_are_told_of_whatever_comes_between_them(bench: Bench, wait_ms: int, end: str) -> None:
    """The last attempt is known to memory alone, or has a version of its own."""
    done = bench.schedule(
        FOREIGN, payload=b"x", delay_ms=10, ttl_ms=2 * wait_ms if end == "expired" else None
    )
    bench.wait(10)
    made = []
    for number, reason in enumerate(("away", "busy"), 1):
        made.append((number, bench.now_ms, reason))
        bench.verdict(Retry(reason, wait_ms))
        bench.rest()
        if number == 1:
            bench.leap(wait_ms)
    bench.leap(wait_ms // 2)
    if end == "cancelled":
        told = bench.ask(bench.engine.cancel(done.id))
        assert (told.attempts, len(told.attempts_made)) == (2, 2)
    elif end == "expired":
        bench.leap(wait_ms)
    elif end == "restarted":
        # The count begins anew.
        bench.ask(bench.engine.restart(done.id, delay_ms=wait_ms))
        made = []
    else:
        bench.ask(bench.engine.send(done.id))
        bench.verdict(Delivered())
    bench.rest()
    for _ in range(2):
        view = bench.view(done.id)
        states = {"cancelled": "cancelled", "expired": "failed", "restarted": "scheduled"}
        assert view.state == states.get(end, "sent")
        assert view.attempts == len(made) + (end == "sent by command")
        assert [(one.number, one.at_ms, one.error) for one in view.attempts_made] == made
        bench.reopen()


@pytest.mark.parametrize("end", ["sent", "failed", "cancelled"])
@pytest.mark.parametrize("reopen", [False, True])
def test_the_life_of_a_message_has_each_attempt(bench: Bench, end: str, reopen: bool) -> None:
    """In memory between attempts, in the versions that it is carried by, and beside its end."""
    done = bench.schedule(FOREIGN, payload=b"x", delay_ms=10)
    bench.wait(10)
    made = []
    waits_ms = {"away": 1_000, "busy": 600_000, "busy still": 600_000, "away again": 1_000}
    for number, (reason, wait_ms) in enumerate(waits_ms.items(), 1):
        made.append((number, bench.now_ms, reason))
        bench.verdict(Retry(reason, wait_ms))
        bench.rest()
        if reopen and wait_ms > 60_000:
            bench.reopen()
        view = bench.view(done.id)
        assert [(one.number, one.at_ms, one.error) for one in view.attempts_made] == made
        bench.leap(wait_ms)
    if end == "cancelled":
        bench.verdict(Retry("away for good", 600_000))
        made.append((5, bench.now_ms, "away for good"))
        bench.rest()
        bench.leap(1_000)
        bench.ask(bench.engine.cancel(done.id))
    else:
        bench.verdict(Delivered() if end == "sent" else Refused("410 gone"))
    bench.rest()
    if reopen:
        bench.reopen()
    view = bench.view(done.id)
    assert view.state == end
    assert [(one.number, one.at_ms, one.error) for one in view.attempts_made] == made


def test_the_last_twenty_attempts_are_remembered() -> None:
    bench = Bench(settings=EngineSettings(attempts=30))
    done = bench.schedule(FOREIGN, payload=b"x", delay_ms=10)
    bench.wait(10)
    for number in range(1, 26):
        bench.verdict(Retry(f"{number:02}" * 1_000, 1_000))
        bench.wait(1_000)
    view = bench.view(done.id)
    assert [one.number for one in view.attempts_made] == list(range(6, 26))
    assert [len(one.error) for one in view.attempts_made] == [200] * 19 + [2_000]


def test_the_log_tells_of_a_receiver_that_cannot_be_sent_to_and_not_of_each_attempt(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        bench.schedule(FOREIGN, payload=b"%d" % n, delay_ms=10 + n)
    bench.wait(20)
    for _ in range(5):
        bench.outlet.under_way[0].answer(Retry("no route", 600_000))
        bench.rest()
    told = [record.getMessage() for record in caplog.records if "tried again" in record.getMessage()]
    assert told == ["sending to shop failed and is tried again: no route"]
