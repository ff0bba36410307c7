"""An owner's listed messages: their pages, what is remembered of them, and ending many at once."""

from collections.abc import Callable
from typing import Any

import pytest

from tarry.core.errors import Conflict, Invalid, RateLimited
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import Message, MessageView, OwnedQuery
from tarry.core.rules.policy import Policy
from tarry.engine.answer import Answer
from tarry.engine.queries.commands import Ending
from tests.unit.engine_kit import FOREIGN, Bench


def listed(delay_ms: int = 1000, **fields: object) -> Message:
    given = {"owner": "ann", "payload": b"body", "headers": {"h": "v"}, "listed": True, **fields}
    return Message(destination=FOREIGN, delay_ms=delay_ms, **given)  # type: ignore[arg-type]


def page(bench: Bench, state: str = "scheduled", **query: object) -> tuple[list[str], str | None]:
    asked = OwnedQuery(owner="ann", state=state, **query)  # type: ignore[arg-type]
    found = bench.ask(bench.engine.list_owned(asked))
    return [view.id for view in found.messages], found.next_page


def schedule(bench: Bench, message: Message) -> str:
    return bench.ask(bench.engine.schedule(message)).id


def get(bench: Bench, id_: str) -> MessageView:
    return bench.ask(bench.engine.get(id_))


def test_only_what_is_listed_is_listed_and_only_to_its_owner() -> None:
    bench = Bench()
    mine = schedule(bench, listed())
    schedule(bench, listed(listed=False))
    schedule(bench, listed(owner="bob"))
    assert page(bench) == ([mine], None)


def test_pages_by_due_instant_go_on_where_they_ended() -> None:
    bench = Bench()
    ids = [schedule(bench, listed(1000 - number)) for number in range(7)]
    first, token = page(bench, limit=3)
    assert first == ids[:3:-1]
    second, token = page(bench, limit=3, page=token)
    assert second == ids[3:0:-1]
    assert page(bench, limit=3, page=token) == (ids[:1], None)


def test_what_moves_during_a_walk_comes_at_its_end_and_the_walk_ends() -> None:
    bench = Bench()
    ids = [schedule(bench, listed(1000 + number)) for number in range(6)]
    first, token = page(bench, limit=2)
    assert first == ids[:2]
    # One that was shown, and one that was not.
    for id_ in (ids[0], ids[4]):
        bench.ask(bench.engine.restart(id_))
    new = schedule(bench, listed(1))
    second, token = page(bench, limit=2, page=token)
    assert second == [ids[2], ids[3]]
    third, token = page(bench, limit=2, page=token)
    assert third == [ids[5], ids[0]]
    # What came later is not part of this walk.
    assert page(bench, limit=2, page=token) == ([ids[4]], None)
    assert page(bench, limit=10)[0][0] == new


def test_ended_messages_are_remembered_whole_the_last_first() -> None:
    bench = Bench()
    ids = [schedule(bench, listed(1000 + number)) for number in range(3)]
    bench.ask(bench.engine.cancel(ids[1]))
    bench.leap(2000)
    attempts = {attempt.delivery.id: attempt for attempt in bench.outlet.under_way}
    attempts[ids[0]].answer(Delivered("ref"))
    bench.leap(1)
    attempts[ids[2]].answer(Refused("no", error="its words"))
    bench.rest()
    assert page(bench, "finalised") == ([ids[2], ids[0], ids[1]], None)
    first, token = page(bench, "finalised", limit=2)
    assert page(bench, "finalised", limit=2, page=token) == ([ids[1]], None)
    for life in range(2):
        if life:
            bench.crash()
            bench.start()
        sent, cancelled, failed = (get(bench, id_) for id_ in ids)
        assert [view.state for view in (sent, cancelled, failed)] == [
            State.SENT,
            State.CANCELLED,
            State.FAILED,
        ]
        for view in (sent, cancelled, failed):
            assert (view.payload, view.headers) == (b"body", {"h": "v"})
            assert view.delayed_since_ms == view.accepted_at_ms
        assert (sent.reference, sent.commanded, sent.delay_ms) == ("ref", False, 1000)
        assert (failed.error, failed.reason) == ("its words", "no")
    assert first == [ids[2], ids[0]]


