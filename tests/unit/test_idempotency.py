"""An idempotency key makes a repeated request safe: the first answer again, in flight, later, after a restart."""

import errno
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tarry.core.errors import Conflict, TarryError, Unavailable
from tarry.core.messages.line_keys import LineKeys, line_key
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.doors.dapr.columns import columns_of
from tests.unit.engine_kit import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def request(**fields: Any) -> Message:
    return Message(**{"destination": "orders", "delay_ms": 100, "idempotency_key": "once", **fields})


def test_a_repeat_in_flight_waits_for_the_first_and_gets_its_answer(bench: Bench) -> None:
    first = bench.engine.schedule(request())
    second = bench.engine.schedule(request())
    bench.tick()
    assert not first.settled
    assert not second.settled
    one, two = bench.ask(first), bench.ask(second)
    assert (one.id, one.due_at_ms) == (two.id, two.due_at_ms)
    assert (one.repeated, two.repeated) == (False, True)
    assert bench.engine.stats().pending == 1


def test_a_repeat_in_one_batch_with_the_first_gets_its_answer(bench: Bench) -> None:
    other = request(idempotency_key="twice")
    *good, bad = bench.ask(
        bench.engine.schedule_many([request(), other, request(), request(payload=b"other")])
    )
    first, second, third = [one for one in good if not isinstance(one, TarryError)]
    assert (first.repeated, second.repeated, third.repeated) == (False, False, True)
    assert third.id == first.id
    assert isinstance(bad, Conflict)
    assert bench.engine.stats().pending == 2


def test_a_repeat_gets_the_first_answer_however_late(bench: Bench) -> None:
    first = bench.ask(bench.engine.schedule(request()))
    bench.wait(5000)
    again = bench.ask(bench.engine.schedule(request()))
    assert (again.id, again.due_at_ms, again.repeated) == (first.id, first.due_at_ms, True)
    assert bench.drain("orders").ids == [0]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_repeat_after_a_restart_gets_the_first_answer(bench: Bench, flushed: bool) -> None:
    first = bench.ask(bench.engine.schedule(request(delay_ms=None, due_at_ms=5)))
    if flushed:
        bench.wait(2000)
    bench.crash()
    bench.start()
    again = bench.ask(bench.engine.schedule(request(delay_ms=None, due_at_ms=5)))
    assert (again.id, again.due_at_ms, again.past_due, again.repeated) == (first.id, 5, True, True)


@pytest.mark.parametrize("flushed", [False, True])
def test_columns_are_remembered_by_their_keys(bench: Bench, flushed: bool) -> None:
    """Also where one page of answers ends and the next begins, and beside answers that a page had before."""
    asked = [
        request(delay_ms=None, due_at_ms=5 + n, idempotency_key=line_key("key", n)) for n in (62, 64, 65)
    ]
    before = bench.ask(bench.engine.schedule(request(idempotency_key="key:63")))
    keys = LineKeys("key", np.array([62, 64, 65]))
    columns = structs.replace(columns_of(asked), line_keys=keys)
    nothing = Message(destination="")
    assert not bench.engine.any_repeated(columns, nothing)
    answer = bench.engine.schedule_columns(columns, nothing)
    in_flight = bench.engine.schedule(asked[2])
    assert not in_flight.settled
    ids = [id_.decode() for id_ in bench.ask(answer).ids.tolist()]
    assert bench.ask(in_flight).id == ids[2]
    if flushed:
        bench.wait(2000)
    bench.crash(lose_transactions=0 if flushed else 1_000)
    bench.start()
    assert bench.ask(bench.engine.schedule(request(idempotency_key="key:63"))).id == before.id
    for n, one in enumerate(asked):
        lone = structs.replace(columns_of([one]), line_keys=LineKeys("key", keys.numbers[n : n + 1]))
        assert bench.engine.any_repeated(lone, nothing)
        again = bench.ask(bench.engine.schedule(one))
        assert (again.id, again.due_at_ms, again.past_due, again.repeated) == (
            ids[n],
            one.due_at_ms,
            True,
            True,
        )
    with pytest.raises(Conflict):
        bench.ask(bench.engine.schedule(structs.replace(asked[0], payload=b"other")))
    assert bench.engine.stats().counters["accepted"] == 4


@pytest.mark.parametrize(
    "other",
    [{"payload": b"other"}, {"delay_ms": 101}, {"headers": {"a": "b"}}, {"destination": "bills"}, {"key": "k"},
     {"ttl_ms": 5}, {"group": "g"}, {"door": "pulsar"}],
)  # fmt: skip
def test_the_same_key_with_another_request_is_a_conflict(bench: Bench, other: dict[str, Any]) -> None:
    first = bench.engine.schedule(request())
    assert bench.refused(bench.engine.schedule(request(**other)), Conflict).state == "reused"
    bench.ask(first)
    bench.refused(bench.engine.schedule(request(**other)), Conflict)
    bench.reopen()
    bench.refused(bench.engine.schedule(request(**other)), Conflict)
    assert bench.engine.stats().pending == 1


def test_keys_are_the_owners_own(bench: Bench) -> None:
    one = bench.ask(bench.engine.schedule(request(owner="ann")))
    two = bench.ask(bench.engine.schedule(request(owner="bob")))
    assert one.id != two.id
    assert not two.repeated


def test_a_repeat_of_a_cancelled_or_restarted_message_still_gets_the_first_answer(bench: Bench) -> None:
    first = bench.ask(bench.engine.schedule(request()))
    bench.wait(50)
    bench.ask(bench.engine.restart(first.id))
    again = bench.ask(bench.engine.schedule(request()))
    assert (again.id, again.due_at_ms) == (first.id, first.due_at_ms)
    bench.ask(bench.engine.cancel(first.id))
    assert bench.ask(bench.engine.schedule(request())).id == first.id
    bench.wait(1000)
    bench.reopen()
    assert bench.ask(bench.engine.schedule(request())).id == first.id


def test_a_refused_request_does_not_use_its_key_up(bench: Bench) -> None:
    with pytest.raises(Exception, match="delay"):
        bench.ask(bench.engine.schedule(request(delay_ms=-1)))
    bench.refused(bench.engine.schedule(request(delay_ms=None, group="g")), Conflict)
    assert not bench.ask(bench.engine.schedule(request())).repeated


def test_a_repeat_is_not_charged_or_limited(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(max_pending_per_owner=1, accept_per_second=0.5)))
    first = bench.ask(bench.engine.schedule(request()))
    assert bench.ask(bench.engine.schedule(request())).id == first.id


def test_a_repeat_of_what_never_became_durable_is_not_answered(bench: Bench) -> None:
    bench.disk.fail_next("sync", errno.EIO)
    bench.refused(bench.engine.schedule(request()), Unavailable)
    bench.refused(bench.engine.schedule(request()), Unavailable)


def test_keys_are_forgotten_after_their_retention(bench: Bench) -> None:
    first = bench.ask(bench.engine.schedule(request()))
    bench.wait(1000)
    bench.leap(bench.settings.idempotency_retention_ms)
    bench.wait(bench.settings.reclaim_every_ms + 1)
    assert bench.ask(bench.engine.schedule(request())).id != first.id
