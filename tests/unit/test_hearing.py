"""Which of two answered commands holds, and what whoever waits for a send is told: what became of the message."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import Message
from tests.unit.engine_kit import FOREIGN, Bench

DELAY_MS = 60_000


def schedule(bench: Bench, delay_ms: int = DELAY_MS, **fields: Any) -> str:
    message = Message(destination=FOREIGN, delay_ms=delay_ms, owner="ann", listed=True, **fields)
    return bench.ask(bench.engine.schedule(message)).id


def state(bench: Bench, id_: str) -> str:
    return str(bench.ask(bench.engine.get(id_)).state)


LATER = {"cancel": "cancelled", "restart": "restarted"}
"""Commands that hold over a send, and the conflict of which the sender is told."""


@pytest.mark.parametrize("command", LATER)
@pytest.mark.parametrize("same_commit", [True, False])
def test_a_command_recorded_after_a_send_and_before_an_attempt_holds(command: str, same_commit: bool) -> None:
    bench = Bench()
    # The room is busy: the attempt has to wait behind another one.
    first = schedule(bench, 1, key="room")
    bench.leap(5)
    id_ = schedule(bench, key="room")
    sent = bench.engine.deliver(id_)
    if not same_commit:
        bench.rest()
        assert not sent.settled
    later = getattr(bench.engine, command)(id_)
    bench.rest()
    assert later.error() is None
    assert isinstance(error := sent.error(), Conflict)
    assert error.state == LATER[command]
    bench.outlet.under_way[-1].answer(Delivered())
    bench.rest()
    assert state(bench, first) == "sent"
    # It is as the later command said.
    assert not bench.outlet.under_way
    bench.leap(DELAY_MS - 1)
    assert not bench.outlet.under_way
    bench.leap(1)
    assert len(bench.outlet.under_way) == (1 if command == "restart" else 0)


@pytest.mark.parametrize("command", LATER)
def test_a_send_and_a_later_command_in_one_commit_are_both_answered(command: str) -> None:
    bench = Bench()
    id_ = schedule(bench)
    sent, later = bench.engine.deliver(id_), getattr(bench.engine, command)(id_)
    bench.rest()
    assert later.error() is None
    assert isinstance(error := sent.error(), Conflict)
    assert error.state == LATER[command]
    assert not bench.outlet.under_way


def test_a_send_after_a_cancel_or_a_restart_in_one_commit() -> None:
    bench = Bench()
    cancelled, restarted = schedule(bench), schedule(bench)
    first = bench.engine.cancel(cancelled), bench.engine.restart(restarted)
    too_late, sent = bench.engine.deliver(cancelled), bench.engine.deliver(restarted)
    bench.rest()
    assert [answer.error() for answer in first] == [None, None]
    assert isinstance(error := too_late.error(), Conflict)
    assert error.state == "cancelled"
    bench.outlet.under_way[-1].answer(Delivered("ref"))
    bench.rest()
    assert sent.value() == Delivered("ref")


def test_every_send_of_one_message_hears_of_its_delivery() -> None:
    bench = Bench()
    id_ = schedule(bench)
    answers = [bench.engine.deliver(id_) for _ in range(3)]
    bench.rest()
    answers.append(bench.engine.deliver(id_))
    bench.rest()
    (attempt,) = bench.outlet.under_way
    attempt.answer(Delivered("ref"))
    bench.rest()
    assert [answer.value() for answer in answers[:3]] == [Delivered("ref")] * 3
    # That one came while it was being sent.
    assert isinstance(error := answers[3].error(), Conflict)
    assert error.state == "sent"


def test_a_send_whose_version_is_carried_forward_still_hears_of_its_delivery() -> None:
    bench = Bench()
    first = schedule(bench, 1, key="room")
    bench.leap(5)
    id_ = schedule(bench, key="room")
    sent = bench.engine.deliver(id_)
    bench.rest()
    # The first one is carried to a later attempt, and with it all that is in order behind it (R9).
    bench.outlet.under_way[-1].answer(Retry("away", after_ms=100_000, counted=False))
    bench.rest()
    assert not sent.settled
    bench.leap(100_000)
    for _ in range(2):
        bench.outlet.under_way[-1].answer(Delivered("ref"))
        bench.rest()
    assert state(bench, first) == state(bench, id_) == "sent"
    assert sent.value() == Delivered("ref")


VERDICTS = [
    (Delivered("ref"), "sent", "conflict"),
    (Refused("no"), "failed", "conflict"),
    (Retry("away", after_ms=10_000, counted=False), "scheduled", "cancelled"),
    (Retry("no reply", after_ms=10_000, uncertain=True), "scheduled", "conflict"),
]
"""The verdict on a send, what the message is then, and what a cancel comes to that waited for it or comes after it."""


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(("verdict", "then", "cancel"), VERDICTS)
def test_a_cancel_and_a_send_never_both_succeed(verdict: Any, then: str, cancel: str, waits: bool) -> None:
    bench = Bench()
    id_ = schedule(bench)
    sent = bench.engine.deliver(id_)
    bench.rest()
    cancelling = bench.engine.cancel(id_) if waits else None
    bench.outlet.under_way[-1].answer(verdict)
    bench.rest()
    assert sent.value() == verdict
    if cancelling is None:
        assert state(bench, id_) == then
        cancelling = bench.engine.cancel(id_)
        bench.rest()
    assert cancelling.settled
    if cancel == "cancelled":
        assert cancelling.value().state is State.CANCELLED
    else:
        assert isinstance(cancelling.error(), Conflict)


def test_a_restart_after_a_send_whose_attempt_failed_holds() -> None:
    bench = Bench()
    id_ = schedule(bench)
    sent = bench.engine.deliver(id_)
    bench.rest()
    bench.outlet.under_way[-1].answer(Retry("away", after_ms=1_000, counted=False))
    bench.rest()
    assert isinstance(sent.value(), Retry)
    bench.ask(bench.engine.restart(id_))
    bench.leap(DELAY_MS - 1)
    assert not bench.outlet.under_way
    bench.leap(1)
    assert len(bench.outlet.under_way) == 1


def test_whoever_waits_is_told_when_the_disk_fails() -> None:
    bench = Bench()
    schedule(bench, 1, key="room")
    bench.leap(5)
    id_ = schedule(bench, key="room")
    sent = bench.engine.deliver(id_)
    bench.rest()
    bench.disk.fail_next("sync", errno.EIO)
    later = bench.engine.restart(id_)
    bench.wait(5_000)
    assert isinstance(later.error(), Unavailable)
    assert isinstance(sent.error(), Unavailable)


# Namespaces


def _commands(bench: Bench) -> dict[str, Callable[..., Any]]:
    engine = bench.engine
    return {"get": engine.get, "restart": engine.restart, "deliver": engine.deliver, "cancel": engine.cancel}


@pytest.mark.parametrize("name", ["get", "restart", "deliver", "cancel"])
def test_a_message_of_another_namespace_is_not_found(name: str) -> None:
    bench = Bench()
    id_ = schedule(bench, namespace="a/b")
    command = _commands(bench)[name]
    refused = command(id_, namespace="a/other")
    bench.rest()
    assert isinstance(refused.error(), NotFound)
    assert state(bench, id_) == "scheduled"
    reached = command(id_, namespace="a/b")
    bench.rest()
    if name == "deliver":
        bench.outlet.under_way[-1].answer(Delivered())
        bench.rest()
    assert reached.error() is None
    if name in ("deliver", "cancel"):
        # Also when it is finalised: it is not even told that there was one.
        ended = command(id_, namespace="a/other")
        bench.rest()
        assert isinstance(ended.error(), NotFound)
