"""Pauses of messages and of places (ADR 0027)."""

from typing import Any

import pytest

from tarry.core.errors import Conflict, Invalid, NotFound, Unavailable
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message
from tarry.core.messages.pause import PausablePlace, place_of
from tarry.core.rules.policy import Policy
from tarry.engine.queries import pausing
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Catalogued, Put
from tests.unit.engine_kit import FOREIGN, Bench, NoSpace, full, full_disk
from tests.unit.test_indexed import reclaimed, small_world

HOME = "public/default"
ANN = PausablePlace("owner", HOME, "ann")
TOPIC = PausablePlace("topic", HOME, full("orders"))
SHOP = PausablePlace("destination", HOME, "sim://shop")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def pause(bench: Bench, place: PausablePlace) -> None:
    bench.ask(bench.engine.pausing.pause_place(place))


def resume(bench: Bench, place: PausablePlace) -> None:
    bench.ask(bench.engine.pausing.resume_place(place))


def paused(bench: Bench) -> dict[str, int]:
    return {kind: count for kind, count in bench.engine.stats().paused.items() if count}


# Places


def test_a_paused_topic_gets_nothing_until_it_is_resumed_and_then_all_in_order(bench: Bench) -> None:
    reader = bench.drain("orders")
    pause(bench, TOPIC)
    for n in range(5):
        bench.schedule(payload=b"%d" % n, delay_ms=1_000 - n * 100)
    bench.schedule("others", payload=b"free", delay_ms=1_000)
    bench.wait(2_000)
    assert reader.got == []
    assert bench.drain("others").payloads == [b"free"]
    assert bench.engine.stats().pending == 5
    assert paused(bench) == {"place": 5}
    resume(bench, TOPIC)
    bench.wait(0)
    assert reader.payloads == [b"4", b"3", b"2", b"1", b"0"]
    assert paused(bench) == {}
    assert bench.ask(bench.engine.pausing.places(None)) == []


@pytest.mark.parametrize(
    ("place", "held"),
    [
        (ANN, {b"topic ann", b"sim ann"}),
        (TOPIC, {b"topic ann", b"topic bob"}),
        (SHOP, {b"sim ann", b"sim bob"}),
        (PausablePlace("destination", HOME, FOREIGN), {b"sim ann", b"sim bob"}),
        (PausablePlace("destination", HOME, "sim://shop/other"), set()),
        (PausablePlace("owner", "a/b", "ann"), set()),
    ],
)  # fmt: skip
def test_a_pause_holds_the_messages_of_its_place_alone(
    bench: Bench, place: PausablePlace, held: set[bytes]
) -> None:
    pause(bench, place)
    for owner in ("bob", "ann"):
        bench.schedule(payload=f"topic {owner}".encode(), owner=owner, delay_ms=10)
        bench.schedule(FOREIGN, payload=f"sim {owner}".encode(), owner=owner, delay_ms=10)
    bench.wait(20)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()
    arrived = {*bench.arrived(), *bench.drain("orders").payloads}
    assert arrived == {b"topic ann", b"topic bob", b"sim ann", b"sim bob"} - held
    listed = {view.payload: view.paused for view in bench.listed()}
    assert listed == dict.fromkeys(held, place.kind)


def test_of_messages_due_together_for_one_topic_only_those_of_the_place_are_held(bench: Bench) -> None:
    pause(bench, ANN)
    for owner in ("bob", "ann", "bob"):
        bench.schedule(payload=owner.encode(), owner=owner, delay_ms=10)
    bench.wait(20)
    assert bench.drain("orders").payloads == [b"bob", b"bob"]


def test_a_pause_of_a_topic_is_one_of_its_partitions(bench: Bench) -> None:
    pause(bench, TOPIC)
    bench.schedule("orders-partition-1", delay_ms=10)
    bench.wait(20)
    assert paused(bench) == {"place": 1}


