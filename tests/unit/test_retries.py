"""Retries of failed messages: accepted once more under their ids, and their dead letters withdrawn (ADR 0030)."""

from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.errors import Conflict, DelayTooLong, NotFound, TooManyPending
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import NamedMessage, OwnedQuery
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.queries.commands import Ending
from tarry.engine.settings import EngineSettings
from tests.simulation.replay import check_replay
from tests.unit.engine_kit import FOREIGN, Bench

LETTERS = "dead-letters"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def fail(bench: Bench, **fields: Any) -> str:
    """The id of a message that its receiver refused."""
    id_ = bench.schedule(FOREIGN, delay_ms=10, **fields).id
    bench.wait(20)
    bench.verdict(Refused("410 gone"))
    bench.rest()
    assert bench.state(id_) == "failed"
    return id_


def deliver(bench: Bench) -> None:
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()


def test_a_failed_message_is_sent_once_more_as_it_was(bench: Bench) -> None:
    id_ = fail(bench, payload=b"x", headers={"a": "b"}, key="k", owner="ann", ttl_ms=HOUR_MS)
    accepted_at_ms = bench.view(id_).accepted_at_ms
    assert bench.engine.stats().pending == 0
    view = bench.ask(bench.engine.retry(id_))
    assert (view.id, view.state, view.attempts, view.last_error) == (id_, "scheduled", 0, None)
    shown = bench.view(id_)
    assert (shown.payload, shown.headers, shown.key, shown.owner) == (b"x", {"a": "b"}, "k", "ann")
    assert (shown.ttl_ms, shown.accepted_at_ms) == (HOUR_MS, accepted_at_ms)
    assert bench.engine.stats().pending == 1
    assert bench.listed(state="finalised") == []
    bench.rest()
    (attempt,) = bench.outlet.under_way
    assert attempt.delivery.id == id_, "the receiver knows it by the key that it had"
    deliver(bench)
    assert bench.state(id_) == "sent"
    counters = bench.engine.stats().counters
    assert (counters["accepted"], counters["failed"], counters["sent"]) == (2, 1, 1)
    assert bench.engine.stats().pending == 0


def test_a_retry_at_a_new_time_waits_and_answers_to_commands(bench: Bench) -> None:
    id_ = fail(bench, payload=b"x")
    assert bench.ask(bench.engine.retry(id_, delay_ms=HOUR_MS)).due_at_ms == bench.now_ms + HOUR_MS
    bench.ask(bench.engine.restart(id_, delay_ms=DAY_MS))
    assert bench.ask(bench.engine.cancel(id_)).state == "cancelled"
    bench.refused(bench.engine.retry(id_), Conflict)
    bench.leap(2 * DAY_MS)
    assert not bench.outlet.under_way


