"""Messages that are scheduled together, and groups that are led."""

from collections.abc import Iterator

import pytest

from tarry.core import limits
from tarry.core.errors import Conflict, DelayTooLong, Invalid, NotFound, TooLarge, TooManyPending
from tarry.core.messages.delivery import Delivered, Refused, Retry, Verdict
from tarry.core.messages.message import LED_BY, Message, Scheduled
from tarry.core.rules.policy import Policy
from tarry.engine.queries.commands import Ending
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def member(payload: bytes, delay_ms: int | None = None, **fields: object) -> Message:
    return Message(destination=FOREIGN, payload=payload, group="g", delay_ms=delay_ms, **fields)  # type: ignore[arg-type]


LEADER = Message(destination=FOREIGN, payload=b"leader", delay_ms=0, leads="g")


def led(bench: Bench) -> list[str]:
    """A leader, a timed member and an untimed one; their ids."""
    answer = bench.engine.schedule_many(
        [LEADER, member(b"timed", 1000), member(b"untimed")], all_or_none=True
    )
    return [one.id for one in bench.ask(answer)]


def states(bench: Bench, ids: list[str]) -> list[str]:
    return [bench.state(id_) for id_ in ids]


def test_they_are_one_unit(bench: Bench) -> None:
    before = bench.durable_seq
    answer = bench.engine.schedule_many([member(b"1", 10), member(b"2"), member(b"3", 20)], all_or_none=True)
    bench.commit()
    assert bench.durable_seq == before + 3
    assert [one.due_at_ms for one in answer.value()] == [bench.now_ms + 10, None, bench.now_ms + 20]


def test_a_crash_before_the_sync_leaves_none(bench: Bench) -> None:
    answer = bench.engine.schedule_many([member(b"1", 10), member(b"2")], all_or_none=True)
    assert not answer.settled
    bench.crash()
    bench.start()
    assert bench.engine.stats().pending == 0
    assert bench.engine.group_owners("public/default", "g") == frozenset()


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([member(b"1"), member(b"2", 10)], Conflict),
        ([member(b"1", 10), member(b"2", -1)], Invalid),
        ([member(b"1", 10), member(b"2", limits.MAX_DELAY_MS + 1)], DelayTooLong),
        ([member(b"1", 10), Message(destination="nowhere://x", delay_ms=1)], Invalid),
        ([member(b"1", 10, idempotency_key="k"), member(b"2", 10)], Invalid),
        ([Message(destination="orders", delay_ms=0, leads="g"), member(b"1", 10)], Invalid),
        ([Message(destination=FOREIGN, delay_ms=0, leads="g", group="h")], Invalid),
        ([LEADER, member(b"1")], Conflict),
        ([LEADER, member(b"1", limits.MAX_DELAY_MS + 1)], DelayTooLong),
        ([member(b"%d" % n, 10) for n in range(limits.MAX_GROUP_MEMBERS + 1)], Conflict),
    ],
)
def test_if_one_cannot_be_none_is(bench: Bench, messages: list[Message], error: type[Exception]) -> None:
    bench.refused(bench.engine.schedule_many(messages, all_or_none=True), error)  # type: ignore[type-var]
    assert not bench.engine.stats().counters.get("accepted")
    assert bench.engine.stats().pending == 0


def test_an_owners_limit_counts_them_all(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(max_pending_per_owner=2)))
    three = [member(b"1", 10), member(b"2"), member(b"3")]
    bench.refused(bench.engine.schedule_many(three, all_or_none=True), TooManyPending)
    assert bench.engine.stats().pending == 0
    assert len(bench.ask(bench.engine.schedule_many(three[:2], all_or_none=True))) == 2