def test_what_waits_for_its_instant_is_shown_as_paused_and_waits_on(bench: Bench) -> None:
    done = bench.schedule(owner="ann", delay_ms=HOUR_MS)
    pause(bench, ANN)
    assert bench.view(done.id).paused == "owner"
    bench.wait(MINUTE_MS)
    resume(bench, ANN)
    assert bench.view(done.id).paused is None
    reader = bench.drain("orders")
    bench.wait(HOUR_MS - MINUTE_MS)
    assert len(reader.got) == 1


def test_pauses_and_what_they_hold_outlive_a_crash(bench: Bench) -> None:
    pause(bench, ANN)
    bench.schedule(payload=b"a", owner="ann", delay_ms=10)
    bench.schedule(FOREIGN, payload=b"b", owner="ann", delay_ms=10)
    bench.wait(20)
    bench.crash(lose_transactions=100)
    bench.start()
    bench.leap(DAY_MS)
    assert paused(bench) == {"place": 2}
    assert [(one.kind, one.name) for one in bench.ask(bench.engine.pausing.places(HOME))] == [
        ("owner", "ann")
    ]
    assert not bench.outlet.under_way
    resume(bench, ANN)
    bench.wait(0)
    assert bench.drain("orders").payloads == [b"a"]
    bench.verdict(Delivered())
    assert bench.arrived() == [b"b"]


def test_a_crash_while_they_return_loses_and_doubles_none() -> None:
    for steps in range(12):
        bench = Bench(steps)
        pause(bench, ANN)
        for n in range(30):
            bench.schedule(payload=b"%02d" % n, owner="ann", delay_ms=10)
        bench.wait(20)
        answer = bench.engine.pausing.resume_place(ANN)
        for _ in range(steps):
            bench.tick()
            bench.commit()
        answered = answer.settled
        bench.crash()
        bench.start()
        bench.wait(10_000)
        places = bench.ask(bench.engine.pausing.places(None))
        if places:
            # The command was not answered, and is not there.
            assert not answered
            resume(bench, ANN)
            bench.wait(10_000)
        assert bench.drain("orders").payloads == [b"%02d" % n for n in range(30)]
        assert bench.ask(bench.engine.pausing.places(None)) == []


def test_of_two_pauses_each_holds(bench: Bench) -> None:
    pause(bench, ANN)
    pause(bench, TOPIC)
    bench.schedule(payload=b"a", owner="ann", delay_ms=10)
    bench.schedule(payload=b"b", owner="bob", delay_ms=10)
    bench.wait(20)
    reader = bench.drain("orders")
    resume(bench, TOPIC)
    bench.wait(0)
    assert reader.payloads == [b"b"]
    resume(bench, ANN)
    bench.wait(0)
    assert reader.payloads == [b"b", b"a"]


def test_what_was_being_sent_at_a_crash_may_have_arrived_also_once_it_is_held(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=0)
    bench.rest()
    assert bench.outlet.under_way
    pause(bench, SHOP)
    bench.crash()
    bench.start()
    bench.wait(HOUR_MS)
    assert not bench.outlet.under_way
    assert bench.view(done.id).paused == "destination"
    assert bench.refused(bench.engine.cancel(done.id), Conflict).state == "uncertain"


def test_what_is_being_sent_goes_to_its_verdict_and_its_next_attempt_is_held(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=0)
    bench.rest()
    pause(bench, SHOP)
    bench.verdict(Retry("busy", uncertain=True))
    bench.wait(HOUR_MS)
    assert not bench.outlet.under_way
    view = bench.view(done.id)
    assert (view.state, view.attempts, view.last_error, view.paused) == (
        "scheduled",
        1,
        "busy",
        "destination",
    )
    assert view.next_attempt_at_ms is None
    # The attempt may have arrived: that is not forgotten.
    assert bench.refused(bench.engine.cancel(done.id), Conflict).state == "uncertain"
    resume(bench, SHOP)
    bench.wait(0)
    assert bench.attempt().delivery.attempt == 2
    bench.verdict(Delivered())
    assert bench.state(done.id) == "sent"


