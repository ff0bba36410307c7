"""Policies in force: levels, ticks, delays, limits and rates, through the engine and through a restart."""

from typing import Any

import msgspec
import pytest

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, RateLimited, TooManyPending
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, Scheduled
from tarry.core.quantities import duration_in_words, size_in_words
from tarry.core.rules.policy import Policy
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.record import PolicySet, Put, decode
from tests.unit.engine_kit import FOREIGN, Bench, full


@pytest.fixture
def bench() -> Bench:
    return Bench()


def set_policy(bench: Bench, scope: Any, name: str, **fields: Any) -> None:
    bench.ask(bench.engine.set_policy(scope, name, Policy(**fields)))


# Levels


def test_the_nearest_level_wins_at_each_place(bench: Bench) -> None:
    set_policy(bench, "broker", "", tick_ms=10)
    set_policy(bench, "namespace", "acme/eu", tick_ms=20)
    set_policy(bench, "topic", "acme/eu/orders", tick_ms=30)
    effective = bench.engine.effective_policy
    assert effective("orders", "public/default").tick_ms == 10
    assert effective(None, "acme/eu").tick_ms == 20
    assert effective("acme/eu/bills", "acme/eu").tick_ms == 20
    assert effective("acme/eu/orders", "acme/eu").tick_ms == 30
    bench.ask(bench.engine.set_policy("topic", "acme/eu/orders", None))
    assert effective("acme/eu/orders", "acme/eu").tick_ms == 20
    bench.ask(bench.engine.set_policy("namespace", "acme/eu", None))
    assert effective("acme/eu/orders", "acme/eu").tick_ms == 10


def test_what_is_set_stands_over_the_configuration() -> None:
    bench = Bench(broker_policy=Policy(tick_ms=7, max_delay_ms=5))
    assert bench.engine.effective_policy(None, "a/b").tick_ms == 7
    set_policy(bench, "broker", "", tick_ms=8)
    found = bench.engine.effective_policy(None, "a/b")
    assert (found.tick_ms, found.max_delay_ms) == (8, 5)
    assert bench.engine.policy("broker", "") == Policy(tick_ms=8)
    bench.ask(bench.engine.set_policy("broker", "", None))
    assert bench.engine.effective_policy(None, "a/b").tick_ms == 7


@pytest.mark.parametrize("flushed", [False, True])
def test_policies_survive_a_restart(bench: Bench, flushed: bool) -> None:
    set_policy(bench, "topic", "orders", tick_ms=50, accept_per_second=0.5, delayed_delivery=True)
    set_policy(bench, "namespace", "a/b", tick_ms=60)
    bench.ask(bench.engine.set_policy("namespace", "a/b", None))
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    assert bench.engine.policy("topic", "orders") == Policy(
        tick_ms=50, accept_per_second=0.5, delayed_delivery=True
    )
    assert bench.engine.policy("namespace", "a/b") is None
    assert bench.engine.effective_policy(None, "a/b").tick_ms == 1


@pytest.mark.parametrize(
    ("scope", "name", "field"),
    [("namespace", "bad", "namespace"), ("topic", "a/b", "topic"), ("planet", "earth", "scope")],
)
def test_bad_places_are_refused(bench: Bench, scope: Any, name: str, field: str) -> None:
    assert bench.refused(bench.engine.set_policy(scope, name, Policy()), Invalid).field == field


def test_bad_values_are_refused_and_change_nothing(bench: Bench) -> None:
    set_policy(bench, "topic", "orders", tick_ms=5)
    bench.refused(bench.engine.set_policy("topic", "orders", Policy(tick_ms=0)), Invalid)
    assert bench.engine.policy("topic", "orders") == Policy(tick_ms=5)


# Delayed delivery, tick, longest delay


@pytest.mark.parametrize("fields", [{"delay_ms": 5000}, {"due_at_ms": 1 << 41}])
def test_where_delays_are_off_a_message_is_due_now(bench: Bench, fields: dict[str, Any]) -> None:
    set_policy(bench, "topic", "orders", delayed_delivery=False)
    done = bench.schedule(**fields)
    assert (done.due_at_ms, done.past_due) == (bench.now_ms, False)
    assert bench.state(done.id) == "sent"


