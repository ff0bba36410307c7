"""Engines on one replicated log: takeovers, and what an owner that wakes too late must not do (R14, R15)."""

from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.errors import Unavailable
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, MessageQuery, OwnedQuery
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.engine.flights.flights import Flights
from tarry.engine.journal.tenure import Tenure
from tarry.engine.queries.commands import Ending
from tarry.engine.topics.pumping import Pumped, Pumping
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.record import Kind
from tarry.testing.log import SimulatedLog
from tests.unit.engine_kit import FOREIGN, Bench


def node(log: SimulatedLog, name: str, beside: Bench | None = None) -> Bench:
    """A server that has claimed the log, on a disk of its own."""
    bench = Bench(log=log, node=name, start=False)
    if beside is not None:
        bench.clock = bench.outlet.clock = beside.clock
    bench.start()
    return bench


def kinds(bench: Bench) -> list[int]:
    """The kinds of all records, in order."""
    return [kind for frame in bench.ledger.frames(1) for kind in frame.fixed["kind"].tolist()]


def test_a_departure_leaves_once_a_record_that_was_enqueued_after_it_was_due_is_durable() -> None:
    bench = node(SimulatedLog(), "a")
    bench.schedule(FOREIGN, delay_ms=5_000)
    bench.wait(4_999)
    bench.clock.advance(1)
    before = bench.ledger.next_seq
    bench.tick()
    assert bench.outlet.under_way == []
    assert bench.ledger.next_seq > before
    bench.rest()
    assert len(bench.outlet.under_way) == 1
    bench.verdict(Delivered())
    assert kinds(bench)[-1] == Kind.FINALISE


def test_one_record_is_for_all_departures_of_a_turn() -> None:
    bench = node(SimulatedLog(), "a")
    for n in range(50):
        bench.schedule(f"sim://shop/{n}", delay_ms=5_000)
    bench.wait(4_999)
    bench.clock.advance(1)
    before = bench.ledger.next_seq
    bench.tick()
    assert bench.ledger.next_seq - before <= 2, "the departures' record, and the mark of the second"
    bench.rest()
    assert len(bench.outlet.under_way) == 50


def test_with_a_local_ledger_a_departure_leaves_at_once_and_without_a_record() -> None:
    bench = Bench()
    bench.schedule(FOREIGN, delay_ms=5_000)
    bench.wait(4_999)
    bench.clock.advance(1)
    before = bench.ledger.next_seq
    bench.tick()
    assert len(bench.outlet.under_way) == 1
    assert bench.ledger.next_seq - before <= 1


def test_a_departure_that_finds_no_room_for_its_record_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = node(SimulatedLog(), "a")
    id_ = bench.schedule(FOREIGN, delay_ms=5_000).id
    bench.wait(4_900)
    with monkeypatch.context() as patched:

        def none(*_: object, **__: object) -> int:
            raise Unavailable("there is no space")

        patched.setattr(type(bench.journal), "append", none)
        bench.clock.advance(100)
        bench.tick()
        assert bench.outlet.under_way == []
    bench.wait(2_000)
    bench.verdict(Delivered())
    assert bench.state(id_) == "sent"


def takeover() -> tuple[Bench, Bench]:
    """An owner that was paused just before a message was due, and another that sent it and owns the ledger now."""
    log = SimulatedLog()
    old = node(log, "a")
    old.schedule(FOREIGN, delay_ms=5_000, payload=b"once")
    old.wait(4_000)
    new = node(log, "b", beside=old)
    new.wait(2_000)
    new.verdict(Delivered())
    assert new.arrived() == [b"once"]
    return old, new


def wake(old: Bench) -> None:
    """The paused owner goes on, until its ledger has stopped."""
    for _ in range(5):
        old.tick()
        old.commit()
        for attempt in list(old.outlet.under_way):
            attempt.answer(Delivered())


def test_an_owner_that_wakes_after_a_takeover_sends_nothing() -> None:
    old, new = takeover()
    wake(old)
    assert old.arrived() == []
    assert "b owns the ledger now" in str(old.ledger.failed)
    answer = old.engine.schedule(Message(destination=FOREIGN, delay_ms=1))
    assert isinstance(answer.error(), Unavailable)
    assert new.ledger.failed is None


