"""Names of messages: at most one message that waits has a name in its namespace (ADR 0024)."""

import errno
from typing import Any

import pytest

from tarry.core.errors import Conflict, Invalid, NotFound, TooLarge, TooManyPending, Unavailable
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message, NamedMessage, NamedScheduled, OnConflict
from tarry.core.rules.policy import Policy
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench
from tests.unit.test_indexed import DAY_MS, indexed, later, reclaimed, small_world

HOME = "public/default"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def named(name: str = "trial-42", on_conflict: OnConflict = "fail", **fields: Any) -> NamedMessage:
    return NamedMessage(
        **{"destination": "orders", "delay_ms": 1_000, "name": name, "on_conflict": on_conflict, **fields}
    )


def give(bench: Bench, message: NamedMessage) -> NamedScheduled:
    done = bench.ask(bench.engine.schedule(message))
    assert isinstance(done, NamedScheduled)
    return done


def of_name(bench: Bench, name: str = "trial-42") -> str:
    return bench.engine.id_of_name(HOME, name)


# Who has a name


def test_a_message_is_found_by_its_name_and_shows_it_while_it_waits_and_when_it_has_ended(
    bench: Bench,
) -> None:
    done = give(bench, named())
    assert (done.name, done.kept, done.replaced) == ("trial-42", False, False)
    assert of_name(bench) == done.id
    assert bench.ask(bench.engine.get(done.id)).name == "trial-42"
    bench.wait(2_000)
    assert of_name(bench) == done.id
    ended = bench.ask(bench.engine.get(done.id))
    assert (ended.state, ended.name) == ("sent", "trial-42")


def test_of_two_with_one_name_the_second_is_refused(bench: Bench) -> None:
    done = give(bench, named())
    assert bench.refused(bench.engine.schedule(named(payload=b"other")), Conflict).state == "named"
    assert of_name(bench) == done.id
    assert bench.engine.stats().pending == 1


def test_keep_gives_the_answer_of_the_one_that_waits_once_that_is_durable(bench: Bench) -> None:
    first, second = (
        bench.engine.schedule(named()),
        bench.engine.schedule(named(on_conflict="keep", delay_ms=5)),
    )
    bench.tick()
    assert not second.settled
    one, two = bench.ask(first), bench.ask(second)
    assert isinstance(two, NamedScheduled)
    assert (two.id, two.due_at_ms, two.kept) == (one.id, one.due_at_ms, True)
    assert bench.engine.stats().pending == 1


def test_replace_cancels_the_one_that_waits_and_accepts_the_other_by_one_unit(bench: Bench) -> None:
    reader = bench.drain("orders")
    first = give(bench, named(payload=b"old"))
    answer = bench.engine.schedule(named(on_conflict="replace", payload=b"new", delay_ms=2_000))
    assert bench.ledger.commit() == 2, "the end of the one and the other are one frame"
    second = answer.value()
    assert isinstance(second, NamedScheduled)
    assert second.replaced
    assert second.id != first.id
    gone = bench.ask(bench.engine.get(first.id))
    assert (gone.state, gone.reason) == ("cancelled", "replaced by a new message of its name")
    assert of_name(bench) == second.id
    bench.wait(5_000)
    assert reader.payloads == [b"new"]


@pytest.mark.parametrize("durable", [False, True])
def test_a_crash_leaves_the_old_one_before_a_replace_is_durable_and_else_the_new_one(
    bench: Bench, durable: bool
) -> None:
    first = give(bench, named(payload=b"old"))
    answer = bench.engine.schedule(named(on_conflict="replace", payload=b"new"))
    if durable:
        bench.commit()
    assert answer.settled is durable
    bench.kill()
    bench.start()
    assert (of_name(bench) == first.id) is not durable
    reader = bench.drain("orders")
    bench.wait(5_000)
    assert reader.payloads == [b"new" if durable else b"old"]


@pytest.mark.parametrize("how", ["sent", "cancelled", "failed"])
def test_a_name_is_free_once_its_message_has_ended(bench: Bench, how: str) -> None:
    first = give(bench, named(destination=FOREIGN))
    if how == "cancelled":
        bench.ask(bench.engine.cancel(first.id))
    else:
        bench.wait(1_000)
        bench.outlet.under_way[0].answer(Delivered() if how == "sent" else Refused("no"))
        bench.rest()
    assert bench.state(first.id) == how
    second = give(bench, named(destination=FOREIGN))
    assert not second.replaced
    assert of_name(bench) == second.id
    # The name is the other's now.
    assert bench.ask(bench.engine.get(first.id)).name is None


def test_a_name_is_its_namespaces(bench: Bench) -> None:
    one = give(bench, named(destination=FOREIGN))
    other = give(bench, named(destination=FOREIGN, namespace="acme/shop"))
    assert one.id != other.id
    assert bench.engine.id_of_name("acme/shop", "trial-42") == other.id
    with pytest.raises(NotFound):
        bench.engine.id_of_name("acme/other", "trial-42")