def test_where_delays_are_off_the_tick_does_not_delay_either(bench: Bench) -> None:
    set_policy(bench, "topic", "orders", delayed_delivery=False, tick_ms=limits.HOUR_MS)
    done = bench.schedule(delay_ms=5000)
    assert bench.state(done.id) == "sent"


@pytest.mark.parametrize("tick_ms", [1, 7, 1000, limits.DAY_MS])
@pytest.mark.parametrize("delay_ms", [0, 1, 999, 5000])
def test_a_tick_rounds_up_and_never_down(bench: Bench, tick_ms: int, delay_ms: int) -> None:
    set_policy(bench, "topic", "orders", tick_ms=tick_ms)
    done = bench.schedule(delay_ms=delay_ms)
    asked_ms = bench.now_ms + delay_ms
    assert done.due_at_ms is not None
    assert 0 <= done.due_at_ms - asked_ms < tick_ms
    assert done.due_at_ms % tick_ms == 0
    if done.due_at_ms > bench.now_ms:
        bench.leap(done.due_at_ms - bench.now_ms - 1)
        assert bench.state(done.id) == "scheduled"
        bench.leap(1)
    assert bench.state(done.id) == "sent"


def test_the_longest_delay(bench: Bench) -> None:
    set_policy(bench, "broker", "", max_delay_ms=1000)
    set_policy(bench, "topic", "free", max_delay_ms=0)
    bench.schedule(delay_ms=1000)
    bench.schedule(FOREIGN, due_at_ms=bench.now_ms + 1000)
    for destination in ("orders", FOREIGN):
        for delay_ms in (1001, limits.MAX_DELAY_MS + 1, 10**30):
            message = Message(destination=destination, delay_ms=delay_ms)
            refused = bench.engine.schedule(message)
            assert bench.refused(refused, DelayTooLong).max_delay_ms == 1000
            together = bench.engine.schedule_many([message], all_or_none=True)
            assert bench.refused(together, DelayTooLong).max_delay_ms == 1000
            (one,) = bench.ask(bench.engine.schedule_many([message]))
            assert isinstance(one, DelayTooLong)
            assert one.max_delay_ms == 1000
    bench.schedule("free", delay_ms=limits.MAX_DELAY_MS)


def test_a_foreign_destination_follows_its_namespace(bench: Bench) -> None:
    set_policy(bench, "namespace", "acme/eu", max_delay_ms=10)
    bench.schedule(FOREIGN, delay_ms=11)
    message = Message(destination=FOREIGN, namespace="acme/eu", delay_ms=11)
    bench.refused(bench.engine.schedule(message), DelayTooLong)


# Pending messages


def test_an_owner_may_have_so_many_pending(bench: Bench) -> None:
    set_policy(bench, "broker", "", max_pending_per_owner=2)
    first = bench.schedule(owner="ann", delay_ms=10)
    bench.schedule(owner="ann", delay_ms=1000)
    third = Message(destination="orders", owner="ann", delay_ms=10)
    assert bench.refused(bench.engine.schedule(third), TooManyPending).limit == 2
    bench.schedule(owner="bob", delay_ms=10)
    bench.ask(bench.engine.cancel(first.id))
    again = bench.ask(bench.engine.schedule(third))
    bench.refused(bench.engine.schedule(third), TooManyPending)
    bench.wait(10)
    assert bench.state(again.id) == "sent"
    bench.ask(bench.engine.schedule(third))


def test_the_limit_counts_what_is_enqueued(bench: Bench) -> None:
    set_policy(bench, "broker", "", max_pending_per_owner=2)
    answers = [bench.engine.schedule(Message(destination="orders", delay_ms=10)) for _ in range(3)]
    bench.rest()
    assert [answer.error() is None for answer in answers] == [True, True, False]