def test_messages_in_order_behind_one_that_is_held_follow_it_in_order(bench: Bench) -> None:
    for n in range(3):
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=n)
    bench.wait(10)
    pause(bench, SHOP)
    bench.verdict(Retry("busy"))
    bench.wait(MINUTE_MS)
    assert paused(bench) == {"place": 3}
    resume(bench, SHOP)
    for _ in range(3):
        bench.wait(0)
        bench.verdict(Delivered())
    assert bench.arrived() == [b"0", b"1", b"2"]


def test_after_a_resume_no_more_go_out_than_the_rate_allows(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("namespace", HOME, Policy(send_per_second=10)))
    pause(bench, ANN)
    for _ in range(50):
        bench.schedule(owner="ann", delay_ms=10)
    reader = bench.drain("orders")
    for _ in range(10):
        # The watermark passes the instants at which they were due.
        bench.schedule(owner="bob", destination="others", delay_ms=0)
        bench.wait(1_000)
    resume(bench, ANN)
    bench.wait(1_000)
    assert 10 <= len(reader.got) <= 21
    bench.wait(4_000)
    assert len(reader.got) == 50


def test_a_time_to_live_goes_on_in_the_pause_of_a_place(bench: Bench) -> None:
    pause(bench, ANN)
    short = bench.schedule(owner="ann", delay_ms=10, ttl_ms=1_000)
    long = bench.schedule(owner="ann", delay_ms=10, ttl_ms=HOUR_MS)
    bench.wait(MINUTE_MS)
    # Until it is resumed it waits, and can be looked at.
    assert bench.state(short.id) == "scheduled"
    resume(bench, ANN)
    bench.wait(0)
    assert (bench.state(short.id), bench.state(long.id)) == ("failed", "sent")


def test_commands_on_held_messages(bench: Bench) -> None:
    pause(bench, ANN)
    ids = [bench.schedule(owner="ann", delay_ms=10).id for _ in range(3)]
    bench.wait(20)
    assert bench.ask(bench.engine.cancel(ids[0])).state == "cancelled"
    # Made due, it is held again.
    bench.ask(bench.engine.send(ids[1]))
    bench.wait(10)
    assert paused(bench) == {"place": 2}
    bench.ask(bench.engine.restart(ids[2], delay_ms=HOUR_MS))
    assert paused(bench) == {"place": 1}
    resume(bench, ANN)
    bench.wait(0)
    assert [bench.state(one) for one in ids] == ["cancelled", "sent", "scheduled"]


def test_a_message_that_is_cancelled_while_it_returns_never_goes_out(bench: Bench) -> None:
    reader = bench.drain("orders")
    pause(bench, TOPIC)
    ids = [bench.schedule(payload=b"%d" % number, delay_ms=10).id for number in range(2)]
    bench.wait(20)
    shortage = NoSpace(bench, Put)
    # Their new versions find no space, and wait for it.
    resume(bench, TOPIC)
    bench.wait(10)
    assert bench.ask(bench.engine.cancel(ids[0])).state == "cancelled"
    shortage.end()
    bench.wait(2_000)
    assert reader.payloads == [b"1"]
    assert [bench.state(one) for one in ids] == ["cancelled", "sent"]


def test_a_message_made_due_by_command_goes_out_when_its_place_is_resumed(bench: Bench) -> None:
    pause(bench, ANN)
    done = bench.schedule(owner="ann", delay_ms=HOUR_MS)
    bench.ask(bench.engine.send(done.id))
    bench.wait(10)
    assert paused(bench) == {"place": 1}
    resume(bench, ANN)
    bench.wait(0)
    assert bench.state(done.id) == "sent"