def test_a_listed_message_that_fails_leaves_no_dead_letter() -> None:
    bench = Bench()
    for message in (listed(1), listed(1, listed=False)):
        schedule(bench, message)
    bench.leap(10)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Refused("no"))
    bench.rest()
    (topic,) = bench.engine.topics.names()
    assert bench.engine.topics.stats(topic).next_entry == 1


@pytest.mark.parametrize("token", ["", "x", "é", "A" * 40, "AAAA", "_" * 34])
def test_a_token_that_was_made_up_is_refused(token: str) -> None:
    bench = Bench()
    for state in ("scheduled", "finalised"):
        with pytest.raises(Invalid):
            page(bench, state, page=token)
    schedule(bench, listed())
    schedule(bench, listed())
    _, waiting = page(bench, limit=1)
    with pytest.raises(Invalid):
        page(bench, "finalised", page=waiting)


def test_all_about_a_subject_end_together_but_for_whom_it_is_not_meant() -> None:
    bench = Bench()
    mine, other = schedule(bench, listed(subject="s")), schedule(bench, listed(subject="t"))
    theirs = schedule(bench, listed(subject="s", owner="bob"))
    elsewhere = schedule(bench, listed(subject="s", namespace="a/b"))
    gone = schedule(bench, listed(subject="s"))
    bench.ask(bench.engine.cancel(gone))
    bench.ask(bench.engine.restart(mine))
    bench.leap(5)
    late = schedule(bench, listed(subject="s"))
    ending = Ending(
        reason="why", error="words", namespace="public/default", spare_owner="bob",
        accepted_before_ms=bench.now_ms - 2,
    )  # fmt: skip
    assert bench.ask(bench.engine.end_subject("s", ending)) == 1
    ended = get(bench, mine)
    assert (ended.state, ended.reason, ended.error) == (State.CANCELLED, "why", "words")
    for id_ in (other, theirs, elsewhere, late):
        assert get(bench, id_).state is State.SCHEDULED
    bench.crash()
    bench.start()
    assert bench.ask(bench.engine.end_subject("s", Ending(reason="all"))) == 3
    assert bench.ask(bench.engine.end_subject("s", Ending(reason="all"))) == 0
    assert bench.subjects.of("s") == []
    assert get(bench, other).state is State.SCHEDULED


def test_a_message_that_was_sent_is_about_nothing_any_more() -> None:
    bench = Bench()
    schedule(bench, listed(1, subject="s"))
    bench.leap(10)
    bench.outlet.under_way[0].answer(Delivered())
    bench.rest()
    assert bench.subjects.of("s") == []


def test_a_subject_is_for_listed_messages_to_other_systems() -> None:
    bench = Bench()
    with pytest.raises(Invalid):
        schedule(bench, listed(subject="s", listed=False))
    with pytest.raises(Invalid):
        schedule(bench, Message(destination="topic", delay_ms=1, listed=True, subject="s"))


def test_all_of_an_owner_end_together() -> None:
    bench = Bench()
    ids = [schedule(bench, listed()) for _ in range(3)]
    theirs = schedule(bench, listed(owner="bob"))
    assert bench.ask(bench.engine.end_owner("ann", Ending(reason="gone"))) == 3
    assert {get(bench, id_).reason for id_ in ids} == {"gone"}
    assert get(bench, theirs).state is State.SCHEDULED
    assert bench.engine.pending_of("ann", "public/default") == 0


# Hearing what came of a send


def test_who_sends_hears_the_verdict() -> None:
    bench = Bench()
    for verdict in (
        Delivered("ref"),
        Refused("no", error="words"),
        Retry("later", after_ms=1, error="words"),
    ):
        id_ = schedule(bench, listed(60_000))
        answer = bench.engine.deliver(id_)
        bench.rest()
        assert not answer.settled
        bench.outlet.under_way[-1].answer(verdict)
        bench.rest()
        assert answer.value() == verdict
    with pytest.raises(Conflict):
        bench.ask(bench.engine.deliver(page(bench, "finalised")[0][0]))