@pytest.mark.parametrize("durable", [False, True])
def test_repeated_with_the_same_keys_they_are_those_of_the_first_time(bench: Bench, durable: bool) -> None:
    messages = [member(b"1", 1000, idempotency_key="t-0"), member(b"2", idempotency_key="t-1")]
    first = bench.engine.schedule_many(messages, all_or_none=True)
    if durable:
        bench.rest()
    again = bench.engine.schedule_many(messages, all_or_none=True)
    ids = [one.id for one in bench.ask(first)]
    assert [(one.id, one.repeated) for one in bench.ask(again)] == [(id_, True) for id_ in ids]
    bench.crash()
    bench.start()
    assert [one.id for one in bench.ask(bench.engine.schedule_many(messages, all_or_none=True))] == ids
    assert bench.engine.stats().pending == 2
    other = [messages[0], member(b"other", idempotency_key="t-1")]
    assert bench.refused(bench.engine.schedule_many(other, all_or_none=True), Conflict).state == "reused"
    more = [*messages, member(b"3", idempotency_key="t-2")]
    assert bench.refused(bench.engine.schedule_many(more, all_or_none=True), Conflict).state == "reused"


# Leading


def test_a_led_group_waits_for_its_leader(bench: Bench) -> None:
    leader, timed, untimed = led(bench)
    bench.wait(5000)
    assert bench.attempt().delivery.payload == b"leader"
    assert bench.view(timed).due_at_ms is None
    bench.verdict(Delivered("$event"))
    assert states(bench, [leader, timed, untimed]) == ["sent", "scheduled", "scheduled"]
    assert bench.view(timed).due_at_ms == bench.now_ms + 1000
    bench.wait(999)
    assert not bench.outlet.under_way
    bench.wait(1)
    sent = bench.attempt().delivery
    assert (sent.id, sent.payload, sent.headers[LED_BY]) == (timed, b"timed", "$event")
    bench.verdict(Delivered())
    assert states(bench, [timed, untimed]) == ["sent", "cancelled"]
    assert bench.engine.stats().pending == 0


def test_its_delays_begin_in_the_unit_that_ends_the_leader(bench: Bench) -> None:
    leader, timed, untimed = led(bench)
    bench.attempt().answer(Delivered("$event"))
    bench.crash()
    bench.start()
    bench.rest()
    # The verdict was lost with the crash: the leader is sent again, with its own idempotency key.
    assert bench.attempt().delivery.id == leader
    bench.verdict(Delivered("$event"))
    bench.crash()
    bench.start()
    assert bench.state(leader) == "sent"
    bench.ask(bench.engine.send(untimed))
    sent = bench.attempt().delivery
    assert (sent.id, sent.headers[LED_BY]) == (untimed, "$event")
    bench.verdict(Delivered())
    assert states(bench, [timed, untimed]) == ["cancelled", "sent"]


def test_a_leader_that_is_refused_takes_its_group_along(bench: Bench) -> None:
    ids = led(bench)
    bench.verdict(Retry("not now", after_ms=10))
    bench.wait(10)
    bench.verdict(Refused("never"))
    assert states(bench, ids) == ["failed", "cancelled", "cancelled"]
    assert "led" in (bench.view(ids[1]).reason or "")
    bench.wait(10_000)
    assert not bench.outlet.under_way
    assert bench.engine.stats().pending == 0


def test_a_leader_that_is_cancelled_takes_its_group_along(bench: Bench) -> None:
    ids = led(bench)
    bench.verdict(Retry("not now", after_ms=5000))
    bench.ask(bench.engine.cancel(ids[0]))
    assert states(bench, ids) == ["cancelled", "cancelled", "cancelled"]


def test_a_leader_that_is_damaged_takes_its_group_along(bench: Bench) -> None:
    messages = [
        Message(destination=FOREIGN, payload=b"DAMAGED-BODY", delay_ms=100, leads="g"),
        member(b"timed", 1000),
    ]
    ids = [one.id for one in bench.ask(bench.engine.schedule_many(messages, all_or_none=True))]
    bench.flip(b"DAMAGED-BODY")
    bench.wait(2000)
    assert bench.state(ids[1]) == "cancelled"
    assert not bench.outlet.arrivals


@pytest.mark.parametrize("flushed", [False, True])
def test_who_leads_is_known_after_a_restart(bench: Bench, flushed: bool) -> None:
    _, timed, _ = led(bench)
    bench.verdict(Retry("not now", after_ms=70_000))  # past a minute: a new version of the leader
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    bench.wait(100_000)
    bench.verdict(Delivered("$later"))
    assert bench.view(timed).due_at_ms == bench.now_ms + 1000
    bench.ask(bench.engine.restart(timed))
    bench.wait(1000)
    assert bench.attempt().delivery.headers[LED_BY] == "$later"


