"""Time to live, backlog quota and retention, and what they do to delayed entries."""

from typing import Any

import numpy as np
import pytest

from tarry.core.errors import Invalid, QuotaExceeded
from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.engine.topics import retention
from tarry.engine.topics.entries import NewEntry
from tarry.engine.topics.grace import GRACE_MS, STEP_MS
from tests.unit.engine_kit import Bench, full


@pytest.fixture
def bench() -> Bench:
    return Bench()


def set_policy(bench: Bench, **fields: Any) -> None:
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(**fields)))


# Time to live


def test_what_nobody_takes_in_time_is_done_with(bench: Bench) -> None:
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"old")
    bench.wait(MINUTE_MS)
    assert sub.backlog == 1
    bench.publish("orders", b"young")
    bench.wait(2000)
    assert (sub.backlog, sub.expired) == (1, 1)
    assert bench.reader(sub).payloads == [b"young"]


def test_it_counts_from_the_due_instant(bench: Bench) -> None:
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + HOUR_MS)
    bench.publish("orders", b"now")
    bench.wait(HOUR_MS + MINUTE_MS - 1)
    assert (sub.backlog, sub.expired) == (1, 1)
    assert bench.reader(sub, "one").payloads == [b"later"]
    bench.wait(3000)
    assert sub.backlog == 0


def test_a_due_instant_that_was_past_at_the_publication_does_not_shorten_it(bench: Bench) -> None:
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"x", deliver_at_ms=1)
    bench.publish("orders", b"y", deliver_at_ms=1, ttl_ms=MINUTE_MS)
    assert bench.reader(sub).payloads == [b"x", b"y"]


def test_a_consumer_never_gets_what_is_over(bench: Bench) -> None:
    """Also before the next look at the topic."""
    sub = bench.subscribe("orders")
    bench.publish("orders", b"x")
    bench.schedule("orders", payload=b"fired", delay_ms=0)
    bench.leap(MINUTE_MS)
    set_policy(bench, message_ttl_ms=MINUTE_MS - 1)
    assert bench.reader(sub).payloads == []
    assert sub.backlog == 0


def test_the_shorter_of_two_counts_and_a_topic_lifts_it(bench: Bench) -> None:
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    bench.ask(bench.engine.set_policy("topic", "kept", Policy(message_ttl_ms=0)))
    subs = {name: bench.subscribe(name) for name in ("orders", "kept")}
    for name in subs:
        bench.publish(name, b"short", ttl_ms=1000)
        bench.publish(name, b"plain")
        bench.publish(name, b"long", ttl_ms=HOUR_MS)
    bench.leap(2 * MINUTE_MS)
    assert bench.reader(subs["orders"]).payloads == []
    assert bench.reader(subs["kept"]).payloads == [b"plain", b"long"]


def test_a_large_backlog_is_done_with_bit_by_bit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOOK_AT", 10)
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    sub = bench.subscribe("orders")
    later = bench.now_ms + MINUTE_MS - 1
    bench.publish("orders", *(b"not over" for _ in range(25)), deliver_at_ms=later)
    bench.publish("orders", *(b"over" for _ in range(35)))
    bench.wait(MINUTE_MS + 3000)
    assert (sub.backlog, sub.expired) == (25, 35)
    bench.wait(MINUTE_MS)
    assert (sub.backlog, sub.expired) == (0, 60)


