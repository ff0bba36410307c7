"""Commands on one message: cancel, send now, restart; at every point of its life (R11)."""

import pytest

from tarry.core import limits
from tarry.core.errors import Conflict, DelayTooLong, Invalid
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.engine.bodies import bodies as bodies_module
from tarry.ledger.reader import StoredRecord
from tests.unit.engine_kit import FOREIGN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Cancel


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_once_a_cancel_is_answered_the_message_never_goes_out(bench: Bench, destination: str) -> None:
    reader = bench.drain("orders")
    done = bench.schedule(destination, delay_ms=100)
    view = bench.ask(bench.engine.cancel(done.id))
    assert (view.state, view.finalised_at_ms) == ("cancelled", bench.now_ms)
    bench.wait(1000)
    bench.crash()
    bench.start()
    bench.wait(1000)
    assert not reader.got
    assert not bench.outlet.under_way
    assert bench.state(done.id) == "cancelled"


def test_a_queued_cancel_blocks_the_claim(bench: Bench) -> None:
    """Due at this very instant, and the cancel's record is enqueued first."""
    done = bench.schedule(delay_ms=100)
    bench.clock.advance(100)
    answer = bench.engine.cancel(done.id)
    bench.rest()
    assert bench.ask(answer).state == "cancelled"
    assert not bench.drain("orders").got