def test_a_message_keeps_its_name_through_commands(bench: Bench) -> None:
    done = give(bench, named(destination=FOREIGN))
    bench.ask(bench.engine.restart(done.id, delay_ms=60_000))
    bench.ask(bench.engine.restart(of_name(bench)))
    assert bench.refused(bench.engine.schedule(named()), Conflict).state == "named"
    bench.ask(bench.engine.send(of_name(bench)))
    bench.rest()
    assert [attempt.delivery.id for attempt in bench.outlet.under_way] == [done.id]
    assert bench.ask(bench.engine.get(done.id)).name == "trial-42"


def test_a_restarted_one_is_replaced_too(bench: Bench) -> None:
    done = give(bench, named())
    bench.ask(bench.engine.restart(done.id, delay_ms=5_000))
    assert give(bench, named(on_conflict="replace")).replaced
    assert bench.state(done.id) == "cancelled"


# While it is sent


@pytest.mark.parametrize("delivered", [True, False])
def test_a_replace_waits_for_the_verdict_of_the_attempt_under_way(bench: Bench, delivered: bool) -> None:
    first = give(bench, named(destination=FOREIGN))
    bench.wait(1_000)
    answer = bench.engine.schedule(named(destination=FOREIGN, on_conflict="replace"))
    behind = bench.engine.schedule(named(destination=FOREIGN, on_conflict="keep"))
    bench.rest()
    assert not answer.settled
    bench.outlet.under_way[0].answer(Delivered() if delivered else Retry("down"))
    second, third = bench.ask(answer), bench.ask(behind)
    assert isinstance(second, NamedScheduled)
    assert isinstance(third, NamedScheduled)
    assert second.replaced is not delivered
    assert bench.state(first.id) == ("sent" if delivered else "cancelled")
    assert (third.id, third.kept) == (second.id, True)


def test_what_may_have_been_sent_is_not_replaced(bench: Bench) -> None:
    give(bench, named(destination=FOREIGN))
    bench.wait(1_000)
    bench.outlet.under_way[0].answer(Retry("no reply", uncertain=True))
    bench.rest()
    answer = bench.engine.schedule(named(destination=FOREIGN, on_conflict="replace"))
    assert bench.refused(answer, Conflict).state == "uncertain"


def test_a_failed_sync_answers_whoever_waits_for_a_verdict(bench: Bench) -> None:
    give(bench, named(destination=FOREIGN))
    bench.wait(1_000)
    answers = [bench.engine.schedule(named(destination=FOREIGN, on_conflict="replace")) for _ in range(2)]
    bench.disk.fail_next("sync", errno.EIO)
    bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=1)), Unavailable)
    bench.attempt().answer(Delivered())
    bench.wait(5_000)
    for answer in (*answers, bench.engine.schedule(named(on_conflict="keep"))):
        assert isinstance(answer.error(), Unavailable)
    with pytest.raises(Unavailable):
        of_name(bench)


# Beside other features


def test_the_lines_of_a_batch_are_decided_in_their_order(bench: Bench) -> None:
    rows = [
        named(payload=b"1"),
        Message(destination="orders", delay_ms=1),
        named(payload=b"2", on_conflict="replace"),
        named(payload=b"3"),
        named(payload=b"4", on_conflict="keep"),
    ]
    first, plain, second, third, fourth = bench.ask(bench.engine.schedule_many(rows))
    assert isinstance(first, NamedScheduled)
    assert isinstance(second, NamedScheduled)
    assert second.replaced
    assert isinstance(third, Conflict)
    assert isinstance(fourth, NamedScheduled)
    assert fourth.id == second.id
    assert not isinstance(plain, NamedScheduled)
    assert bench.ask(bench.engine.get(second.id)).payload == b"2"


def test_a_repeated_request_gets_its_first_answer_whoever_has_the_name(bench: Bench) -> None:
    first = give(bench, named(idempotency_key="k1"))
    second = give(bench, named(idempotency_key="k2", on_conflict="replace"))
    again = give(bench, named(idempotency_key="k1"))
    assert (again.id, again.repeated, again.replaced) == (first.id, True, False)
    assert of_name(bench) == second.id
    in_flight = bench.engine.schedule(named(idempotency_key="k3", on_conflict="replace"))
    repeat = bench.engine.schedule(named(idempotency_key="k3", on_conflict="replace"))
    third, same = bench.ask(in_flight), bench.ask(repeat)
    assert (same.id, same.repeated, third.repeated) == (third.id, True, False)
    other = bench.engine.schedule(named("other", idempotency_key="k3"))
    assert bench.refused(other, Conflict).state == "reused"


def test_the_one_that_is_replaced_does_not_count_for_its_owner() -> None:
    bench = Bench(broker_policy=Policy(max_pending_per_owner=1))
    give(bench, named(owner="ann"))
    bench.refused(bench.engine.schedule(named("more", owner="ann")), TooManyPending)
    assert give(bench, named(owner="ann", on_conflict="replace")).replaced
    give(bench, named("more", owner="bob"))
    bench.refused(bench.engine.schedule(named("more", owner="ann", on_conflict="replace")), TooManyPending)