def test_members_of_a_led_group_cannot_be_sent_or_restarted_before_it(bench: Bench) -> None:
    _, timed, untimed = led(bench)
    assert bench.refused(bench.engine.send(untimed), Conflict).state == "led"
    assert bench.refused(bench.engine.restart(timed), Conflict).state == "led"
    assert bench.refused(bench.engine.schedule(member(b"late", 10)), Conflict).state == "led"
    # They can be cancelled; the leader goes out all the same.
    bench.ask(bench.engine.cancel(timed))
    assert bench.state(untimed) == "cancelled"
    bench.verdict(Delivered("$event"))
    assert bench.engine.stats().pending == 0
    bench.schedule(FOREIGN, group="g", delay_ms=10)


def test_only_a_new_group_can_be_led(bench: Bench) -> None:
    bench.schedule(FOREIGN, group="g", delay_ms=1000)
    refused = bench.engine.schedule_many([LEADER, member(b"timed", 1000)], all_or_none=True)
    assert bench.refused(refused, Conflict).state == "exists"


# Who a group belongs to, and which one is chosen


def test_whose_a_group_is_is_known_while_it_has_waiting_members(bench: Bench) -> None:
    assert bench.engine.group_owners("public/default", "g") == frozenset()
    one = bench.schedule(FOREIGN, group="g", owner="ann", delay_ms=1000)
    bench.schedule(FOREIGN, group="h", owner="bob", delay_ms=1000)
    assert bench.engine.group_owners("public/default", "g") == {"ann"}
    bench.wait(600)
    bench.crash()
    bench.start()
    assert bench.engine.group_owners("public/default", "g") == {"ann"}
    bench.ask(bench.engine.cancel(one.id))
    assert bench.engine.group_owners("public/default", "g") == frozenset()
    assert bench.engine.group_owners("public/default", "h") == {"bob"}
    bench.wait(1000)
    assert bench.engine.group_owners("public/default", "h") == frozenset()


def test_of_two_that_are_told_to_go_the_first_is_chosen_at_once(bench: Bench) -> None:
    """A client who is told that its message goes out can rely on it, also if another client asks a moment later."""
    timed = bench.schedule(FOREIGN, payload=b"timed", group="g", delay_ms=1000)
    first: Scheduled = bench.schedule(FOREIGN, payload=b"first", group="g")
    second = bench.schedule(FOREIGN, payload=b"second", group="g")
    chosen = bench.engine.send(first.id)
    late = bench.engine.send(second.id)
    bench.commit()
    bench.crash()
    bench.start()
    bench.rest()
    assert chosen.value().state == "scheduled"
    assert late.settled is False or isinstance(late.error(), Conflict)
    assert states(bench, [timed.id, second.id]) == ["cancelled", "cancelled"]
    assert bench.attempt().delivery.payload == b"first"


# Hearing of the end, and being spared


def test_hearing_of_the_end_of_a_message(bench: Bench) -> None:
    leader, timed, _ = led(bench)
    heard = bench.engine.ended(leader)
    bench.verdict(Retry("not now", after_ms=10))
    assert not heard.settled
    bench.wait(10)
    bench.verdict(Retry("not now", after_ms=70_000))  # past a minute: a new version
    assert not heard.settled
    bench.wait(70_000)
    bench.verdict(Delivered("$event"))
    assert bench.ask(heard).reference == "$event"
    assert bench.ask(bench.engine.ended(leader)).state == "sent"
    bench.ask(bench.engine.cancel(timed))
    assert bench.ask(bench.engine.ended(timed)).state == "cancelled"
    bench.refused(bench.engine.ended("0" * 32), NotFound)


def test_hearing_of_an_end_by_somebody_else(bench: Bench) -> None:
    leader, _, untimed = led(bench)
    heard = [bench.engine.ended(leader), bench.engine.ended(untimed)]
    bench.verdict(Retry("not now", after_ms=10_000))
    bench.ask(bench.engine.cancel(leader))
    assert [bench.ask(answer).state for answer in heard] == ["cancelled", "cancelled"]


def state(payload: bytes, delay_ms: int | None = None) -> Message:
    return member(payload, delay_ms, owner="ann", listed=True, subject="s")