def test_a_cancel_is_answered_only_when_it_is_durable(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    answer = bench.engine.cancel(done.id)
    bench.tick()
    assert not answer.settled
    bench.commit()
    assert answer.settled


def test_a_second_cancel_is_a_conflict_that_says_what_happened(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    first, second = bench.engine.cancel(done.id), bench.engine.cancel(done.id)
    bench.ask(first)
    assert bench.refused(second, Conflict).state == "cancelled"
    for command in (bench.engine.cancel, bench.engine.send, bench.engine.restart):
        assert bench.refused(command(done.id), Conflict).state == "cancelled"


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_what_is_sent_cannot_be_commanded_any_more(bench: Bench, destination: str) -> None:
    done = bench.schedule(destination, delay_ms=1)
    bench.run(1)
    for command in (bench.engine.cancel, bench.engine.send, bench.engine.restart):
        assert bench.refused(command(done.id), Conflict).state == "sent"


def test_a_cancel_while_firing_into_a_topic_waits_and_finds_it_sent(bench: Bench) -> None:
    done = bench.schedule(delay_ms=1)
    bench.clock.advance(1)
    bench.tick()
    answer, look = bench.engine.cancel(done.id), bench.engine.get(done.id)
    assert not answer.settled
    assert not look.settled
    assert bench.refused(answer, Conflict).state == "sent"
    assert bench.ask(look).state == "sent"
    assert bench.drain("orders").ids == [0]


@pytest.mark.parametrize(
    ("verdict", "state"),
    [(Delivered(), "sent"), (Refused("no"), "failed"), (Retry("time-out", uncertain=True), "uncertain")],
)
def test_a_cancel_while_sending_waits_for_the_verdict(
    bench: Bench, verdict: Delivered | Refused | Retry, state: str
) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    assert bench.state(done.id) == "sending"
    answer = bench.engine.cancel(done.id)
    bench.rest()
    assert not answer.settled
    bench.verdict(verdict)
    assert bench.refused(answer, Conflict).state == state


def test_a_cancel_while_sending_succeeds_if_it_was_not_delivered(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    answer = bench.engine.cancel(done.id)
    bench.verdict(Retry("refused the connection"))
    assert bench.ask(answer).state == "cancelled"
    bench.leap(limits.HOUR_MS)
    assert not bench.outlet.under_way
    assert bench.state(done.id) == "cancelled"


def test_once_uncertain_always_uncertain(bench: Bench) -> None:
    """A later attempt that surely failed says nothing about the earlier one."""
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("time-out", uncertain=True, after_ms=10))
    bench.refused(bench.engine.cancel(done.id), Conflict)
    bench.wait(10)
    # Far enough that the next attempt is made by a new version (R9).
    bench.verdict(Retry("connection refused", after_ms=100_000))
    assert bench.refused(bench.engine.cancel(done.id), Conflict).state == "uncertain"
    bench.reopen()
    assert bench.refused(bench.engine.cancel(done.id), Conflict).state == "uncertain"
    bench.wait(100_000)
    bench.verdict(Delivered())
    assert bench.state(done.id) == "sent"


def test_several_commands_wait_and_the_first_decides(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    cancel, send, again = (
        bench.engine.cancel(done.id),
        bench.engine.send(done.id),
        bench.engine.cancel(done.id),
    )
    bench.verdict(Retry("no"))
    assert bench.ask(cancel).state == "cancelled"
    assert bench.refused(send, Conflict).state == "cancelled"
    assert bench.refused(again, Conflict).state == "cancelled"
    bench.wait(10_000)
    assert not bench.outlet.under_way


def test_between_two_attempts_it_can_be_cancelled(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no"))
    assert bench.state(done.id) == "scheduled"
    assert bench.ask(bench.engine.cancel(done.id)).state == "cancelled"
    bench.leap(limits.HOUR_MS)
    assert not bench.outlet.under_way


# Send now


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_send_makes_it_due_now(bench: Bench, destination: str) -> None:
    reader = bench.drain("orders")
    done = bench.schedule(destination, payload=b"now", delay_ms=limits.DAY_MS)
    view = bench.ask(bench.engine.send(done.id))
    assert view.state == "scheduled"
    bench.run()
    assert reader.payloads + bench.arrived() == [b"now"]
    assert bench.state(done.id) == "sent"
    bench.leap(limits.DAY_MS)
    assert reader.payloads + bench.arrived() == [b"now"]


def test_send_survives_a_crash_before_it_goes_out(bench: Bench) -> None:
    done = bench.schedule(delay_ms=limits.DAY_MS)
    answer = bench.engine.send(done.id)
    bench.commit()
    assert answer.settled
    bench.crash()
    bench.start()
    bench.rest()
    assert bench.drain("orders").ids == [0]
    assert bench.state(done.id) == "sent"


def test_send_between_two_attempts_does_not_wait_for_the_backoff(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=60_000))
    bench.ask(bench.engine.send(done.id))
    bench.verdict(Delivered())
    assert bench.state(done.id) == "sent"
    bench.wait(100_000)
    assert not bench.outlet.under_way


# Restart


def test_restart_begins_the_original_delay_again(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    bench.wait(60)
    view = bench.ask(bench.engine.restart(done.id))
    assert (view.due_at_ms, view.delay_ms, view.delayed_since_ms) == (bench.now_ms + 100, 100, bench.now_ms)
    assert view.id == done.id
    bench.wait(99)
    assert bench.state(done.id) == "scheduled"
    bench.wait(1)
    assert bench.state(done.id) == "sent"
    assert bench.drain("orders").ids == [0]


def test_the_delay_of_a_message_with_a_due_instant_is_what_was_left_at_acceptance(bench: Bench) -> None:
    done = bench.schedule(due_at_ms=bench.now_ms + 500)
    bench.wait(400)
    assert bench.ask(bench.engine.restart(done.id)).due_at_ms == bench.now_ms + 500


def test_restart_with_a_new_delay_or_due_instant(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    bench.wait(50)
    assert bench.ask(bench.engine.restart(done.id, delay_ms=1000)).due_at_ms == bench.now_ms + 1000
    assert bench.ask(bench.engine.restart(done.id)).due_at_ms == bench.now_ms + 1000
    at_ms = bench.now_ms + 30
    view = bench.ask(bench.engine.restart(done.id, due_at_ms=at_ms))
    assert (view.due_at_ms, view.delay_ms) == (at_ms, 30)
    bench.wait(29)
    assert bench.state(done.id) == "scheduled"
    bench.wait(1)
    assert bench.state(done.id) == "sent"


def test_restart_to_the_past_is_due_now(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    bench.ask(bench.engine.restart(done.id, due_at_ms=5))
    assert bench.state(done.id) == "sent"


@pytest.mark.parametrize("crash", [False, True])
def test_a_restarted_message_is_found_by_its_id_through_many_versions(bench: Bench, crash: bool) -> None:
    done = bench.schedule(payload=b"same", owner="ann", delay_ms=100)
    for _ in range(5):
        bench.wait(90)
        bench.ask(bench.engine.restart(done.id))
        if crash:
            bench.crash()
            bench.start()
    assert bench.view(done.id).payload == b"same"
    assert bench.engine.stats().pending == 1
    bench.wait(99)
    assert not bench.drain("orders", "a").got
    bench.wait(1)
    (entry,) = bench.drain("orders", "b").got
    assert entry.message_id == done.id
    assert bench.engine.stats().pending == 0


def test_a_heartbeat_does_not_read_the_ledger(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest bodies of messages commanded by id are in memory, as far as they fit, and only while they live."""
    read: list[int] = []
    ledger = bench.ledger
    from_disk = ledger.read

    def counted(seq: int) -> StoredRecord:
        read.append(seq)
        return from_disk(seq)

    monkeypatch.setattr(ledger, "read", counted)
    beats = [bench.schedule(FOREIGN, delay_ms=60_000, listed=True, payload=b"x" * 1000) for _ in range(3)]
    for _ in range(3):
        for beat in beats:
            assert bench.ask(bench.engine.restart(beat.id)).payload == b"x" * 1000
    assert not read
    bodies = bench.bodies
    assert len(bodies._recent) == 3
    assert bodies._recent_bytes == sum(map(len, bodies._recent.values()))
    bench.ask(bench.engine.cancel(beats.pop().id))
    assert len(bodies._recent) == 2

    monkeypatch.setattr(bodies_module, "RECENT_BYTES", 1500)
    bench.ask(bench.engine.restart(beats[0].id))
    assert len(bodies._recent) == 1
    assert bodies._recent_bytes <= 1500
    bench.ask(bench.engine.restart(beats[0].id))
    assert not read
    assert bench.ask(bench.engine.restart(beats[1].id)).payload == b"x" * 1000
    assert len(read) == 1


def test_a_message_that_is_not_listed_is_kept_in_memory_once_it_was_restarted(bench: Bench) -> None:
    bodies = bench.bodies
    done = bench.schedule(delay_ms=100)
    assert not bodies._recent
    bench.ask(bench.engine.restart(done.id))
    assert len(bodies._recent) == 1
    reader = bench.drain("orders")
    bench.wait(100)
    assert len(reader.got) == 1
    assert not bodies._recent
    assert not bodies._recent_bytes


def test_a_version_that_is_replaced_before_it_is_durable_is_not_kept(bench: Bench) -> None:
    first = bench.engine.schedule(Message(destination=FOREIGN, delay_ms=100, listed=True))
    bench.ask(first)
    answers = [bench.engine.restart(first.value().id) for _ in range(3)]
    for answer in answers:
        bench.ask(answer)
    assert len(bench.bodies._recent) == 1


def test_restart_counts_attempts_anew_and_keeps_the_acceptance(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    accepted_at_ms = bench.view(done.id).accepted_at_ms
    bench.wait(1)
    bench.verdict(Retry("no"))
    bench.ask(bench.engine.restart(done.id, delay_ms=500))
    bench.wait(500)
    assert bench.attempt().delivery.attempt == 1
    assert bench.view(done.id).accepted_at_ms == accepted_at_ms


def test_the_bounds_of_a_restart(bench: Bench) -> None:
    done = bench.schedule(delay_ms=100)
    engine = bench.engine
    assert bench.refused(engine.restart(done.id, delay_ms=1, due_at_ms=1), Invalid).field == "delay_ms"
    assert bench.refused(engine.restart(done.id, delay_ms=-1), Invalid).field == "delay_ms"
    assert bench.refused(engine.restart(done.id, due_at_ms=-1), Invalid).field == "due_at_ms"
    bench.refused(engine.restart(done.id, delay_ms=limits.MAX_DELAY_MS + 1), DelayTooLong)
    bench.refused(engine.restart(done.id, due_at_ms=1 << 62), DelayTooLong)
    bench.ask(engine.set_policy("topic", "orders", Policy(max_delay_ms=1000)))
    for delay_ms in (1001, limits.MAX_DELAY_MS + 1, 1 << 62):
        assert bench.refused(engine.restart(done.id, delay_ms=delay_ms), DelayTooLong).max_delay_ms == 1000
    assert bench.view(done.id).delay_ms == 100


def test_a_restart_rounds_up_to_the_tick(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("topic", "orders", Policy(tick_ms=1000)))
    done = bench.schedule(delay_ms=1000)
    bench.wait(1)
    view = bench.ask(bench.engine.restart(done.id, delay_ms=1))
    assert view.due_at_ms is not None
    assert view.due_at_ms % 1000 == 0
    assert 0 < view.due_at_ms - bench.now_ms <= 1000


def test_where_delays_are_off_a_restart_is_due_now(bench: Bench) -> None:
    done = bench.schedule(delay_ms=1000)
    bench.ask(bench.engine.set_policy("topic", "orders", Policy(delayed_delivery=False)))
    bench.ask(bench.engine.restart(done.id))
    assert bench.state(done.id) == "sent"


# After a recovery


def test_what_was_overdue_at_a_recovery_counts_as_being_sent(bench: Bench) -> None:
    """An overdue message may have been handed out before the crash, so a cancel waits for the next verdict (R11)."""
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.wait(1)
    bench.attempt().arrive()
    bench.crash()
    bench.start()
    answer = bench.engine.cancel(done.id)
    assert bench.engine.get(done.id).value().state == "sending"
    bench.rest()
    assert not answer.settled
    bench.verdict(Delivered())
    assert bench.refused(answer, Conflict).state == "sent"


def test_what_was_overdue_can_be_cancelled_once_it_was_tried_again(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1)
    bench.crash()
    bench.clock.advance(10)
    bench.start()
    answer = bench.engine.cancel(done.id)
    bench.rest()
    bench.verdict(Retry("no"))
    assert bench.ask(answer).state == "cancelled"


def test_what_was_overdue_and_has_expired_answers_its_cancel(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=1, ttl_ms=5)
    bench.crash()
    bench.clock.advance(1000)
    bench.start()
    answer = bench.engine.cancel(done.id)
    assert bench.refused(answer, Conflict).state == "failed"


def test_what_was_overdue_and_is_put_off_by_a_limit_answers_its_cancel(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=0.001)))
    ids = [bench.schedule(FOREIGN, delay_ms=1).id for _ in range(3)]
    bench.crash()
    bench.clock.advance(10)
    bench.start()
    answers = [bench.engine.cancel(id_) for id_ in ids]
    bench.rest()
    bench.verdict(Retry("no"))
    assert bench.ask(answers[0]).state == "cancelled"
    bench.wait(2000 * 1000)
    for attempt in list(bench.outlet.under_way):
        attempt.answer(Retry("no"))
    bench.wait(2000 * 1000)
    assert [answer.settled for answer in answers] == [True] * 3


def test_what_was_not_overdue_can_be_cancelled_at_once(bench: Bench) -> None:
    topic = bench.schedule("orders", delay_ms=1)
    foreign = bench.schedule(FOREIGN, delay_ms=1000)
    bench.crash()
    bench.clock.advance(10)
    bench.start()
    assert bench.ask(bench.engine.cancel(foreign.id)).state == "cancelled"
    # Into an own topic it goes exactly once, so there is nothing to wait for but the firing itself.
    assert bench.refused(bench.engine.cancel(topic.id), Conflict).state == "sent"


def test_an_own_topic_message_overdue_at_recovery_can_be_cancelled_before_it_fires(bench: Bench) -> None:
    done = bench.schedule("orders", delay_ms=1)
    bench.crash()
    bench.clock.advance(10)
    bench.start()
    answer = bench.engine.cancel(done.id)
    assert bench.ask(answer).state == "cancelled"
    assert not bench.drain("orders").got


def test_a_message_that_a_rate_puts_off_after_a_crash_stays_uncertain(bench: Bench) -> None:
    """R11: its new version is not overdue, and has to say itself that the last life may have sent it."""
    bench.schedule(FOREIGN, payload=b"first", delay_ms=10)
    second = bench.schedule(FOREIGN, payload=b"second", delay_ms=11)
    bench.wait(20)
    assert len(bench.outlet.under_way) == 2
    bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=0.005)))
    bench.crash()
    bench.start()
    bench.rest()
    assert [attempt.delivery.payload for attempt in bench.outlet.under_way] == [b"first"]
    assert bench.state(second.id) == "scheduled"
    bench.refused(bench.engine.cancel(second.id), Conflict)