def test_what_was_sent_by_command_says_so_unless_it_was_restarted() -> None:
    bench = Bench()
    sent, restarted = schedule(bench, listed(60_000)), schedule(bench, listed(60_000))
    for id_ in (sent, restarted):
        bench.ask(bench.engine.send(id_))
        bench.outlet.under_way[-1].answer(Retry("later", after_ms=1000))
        bench.rest()
    bench.ask(bench.engine.restart(restarted))
    bench.wait(70_000)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Delivered())
    bench.rest()
    assert get(bench, sent).commanded
    assert not get(bench, restarted).commanded


def test_a_refused_try_waits_for_its_instant_again() -> None:
    bench = Bench()
    id_ = schedule(bench, listed(60_000))
    due_at_ms = get(bench, id_).due_at_ms
    answer = bench.engine.deliver(id_, keep=True)
    bench.rest()
    bench.outlet.under_way[-1].answer(Refused("no"))
    bench.rest()
    assert answer.value() == Refused("no")
    view = get(bench, id_)
    assert (view.state, view.due_at_ms, view.attempts, view.commanded) == (
        State.SCHEDULED,
        due_at_ms,
        0,
        False,
    )
    bench.wait(59_999)
    assert not bench.outlet.under_way
    bench.wait(1)
    # At its instant a refusal is the end.
    bench.outlet.under_way[-1].answer(Refused("no"))
    bench.rest()
    assert get(bench, id_).state is State.FAILED


def test_a_receiver_that_is_away_never_makes_a_message_fail() -> None:
    bench = Bench()
    id_ = schedule(bench, listed(1))
    for _ in range(bench.settings.attempts * 2):
        bench.wait(5_000)
        (attempt,) = bench.outlet.under_way
        attempt.answer(Retry("away", after_ms=5_000, counted=False))
        bench.rest()
    assert get(bench, id_).state is State.SCHEDULED


def test_commands_on_one_owners_messages_are_limited() -> None:
    bench = Bench()
    bench.ask(bench.engine.set_policy("broker", "", Policy(command_per_second=2.0)))
    ids = [schedule(bench, listed()) for _ in range(4)]
    theirs = schedule(bench, listed(owner="bob"))
    bench.ask(bench.engine.restart(ids[0]))
    bench.ask(bench.engine.cancel(ids[1]))
    commands: list[Callable[[str], Answer[Any]]] = [
        bench.engine.send, bench.engine.cancel, bench.engine.restart, bench.engine.deliver,
    ]  # fmt: skip
    for command in commands:
        with pytest.raises(RateLimited) as limited:
            bench.ask(command(ids[2]))
        assert 0 < limited.value.retry_after_ms <= 500
    bench.ask(bench.engine.cancel(theirs))
    assert get(bench, ids[2]).state is State.SCHEDULED
    # What ends them for another reason is no command.
    assert bench.ask(bench.engine.end_owner("ann", Ending(reason="gone"))) == 3


def test_a_key_may_be_all_that_tells_a_repeated_request() -> None:
    bench = Bench()
    first = schedule(bench, listed(idempotency_key="k", any_repeat=True))
    assert schedule(bench, listed(5, idempotency_key="k", any_repeat=True, payload=b"other")) == first
    bench.crash()
    bench.start()
    assert schedule(bench, listed(7, idempotency_key="k", any_repeat=True)) == first


def test_the_configuration_may_have_policies_for_namespaces() -> None:
    bench = Bench(namespace_policies={"a/b": Policy(max_delay_ms=10)})
    assert bench.engine.effective_policy(None, "a/b").max_delay_ms == 10
    assert bench.engine.effective_policy(None, "a/c").max_delay_ms == 0
    bench.ask(bench.engine.set_policy("namespace", "a/b", Policy(max_delay_ms=20)))
    assert bench.engine.effective_policy(None, "a/b").max_delay_ms == 20