def test_without_the_departures_record_it_sends_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken on purpose: what the test above protects from does happen."""

    def at_once(self: Flights, fresh: object, now_ms: int) -> None:
        departures, self._unrecorded = self._unrecorded, []
        for departure in departures:
            self._send(departure)

    monkeypatch.setattr(Flights, "_record_departures", at_once)
    old, _ = takeover()
    wake(old)
    assert old.arrived() == [b"once"]


def consumed() -> Bench:
    """A paused owner with an entry that its consumer, who has no permits yet, has not; another owner gave it out and it was acknowledged."""
    log = SimulatedLog()
    old = node(log, "a")
    sub = old.subscribe("orders")
    old.waiting = old.reader(sub, permits=0)  # type: ignore[attr-defined]
    old.publish("orders", b"entry")
    old.wait(500)
    new = node(log, "b", beside=old)
    got = new.reader(new.subscribe("orders"))
    assert got.payloads == [b"entry"]
    got.ack(*got.ids)
    new.wait(2_000)
    return old


def test_after_a_pause_consumers_get_nothing_before_a_fresh_record_is_durable() -> None:
    old = consumed()
    reader = old.waiting  # type: ignore[attr-defined]
    reader.handle.flow(10)
    wake(old)
    assert reader.payloads == []
    assert old.ledger.failed is not None


def test_without_the_look_at_the_proof_they_get_what_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tenure, "in_doubt", False)
    old = consumed()
    reader = old.waiting  # type: ignore[attr-defined]
    reader.handle.flow(10)
    assert reader.payloads == [b"entry"]


def test_after_a_pause_the_owner_that_still_is_goes_on() -> None:
    old = node(SimulatedLog(), "a")
    reader = old.reader(old.subscribe("orders"), permits=0)
    old.publish("orders", b"entry")
    old.clock.advance(60_000)
    reader.handle.flow(10)
    assert reader.payloads == []
    assert old.tick() >= 0
    old.rest()
    assert reader.payloads == [b"entry"]


def test_doubt_that_begins_while_entries_are_given_out_ends_that_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop asked the subscriptions that keep back what they have, again and again, and heard of no record any more."""
    asked: list[Pumped] = []
    wake = Pumping.wake

    def counted(self: Pumping, sub: Pumped) -> None:
        asked.append(sub)
        assert len(asked) < 1_000, "it goes in circles"
        wake(self, sub)

    bench = node(SimulatedLog(), "a")
    # A turn that takes long, as on a machine that stops for a moment.
    bench.subscribe("orders", "a").attach("a", lambda _: bench.clock.advance(60_000)).flow(10)
    then = bench.reader(bench.subscribe("orders", "b"))
    monkeypatch.setattr(Pumping, "wake", counted)
    bench.publish("orders", b"entry")
    assert then.payloads == [b"entry"]
    assert asked.count(then.sub) > 1, "it kept back what it had"


def cut_off() -> tuple[Bench, str]:
    """An owner that goes on with its turns and cannot reach the log, and a message that it has."""
    bench = node(SimulatedLog(), "a")
    id_ = bench.schedule("orders", delay_ms=60_000).id
    bench.waiting = bench.reader(bench.subscribe("orders"), permits=0)  # type: ignore[attr-defined]
    bench.publish("orders", b"entry")
    assert bench.connection is not None
    bench.connection.unreachable = True
    for _ in range(20):
        bench.clock.advance(100)
        bench.tick()
        bench.commit_some(wait=False)
    return bench, id_


def test_an_owner_that_cannot_reach_the_log_gives_out_and_shows_nothing() -> None:
    bench, id_ = cut_off()
    reader = bench.waiting  # type: ignore[attr-defined]
    reader.handle.flow(10)
    assert reader.payloads == []
    with pytest.raises(Unavailable, match="another server may own the ledger"):
        bench.engine.get(id_).value()
    assert isinstance(bench.engine.cancel(id_).error(), Unavailable)
    assert "another server may own the ledger" in str(bench.engine.trouble)


