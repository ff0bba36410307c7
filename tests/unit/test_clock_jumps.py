"""The wall clock is set forwards and backwards: nothing is early, nothing is lost."""

import pytest

from tarry.core import limits
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.core.time.clockwatch import TRUSTED_AFTER_MS
from tarry.engine.settings import EngineSettings
from tarry.engine.upkeep import upkeep
from tests.unit.engine_kit import FOREIGN, Bench

BACK = [100, 5_000, limits.HOUR_MS, limits.YEAR_MS]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_set_forward_what_has_become_due_goes_out_at_once(bench: Bench) -> None:
    ids = [bench.schedule(payload=b"%d" % n, delay_ms=n * limits.DAY_MS).id for n in range(1, 11)]
    bench.clock.jump(5 * limits.DAY_MS)
    bench.rest()
    assert [bench.state(id_) for id_ in ids] == ["sent"] * 5 + ["scheduled"] * 5


@pytest.mark.parametrize("back_ms", BACK)
@pytest.mark.parametrize("destination", ["orders", FOREIGN])
def test_set_back_what_was_accepted_before_is_not_early_and_comes(
    bench: Bench, back_ms: int, destination: str
) -> None:
    done = bench.schedule(destination, payload=b"kept", delay_ms=10_000)
    assert done.due_at_ms is not None
    bench.wait(9_000)
    bench.clock.jump(-back_ms)
    bench.rest()
    bench.leap(back_ms + 999)
    assert not bench.drain("orders", "before").got
    assert not bench.outlet.under_way
    bench.leap(1)
    assert bench.now_ms == done.due_at_ms
    assert len(bench.drain("orders", "after").got) + len(bench.outlet.under_way) == 1


@pytest.mark.parametrize("back_ms", BACK)
def test_set_back_new_messages_are_not_early_and_at_most_as_late_as_the_step(
    bench: Bench, back_ms: int
) -> None:
    bench.schedule(delay_ms=1)
    bench.wait(20_000)
    reader = bench.drain("orders")
    reader.got.clear()
    bench.clock.jump(-back_ms)
    done = bench.schedule(payload=b"new", delay_ms=100)
    assert done.due_at_ms == bench.now_ms + 100
    bench.leap(99)
    assert not reader.got
    # The watermark keeps five seconds behind the clock: a small step back delays nothing (ADR 0006).
    bench.leap(1 + max(0, back_ms - 5_000))
    assert reader.payloads == [b"new"]


@pytest.mark.parametrize("back_ms", BACK)
def test_set_back_chores_go_on(bench: Bench, back_ms: int) -> None:
    bench.schedule(delay_ms=1)
    bench.wait(5000)
    bench.clock.jump(-back_ms)
    bench.schedule(owner="ann", idempotency_key="i", delay_ms=limits.DAY_MS)
    bench.wait(3000)
    meta = bench.registry.meta
    assert meta is not None
    assert meta.applied_seq >= bench.durable_seq - 4


def test_set_back_delayed_entries_are_not_early(bench: Bench) -> None:
    reader = bench.drain("t")
    at_ms = bench.now_ms + 10_000
    bench.publish("t", b"late", deliver_at_ms=at_ms)
    bench.wait(9_000)
    bench.clock.jump(-limits.HOUR_MS)
    bench.leap(limits.HOUR_MS + 999)
    assert not reader.got
    bench.leap(1)
    assert reader.payloads == [b"late"]


def test_set_back_while_it_waits_for_its_turn_it_is_not_early() -> None:
    """Taken from the wheel because it was due, but the clock was set back before its turn came."""
    bench = Bench(settings=EngineSettings(batch=4))
    many = [Message(destination="orders", payload=b"%d" % n, delay_ms=10_000) for n in range(100)]
    bench.ask(bench.engine.schedule_many(many))
    reader = bench.drain("orders")
    bench.clock.advance(10_000)
    bench.tick()
    bench.clock.jump(-5_000)
    bench.rest()
    early = len(reader.got)
    assert early == 4
    bench.leap(4_999)
    assert len(reader.got) == early
    bench.leap(1)
    assert len(reader.got) == 100


def test_set_back_while_it_waits_for_a_place_it_is_not_early() -> None:
    bench = Bench(settings=EngineSettings(concurrency=1))
    bench.schedule(FOREIGN, payload=b"first", delay_ms=1)
    done = bench.schedule(FOREIGN, payload=b"second", delay_ms=5000)
    bench.wait(5000)
    bench.clock.jump(-1000)
    bench.verdict(Delivered())
    assert not bench.outlet.under_way
    bench.leap(999)
    assert not bench.outlet.under_way
    bench.leap(1)
    assert bench.attempt().delivery.id == done.id


