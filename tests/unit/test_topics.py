"""Topics: publishing, delayed entries, producers, times to live, trimming and deleting."""

import pytest

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, NotFound, TooLarge
from tarry.core.rules.policy import Policy
from tarry.engine.topics.entries import NewEntry
from tarry.engine.topics.grace import GRACE_MS, STEP_MS
from tarry.engine.topics.topics import DUPLICATE
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench, full


@pytest.fixture
def bench() -> Bench:
    return Bench(ledger_settings=LedgerSettings(segment_bytes=2 << 20))


# Publishing


def test_entries_get_ids_in_order_and_come_as_they_were_published(bench: Bench) -> None:
    assert bench.publish("t", b"a", b"b") == [0, 1]
    assert bench.publish("t", b"c", headers={"h": "v"}, key="k") == [2]
    reader = bench.drain("t")
    assert reader.ids == [0, 1, 2]
    last = reader.got[2]
    assert (last.payload, last.headers, last.key) == (b"c", {"h": "v"}, "k")
    assert (last.published_at_ms, last.due_at_ms, last.message_id) == (bench.now_ms, None, None)


def test_nothing_is_seen_or_answered_before_it_is_durable(bench: Bench) -> None:
    reader = bench.drain("t")
    answer = bench.engine.topics.publish("t", [NewEntry(payload=b"a")])
    bench.tick()
    before = answer.settled, reader.ids
    bench.commit()
    assert before == (False, [])
    assert answer.settled
    assert reader.ids == [0]


def test_entries_survive_a_crash(bench: Bench) -> None:
    bench.publish("t", b"a", b"b", key="k")
    bench.crash()
    bench.start()
    assert bench.publish("t", b"c") == [2]
    assert bench.drain("t").payloads == [b"a", b"b", b"c"]


def test_an_unanswered_publication_is_whole_or_not_at_all(bench: Bench) -> None:
    bench.publish("t", b"a")
    _ = bench.engine.topics.publish("t", [NewEntry(payload=b"b"), NewEntry(payload=b"c")])
    bench.crash()
    bench.start()
    assert bench.drain("t").payloads in ([b"a"], [b"a", b"b", b"c"])


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (NewEntry(payload=bytes(limits.MAX_ENTRY_BYTES + 1)), TooLarge),
        (NewEntry(payload=b"", headers={"n": "é" * limits.MAX_HEADERS_BYTES}), TooLarge),
        (NewEntry(payload=b"", headers={str(n): "" for n in range(limits.MAX_HEADERS + 1)}), Invalid),
        (NewEntry(payload=b"", headers={"": "x"}), Invalid),
        (NewEntry(payload=b"", headers={"x": "\ud800"}), Invalid),
        (NewEntry(payload=b"", key="é" * limits.MAX_KEY_BYTES), TooLarge),
        (NewEntry(payload=b"", key="\ud800"), Invalid),
        (NewEntry(payload=b"", deliver_at_ms=-1), Invalid),
        (NewEntry(payload=b"", deliver_at_ms=1 << 60), DelayTooLong),
        (NewEntry(payload=b"", ttl_ms=0), Invalid),
        (NewEntry(payload=b"", ttl_ms=-1), Invalid),
        (NewEntry(payload=b"", producer="p" * 3000, producer_sequence=1), Invalid),
        (NewEntry(payload=b"", owner="o" * 300), TooLarge),
    ],
)
def test_bad_entries_are_refused_and_with_them_their_whole_request(
    bench: Bench, entry: NewEntry, error: type[Invalid]
) -> None:
    bench.refused(bench.engine.topics.publish("t", [NewEntry(payload=b"good"), entry]), error)
    assert bench.engine.topics.names() == []


def test_bad_names_are_refused(bench: Bench) -> None:
    topics = bench.engine.topics
    bench.refused(topics.publish("a/b", [NewEntry(payload=b"")]), Invalid)
    bench.refused(topics.create(""), Invalid)
    bench.refused(topics.subscribe("t", "a/b"), Invalid)
    bench.refused(topics.subscribe("t", ""), Invalid)
    bench.refused(topics.subscribe("t", "s", "best"), Invalid)  # type: ignore[arg-type]
    bench.refused(topics.subscribe("t", "s", start=-5), Invalid)
    bench.refused(topics.subscribe("t", "s", max_redeliveries=-1), Invalid)


# Topics themselves