OWNER, SUBJECT = "ann", "room 1"
ENDING = Ending(reason="a newer state event took its place")


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda engine: engine.list_messages(MessageQuery()), id="list"),
        pytest.param(lambda engine: engine.list_messages(MessageQuery(state="finalised")), id="ended"),
        pytest.param(lambda engine: engine.list_messages(MessageQuery(state="retrying")), id="retrying"),
        pytest.param(lambda engine: engine.list_owned(OwnedQuery(owner=OWNER)), id="owned"),
        pytest.param(
            lambda engine: engine.list_owned(OwnedQuery(owner=OWNER, state="finalised")), id="owned ended"
        ),
        pytest.param(lambda engine: engine.end_subject(SUBJECT, ENDING), id="end subject"),
        pytest.param(lambda engine: engine.end_subject("another room", ENDING), id="end unknown subject"),
        pytest.param(lambda engine: engine.end_owner(OWNER, ENDING), id="end owner"),
        pytest.param(lambda engine: engine.end_owner("bob", ENDING), id="end unknown owner"),
    ],
)
def test_an_owner_in_doubt_lists_nothing_and_ends_nothing(ask: Callable[[Engine], Answer[Any]]) -> None:
    bench = node(SimulatedLog(), "a")
    listed = {"owner": OWNER, "subject": SUBJECT, "listed": True}
    waits = bench.schedule(FOREIGN, delay_ms=600_000, **listed).id
    bench.schedule(FOREIGN, delay_ms=1, **listed)
    bench.wait(10)
    bench.verdict(Retry("busy"))
    bench.ask(bench.engine.cancel(bench.schedule(FOREIGN, delay_ms=600_000, **listed).id))
    bench.ask(bench.engine.list_owned(OwnedQuery(owner=OWNER)))
    bench.clock.advance(60_000)
    with pytest.raises(Unavailable, match="another server may own the ledger"):
        ask(bench.engine).value()
    bench.rest()
    assert bench.state(waits) == "scheduled"


def test_an_end_of_many_fails_if_it_is_not_known_what_became_of_one() -> None:
    log = SimulatedLog()
    old = node(log, "a")
    for _ in range(2):
        old.schedule(FOREIGN, delay_ms=600_000, owner=OWNER, subject=SUBJECT, listed=True)
    old.rest()
    node(log, "b", beside=old)
    ended = old.engine.end_subject(SUBJECT, ENDING)
    wake(old)
    assert isinstance(ended.error(), Unavailable)


def test_doubt_that_comes_while_a_list_waits_for_the_registry_is_heeded() -> None:
    bench = node(SimulatedLog(), "a")
    bench.rest()
    scheduled = bench.engine.schedule(
        Message(destination=FOREIGN, delay_ms=600_000, owner=OWNER, listed=True)
    )
    before = bench.engine.list_messages(MessageQuery(state="finalised"))
    bench.clock.advance(60_000)
    assert not scheduled.settled
    bench.commit()
    while bench.work():
        pass
    assert scheduled.value().id
    assert isinstance(before.error(), Unavailable)


def test_an_answer_that_comes_late_proves_nothing_of_now() -> None:
    bench = node(SimulatedLog(), "a")
    id_ = bench.schedule("orders", delay_ms=60_000).id
    late = bench.engine.schedule(Message(destination="orders", delay_ms=600_000))
    bench.clock.advance(60_000)
    bench.commit()
    assert late.value().id
    assert isinstance(bench.engine.get(id_).error(), Unavailable)
    bench.rest()
    assert bench.state(id_) == "sent"


def test_once_it_reaches_the_log_again_it_goes_on() -> None:
    bench, id_ = cut_off()
    reader = bench.waiting  # type: ignore[attr-defined]
    reader.handle.flow(10)
    assert bench.connection is not None
    bench.connection.unreachable = False
    bench.rest()
    assert reader.payloads == [b"entry"]
    assert bench.state(id_) == "scheduled"
    assert bench.engine.trouble is None