def test_set_forward_and_back_retries_and_limits_lose_nothing(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=1.0)))
    ids = [bench.schedule(FOREIGN, payload=b"%d" % n, delay_ms=100).id for n in range(5)]
    bench.wait(100)
    bench.verdict(Retry("no"))
    bench.clock.jump(limits.DAY_MS)
    bench.rest()
    bench.clock.jump(-2 * limits.DAY_MS)
    bench.run()
    bench.leap(3 * limits.DAY_MS)
    bench.run(60_000)
    assert {bench.state(id_) for id_ in ids} == {"sent"}
    assert sorted(bench.arrived()) == [b"%d" % n for n in range(5)]


def test_a_restart_with_the_clock_set_back_is_not_early(bench: Bench) -> None:
    done = bench.schedule(payload=b"kept", delay_ms=10_000)
    assert done.due_at_ms is not None
    bench.wait(5_000)
    bench.crash()
    bench.clock.jump(-limits.DAY_MS)
    bench.start()
    bench.leap(done.due_at_ms - bench.now_ms - 1)
    assert bench.state(done.id) == "scheduled"
    bench.leap(1)
    assert bench.state(done.id) == "sent"


# A clock that was wrong: an hour ahead, and then right again. Only new messages are meant here: what was accepted by the wrong
# clock is due by the wrong clock.