def test_topics_are_made_on_first_use_or_by_name(bench: Bench) -> None:
    topics = bench.engine.topics
    bench.ask(topics.create("acme/eu/made"))
    bench.ask(topics.create("acme/eu/made"))
    bench.publish("used", b"a")
    bench.subscribe("read")
    assert topics.names() == ["persistent://acme/eu/made", full("read"), full("used")]
    assert topics.names("acme/eu") == ["persistent://acme/eu/made"]
    bench.wait(2000)
    bench.reopen()
    assert bench.engine.topics.names() == ["persistent://acme/eu/made", full("read"), full("used")]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_deleted_topic_is_gone_with_all_it_held(bench: Bench, flushed: bool) -> None:
    bench.publish("t", b"old", producer="p", producer_sequence=5)
    bench.publish("t", b"old delayed", deliver_at_ms=bench.now_ms + 100)
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    closed: list[bool] = []
    reader.handle.on_close = lambda: closed.append(True)
    if flushed:
        bench.wait(2000)
    bench.ask(bench.engine.topics.delete("t"))
    assert closed == [True]
    with pytest.raises(NotFound):
        bench.engine.topics.find("t")
    bench.refused(bench.engine.topics.delete("t"), NotFound)
    # A new one of the same name has nothing of the old one.
    assert bench.publish("t", b"new", producer="p", producer_sequence=1) == [0]
    assert bench.drain("t", "new").payloads == [b"new"]
    bench.crash()
    bench.start()
    bench.wait(2000)
    assert bench.drain("t", "newer").payloads == [b"new"]
    with pytest.raises(NotFound):
        bench.engine.topics.subscription("t", "sub")
    assert bench.engine.topics.stats("t").delayed == 0


def test_a_delayed_entry_of_a_deleted_topic_does_not_make_a_new_one_early(bench: Bench) -> None:
    bench.publish("t", b"old", deliver_at_ms=bench.now_ms + 100)
    bench.ask(bench.engine.topics.delete("t"))
    bench.publish("t", b"new", deliver_at_ms=bench.now_ms + 10_000)
    reader = bench.drain("t")
    bench.wait(9_999)
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"new"]


def test_a_message_due_into_a_deleted_topic_makes_it_anew(bench: Bench) -> None:
    bench.publish("orders", b"old")
    done = bench.schedule("orders", payload=b"due", delay_ms=10)
    bench.ask(bench.engine.topics.delete("orders"))
    bench.wait(10)
    assert bench.state(done.id) == "sent"
    assert bench.drain("orders").payloads == [b"due"]


def test_figures(bench: Bench) -> None:
    bench.publish("t", b"a", b"b", b"c")
    bench.publish("t", b"later", deliver_at_ms=bench.now_ms + 1000)
    reader = bench.reader(bench.subscribe("t"), permits=2)
    reader.ack(0)
    stats = bench.engine.topics.stats("t")
    assert (stats.topic, stats.first_entry, stats.next_entry, stats.delayed) == (full("t"), 0, 4, 1)
    sub = stats.subscriptions["sub"]
    assert (sub["type"], sub["backlog"], sub["unacked"], sub["acknowledged_below"]) == ("shared", 3, 1, 1)
    assert sub["consumers"] == [{"name": "reader", "permits": 0, "unacked": 1, "active": True}]


# Delayed entries


@pytest.mark.parametrize("type_", ["shared", "key_shared"])
def test_shared_subscriptions_get_a_delayed_entry_when_it_is_due(bench: Bench, type_: str) -> None:
    reader = bench.reader(bench.subscribe("t", type=type_))
    at_ms = bench.now_ms + 100
    assert bench.publish("t", b"late", deliver_at_ms=at_ms) == [0]
    bench.publish("t", b"now")
    assert reader.payloads == [b"now"]
    bench.wait(99)
    assert reader.payloads == [b"now"]
    bench.wait(1)
    assert reader.payloads == [b"now", b"late"]
    assert reader.got[1].due_at_ms == at_ms
    assert reader.ids == [1, 0]


@pytest.mark.parametrize("type_", ["exclusive", "failover"])
def test_ordered_subscriptions_get_it_at_its_place(bench: Bench, type_: str) -> None:
    reader = bench.reader(bench.subscribe("t", type=type_))
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 100)
    bench.publish("t", b"now")
    assert reader.payloads == [b"late", b"now"]
    bench.wait(200)
    assert reader.payloads == [b"late", b"now"]


def test_delayed_entries_become_ready_in_the_order_they_are_due(bench: Bench) -> None:
    start = bench.now_ms
    for delay in (30, 10, 20):
        bench.publish("t", b"%d" % delay, deliver_at_ms=start + delay)
    reader = bench.drain("t")
    bench.wait(50)
    assert reader.payloads == [b"10", b"20", b"30"]


@pytest.mark.parametrize("flushed", [False, True])
def test_delayed_entries_wait_after_a_restart_too(bench: Bench, flushed: bool) -> None:
    bench.publish("t", b"early", deliver_at_ms=bench.now_ms + 3000)
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 6000)
    bench.subscribe("t")
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.clock.set(1_700_000_000_000 + 4000)
    bench.start()
    reader = bench.reader(bench.engine.topics.subscription("t", "sub"))
    assert reader.payloads == [b"early"]
    bench.wait(1999)
    assert reader.payloads == [b"early"]
    bench.wait(1)
    assert reader.payloads == [b"early", b"late"]