def test_however_many_subscriptions_a_turn_looks_at_so_many_entries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a turn of its own once, and a thousand topics went into one turn of the loop: that was a quarter of a second."""
    monkeypatch.setattr(retention, "LOOK_AT", 10)
    subs = [bench.subscribe(topic, name) for topic in ("orders", "mail") for name in "abc"]
    for topic in ("orders", "mail"):
        bench.publish(topic, *(b"over" for _ in range(25)))
    bench.leap(2 * MINUTE_MS)
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    expired = 0
    for _ in range(1_000):
        bench.clock.advance(retention.SOON_MS)
        bench.tick()
        now = sum(sub.expired for sub in subs)
        # What is left of a turn is used up by the subscription that is looked at.
        assert now - expired < 2 * retention.LOOK_AT
        expired = now
    assert [sub.expired for sub in subs] == [25] * 6


def test_what_was_done_with_stays_so_after_a_crash(bench: Bench) -> None:
    set_policy(bench, message_ttl_ms=MINUTE_MS)
    bench.subscribe("orders")
    bench.publish("orders", b"old")
    bench.wait(MINUTE_MS + 2000)
    set_policy(bench, message_ttl_ms=0)
    bench.crash()
    bench.start()
    assert bench.reader(bench.engine.topics.subscription("orders", "sub")).payloads == []


# Quota


def over_quota(bench: Bench) -> str | None:
    """The action on producers of `orders`, while its backlog is over its quota."""
    try:
        bench.engine.topics.check_quota(full("orders"))
    except QuotaExceeded as error:
        return error.action
    return None


@pytest.mark.parametrize("action", ["producer_request_hold", "producer_exception"])
def test_producers_are_refused_while_the_backlog_is_over_its_quota(bench: Bench, action: str) -> None:
    set_policy(bench, backlog_bytes=1000, backlog_action=action)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"x" * 600)
    bench.wait(2000)
    # Delayed entries are stored, and nothing is lost by counting them.
    bench.publish("orders", b"y" * 600, deliver_at_ms=bench.now_ms + HOUR_MS)
    bench.wait(2000)
    assert over_quota(bench) == action
    refused = bench.refused(bench.engine.topics.publish("orders", [NewEntry(payload=b"z")]), QuotaExceeded)
    assert refused.action == action
    assert str(refused) == (
        "the backlog of persistent://public/default/orders is over its quota: at most 1,000 bytes, set on namespace public/default; "
        "acknowledge its entries, or raise backlog_bytes there"
    )
    bench.reader(sub).ack(0)
    bench.wait(2000)
    assert over_quota(bench) is None
    bench.publish("orders", b"z")


def test_what_was_accepted_goes_out_into_a_full_topic(bench: Bench) -> None:
    set_policy(bench, backlog_bytes=100)
    sub = bench.subscribe("orders")
    accepted = bench.ask(bench.engine.schedule(Message(destination="orders", delay_ms=5000)))
    bench.publish("orders", b"x" * 200)
    bench.wait(5000)
    assert over_quota(bench) is not None
    assert bench.state(accepted.id) == "sent"
    assert len(bench.reader(sub).ids) == 2


def test_a_topic_without_a_backlog_is_never_full(bench: Bench) -> None:
    """However much it holds: only what somebody has not taken yet counts, and then it counts at once."""
    set_policy(bench, backlog_bytes=1)
    bench.publish("orders", b"x" * 200)
    bench.wait(2000)
    assert over_quota(bench) is None
    bench.subscribe("orders", start="latest")
    bench.wait(2000)
    assert over_quota(bench) is None
    bench.publish("orders", b"x")
    bench.wait(2000)
    assert over_quota(bench) is not None


def test_a_quota_that_is_removed_refuses_nobody(bench: Bench) -> None:
    set_policy(bench, backlog_bytes=100)
    bench.subscribe("orders")
    bench.publish("orders", b"x" * 200)
    bench.wait(2000)
    assert over_quota(bench) is not None
    bench.ask(bench.engine.set_policy("namespace", "public/default", None))
    bench.wait(2000)
    bench.publish("orders", b"x")


def test_an_old_backlog_refuses_producers(bench: Bench) -> None:
    set_policy(bench, backlog_ms=MINUTE_MS, backlog_action="producer_exception")
    sub = bench.subscribe("orders")
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + HOUR_MS)
    bench.wait(HOUR_MS + MINUTE_MS - 1000)
    assert over_quota(bench) is None
    bench.wait(3000)
    assert over_quota(bench) == "producer_exception"
    refused = bench.refused(bench.engine.topics.publish("orders", [NewEntry(payload=b"z")]), QuotaExceeded)
    assert "at most 1 minute, set on namespace public/default" in str(refused)
    bench.reader(sub).ack(0)
    bench.wait(2000)
    assert over_quota(bench) is None


def test_an_eviction_takes_the_oldest_and_nothing_that_waits(bench: Bench) -> None:
    set_policy(bench, backlog_bytes=1000, backlog_action="consumer_backlog_eviction")
    sub = bench.subscribe("orders")
    bench.publish("orders", *(b"w" * 100 for _ in range(50)), deliver_at_ms=bench.now_ms + HOUR_MS)
    bench.publish("orders", *(b"%d" % n * 100 for n in range(9)))
    bench.wait(2000)
    assert (sub.backlog, sub.expired) == (59, 0)
    bench.publish("orders", b"9" * 100, b"a" * 100)
    bench.wait(2000)
    # Eleven were due, ten are allowed, and nine are left.
    assert (sub.backlog, sub.expired) == (59, 2)
    assert [payload[:1] for payload in bench.reader(sub).payloads] == [b"%d" % n for n in range(2, 10)] + [
        b"a"
    ]


def test_an_eviction_by_age(bench: Bench) -> None:
    set_policy(bench, backlog_ms=MINUTE_MS, backlog_action="consumer_backlog_eviction")
    sub = bench.subscribe("orders")
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + HOUR_MS)
    bench.publish("orders", b"now")
    bench.wait(HOUR_MS)
    assert (sub.backlog, sub.expired) == (1, 1)


# Retention


@pytest.mark.parametrize("crashed", [False, True])
def test_what_everybody_has_taken_is_kept_for_a_while(bench: Bench, crashed: bool) -> None:
    set_policy(bench, retention_ms=HOUR_MS)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"a", b"b")
    bench.reader(sub).ack(0, 1)
    bench.wait(5000)
    if crashed:
        bench.crash()
        bench.start()
        bench.wait(5000)
    assert bench.drain("orders", "new").payloads == [b"a", b"b"]
    bench.ask(bench.engine.topics.unsubscribe("orders", "new"))
    bench.wait(HOUR_MS)
    assert bench.engine.topics.find("orders").first == 2
    assert bench.drain("orders", "newer").payloads == []


@pytest.mark.parametrize("crashed", [False, True])
def test_without_retention_it_goes_after_some_minutes(bench: Bench, crashed: bool) -> None:
    """A reader that seeks back a little, or comes a little late, finds the entry; it goes without any other event in the topic."""
    sub = bench.subscribe("orders")
    bench.publish("orders", b"a", b"b")
    reader = bench.reader(sub)
    reader.ack(0, 1)
    bench.wait(2000)
    if crashed:
        bench.crash()
        bench.start()
        sub = bench.engine.topics.subscription("orders", "sub")
        reader = bench.reader(sub, "again")
    assert bench.drain("orders", "late").payloads == [b"a", b"b"]
    bench.ask(bench.engine.topics.unsubscribe("orders", "late"))
    reader.got.clear()
    bench.ask(sub.seek(1))
    assert reader.payloads == [b"b"]
    reader.ack(1)
    bench.leap(GRACE_MS - 1000)
    assert bench.drain("orders", "later").payloads == [b"a", b"b"]
    bench.ask(bench.engine.topics.unsubscribe("orders", "later"))
    bench.leap(STEP_MS + 1000)
    bench.wait(2000)
    assert bench.engine.topics.find("orders").first == 2
    assert bench.engine_state.topics.grace.waiting == 0


def test_what_a_subscription_went_back_to_does_not_go(bench: Bench) -> None:
    sub = bench.subscribe("orders")
    bench.publish("orders", b"a", b"b")
    bench.reader(sub).ack(0, 1)
    bench.wait(2000)
    bench.leap(GRACE_MS - 1000)
    bench.ask(sub.seek(0))
    bench.leap(STEP_MS + 1000)
    bench.wait(2000)
    assert bench.engine.topics.find("orders").first == 0
    assert sub.backlog == 2


def test_a_clock_that_was_ahead_keeps_nothing_for_ever(bench: Bench) -> None:
    sub = bench.subscribe("orders")
    bench.publish("orders", b"a")
    bench.leap(HOUR_MS)
    bench.reader(sub).ack(0)
    bench.wait(2000)
    bench.clock.jump(-HOUR_MS)
    bench.wait(2000)
    assert bench.engine.topics.find("orders").first == 1


def test_of_a_busy_topic_so_many_stay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.engine.topics.grace.MOST_ENTRIES", 100)
    sub = bench.subscribe("orders")
    reader = bench.reader(sub)
    for _ in range(5):
        bench.publish("orders", *[b"x"] * 100)
        bench.ask(reader.sub.ack([], below=bench.engine.topics.find("orders").next))
        bench.wait(1000)
    topic = bench.engine.topics.find("orders")
    assert (topic.first, topic.next) == (400, 500)
    assert bench.engine_state.topics.grace.waiting == 1


def test_retention_by_size_keeps_the_newest(bench: Bench) -> None:
    set_policy(bench, retention_ms=-1, retention_bytes=300)
    sub = bench.subscribe("orders")
    bench.publish("orders", *(b"x" * 100 for _ in range(10)))
    bench.reader(sub).ack(*range(8))
    bench.wait(2000)
    topic = bench.engine.topics.find("orders")
    assert topic.first == 5
    bench.wait(HOUR_MS)
    assert topic.first == 5


@pytest.mark.parametrize("retained", [False, True])
def test_a_retained_entry_outlives_its_segment(retained: bool) -> None:
    from tarry.engine.settings import EngineSettings

    bench = Bench(settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000))
    if retained:
        set_policy(bench, retention_ms=-1)
    sub = bench.subscribe("orders")
    bench.publish("orders", b"kept")
    bench.reader(sub).ack(0)
    for _ in range(40):
        bench.publish("other", b"x" * 50_000)
        bench.subscribe("other", "s", start="latest")
    bench.wait(30_000)
    assert bench.first_seq > 4
    bench.reopen()
    assert bench.drain("orders", "new").payloads == ([b"kept"] if retained else [])


# Values


@pytest.mark.parametrize(
    "fields",
    [
        {"message_ttl_ms": -1}, {"backlog_bytes": -1}, {"backlog_ms": -1}, {"retention_ms": -2},
        {"retention_bytes": -2}, {"retention_bytes": 1 << 70}, {"backlog_bytes": 1 << 70}, {"message_ttl_ms": 1 << 70},
    ],
)  # fmt: skip
def test_values_that_cannot_be(bench: Bench, fields: dict[str, Any]) -> None:
    bench.refused(bench.engine.set_policy("broker", "", Policy(**fields)), Invalid)


def test_all_of_it_survives_a_restart(bench: Bench) -> None:
    said = Policy(
        message_ttl_ms=1, retention_ms=2, retention_bytes=3, backlog_bytes=4, backlog_ms=5,
        backlog_action="consumer_backlog_eviction",
    )  # fmt: skip
    bench.ask(bench.engine.set_policy("topic", "orders", said))
    bench.reopen()
    assert bench.engine.policy("topic", "orders") == said
    bench.wait(2000)
    bench.reopen()
    assert bench.engine.policy("topic", "orders") == said


def test_sizes_survive_a_restart(bench: Bench) -> None:
    bench.subscribe("orders")
    bench.publish("orders", *(b"x" * 100 for _ in range(10)))
    bench.schedule("orders", payload=b"x" * 100, delay_ms=0)
    before = bench.engine.topics.find("orders").mean_bytes(0, 11)
    assert 100 <= before < 130
    bench.reopen()
    assert bench.engine.topics.find("orders").mean_bytes(0, 11) == pytest.approx(before, rel=0.1)
    bench.wait(2000)
    bench.reopen()
    assert bench.engine.topics.find("orders").mean_bytes(0, 11) == pytest.approx(before, rel=0.1)


def test_a_topic_that_is_deleted_in_the_middle_of_a_round_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOOK_AT", 1)
    topics = bench.engine.topics
    for name in ("first", "second"):
        bench.subscribe(name)
        # More than a row of places, so that a row goes.
        for _ in range(5):
            bench.ask(topics.subscription(name, "sub").ack(bench.publish(name, *[b"x"] * 1000)))
    bench.wait(2000)
    bench.ask(bench.engine.set_policy("broker", "", Policy(retention_ms=1)))
    bench.clock.advance(1000)
    # The last topic is looked at in the first turn of the round; the first one goes before its turn.
    bench.tick()
    gone = topics.find("first")
    assert gone.first == 0
    bench.ask(topics.delete("first"))
    bench.wait(2000)
    assert topics.find("second").first == 5000
    bench.reopen()
    assert bench.engine.topics.names() == [full("second")]


def test_what_everybody_is_done_with_in_very_many_topics_goes_as_fast_as_it_comes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.engine.topics.grace.LET_GO_AT_ONCE", 1)
    for number in range(30):
        ids = bench.publish(f"t{number}", b"a")
        bench.ask(bench.subscribe(f"t{number}").ack(ids))
    bench.wait(2000)
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(3000)
    assert bench.engine_state.topics.grace.waiting == 0


def test_a_topic_that_is_deleted_takes_its_places_with_it(bench: Bench) -> None:
    """Not only after the minutes for which entries stay: a client may make topics, fill and delete them all the time."""
    bench.subscribe("orders")
    topic = bench.engine.topics.find("orders")
    bench.ask(topic.subscriptions["sub"].ack(bench.publish("orders", *[b"x"] * 1000)))
    bench.wait(2000)
    bench.ask(bench.engine.topics.delete("orders"))
    bench.wait(2000)
    assert topic.seqs(np.arange(1000)).tolist() == [0] * 1000


def test_of_all_topics_so_many_stay_and_those_that_were_kept_for_longest_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.engine.topics.grace.MOST_IN_ALL", 100)
    for name in ("old", "new"):
        sub = bench.subscribe(name)
        bench.ask(sub.ack(bench.publish(name, *[b"x"] * 60)))
        bench.wait(1500)
    topics = bench.engine.topics
    assert (topics.find("old").first, topics.find("new").first) == (60, 0)
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(2000)
    assert topics.find("new").first == 60