def test_what_ends_a_subject_can_spare_the_group_that_it_led(bench: Bench) -> None:
    leader = Message(destination=FOREIGN, delay_ms=0, leads="g", owner="ann", listed=True, subject="s")
    answer = bench.engine.schedule_many([leader, state(b"timed", 5000), state(b"untimed")], all_or_none=True)
    ids = [one.id for one in bench.ask(answer)][1:]
    own = Ending(reason="it took its place", spare_led_by="$own")
    # Heard of before the verdict: what leads the group may be just that.
    assert bench.engine.end_subject("s", own).settled is False
    bench.verdict(Delivered("$own"))
    assert bench.ask(bench.engine.end_subject("s", own)) == 0
    assert states(bench, ids) == ["scheduled", "scheduled"]
    other = Ending(reason="it took its place", spare_led_by="$other")
    assert bench.ask(bench.engine.end_subject("s", other)) >= 1
    assert states(bench, ids) == ["cancelled", "cancelled"]


def test_what_ends_a_subject_spares_what_was_accepted_later(bench: Bench) -> None:
    first = bench.ask(bench.engine.schedule(state(b"first", 60_000)))
    bench.wait(10)
    second = bench.ask(bench.engine.schedule(state(b"second", 60_000)))
    ending = Ending(reason="it took its place", accepted_before_ms=bench.now_ms)
    assert bench.ask(bench.engine.end_subject("s", ending)) == 1
    assert states(bench, [first.id, second.id]) == ["cancelled", "scheduled"]


# Crashes


def steps(bench: Bench, verdict: Verdict) -> Iterator[None]:
    """Everything that follows a batch, one small step at a time."""
    wake_ms = 0
    while True:
        for _ in range(3):
            wake_ms = bench.tick()
            yield
            bench.commit()
            yield
            while bench.work():
                yield
            for attempt in list(bench.outlet.under_way):
                leads = attempt.delivery.payload == b"leader"
                attempt.answer(verdict if leads else Delivered("$other"))
                yield
        bench.clock.set(max(wake_ms, bench.now_ms + 1))


@pytest.mark.parametrize("verdict", [Delivered("$event"), Refused("never")])
def test_a_crash_at_any_moment_leaves_all_or_nothing(verdict: Verdict) -> None:
    """The batch is there as a whole or not; the leader comes first, and then one of its group, or none if it is refused."""
    outcomes = set()
    for crash_after in range(45):
        bench = Bench(seed=crash_after)
        answer = bench.engine.schedule_many(
            [LEADER, member(b"timed", 50), member(b"untimed")], all_or_none=True
        )
        for _ in zip(range(crash_after), steps(bench, verdict), strict=False):
            pass
        answered = answer.settled
        bench.crash()
        bench.start()
        accepted = bench.counters["accepted"]
        assert accepted == 3 if answered else accepted in (0, 3)
        for _ in zip(range(200), steps(bench, verdict), strict=False):
            pass
        assert bench.engine.stats().pending == 0
        arrived = bench.arrived()
        order = list(dict.fromkeys(arrived))
        assert order == ([b"leader", b"timed"] if accepted and isinstance(verdict, Delivered) else [])
        # Whatever arrives a second time does so under the same id, which is its idempotency key.
        assert len({one.delivery.id for one in bench.outlet.arrivals}) == len(order)
        assert all(
            one.delivery.headers.get(LED_BY) == "$event"
            for one in bench.outlet.arrivals
            if one.delivery.payload == b"timed"
        )
        outcomes.add((accepted, len(arrived)))
    # Crashes came before the batch was durable, in between, and after it all.
    assert {accepted for accepted, _ in outcomes} == {0, 3}


def test_a_group_that_is_led_fits_into_the_ledger_once_more_when_it_begins() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    few = [member(bytes(5_000), 10) for _ in range(5)]
    many = [member(bytes(5_000), 10) for _ in range(11)]
    assert (
        bench.refused(bench.engine.schedule_many([LEADER, *many], all_or_none=True), TooLarge).limit < 1 << 15
    )
    bench.ask(bench.engine.schedule_many([LEADER, *few], all_or_none=True))
    bench.rest()
    bench.verdict(Delivered("r" * 1_000))
    bench.wait(10)
    assert bench.outlet.under_way