def test_a_deliver_instant_in_the_past_is_now(bench: Bench) -> None:
    reader = bench.drain("t")
    bench.publish("t", b"a", deliver_at_ms=5)
    assert reader.payloads == [b"a"]


def test_policies_hold_for_delayed_entries(bench: Bench) -> None:
    reader = bench.drain("t")
    bench.ask(bench.engine.set_policy("topic", "t", Policy(tick_ms=1000, max_delay_ms=5000)))
    at_ms = bench.now_ms + 1
    bench.publish("t", b"a", deliver_at_ms=at_ms)
    bench.wait(999)
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"a"]
    late = NewEntry(payload=b"", deliver_at_ms=bench.now_ms + 5001)
    bench.refused(bench.engine.topics.publish("t", [late]), DelayTooLong)
    bench.ask(bench.engine.set_policy("topic", "t", Policy(delayed_delivery=False)))
    bench.publish("t", b"b", deliver_at_ms=bench.now_ms + 60_000)
    assert reader.payloads == [b"a", b"b"]


def test_a_delayed_entry_that_is_acknowledged_at_its_place_does_not_come_again(bench: Bench) -> None:
    ordered = bench.reader(bench.subscribe("t", "x", "exclusive"))
    shared = bench.reader(bench.subscribe("t", "s", "shared"))
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + 100)
    ordered.ack(0)
    bench.wait(100)
    assert ordered.ids == [0]
    assert shared.ids == [0]


def test_many_delayed_entries_of_one_instant(bench: Bench) -> None:
    reader = bench.drain("t")
    at_ms = bench.now_ms + 1000
    bench.publish("t", *[b"%d" % n for n in range(500)], deliver_at_ms=at_ms)
    bench.leap(1000)
    assert reader.ids == list(range(500))


# Producers


def test_a_producers_repeated_sequence_is_not_published_again(bench: Bench) -> None:
    assert bench.publish("t", b"a", producer="p", producer_sequence=1) == [0]
    assert bench.publish("t", b"a", producer="p", producer_sequence=1) == [DUPLICATE]
    assert bench.publish("t", b"b", producer="q", producer_sequence=1) == [1]
    assert bench.publish("t", b"c", producer="p", producer_sequence=7) == [2]
    assert bench.publish("t", b"d", producer="p") == [3]
    assert bench.drain("t").payloads == [b"a", b"b", b"c", b"d"]


def test_a_lower_sequence_that_was_never_stored_is_no_duplicate(bench: Bench) -> None:
    assert bench.publish("t", b"a", producer="p", producer_sequence=5) == [0]
    assert bench.publish("t", b"b", producer="p", producer_sequence=3) == [1]
    assert bench.publish("t", b"b", producer="p", producer_sequence=3) == [DUPLICATE]
    assert bench.publish("t", b"a", producer="p", producer_sequence=5) == [DUPLICATE]
    assert bench.drain("t").payloads == [b"a", b"b"]


def test_within_one_request_too(bench: Bench) -> None:
    entries = [NewEntry(payload=b"%d" % n, producer="p", producer_sequence=n) for n in (1, 2, 2, 1, 3, 0)]
    assert bench.ask(bench.engine.topics.publish("t", entries)) == [0, 1, DUPLICATE, DUPLICATE, 2, 3]


def test_a_duplicate_is_answered_only_once_the_first_is_durable(bench: Bench) -> None:
    entry = NewEntry(payload=b"a", producer="p", producer_sequence=1)
    first = bench.engine.topics.publish("t", [entry])
    again = bench.engine.topics.publish("t", [entry])
    assert not again.settled
    bench.commit()
    assert first.settled
    assert again.settled


@pytest.mark.parametrize("flushed", [False, True])
def test_producers_are_known_after_a_restart(bench: Bench, flushed: bool) -> None:
    bench.publish("t", b"a", producer="p", producer_sequence=4)
    bench.publish("t", b"low", producer="p", producer_sequence=2)
    batch = NewEntry(payload=b"5", producer="p", producer_first=6, producer_sequence=9, messages=3)
    bench.ask(bench.engine.topics.publish("t", [batch]))
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    for known in (2, 4):
        assert bench.publish("t", b"a", producer="p", producer_sequence=known) == [DUPLICATE]
    assert bench.ask(bench.engine.topics.publish("t", [batch])) == [DUPLICATE]
    assert bench.publish("t", b"c", producer="p", producer_sequence=3) == [3]
    assert bench.publish("t", b"b", producer="p", producer_sequence=5) == [4]


# Time to live


