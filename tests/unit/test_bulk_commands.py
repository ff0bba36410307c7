"""Bulk commands: counted, confirmed, carried out in steps, stopped, and gone on with after a crash (ADR 0031)."""

from typing import Any

import pytest

from tarry.core.errors import Conflict, Invalid, NotFound
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.core.messages.bulk_command import MAX_UNFINISHED, BulkCommand, MessageFilter
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message
from tarry.core.messages.pause import place_of
from tarry.engine.bulk_commands import bulk_commands
from tarry.engine.bulk_commands.walk import STEP
from tests.simulation.replay import check_replay
from tests.unit.engine_kit import FOREIGN, Bench, full
from tests.unit.test_indexed import reclaimed, small_world

MANY = 10 * STEP
"""Messages of a command that takes a while."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def asked(bench: Bench, action: Any, *, due_at_ms: int | None = None, **chosen: Any) -> BulkCommand:
    command = bench.ask(
        bench.engine.bulk_commands.ask(action, MessageFilter(**chosen), "ann", due_at_ms=due_at_ms)
    )
    return settle(bench, command.number)


def settle(bench: Bench, number: int) -> BulkCommand:
    for _ in range(1_000):
        command = bench.ask(bench.engine.bulk_commands.get(number))
        if command.phase not in ("counting", "running"):
            return command
        bench.wait(5)
    raise AssertionError("the command does not come to an end")


def confirmed(bench: Bench, command: BulkCommand) -> BulkCommand:
    bench.ask(bench.engine.bulk_commands.confirm(command.number, command.counted, "bob"))
    return settle(bench, command.number)


def done(bench: Bench, action: Any, **fields: Any) -> BulkCommand:
    return confirmed(bench, asked(bench, action, **fields))


def payloads(bench: Bench) -> set[Any]:
    return {view.payload for view in bench.listed(limit=1000)}


def test_nothing_is_done_before_the_count_is_confirmed(bench: Bench) -> None:
    for n in range(5):
        bench.schedule(payload=b"%d" % n, owner="ann", delay_ms=HOUR_MS)
    bench.schedule(payload=b"bob", owner="bob", delay_ms=HOUR_MS)
    command = asked(bench, "cancel", owner="ann")
    assert (command.phase, command.counted, command.done, command.asked_by) == ("counted", 5, 0, "ann")
    bench.wait(1_000)
    assert len(bench.listed()) == 6
    assert (
        bench.refused(bench.engine.bulk_commands.confirm(command.number, 6, "bob"), Conflict).state == "count"
    )
    late = bench.schedule(payload=b"late", owner="ann", delay_ms=HOUR_MS)
    command = confirmed(bench, command)
    assert (command.phase, command.done, command.passed, command.confirmed_by) == ("done", 5, 0, "bob")
    assert payloads(bench) == {b"bob", b"late"}, "what came after the count was not counted"
    assert bench.state(late.id) == "scheduled"
    (ended,) = {view.reason for view in bench.listed(state="finalised")}
    assert ended == f"cancelled by command {command.number}"


@pytest.mark.parametrize(
    ("chosen", "hit"),
    [
        ({"owner": "ann"}, {b"1"}),
        ({"key_prefix": "order-"}, {b"1", b"2"}),
        ({"key": "order-2"}, {b"2"}),
        ({"destination": full("orders")}, {b"1", b"3"}),
        ({"door": "dapr"}, {b"3"}),
        ({"due_from_ms": 2 * HOUR_MS}, {b"2", b"3"}),
        ({"due_to_ms": 2 * HOUR_MS}, {b"1"}),
        ({"namespace": "acme/eu"}, {b"4"}),
        ({"owner": "nobody"}, set()),
    ],
)  # fmt: skip
def test_each_field_of_a_filter(bench: Bench, chosen: dict[str, Any], hit: set[bytes]) -> None:
    chosen = {name: bench.now_ms + at if name.startswith("due_") else at for name, at in chosen.items()}
    bench.schedule(payload=b"1", owner="ann", key="order-1", delay_ms=HOUR_MS)
    bench.schedule(FOREIGN, payload=b"2", key="order-2", delay_ms=2 * HOUR_MS)
    bench.schedule(payload=b"3", door="dapr", delay_ms=3 * HOUR_MS)
    bench.schedule(FOREIGN, payload=b"4", namespace="acme/eu", delay_ms=HOUR_MS)
    before = payloads(bench)
    command = done(bench, "cancel", **chosen)
    assert (command.counted, command.done) == (len(hit), len(hit))
    assert before - payloads(bench) == hit


@pytest.mark.parametrize("action", ["cancel", "move", "send"])
def test_delayed_messages_of_pulsars_clients_are_meant_too(bench: Bench, action: str) -> None:
    bench.subscribe("orders")
    bench.publish("orders", b"a", b"b", deliver_at_ms=bench.now_ms + HOUR_MS, door="pulsar")
    bench.schedule(payload=b"c", delay_ms=HOUR_MS)
    moved_ms = bench.now_ms + DAY_MS if action == "move" else None
    command = done(bench, action, due_at_ms=moved_ms, door="pulsar")
    assert (command.counted, command.done, command.passed) == (2, 2, 0)
    left = {(view.payload, view.due_at_ms) for view in bench.listed()}
    due = {b"a", b"b"} if action == "move" else set()
    assert {payload for payload, due_ms in left if due_ms == moved_ms} == due
    assert b"c" in {payload for payload, _ in left}
    bench.wait(10)
    reader = bench.reader(bench.engine.topics.subscription("orders", "sub"))
    assert set(reader.payloads) == ({b"a", b"b"} if action == "send" else set())
    assert done(bench, "cancel", door="pulsar").counted == len(due)


def test_many_delayed_messages_are_moved_once_each(bench: Bench) -> None:
    bench.subscribe("orders")
    payloads = [b"%d" % n for n in range(3 * STEP)]
    bench.publish("orders", *payloads, deliver_at_ms=bench.now_ms + HOUR_MS, door="pulsar")
    moved_ms = bench.now_ms + DAY_MS
    command = done(bench, "move", due_at_ms=moved_ms, door="pulsar")
    assert (command.counted, command.done, command.passed) == (3 * STEP, 3 * STEP, 0)
    assert {view.due_at_ms for view in bench.listed(limit=1000)} == {moved_ms}


@pytest.mark.parametrize("action", ["send", "move"])
def test_held_messages_are_met_once(bench: Bench, action: str) -> None:
    """Made due by a command, a message of a paused place is held again, behind all others: where the command comes by."""
    bench.ask(bench.engine.pausing.pause_place(place_of(None, owner="ann")))
    for n in range(3 * STEP):
        bench.schedule(payload=b"%d" % n, owner="ann", delay_ms=0 if n % 2 else HOUR_MS)
    bench.wait(100)
    moved_ms = bench.now_ms if action == "move" else None
    command = done(bench, action, owner="ann", due_at_ms=moved_ms)
    assert (command.counted, command.done, command.passed) == (3 * STEP, 3 * STEP, 0)
    bench.wait(100)
    assert len(bench.listed(limit=1000)) == 3 * STEP
    bench.ask(bench.engine.pausing.resume_place(place_of(None, owner="ann")))
    bench.wait(5_000)
    assert bench.listed() == []


def test_moving_gives_another_due_instant_once_each(bench: Bench) -> None:
    ids = [bench.schedule(payload=b"%d" % n, delay_ms=HOUR_MS + n).id for n in range(3 * STEP)]
    due_at_ms = bench.now_ms + DAY_MS
    command = done(bench, "move", due_at_ms=due_at_ms)
    assert (command.counted, command.done) == (len(ids), len(ids))
    assert {bench.view(id_).due_at_ms for id_ in ids} == {due_at_ms}


def test_sending_sends_what_waits(bench: Bench) -> None:
    for n in range(STEP + 7):
        bench.schedule(payload=b"%d" % n, key="k", delay_ms=HOUR_MS + n)
    reader = bench.drain("orders")
    command = done(bench, "send", key="k")
    bench.wait(10)
    assert (command.done, len(reader.got)) == (STEP + 7, STEP + 7)


def test_failed_messages_are_retried_by_filter(bench: Bench) -> None:
    for n in range(5):
        bench.schedule(FOREIGN, payload=b"%d" % n, owner="ann" if n else "bob", delay_ms=10)
    bench.wait(20)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Refused("gone"))
    bench.rest()
    assert done(bench, "retry", state="failed", owner="ann").done == 4
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()
    assert sorted(bench.arrived()) == [b"1", b"2", b"3", b"4"]
    assert len(bench.listed(state="finalised", outcome="failed")) == 1


def test_what_is_tried_again_is_cancelled_by_state(bench: Bench) -> None:
    bench.schedule(FOREIGN, payload=b"tried", delay_ms=10)
    bench.schedule(FOREIGN, payload=b"waits", delay_ms=HOUR_MS)
    bench.wait(20)
    bench.verdict(Retry("away", HOUR_MS))
    assert done(bench, "cancel", state="retrying").done == 1
    assert payloads(bench) == {b"waits"}


def test_what_is_being_sent_is_waited_for(bench: Bench) -> None:
    bench.schedule(FOREIGN, payload=b"x", delay_ms=10)
    bench.wait(20)
    command = bench.ask(bench.engine.bulk_commands.ask("cancel", MessageFilter(), "ann"))
    command = settle(bench, command.number)
    bench.ask(bench.engine.bulk_commands.confirm(command.number, 1, "ann"))
    bench.wait(100)
    assert bench.ask(bench.engine.bulk_commands.get(command.number)).phase == "running"
    bench.verdict(Delivered())
    command = settle(bench, command.number)
    assert (command.done, command.passed) == (0, 1)


def test_a_stopped_command_leaves_the_rest(bench: Bench) -> None:
    for n in range(10 * STEP):
        bench.schedule(payload=b"%d" % n, delay_ms=HOUR_MS)
    command = asked(bench, "cancel")
    bench.ask(bench.engine.bulk_commands.confirm(command.number, command.counted, "ann"))
    bench.wait(20)
    stopped = bench.ask(bench.engine.bulk_commands.stop(command.number, "bob"))
    assert (stopped.phase, stopped.ended_by) == ("stopped", "bob")
    assert 0 < stopped.done < 10 * STEP
    bench.wait(1_000)
    left = bench.engine.stats().pending
    assert 0 < left <= 10 * STEP - stopped.done
    bench.wait(1_000)
    assert bench.engine.stats().pending == left
    bench.refused(bench.engine.bulk_commands.confirm(command.number, command.counted, "ann"), Conflict)
    assert bench.ask(bench.engine.bulk_commands.stop(command.number, "ann")).ended_by == "bob"


@pytest.mark.parametrize("action", ["cancel", "move", "send"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_command_goes_on_after_a_restart_and_does_nothing_twice(action: str, crash: bool) -> None:
    bench = Bench()
    due_at_ms = bench.now_ms + DAY_MS if action == "move" else None
    ids = [bench.schedule(payload=b"%d" % n, delay_ms=HOUR_MS + n).id for n in range(MANY)]
    command = asked(bench, action, due_at_ms=due_at_ms)
    bench.ask(bench.engine.bulk_commands.confirm(command.number, command.counted, "ann"))
    for _ in range(2):
        bench.wait(6)
        assert bench.ask(bench.engine.bulk_commands.get(command.number)).phase == "running"
        assert check_replay(bench) or crash
        if crash:
            bench.crash(lose_transactions=100)
            bench.start()
        else:
            bench.reopen()
    assert settle(bench, command.number).phase == "done"
    reader = bench.drain("orders")
    bench.wait(10)
    views = [bench.view(id_) for id_ in ids]
    if action == "move":
        assert {(view.state, view.due_at_ms) for view in views} == {("scheduled", due_at_ms)}
    else:
        assert {view.state for view in views} == {"cancelled" if action == "cancel" else "sent"}
    sent = MANY if action == "send" else 0
    assert (len({one.payload for one in reader.got}), len(reader.got)) == (sent, sent)
    assert bench.engine.stats().pending == (MANY if action == "move" else 0)


def test_a_count_is_begun_again_where_a_crash_left_it(bench: Bench) -> None:
    for n in range(3 * STEP):
        bench.schedule(payload=b"%d" % n, delay_ms=HOUR_MS + n)
    command = bench.ask(bench.engine.bulk_commands.ask("cancel", MessageFilter(), "ann"))
    bench.crash()
    bench.start()
    assert settle(bench, command.number).counted == 3 * STEP


def test_messages_that_only_the_index_has_are_found() -> None:
    world = small_world()
    ids = [
        world.settle(
            world.engine.schedule(Message(destination=FOREIGN, owner="ann", delay_ms=HOUR_MS + n))
        ).id
        for n in range(2 * STEP)
    ]
    reclaimed(world)
    bulk = world.engine.bulk_commands
    number = world.settle(bulk.ask("cancel", MessageFilter(owner="ann"), "ann")).number
    world.run(1_000)
    assert world.settle(bulk.get(number)).counted == len(ids)
    world.settle(bulk.confirm(number, len(ids), "ann"))
    world.run(3_000)
    assert world.settle(bulk.get(number)).done == len(ids)
    assert {str(world.settle(world.engine.get(one)).state) for one in ids} == {"cancelled"}


def test_commands_are_listed_and_bad_ones_refused(bench: Bench) -> None:
    bulk = bench.engine.bulk_commands
    for action, fields, chosen in (
        ("move", {}, {}), ("cancel", {"due_at_ms": 1}, {}), ("retry", {}, {}), ("cancel", {}, {"state": "failed"}),
        ("cancel", {}, {"namespace": "nowhere"}), ("move", {"due_at_ms": 1, "delay_ms": 1}, {}),
    ):  # fmt: skip
        bench.refused(bulk.ask(action, MessageFilter(**chosen), "ann", **fields), Invalid)  # type: ignore[arg-type]
    bench.refused(bulk.get(7), NotFound)
    first, second = asked(bench, "cancel"), asked(bench, "cancel", namespace="acme/eu")
    assert [one.number for one in bench.ask(bulk.all(None))] == [second.number, first.number]
    assert [one.number for one in bench.ask(bulk.all("acme/eu"))] == [second.number]
    for _ in range(MAX_UNFINISHED - 2):
        asked(bench, "cancel")
    assert bench.refused(bulk.ask("cancel", MessageFilter(), "ann"), Conflict).state == "full"
    bench.leap(2 * HOUR_MS)
    assert {one.phase for one in bench.ask(bulk.all(None))} == {"stopped"}, "nobody confirmed them"
    bench.leap(8 * DAY_MS)
    assert bench.ask(bulk.all(None)) == []


def test_no_namespace_takes_the_last_commands_from_the_others(bench: Bench) -> None:
    bulk = bench.engine.bulk_commands
    bench.shared = True
    half = [asked(bench, "cancel", namespace="acme/eu") for _ in range(MAX_UNFINISHED // 2)]
    refusal = bench.refused(bulk.ask("cancel", MessageFilter(namespace="acme/eu"), "ann"), Conflict)
    assert refusal.state == "full"
    assert "acme/eu has its share of the 20 commands" in str(refusal)
    asked(bench, "cancel")
    # What is admitted is asked once: a start takes all that there are, whoever shares the server now.
    bench.reopen()
    assert {one.phase for one in bench.ask(bench.engine.bulk_commands.all("acme/eu"))} == {"counted"}
    bench.ask(bench.engine.bulk_commands.stop(half[0].number, "ann"))
    bench.shared = False
    while len(bench.engine_state.command_book.unfinished()) < MAX_UNFINISHED:
        asked(bench, "cancel", namespace="acme/eu")


def test_a_command_that_is_over_is_remembered_although_the_clock_is_set_back(bench: Bench) -> None:
    command = done(bench, "cancel")
    bench.clock.jump(-HOUR_MS)
    bench.wait(5_000)
    assert bench.ask(bench.engine.bulk_commands.get(command.number)).phase == "done"


def test_no_more_than_so_many_commands_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_commands, "MAX_KEPT", 2)
    commands = [done(bench, "cancel").number for _ in range(4)]
    waiting = asked(bench, "cancel").number
    bench.wait(5_000)
    remembered = [one.number for one in bench.ask(bench.engine.bulk_commands.all(None))]
    assert remembered == [waiting, *commands[:1:-1]], "the newest, and all that are not over"


def test_the_many_commands_of_one_namespace_make_no_other_forget_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_commands, "MAX_KEPT", 4)
    first = done(bench, "cancel").number
    acme = [done(bench, "cancel", namespace="acme/eu").number for _ in range(6)]
    bench.wait(5_000)
    remembered = [one.number for one in bench.ask(bench.engine.bulk_commands.all(None))]
    assert remembered == [*acme[:2:-1], first]