COMMANDS: dict[str, Callable[[Bench, str], Answer[Any]]] = {
    "cancel": lambda bench, id_: bench.engine.cancel(id_),
    "restart": lambda bench, id_: bench.engine.restart(id_, delay_ms=HOUR_MS),
    "send": lambda bench, id_: bench.engine.send(id_),
    "pause": lambda bench, id_: bench.engine.pausing.pause(id_),
    "get": lambda bench, id_: bench.engine.get(id_),
    "retry": lambda bench, id_: bench.engine.retry(id_, delay_ms=DAY_MS),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_waits_for_the_registry_finds_the_message_that_was_retried_meanwhile(
    bench: Bench, command: str
) -> None:
    id_ = bench.schedule(FOREIGN, delay_ms=10).id
    bench.wait(20)
    bench.outlet.under_way[0].answer(Refused("410 gone"))
    bench.engine.tick()
    # The end is not in the registry yet: who asks for it waits for that.
    retried = bench.engine.retry(id_, delay_ms=DAY_MS)
    asked = COMMANDS[command](bench, id_)
    assert not retried.settled
    assert not asked.settled
    bench.rest()
    assert retried.value().id == id_
    if command == "retry":
        with pytest.raises(Conflict):
            asked.value()
    else:
        assert asked.value().id == id_
    after = {"cancel": "cancelled", "send": "sending"}
    assert bench.state(id_) == after.get(command, "scheduled")


@pytest.mark.parametrize("bring", ["scheduled", "sent", "cancelled"])
def test_only_what_has_failed_is_retried(bench: Bench, bring: str) -> None:
    id_ = bench.schedule(FOREIGN, delay_ms=10).id
    if bring == "cancelled":
        bench.ask(bench.engine.cancel(id_))
    if bring == "sent":
        bench.wait(20)
        deliver(bench)
    assert bench.refused(bench.engine.retry(id_), Conflict).state == bring
    bench.refused(bench.engine.retry("0" * 64), NotFound)
    bench.refused(bench.engine.retry(id_, namespace="acme/other"), NotFound)


def test_a_retry_withdraws_the_dead_letter(bench: Bench) -> None:
    sub = bench.subscribe(LETTERS)
    id_ = fail(bench, payload=b"x", headers={"a": "b"})
    other = fail(bench, payload=b"other")
    bench.ask(bench.engine.retry(id_))
    reader = bench.reader(sub)
    assert reader.payloads == [b"other"]
    assert reader.got[0].headers["tarry-id"] == other
    stats = bench.engine.topics.stats(f"persistent://public/default/{LETTERS}")
    assert stats.subscriptions["sub"]["backlog"] == 1
    # It may fail again: then there is a new one.
    bench.verdict(Refused("still gone"))
    bench.rest()
    assert reader.payloads == [b"other", b"x"]
    bench.ask(bench.engine.retry(id_))
    deliver(bench)
    assert bench.state(id_) == "sent"


def test_a_letter_in_the_hands_of_a_consumer_is_withdrawn_too(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe(LETTERS))
    id_ = fail(bench, payload=b"x")
    assert reader.payloads == [b"x"]
    bench.ask(bench.engine.retry(id_))
    reader.handle.close()
    again = bench.reader(reader.sub, "again")
    assert again.payloads == []


def test_an_acknowledged_dead_letter_settles_its_message(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe(LETTERS))
    slow = bench.subscribe(LETTERS, "slow")
    id_ = fail(bench, payload=b"x")
    reader.ack(0)
    bench.rest()
    bench.ask(bench.engine.retry(id_))
    bench.verdict(Refused("still gone"))
    bench.rest()
    for sub in (reader.sub, slow):
        one = bench.reader(sub, f"settles {sub.name}")
        one.ack(1)
        one.handle.close()
    reader.ack(1)
    bench.rest()
    assert bench.refused(bench.engine.retry(id_), Conflict).state == "settled"


def test_a_topic_that_was_deleted_has_no_content_to_retry(bench: Bench) -> None:
    id_ = fail(bench, payload=b"x")
    full = f"persistent://public/default/{LETTERS}"
    bench.ask(bench.engine.topics.delete(full))
    assert bench.refused(bench.engine.retry(id_), Conflict).state == "settled"
    # Also where another topic has the name, and an entry in that place.
    bench.publish(LETTERS, b"not it")
    assert bench.refused(bench.engine.retry(id_), Conflict).state == "settled"


def test_without_dead_letters_the_end_has_the_content() -> None:
    bench = Bench(settings=EngineSettings(dead_letter_topic=""))
    id_ = fail(bench, payload=b"x", headers={"a": "b"})
    assert bench.view(id_).payload == b"x"
    bench.ask(bench.engine.retry(id_))
    deliver(bench)
    assert bench.arrived() == [b"x"]


def test_a_listed_message_is_on_its_owners_lists_again(bench: Bench) -> None:
    id_ = fail(bench, payload=b"x", owner="ann", listed=True, subject="room")
    bench.ask(bench.engine.retry(id_, delay_ms=HOUR_MS))
    waiting = bench.ask(bench.engine.list_owned(OwnedQuery(owner="ann"))).messages
    ended = bench.ask(bench.engine.list_owned(OwnedQuery(owner="ann", state="finalised"))).messages
    assert ([one.id for one in waiting], ended) == ([id_], [])
    assert bench.ask(bench.engine.end_subject("room", Ending(reason="gone"))) == 1
    assert bench.state(id_) == "cancelled"


def test_a_retry_keeps_the_name_unless_another_has_it(bench: Bench) -> None:
    message = NamedMessage(destination=FOREIGN, delay_ms=10, payload=b"x", name="n")
    id_ = bench.ask(bench.engine.schedule(message)).id
    bench.wait(20)
    bench.verdict(Refused("gone"))
    bench.rest()
    bench.ask(bench.engine.retry(id_, delay_ms=HOUR_MS))
    assert bench.engine.id_of_name("public/default", "n") == id_
    assert bench.view(id_).name == "n"
    bench.refused(bench.engine.schedule(message), Conflict)
    bench.ask(bench.engine.send(id_))
    bench.rest()
    bench.verdict(Refused("gone"))
    bench.rest()
    taker = bench.ask(bench.engine.schedule(NamedMessage(destination=FOREIGN, delay_ms=HOUR_MS, name="n"))).id
    assert bench.ask(bench.engine.retry(id_, delay_ms=HOUR_MS)).name is None
    assert bench.engine.id_of_name("public/default", "n") == taker


def test_one_of_a_group_is_not_retried(bench: Bench) -> None:
    id_ = fail(bench, group="g")
    assert bench.refused(bench.engine.retry(id_), Conflict).state == "grouped"


def test_limits_hold_for_a_retry(bench: Bench) -> None:
    id_ = fail(bench, owner="ann")
    bench.ask(
        bench.engine.set_policy(
            "namespace", "public/default", Policy(max_pending_per_owner=1, max_delay_ms=HOUR_MS)
        )
    )
    bench.refused(bench.engine.retry(id_, delay_ms=DAY_MS), DelayTooLong)
    bench.schedule(FOREIGN, owner="ann", delay_ms=HOUR_MS)
    bench.refused(bench.engine.retry(id_), TooManyPending)


def test_one_that_may_have_arrived_is_not_cancelled_after_a_retry(bench: Bench) -> None:
    id_ = bench.schedule(FOREIGN, delay_ms=10).id
    bench.wait(20)
    bench.verdict(Retry("no reply", 10, uncertain=True))
    bench.wait(20)
    bench.verdict(Refused("gone"))
    bench.rest()
    bench.ask(bench.engine.retry(id_, delay_ms=HOUR_MS))
    assert bench.refused(bench.engine.cancel(id_), Conflict).state == "uncertain"


@pytest.mark.parametrize(
    "restart", [Bench.reopen, lambda bench: (bench.crash(lose_transactions=100), bench.start())]
)
def test_a_retry_outlives_a_restart(bench: Bench, restart: Callable[[Bench], object]) -> None:
    sub = bench.subscribe(LETTERS)
    first, second = fail(bench, payload=b"1"), fail(bench, payload=b"2")
    bench.ask(bench.engine.retry(first, delay_ms=HOUR_MS))
    assert check_replay(bench)
    restart(bench)
    assert (bench.state(first), bench.state(second)) == ("scheduled", "failed")
    assert bench.engine.stats().pending == 1
    del sub
    reader = bench.reader(bench.subscribe(LETTERS))
    assert reader.payloads == [b"2"]
    bench.ask(bench.engine.retry(second, delay_ms=HOUR_MS))
    bench.wait(HOUR_MS)
    deliver(bench)
    assert sorted(bench.arrived()) == [b"1", b"2"]
    assert bench.engine.stats().pending == 0
    restart(bench)
    assert (bench.state(first), bench.state(second)) == ("sent", "sent")
    bench.wait(HOUR_MS)
    assert not bench.outlet.under_way


def test_a_retry_whose_unit_is_lost_never_was(bench: Bench) -> None:
    bench.subscribe(LETTERS)
    id_ = fail(bench, payload=b"x")
    lost = bench.engine.retry(id_)
    assert not lost.settled
    bench.crash()
    bench.start()
    assert bench.state(id_) in ("failed", "scheduled", "sending")
    letters = bench.reader(bench.subscribe(LETTERS)).payloads
    assert letters == ([b"x"] if bench.state(id_) == "failed" else [])


def test_delivered_messages_of_a_schedule_are_not_doubled(bench: Bench) -> None:
    """An old version of a retried message stays dead, also when its record is read again."""
    id_ = fail(bench, payload=b"x")
    bench.ask(bench.engine.retry(id_))
    deliver(bench)
    bench.reopen()
    bench.leap(DAY_MS)
    assert not bench.outlet.under_way