def test_a_replace_that_is_refused_leaves_the_old_one(bench: Bench) -> None:
    first = give(bench, named())
    bench.refused(bench.engine.schedule(named(on_conflict="replace", payload=b"x" * (1 << 18))), TooLarge)
    assert (of_name(bench), bench.state(first.id)) == (first.id, "scheduled")


def test_of_a_group_a_message_may_have_a_name_but_replaces_none(bench: Bench) -> None:
    bench.refused(bench.engine.schedule(named(group="g", on_conflict="replace")), Invalid)
    one = give(bench, named(group="g"))
    two = give(bench, named("b", group="g", delay_ms=None))
    assert give(bench, named(on_conflict="replace")).replaced
    # It was the last of its group with a due instant.
    assert bench.state(one.id) == bench.state(two.id) == "cancelled"


def test_messages_that_are_accepted_together_have_no_names(bench: Bench) -> None:
    answer = bench.engine.schedule_many([named()], all_or_none=True)
    assert bench.refused(answer, Invalid).field == "name"


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256, "é" * 128, "a\nb", ".", "..", "\ud800"])
def test_bad_names_are_refused(bench: Bench, name: str) -> None:
    assert bench.refused(bench.engine.schedule(named(name)), Invalid).field == "name"


@pytest.mark.parametrize("name", ["trial-42", "user:7@example.org", "a b", "é" * 127, "x" * 255, "..."])
def test_good_names(bench: Bench, name: str) -> None:
    done = give(bench, named(name))
    assert (done.name, of_name(bench, name)) == (name, done.id)


# However long it waits


@pytest.mark.parametrize("loss", [0, 100])
def test_a_name_survives_crashes(bench: Bench, loss: int) -> None:
    first = give(bench, named())
    second = give(bench, named("other"))
    bench.wait(100)
    bench.crash(loss)
    bench.start()
    assert (of_name(bench), of_name(bench, "other")) == (first.id, second.id)
    bench.refused(bench.engine.schedule(named()), Conflict)
    assert give(bench, named(on_conflict="replace")).replaced
    bench.crash(loss)
    bench.start()
    assert bench.state(first.id) == "cancelled"
    assert of_name(bench) != first.id


def test_a_name_survives_indexing_and_the_reclaiming_of_its_record() -> None:
    world = small_world()
    message = named(delay_ms=400 * DAY_MS, payload=b"far")
    first = world.settle(world.engine.schedule(message))
    reclaimed(world)
    assert world.engine.id_of_name(HOME, "trial-42") == first.id
    kept = world.settle(world.engine.schedule(named(on_conflict="keep")))
    assert kept.id == first.id
    with pytest.raises(Conflict):
        world.settle(world.engine.schedule(named()))
    replace = world.engine.schedule(named(on_conflict="replace", delay_ms=300 * DAY_MS))
    behind = world.engine.schedule(named(on_conflict="replace", delay_ms=200 * DAY_MS))
    second, third = world.settle(replace), world.settle(behind)
    assert isinstance(third, NamedScheduled)
    assert third.replaced
    assert world.settle(world.engine.get(second.id)).state == "cancelled"
    assert world.settle(world.engine.get(first.id)).state == "cancelled"
    indexed(world)
    later(world, 500 * DAY_MS)
    assert world.settle(world.engine.get(third.id)).state == "sent"
    assert not world.settle(world.engine.schedule(named())).repeated


def test_a_carried_message_keeps_its_name() -> None:
    settings = EngineSettings(snapshot_every_ms=100, reclaim_every_ms=100)
    bench = Bench(settings=settings, ledger_settings=LedgerSettings(segment_bytes=4096 + 8192))
    done = give(bench, named(delay_ms=400 * DAY_MS))
    upto = bench.ledger.next_seq
    for _ in range(400):
        bench.ask(bench.engine.schedule(Message(destination="noise", delay_ms=1, payload=b"x" * 100)))
        bench.wait(50)
        if bench.ledger.first_seq > upto:
            break
    assert bench.ledger.first_seq > upto
    assert bench.ask(bench.engine.get(of_name(bench))).id == done.id
    assert bench.ask(bench.engine.get(done.id)).name == "trial-42"
    assert give(bench, named(on_conflict="replace")).replaced


def test_a_name_is_forgotten_with_the_outcome_of_its_message() -> None:
    settings = EngineSettings(finalised_retention_ms=10_000, reclaim_every_ms=1_000)
    bench = Bench(settings=settings)
    done = give(bench, named())
    waits = give(bench, named("waits", delay_ms=100_000))
    bench.wait(5_000)
    assert of_name(bench) == done.id
    bench.wait(20_000)
    with pytest.raises(NotFound):
        of_name(bench)
    assert of_name(bench, "waits") == waits.id
    assert len(bench.registry.names.select("1 = 1", ())) == 1


def test_a_name_that_has_another_message_by_now_stays_when_the_first_outcome_is_forgotten() -> None:
    settings = EngineSettings(finalised_retention_ms=10_000, reclaim_every_ms=1_000)
    bench = Bench(settings=settings)
    give(bench, named())
    second = give(bench, named(on_conflict="replace", delay_ms=100_000))
    bench.wait(30_000)
    assert of_name(bench) == second.id