def test_a_delayed_entry_made_due_by_command_comes_when_its_topic_is_resumed(bench: Bench) -> None:
    bench.subscribe("orders")
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + HOUR_MS)
    pause(bench, TOPIC)
    (waiting,) = bench.listed()
    bench.ask(bench.engine.send(waiting.id))
    bench.wait(10)
    assert paused(bench) == {"place": 1}
    bench.reopen()
    resume(bench, TOPIC)
    bench.wait(10)
    assert bench.reader(bench.engine.topics.subscription("orders", "sub")).payloads == [b"later"]


def test_delayed_entries_of_a_paused_topic_are_held_too(bench: Bench) -> None:
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + 1_000)
    bench.publish("orders", b"now")
    reader = bench.drain("orders")
    pause(bench, TOPIC)
    bench.wait(2_000)
    assert reader.payloads == [b"now"]
    assert paused(bench) == {"place": 1}
    bench.reopen()
    bench.wait(1_000)
    resume(bench, TOPIC)
    bench.wait(0)
    assert bench.drain("orders").payloads == [b"later", b"now"]


def test_many_are_held_and_return_in_turns(bench: Bench) -> None:
    pause(bench, ANN)
    for n in range(1_200):
        _ = bench.engine.schedule(
            Message(destination="orders", owner="ann", payload=b"%04d" % n, delay_ms=10)
        )
    bench.wait(1_000)
    assert paused(bench) == {"place": 1_200}
    resume(bench, ANN)
    bench.wait(100)
    assert bench.drain("orders").payloads == [b"%04d" % n for n in range(1_200)]


def test_those_that_only_the_index_has_return_too() -> None:
    world = small_world()
    world.settle(world.engine.pausing.pause_place(ANN))
    world.settle(world.engine.pausing.pause_place(SHOP))
    ids = [
        world.settle(world.engine.schedule(Message(destination=to, owner="ann", delay_ms=10))).id
        for to in ("orders", FOREIGN)
    ]
    world.run(20)
    reclaimed(world)
    world.kill()
    world.start()
    assert [world.settle(world.engine.get(one)).paused for one in ids] == ["owner", "owner"]
    world.settle(world.engine.pausing.resume_place(ANN))
    world.run(3_000)
    world.settle(world.engine.pausing.resume_place(SHOP))
    world.run(3_000)
    assert [str(world.settle(world.engine.get(one)).state) for one in ids] == ["sent", "sent"]
    assert [arrival.delivery.id for arrival in world.outlet.arrivals] == ids[1:]


def test_a_place_is_paused_and_resumed_once(bench: Bench) -> None:
    first = bench.ask(bench.engine.pausing.pause_place(ANN))
    bench.wait(5)
    assert bench.ask(bench.engine.pausing.pause_place(ANN)) == first
    bench.ask(bench.engine.pausing.resume_place(ANN))
    bench.wait(0)
    bench.refused(bench.engine.pausing.resume_place(ANN), NotFound)


@pytest.mark.parametrize(
    "given",
    [{}, {"owner": ""}, {"owner": "a", "topic": "b"}, {"destination": "hello"}, {"owner": "a", "namespace": "a"},
     {"topic": "a/b/c", "namespace": "x/y"}],
)  # fmt: skip
def test_bad_places_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        place_of(given.pop("namespace", None), **given)


# One message


def test_a_paused_message_keeps_what_is_left_of_its_delay(bench: Bench) -> None:
    done = bench.schedule(payload=b"p", delay_ms=10_000)
    reader = bench.drain("orders")
    bench.wait(4_000)
    view = bench.ask(bench.engine.pausing.pause(done.id))
    assert (view.state, view.paused) == ("scheduled", "message")
    assert bench.ask(bench.engine.pausing.pause(done.id)).paused == "message"
    bench.crash()
    bench.start()
    bench.leap(DAY_MS)
    assert paused(bench) == {"message": 1}
    assert bench.engine.stats().pending == 1
    resumed = bench.ask(bench.engine.pausing.resume(done.id))
    assert (resumed.paused, resumed.due_at_ms) == (None, bench.now_ms + 6_000)
    assert paused(bench) == {}
    del reader
    reader = bench.drain("orders", "again")
    bench.wait(5_999)
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"p"]