def test_a_limit_that_is_lifted_in_doubt_gives_all_their_turns_once_it_is_over() -> None:
    """They were left at the turns that the old limit had given them: late, for hours."""
    bench = node(SimulatedLog(), "a")
    bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=0.001)))
    reader = bench.drain("orders")
    for n in range(5):
        bench.schedule("orders", payload=b"%d" % n, owner=OWNER, delay_ms=1)
    bench.wait(100)
    assert reader.payloads == [b"0"]
    lifted = bench.engine.set_policy("broker", "", Policy())
    bench.clock.advance(5_000)
    bench.commit()
    assert lifted.settled
    assert bench.engine.trouble is not None
    bench.wait(1_000)
    assert reader.payloads == [b"0", b"1", b"2", b"3", b"4"]


def test_a_proof_after_a_time_without_one_has_the_next_turn_come_at_once() -> None:
    """Otherwise consumers would get what was kept back at the next alarm only."""
    bench, _ = cut_off()
    woken: list[int] = []
    bench.engine.tell_of_earlier(woken.append)
    bench.clock.advance(100)
    bench.tick()
    assert not woken
    assert bench.connection is not None
    bench.connection.unreachable = False
    bench.rest()
    assert woken == [0]


def test_a_start_shows_nothing_before_a_record_of_its_own_is_durable() -> None:
    log = SimulatedLog()
    id_ = node(log, "a").schedule("orders", delay_ms=60_000).id
    new = node(log, "b")
    assert isinstance(new.engine.get(id_).error(), Unavailable)
    new.rest()
    assert new.state(id_) == "scheduled"


def test_who_looks_while_the_first_frame_is_taken_into_the_copy_finds_its_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = node(SimulatedLog(), "a")
    save, seen = LedgerCopy._save, []

    def looked_at(copy: LedgerCopy, state: Any) -> None:
        seen.append([segment.number for segment in new.ledger.segments()])
        save(copy, state)

    # The writer's thread waits for the disk here, and the loop goes on.
    monkeypatch.setattr(LedgerCopy, "_save", looked_at)
    new.rest()
    assert seen == [[1]]


def test_a_departure_whose_clock_is_set_back_before_its_record_is_durable_is_not_early() -> None:
    bench = node(SimulatedLog(), "a")
    id_ = bench.schedule(FOREIGN, delay_ms=5_000).id
    bench.wait(4_999)
    bench.clock.advance(1)
    bench.tick()
    bench.clock.jump(-2_000)
    bench.rest()
    assert bench.outlet.under_way == []
    bench.wait(1_999)
    assert bench.outlet.under_way == []
    bench.wait(1)
    assert len(bench.outlet.under_way) == 1
    bench.verdict(Delivered())
    assert bench.state(id_) == "sent"


def test_marks_come_often_enough_for_a_short_session() -> None:
    bench = Bench(log=SimulatedLog(), start=False)
    bench.tenure_ms = 600
    bench.start()
    bench.rest()
    for _ in range(200):
        bench.clock.advance(50)
        bench.rest()
        assert bench.engine.trouble is None


def test_an_idle_owner_marks_every_second_and_so_learns_that_it_was_superseded() -> None:
    log = SimulatedLog()
    old = node(log, "a")
    before = old.ledger.next_seq
    old.wait(10_000)
    assert old.ledger.next_seq - before >= 9
    node(log, "b", beside=old)
    old.clock.advance(1_000)
    wake(old)
    assert old.ledger.failed is not None


def test_what_was_answered_before_a_takeover_is_there_after_it() -> None:
    log = SimulatedLog()
    old = node(log, "a")
    ids = [old.schedule("orders", delay_ms=60_000, payload=b"%d" % n).id for n in range(20)]
    old.ask(old.engine.cancel(ids[3]))
    new = node(log, "b", beside=old)
    new.rest()
    assert new.state(ids[3]) == "cancelled"
    new.wait(61_000)
    assert sorted(new.drain("orders").payloads) == sorted(b"%d" % n for n in range(20) if n != 3)