def ahead_and_back(bench: Bench, for_ms: int) -> None:
    """The clock is an hour ahead for some time, while the server works."""
    bench.clock.jump(limits.HOUR_MS)
    for _ in range(3):
        bench.schedule(payload=b"while ahead", delay_ms=1)
        bench.wait(for_ms // 3)
    bench.clock.jump(-limits.HOUR_MS)


def assert_on_time(bench: Bench, topic: str = "orders") -> None:
    reader = bench.drain(topic, f"at-{bench.now_ms}")
    reader.got.clear()
    bench.schedule(topic, payload=b"new", delay_ms=100)
    bench.leap(99)
    assert not reader.got
    bench.leap(1)
    assert reader.payloads == [b"new"]


def test_a_clock_that_was_ahead_for_seconds_makes_nothing_late(bench: Bench) -> None:
    """Elapsed time did not confirm it, so that the watermark did not follow it."""
    bench.schedule(delay_ms=1)
    bench.wait(20_000)
    ahead_and_back(bench, 6_000)
    assert_on_time(bench)
    assert bench.counters["watermark_lowered"] == 0


def test_a_clock_that_was_ahead_for_long_makes_new_messages_late_for_a_minute_at_most(bench: Bench) -> None:
    """The clock was believed in the end; then the watermark is lowered."""
    ahead_and_back(bench, 3 * TRUSTED_AFTER_MS)
    assert bench.watermark.fire_at_ms > bench.now_ms + 3_000_000
    bench.wait(2_000)
    assert_on_time(bench)


@pytest.mark.parametrize("how", ["clean", "killed", "power"])
def test_a_clock_that_was_ahead_at_a_start_makes_new_messages_late_for_a_minute_at_most(
    bench: Bench, how: str
) -> None:
    """A new process knows no better, as after a boot with a real-time clock in local time."""

    def restart() -> None:
        {"clean": bench.stop, "killed": bench.kill, "power": bench.crash}[how]()
        bench.start()

    bench.clock.jump(limits.HOUR_MS)
    restart()
    bench.schedule(payload=b"while ahead", delay_ms=1)
    bench.wait(10_000)
    bench.clock.jump(-limits.HOUR_MS)
    restart()
    bench.wait(2_000)
    assert_on_time(bench)
    restart()
    bench.wait(1_000)
    assert_on_time(bench)


@pytest.mark.parametrize("destination", ["orders", FOREIGN])
@pytest.mark.parametrize("indexed", [False, True])
def test_once_the_watermark_was_lowered_a_restart_loses_and_doubles_nothing(
    destination: str, indexed: bool
) -> None:
    bench = Bench(settings=EngineSettings(lead_ms=2_000))
    reader = bench.drain("orders")
    before = bench.schedule(destination, payload=b"before", delay_ms=30 * limits.MINUTE_MS)
    if indexed:
        bench.index.flush(bench.ledger)
    bench.clock.jump(limits.HOUR_MS)
    bench.run(2 * TRUSTED_AFTER_MS)
    assert bench.state(before.id) == "sent"
    bench.clock.jump(-limits.HOUR_MS)
    bench.run(2_000)
    after = bench.schedule(destination, payload=b"after", delay_ms=20 * limits.MINUTE_MS)
    bench.run(1_000)
    if indexed:
        # The cascade drops the rows that the watermark has passed, and with them the word that they have ended.
        bench.index.flush(bench.ledger)
        bench.index.compact()
    bench.crash()
    bench.start()
    bench.run(5 * limits.MINUTE_MS)
    assert (bench.state(before.id), bench.state(after.id)) == ("sent", "scheduled")
    assert [view.id for view in bench.listed()] == [after.id]
    bench.run(limits.HOUR_MS)
    assert (bench.state(before.id), bench.state(after.id)) == ("sent", "sent")
    arrived = [entry.payload for entry in reader.got] or bench.arrived()
    again = [entry.payload for entry in bench.drain("orders", "again").got] or bench.arrived()
    assert sorted(again) == [b"after", b"before"]
    assert set(arrived) <= set(again)


def test_a_cancel_after_a_crash_with_the_clock_set_back_does_not_deny_what_was_handed_out(
    bench: Bench,
) -> None:
    """R11: the last life handed it out by a clock that was ahead; that it is not due now proves nothing."""
    bench.clock.jump(limits.HOUR_MS)
    done = bench.schedule(FOREIGN, payload=b"sent?", delay_ms=10_000)
    bench.wait(10_000)
    assert bench.attempt().delivery.id == done.id
    bench.crash()
    bench.clock.jump(-limits.HOUR_MS)
    bench.start()
    cancel = bench.engine.cancel(done.id)
    bench.rest()
    assert not cancel.settled or cancel.error() is not None


def test_one_that_its_group_has_ended_holds_up_nobody_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version waits for its instant, from which the clock was set back; then it ends, and a sweep takes it out of the wheel."""
    monkeypatch.setattr(upkeep, "SWEEP_DEAD", 0)
    bench = Bench(settings=EngineSettings(concurrency=1))
    bench.schedule(FOREIGN, payload=b"first", key="k", delay_ms=1)
    grouped = bench.schedule(FOREIGN, payload=b"grouped", key="k", group="g", delay_ms=60_000)
    behind = bench.schedule(FOREIGN, payload=b"behind", key="k", delay_ms=60_001)
    bench.wait(60_001)
    bench.clock.jump(-30_000)
    bench.verdict(Delivered())
    bench.schedule("orders", payload=b"sibling", group="g", delay_ms=1)
    bench.wait(10_000)
    assert bench.state(grouped.id) == "cancelled"
    bench.wait(30_000)
    assert bench.attempt().delivery.id == behind.id


def test_a_message_that_is_accepted_before_the_watermark_is_lowered_is_not_lost_in_a_crash(
    bench: Bench,
) -> None:
    """R4: below the watermark the index takes it for dead, and a start does not look."""
    bench.index.begin()
    bench.schedule(delay_ms=1)
    bench.wait(20_000)
    bench.clock.jump(-limits.HOUR_MS)
    # Right away, before the engine has had a turn.
    accepted = bench.engine.schedule(Message(destination="orders", payload=b"new", delay_ms=100))
    bench.commit()
    done = accepted.value()
    bench.index.flush(bench.ledger)
    bench.crash()
    bench.start()
    bench.run(2 * limits.HOUR_MS)
    assert bench.state(done.id) == "sent"


def test_set_forward_by_mistake_and_back_again(bench: Bench) -> None:
    """A year forward and back: what went out went out by the wall clock, the rest keeps its instants."""
    reader = bench.drain("orders")
    soon = bench.schedule(payload=b"soon", delay_ms=limits.HOUR_MS)
    far = bench.schedule(payload=b"far", delay_ms=2 * limits.YEAR_MS)
    assert far.due_at_ms is not None
    bench.clock.jump(limits.YEAR_MS)
    bench.wait(2000)
    assert bench.state(soon.id) == "sent"
    bench.clock.jump(-limits.YEAR_MS)
    bench.wait(2000)
    assert bench.state(far.id) == "scheduled"
    late = bench.schedule(payload=b"late", delay_ms=1000)
    bench.leap(far.due_at_ms - bench.now_ms)
    assert (bench.state(far.id), bench.state(late.id)) == ("sent", "sent")
    assert sorted(reader.payloads) == [b"far", b"late", b"soon"]