def test_the_limit_counts_each_owner_of_a_batch(bench: Bench) -> None:
    set_policy(bench, "broker", "", max_pending_per_owner=2)
    owners = ["ann", "ann", "ann", "bob", "ann", "bob", "bob"]
    answers = bench.ask(
        bench.engine.schedule_many(
            [Message(destination="orders", owner=owner, delay_ms=10) for owner in owners]
        )
    )
    assert [isinstance(answer, Scheduled) for answer in answers] == [
        True,
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert isinstance(answers[2], TooManyPending)


def test_a_restart_does_not_count_twice_and_pending_survives_a_crash(bench: Bench) -> None:
    set_policy(bench, "broker", "", max_pending_per_owner=1)
    done = bench.schedule(owner="ann", delay_ms=1000)
    bench.ask(bench.engine.restart(done.id))
    bench.crash()
    bench.start()
    refused = bench.engine.schedule(Message(destination="orders", owner="ann", delay_ms=10))
    bench.refused(refused, TooManyPending)
    bench.wait(1000)
    bench.schedule(owner="ann", delay_ms=10)


# Accepting


def test_accepting_is_limited_and_says_when_to_come_again(bench: Bench) -> None:
    set_policy(bench, "broker", "", accept_per_second=2.0)
    message = Message(destination="orders", owner="ann", delay_ms=10)
    for _ in range(2):
        bench.ask(bench.engine.schedule(message))
    error = bench.refused(bench.engine.schedule(message), RateLimited)
    assert 0 < error.retry_after_ms <= 501
    bench.schedule(owner="bob", delay_ms=10)
    bench.wait(error.retry_after_ms)
    bench.ask(bench.engine.schedule(message))
    bench.refused(bench.engine.schedule(message), RateLimited)
    assert bench.engine.stats().counters["accepted"] == 4


def test_what_is_refused_for_another_reason_is_not_charged(bench: Bench) -> None:
    set_policy(bench, "broker", "", accept_per_second=1.0, max_delay_ms=100, max_pending_per_owner=1)
    bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=1000)), DelayTooLong)
    bench.schedule(delay_ms=100)


# Sending


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_over_the_limit_at_sending_means_later_and_never_lost(bench: Bench, destination: str) -> None:
    set_policy(bench, "broker", "", send_per_second=10.0)
    start = bench.now_ms
    for n in range(40):
        bench.schedule(destination, payload=b"%02d" % n, owner="ann", delay_ms=1)
    bench.schedule(destination, payload=b"bob", owner="bob", delay_ms=1)
    sent: dict[int, int] = {}
    reader = bench.drain("orders")
    while bench.now_ms < start + 4000:
        bench.run(10)
        sent[bench.now_ms - start] = len(reader.got) + len(bench.outlet.arrivals)
    # A burst of one second's worth, then ten a second; bob has his own.
    assert 10 <= sent[10] <= 12
    for ms, count in sent.items():
        assert count <= 10 + 1 + ms / 100 + 1
    assert sent[4000] == 41
    payloads = [payload for payload in reader.payloads + bench.arrived() if payload != b"bob"]
    assert payloads == [b"%02d" % n for n in range(40)]


def test_the_limit_at_sending_is_kept_past_a_minute_and_a_restart(bench: Bench) -> None:
    """Messages put off for longer than a minute get a new version (R9); they are not charged again for it."""
    set_policy(bench, "broker", "", send_per_second=0.1)
    for n in range(12):
        bench.schedule(FOREIGN, payload=b"%02d" % n, owner="ann", delay_ms=1)
    bench.run(1)
    assert len(bench.outlet.arrivals) == 1
    # Far ones have been given new versions; the watermark is not held back by them.
    bench.run(30_000)
    assert len(bench.outlet.arrivals) == 4
    bench.run(30_000)
    assert len(bench.outlet.arrivals) == 7
    bench.run(60_000)
    assert bench.arrived() == [b"%02d" % n for n in range(12)]