def test_its_time_to_live_begins_at_its_new_due_instant(bench: Bench) -> None:
    done = bench.schedule(delay_ms=10_000, ttl_ms=1)
    bench.ask(bench.engine.pausing.pause(done.id))
    bench.leap(DAY_MS)
    bench.ask(bench.engine.pausing.resume(done.id))
    bench.wait(10_000)
    assert bench.state(done.id) == "sent"


def test_one_that_is_between_attempts_is_tried_again_when_it_is_resumed(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=0)
    bench.rest()
    bench.verdict(Retry("busy"))
    view = bench.ask(bench.engine.pausing.pause(done.id))
    assert (view.attempts, view.last_error, view.next_attempt_at_ms) == (1, "busy", None)
    bench.wait(HOUR_MS)
    assert not bench.outlet.under_way
    bench.ask(bench.engine.pausing.resume(done.id))
    bench.wait(0)
    assert bench.attempt().delivery.attempt == 2


def test_while_it_is_being_sent_a_pause_waits_for_the_verdict(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=0)
    bench.rest()
    answer = bench.engine.pausing.pause(done.id)
    bench.rest()
    assert not answer.settled
    bench.verdict(Delivered())
    assert bench.refused(answer, Conflict).state == "sent"


def test_a_send_or_a_restart_ends_the_pause_and_a_cancel_the_message(bench: Bench) -> None:
    ids = [bench.schedule(delay_ms=10_000).id for _ in range(3)]
    for one in ids:
        bench.ask(bench.engine.pausing.pause(one))
    bench.ask(bench.engine.send(ids[0]))
    bench.ask(bench.engine.restart(ids[1]))
    bench.ask(bench.engine.cancel(ids[2]))
    assert paused(bench) == {}
    bench.wait(10_000)
    assert [bench.state(one) for one in ids] == ["sent", "sent", "cancelled"]


def test_a_message_made_due_by_command_and_then_paused_goes_out_when_it_is_resumed(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=HOUR_MS)
    sent = bench.engine.send(done.id)
    view = bench.ask(bench.engine.pausing.pause(done.id))
    assert (sent.value().commanded, view.paused) == (True, "message")
    bench.ask(bench.engine.pausing.resume(done.id))
    bench.wait(0)
    assert bench.attempt().delivery.id == done.id


def test_a_delayed_entry_can_be_paused(bench: Bench) -> None:
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + 1_000)
    (view,) = bench.listed()
    bench.ask(bench.engine.pausing.pause(view.id))
    reader = bench.drain("orders")
    bench.wait(HOUR_MS)
    assert not reader.got
    bench.ask(bench.engine.pausing.resume(view.id))
    bench.wait(999)
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"later"]


def test_what_cannot_be_paused_or_resumed_says_why(bench: Bench) -> None:
    bench.schedule(FOREIGN, group="g", delay_ms=DAY_MS)
    member = bench.schedule(FOREIGN, group="g")
    assert "by command only" in str(bench.refused(bench.engine.pausing.pause(member.id), Conflict))
    done = bench.schedule(owner="ann", delay_ms=10)
    bench.refused(bench.engine.pausing.resume(done.id), Conflict)
    pause(bench, ANN)
    bench.wait(20)
    assert "its owner is" in str(bench.refused(bench.engine.pausing.resume(done.id), Conflict))
    bench.refused(bench.engine.pausing.pause("x" * 20), NotFound)


def test_held_messages_return_although_the_index_is_being_rewritten() -> None:
    world = small_world()
    world.settle(world.engine.pausing.pause_place(SHOP))
    scheduled = world.settle(world.engine.schedule(Message(destination=FOREIGN, delay_ms=10)))
    world.run(20)
    reclaimed(world)
    world.index.flush(world.ledger)
    world.index.compact()
    world.index.vacuum()
    world.settle(world.engine.pausing.resume_place(SHOP))
    world.run(5_000)
    assert [arrival.delivery.id for arrival in world.outlet.arrivals] == [scheduled.id]