def test_an_entry_past_its_time_to_live_is_skipped_and_done_with(bench: Bench) -> None:
    bench.publish("t", b"short", ttl_ms=100)
    bench.publish("t", b"long", ttl_ms=1000)
    bench.publish("t", b"later", ttl_ms=100, deliver_at_ms=bench.now_ms + 500)
    bench.wait(101)
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    assert reader.payloads == [b"long"]
    bench.wait(399)
    assert reader.payloads == [b"long", b"later"]
    reader.ack(1, 2)
    assert sub.backlog == 0
    assert sub.acked.below == 3


@pytest.mark.parametrize("type_", ["exclusive", "shared", "failover", "key_shared"])
def test_however_many_have_expired_the_next_one_comes(bench: Bench, type_: str) -> None:
    bench.publish("t", *[b"old"] * 1200, ttl_ms=10)
    bench.publish("t", b"fresh")
    bench.wait(100)
    reader = bench.reader(bench.subscribe("t", type=type_), permits=1)
    assert reader.payloads == [b"fresh"]


# What nobody needs any more


def test_acknowledged_entries_are_let_go_of(bench: Bench) -> None:
    one, two = bench.subscribe("t", "one"), bench.subscribe("t", "two")
    bench.publish("t", *[b"x"] * 10_000)
    readers = [bench.reader(sub) for sub in (one, two)]
    bench.ask(readers[0].sub.ack([], below=10_000))
    bench.wait(2000)
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(2000)
    assert bench.engine.topics.stats("t").first_entry == 0
    bench.ask(readers[1].sub.ack([], below=9_000))
    bench.wait(2000)
    assert bench.engine.topics.stats("t").first_entry == 0
    bench.leap(GRACE_MS + STEP_MS)
    bench.wait(2000)
    assert bench.engine.topics.stats("t").first_entry == 9_000
    bench.reopen()
    assert bench.drain("t").ids[0] >= 8192
    assert bench.reader(bench.engine.topics.subscription("t", "two"), "r").ids == list(range(9_000, 10_000))


# Damage


def test_a_damaged_entry_is_never_delivered_and_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.publish("t", b"before")
    bench.publish("t", b"DAMAGED-BODY")
    bench.publish("t", b"after")
    bench.reopen()  # so that nothing is in memory
    bench.flip(b"DAMAGED-BODY")
    assert bench.drain("t").payloads == [b"before", b"after"]
    assert "damaged at byte" in caplog.text
    assert bench.engine.stats().counters["damaged"] == 1


def test_a_damaged_delayed_entry_does_not_stop_what_is_due(bench: Bench) -> None:
    at_ms = bench.now_ms + 100
    bench.publish("t", b"DAMAGED-BODY", deliver_at_ms=at_ms)
    bench.publish("t", b"sound", deliver_at_ms=at_ms)
    bench.schedule("t", payload=b"message", due_at_ms=at_ms, owner="")
    bench.schedule("t", payload=b"other", due_at_ms=at_ms + 1000, owner="")
    bench.reopen()
    bench.flip(b"DAMAGED-BODY")
    sub = bench.subscribe("t")
    reader = bench.reader(sub)
    bench.wait(100)
    assert sorted(reader.payloads) == [b"message", b"sound"]
    assert bench.engine.stats().pending == 1
    reader.ack(*reader.ids)
    assert sub.backlog == 0


def test_each_by_itself_what_cannot_be_taken_has_its_error_in_its_place(bench: Bench) -> None:
    entries = [
        NewEntry(payload=b"a", producer="p", producer_sequence=1),
        NewEntry(payload=b"bad", ttl_ms=-1),
        NewEntry(payload=b"again", producer="p", producer_sequence=1),
        NewEntry(payload=b"too late", deliver_at_ms=1 << 60),
        NewEntry(payload=b"b", producer="p", producer_sequence=2, messages=7, door="pulsar"),
    ]
    answers = bench.ask(bench.engine.topics.publish_each("t", entries)).ids
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [
        0, Invalid, -1, DelayTooLong, 1,
    ]  # fmt: skip
    bench.reopen()
    got = bench.drain("t").got
    assert [(entry.payload, entry.messages, entry.door) for entry in got] == [
        (b"a", 1, "http"),
        (b"b", 7, "pulsar"),
    ]


def test_so_many_producers_are_remembered_and_the_silent_go_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.engine.topics.topic.MAX_PRODUCERS", 3)

    def send(producer: str, sequence: int) -> int:
        (entry_id,) = bench.publish("t", b"x", producer=producer, producer_sequence=sequence)
        return entry_id

    for producer in ("a", "b", "c"):
        send(producer, 1)
    send("a", 2)
    send("d", 1)
    assert [send(producer, 1) for producer in ("a", "c", "d")] == [-1, -1, -1]
    bench.ask(bench.engine.flush())
    bench.reopen()
    assert send("a", 2) == -1
    assert send("b", 1) >= 0