def test_what_is_put_off_is_not_charged_twice(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=1.0)
    for _ in range(5):
        bench.schedule("orders", delay_ms=1)
    reader = bench.drain("orders")
    bench.wait(1)
    bench.wait(4000)
    assert len(reader.got) == 5
    # After five seconds the allowance is whole again: the next one goes at once.
    bench.wait(1001)
    bench.schedule("orders", delay_ms=1)
    bench.wait(1)
    assert len(reader.got) == 6


def test_what_is_put_off_can_be_cancelled_and_survives_a_crash(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=1.0)
    ids = [bench.schedule("orders", delay_ms=1).id for _ in range(4)]
    bench.wait(1)
    assert bench.state(ids[0]) == "sent"
    assert bench.ask(bench.engine.cancel(ids[1])).state == "cancelled"
    bench.crash()
    bench.start()
    bench.wait(5000)
    assert [bench.state(id_) for id_ in ids] == ["sent", "cancelled", "sent", "sent"]


def test_retries_are_not_charged(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=0.01)
    bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    for _ in range(3):
        bench.verdict(Retry("no", after_ms=100))
        bench.wait(100)
    bench.verdict(Delivered())
    assert len(bench.outlet.arrivals) == 1


CHANGED = [("broker", ""), ("namespace", "public/default"), ("topic", "orders")]


@pytest.mark.parametrize("how", ["alive", "restarted", "indexed"])
@pytest.mark.parametrize(("scope", "name"), CHANGED)
def test_when_the_limit_is_lifted_those_that_wait_for_their_turn_go_out(
    bench: Bench, scope: Any, name: str, how: str
) -> None:
    """Both messages in the wheel and those that were put off for longer, by a new version."""
    set_policy(bench, scope, name, send_per_second=0.1)
    reader = bench.drain("orders")
    for n in range(20):
        bench.schedule("orders", payload=b"%02d" % n, owner="ann", delay_ms=1)
    bench.schedule("orders", payload=b"tomorrow", owner="ann", delay_ms=limits.DAY_MS)
    bench.wait(15_000)
    assert len(reader.got) == 2
    if how == "indexed":
        bench.index.flush(bench.ledger)
        bench.wait(5000)
    if how == "restarted":
        bench.crash()
        bench.start()
        reader = bench.reader(bench.engine.topics.subscription("orders", "drain"))
        reader.got.clear()
    sent = len(reader.got)
    set_policy(bench, scope, name, send_per_second=0.0)
    bench.wait(1000)
    payloads = reader.payloads[sent:]
    assert sorted(payloads) == [b"%02d" % n for n in range(20 - len(payloads), 20)]
    assert payloads == sorted(payloads), "in the order in which they were accepted"
    assert bench.engine.stats().pending == 1
    bench.leap(limits.DAY_MS)
    assert reader.payloads[-1] == b"tomorrow"


def test_when_the_limit_is_removed_those_for_other_systems_go_out(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=0.1)
    for n in range(20):
        bench.schedule(FOREIGN, payload=b"%02d" % n, owner="ann", delay_ms=1)
    bench.run(1)
    bench.ask(bench.engine.set_policy("broker", "", None))
    bench.run(1000)
    assert bench.arrived() == [b"%02d" % n for n in range(20)]


@pytest.mark.parametrize(("before", "after"), [(0.1, 2.0), (2.0, 0.1)])
def test_another_limit_is_kept_by_those_that_wait_already(bench: Bench, before: float, after: float) -> None:
    set_policy(bench, "broker", "", send_per_second=before)
    reader = bench.drain("orders")
    for n in range(200):
        bench.schedule("orders", payload=b"%03d" % n, owner="ann", delay_ms=1)
    bench.wait(10)
    first = len(reader.got)
    set_policy(bench, "broker", "", send_per_second=after)
    bench.wait(60_000)
    # The new allowance begins whole: a burst, then so many a second.
    count = len(reader.got) - first
    assert 60 * after <= count <= 60 * after + 3
    assert reader.payloads == sorted(reader.payloads)