def test_large_messages_that_are_held_together_do_not_have_to_fit_one_unit() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 18))
    pause(bench, SHOP)
    pause(bench, TOPIC)
    ids = [bench.schedule(to, payload=b"x" * 20_000, delay_ms=10).id for to in (FOREIGN, "orders") * 10]
    bench.wait(20)
    bench.rest()
    assert paused(bench) == {"place": 20}
    assert {bench.state(id_) for id_ in ids} == {"scheduled"}
    bench.reopen()
    assert paused(bench) == {"place": 20}
    resume(bench, SHOP)
    resume(bench, TOPIC)
    for _ in range(5):
        bench.wait(1_000)
        for attempt in list(bench.outlet.under_way):
            attempt.answer(Delivered())
    bench.rest()
    assert {bench.state(id_) for id_ in ids} == {"sent"}


def test_a_delayed_entry_that_its_topic_has_forgotten_is_not_held() -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders", type="exclusive"))
    bench.publish("orders", b"x", deliver_at_ms=bench.now_ms + HOUR_MS)
    reader.ack(*reader.ids)
    for _ in range(15):
        bench.leap(MINUTE_MS)
    assert bench.engine.topics.by_name[full("orders")].first == 1, "everybody was done with it"
    pause(bench, TOPIC)
    bench.leap(2 * HOUR_MS)
    bench.reopen()
    assert bench.engine.stats().pending == 0


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_a_message_that_is_being_held_when_its_place_is_resumed_goes_out(
    bench: Bench, destination: str
) -> None:
    pause(bench, ANN)
    id_ = bench.schedule(destination, owner="ann", delay_ms=10).id
    bench.clock.advance(10)
    bench.tick()
    assert bench.next_seq - 1 > bench.durable_seq, "it is on its way into the ledger"
    resume(bench, ANN)
    bench.wait(3_000)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()
    assert bench.state(id_) == "sent"


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_a_message_that_could_not_be_held_on_a_full_disk_goes_out_once_its_place_is_resumed(
    destination: str,
) -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    pause(bench, ANN)
    id_ = bench.schedule(destination, owner="ann", payload=bytes(20_000), delay_ms=10).id
    full_disk(bench)
    with pytest.raises(Unavailable):
        while True:
            bench.journal.append([Catalogued("note", "n", bytes(15_000))], lambda _: None, essential=True)
            bench.rest()
    bench.wait(20)
    assert bench.dispatcher.end_writer.waits_for_space
    resume(bench, ANN)
    bench.wait(10)
    bench.disk.capacity_bytes = None
    bench.wait(5_000)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()
    assert bench.state(id_) == "sent"


def test_no_more_than_so_many_places_are_paused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pausing, "MAX_PAUSES", 2)
    pause(bench, ANN)
    pause(bench, SHOP)
    pause(bench, ANN)
    assert bench.refused(bench.engine.pausing.pause_place(TOPIC), Conflict).state == "full"
    resume(bench, ANN)
    bench.rest()
    pause(bench, TOPIC)


def test_no_namespace_takes_the_last_paused_places_from_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pausing, "MAX_PAUSES", 4)
    bench.shared = True
    pause(bench, ANN)
    pause(bench, SHOP)
    pause(bench, ANN)
    refusal = bench.refused(bench.engine.pausing.pause_place(TOPIC), Conflict)
    assert (refusal.state, "public/default has its share of the 4 places" in str(refusal)) == ("full", True)
    pause(bench, PausablePlace("owner", "acme/eu", "ann"))
    resume(bench, ANN)
    bench.rest()
    bench.reopen()
    pause(bench, TOPIC)
    bench.shared = False
    pause(bench, ANN)