def test_a_change_elsewhere_moves_nobody(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=0.1)
    for n in range(20):
        bench.schedule("orders", payload=b"%02d" % n, owner="ann", delay_ms=1)
    bench.wait(10)
    head = bench.ledger.next_seq
    set_policy(bench, "namespace", "acme/other", send_per_second=0.0)
    set_policy(bench, "namespace", "public/default", accept_per_second=100.0)
    bench.rest()
    written = [decode(bench.bodies.one(seq)) for seq in range(head, bench.ledger.next_seq)]
    assert not [record for record in written if isinstance(record, Put)]


def test_a_cancelled_message_holds_up_nobody_under_a_new_limit(bench: Bench) -> None:
    set_policy(bench, "broker", "", send_per_second=0.1)
    ids = [bench.schedule("orders", owner="ann", delay_ms=1).id for _ in range(50)]
    bench.wait(10)
    for id_ in ids[1:]:
        bench.ask(bench.engine.cancel(id_))
    set_policy(bench, "broker", "", send_per_second=10.0)
    reader = bench.drain("orders")
    bench.schedule("orders", payload=b"new", owner="ann", delay_ms=1)
    bench.wait(10)
    assert reader.payloads[-1] == b"new"


def test_a_rate_that_an_older_version_took_holds_nothing_up_for_ever_and_no_start_fails_for_it(
    bench: Bench,
) -> None:
    records = [PolicySet("namespace", "public/default", {"send_per_second": 1e-300})]
    bench.journal.append(records, lambda _: None)
    first, second = (bench.schedule("orders", payload=b"x", delay_ms=10).id for _ in range(2))
    bench.wait(20)
    bench.reopen()
    bench.rest()
    assert (bench.state(first), bench.state(second)) == ("sent", "scheduled")
    bench.leap(limits.DAY_MS)
    assert bench.state(second) == "sent"


@pytest.mark.parametrize("delayed_delivery", [True, False])
@pytest.mark.parametrize(("delay_ms", "due_at_ms"), [(10**30, None), (None, 10**30), (1 << 62, None)])
def test_a_time_beyond_all_measure_is_refused_also_where_nothing_is_delayed(
    bench: Bench, delayed_delivery: bool, delay_ms: int | None, due_at_ms: int | None
) -> None:
    set_policy(bench, "broker", "", delayed_delivery=delayed_delivery)
    message = Message(destination="orders", payload=b"x", delay_ms=delay_ms, due_at_ms=due_at_ms)
    bench.refused(bench.engine.schedule(message), DelayTooLong)
    (refusal,) = bench.ask(bench.engine.schedule_many([message]))
    assert isinstance(refusal, DelayTooLong)
    bench.refused(bench.engine.schedule_many([message], all_or_none=True), DelayTooLong)


LEVELS: list[tuple[str, str, str]] = [
    ("broker", "", "the broker"),
    ("namespace", "public/default", "namespace public/default"),
    ("topic", "orders", f"topic {full('orders')}"),
]


@pytest.mark.parametrize("at", range(3))
def test_a_delay_that_is_too_long_is_told_in_words_and_with_the_level_that_says_so(
    bench: Bench, at: int
) -> None:
    for scope, name, _ in LEVELS[: at + 1]:
        set_policy(bench, scope, name, max_delay_ms=(7 - LEVELS.index((scope, name, _))) * limits.DAY_MS)
    expected = (
        f"the delay exceeds the maximum: at most {7 - at} days, set on {LEVELS[at][2]};"
        " choose an earlier instant, or raise max_delay_ms there"
    )
    message = Message(destination="orders", delay_ms=30 * limits.DAY_MS)
    near = bench.schedule(delay_ms=1000)
    (in_columns,) = bench.ask(bench.engine.schedule_many([message]))
    entry = NewEntry(payload=b"", deliver_at_ms=bench.now_ms + 30 * limits.DAY_MS)
    told = [
        in_columns,
        bench.refused(bench.engine.schedule(message), DelayTooLong),
        bench.refused(bench.engine.schedule_many([message], all_or_none=True), DelayTooLong),
        bench.refused(bench.engine.restart(near.id, delay_ms=30 * limits.DAY_MS), DelayTooLong),
        bench.refused(bench.engine.topics.publish("orders", [entry]), DelayTooLong),
    ]
    assert [str(one) for one in told] == [expected] * 5


def test_rows_are_told_the_level_of_their_own_topic(bench: Bench) -> None:
    # The same limit, from two levels.
    set_policy(bench, "broker", "", max_delay_ms=10)
    set_policy(bench, "topic", "b", max_delay_ms=10)
    messages = [Message(destination=name, delay_ms=11) for name in ("a", "b", "a")]
    told = [str(one).partition("set on ")[2] for one in bench.ask(bench.engine.schedule_many(messages))]
    assert [one.partition(";")[0] for one in told] == ["the broker", f"topic {full('b')}", "the broker"]


def test_the_engines_own_bound_is_told_without_a_level(bench: Bench) -> None:
    beyond = Message(destination="orders", delay_ms=limits.MAX_DELAY_MS + 1)
    told = str(bench.refused(bench.engine.schedule(beyond), DelayTooLong))
    assert told == "the delay exceeds the maximum: at most 100 years; choose an earlier instant"


@pytest.mark.parametrize(
    ("wait_ms", "told"),
    [
        (250, "250 milliseconds"),
        (1_000, "1 second"),
        (1_001, "2 seconds"),
        (98_401, "1 minute 39 seconds"),
        (120_000, "2 minutes"),
    ],
)
def test_the_wait_after_too_many_requests_is_told_in_seconds_and_never_too_short(
    wait_ms: int, told: str
) -> None:
    error = RateLimited(wait_ms)
    assert str(error) == f"too many requests; try again after {told}"
    assert error.retry_after_ms == wait_ms


def test_limits_of_owners_are_told_with_the_level_that_says_so(bench: Bench) -> None:
    set_policy(bench, "namespace", "public/default", max_pending_per_owner=1)
    set_policy(bench, "broker", "", accept_per_second=0.5, command_per_second=1.0)
    message = Message(destination="orders", owner="ann", delay_ms=1000)
    first = bench.ask(bench.engine.schedule(message))
    too_many = bench.refused(bench.engine.schedule(message), TooManyPending)
    assert str(too_many) == (
        "the owner has its limit of pending messages, 1, set on namespace public/default; cancel some, "
        "wait until some are sent, or raise max_pending_per_owner there"
    )
    bench.ask(bench.engine.restart(first.id))
    too_fast = bench.refused(bench.engine.restart(first.id), RateLimited)
    assert (
        str(too_fast)
        == "an owner may give at most 1 commands a second, set on the broker; try again after 1 second"
    )
    bench.ask(bench.engine.schedule(msgspec.structs.replace(message, owner="bob")))
    set_policy(bench, "namespace", "public/default", max_pending_per_owner=5)
    too_fast = bench.refused(
        bench.engine.schedule(msgspec.structs.replace(message, owner="bob")), RateLimited
    )
    assert str(too_fast).startswith(
        "an owner may schedule at most 0.5 messages a second, set on the broker; "
    )


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [
        (7 * limits.DAY_MS, "7 days"),
        (1_500, "1 second 500 milliseconds"),
        (limits.DAY_MS + limits.HOUR_MS + 1, "1 day 1 hour 1 millisecond"),
        (limits.MAX_DELAY_MS, "100 years"),
        (365 * limits.DAY_MS, "365 days"),
        (0, "0 milliseconds"),
    ],
)
def test_durations_in_words_are_exact(duration_ms: int, words: str) -> None:
    assert duration_in_words(duration_ms) == words


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1000, "1,000 bytes"),
        (16 << 10, "16 KiB"),
        (5 << 20, "5 MiB"),
        (3 << 40, "3,072 GiB"),
    ],
)
def test_sizes_in_words_are_exact(size_bytes: int, words: str) -> None:
    assert size_in_words(size_bytes) == words
