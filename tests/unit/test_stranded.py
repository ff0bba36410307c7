"""Messages due for a part that this start does not have: they wait, uncounted, and go out when a start has it again."""

import logging

import pytest

from tarry.core.errors import Invalid, Unavailable
from tarry.core.limits import DAY_MS, STRANDED_MS
from tarry.core.messages.delivery import Delivered, Missing, Retry
from tarry.core.messages.message import Message
from tarry.engine.settings import EngineSettings
from tarry.index.index import LoadedRows
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Key
from tarry.testing.index import SimulatedView
from tests.unit.engine_kit import FOREIGN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def restart(bench: Bench, *, has_outlet: bool) -> None:
    bench.has_outlet = has_outlet
    bench.reopen()


def test_it_waits_for_a_start_that_has_its_outlet(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    done = bench.schedule(FOREIGN, payload=b"p", owner="ann", delay_ms=1_000)
    restart(bench, has_outlet=False)
    with caplog.at_level(logging.WARNING):
        bench.wait(1_000)
    assert "there is no outlet for sim:" in caplog.text
    view = bench.view(done.id)
    assert (view.state, view.attempts, view.due_at_ms) == ("scheduled", 0, done.due_at_ms)
    assert bench.engine.stats().stranded == {"sim": 1}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        restart(bench, has_outlet=False)
    assert "wait for an outlet for sim:, which this start does not have: 1;" in caplog.text
    # However long it takes, nothing is tried, and nothing holds the watermark back.
    bench.leap(DAY_MS)
    bench.wait(130_000)
    assert bench.state(done.id) == "scheduled"
    assert bench.watermark.fire_at_ms > bench.now_ms - 130_000
    restart(bench, has_outlet=True)
    bench.rest()
    attempt = bench.attempt()
    assert (attempt.delivery.id, attempt.delivery.attempt, attempt.delivery.payload) == (done.id, 1, b"p")
    bench.verdict(Delivered())
    assert bench.state(done.id) == "sent"
    assert bench.engine.stats().stranded == {}
    assert bench.engine.pending_of("ann", "public/default") == 0


def test_a_new_message_for_it_is_refused(bench: Bench) -> None:
    restart(bench, has_outlet=False)
    bench.refused(bench.engine.schedule(Message(destination=FOREIGN, delay_ms=1)), Invalid)


def test_they_can_be_cancelled_listed_and_restarted(bench: Bench) -> None:
    gone = bench.schedule(FOREIGN, payload=b"gone", delay_ms=10)
    moved = bench.schedule(FOREIGN, payload=b"moved", delay_ms=10)
    restart(bench, has_outlet=False)
    bench.wait(10)
    assert bench.engine.stats().stranded == {"sim": 2}
    assert {view.id for view in bench.listed()} == {gone.id, moved.id}
    assert bench.ask(bench.engine.cancel(gone.id)).state == "cancelled"
    bench.ask(bench.engine.restart(moved.id, delay_ms=5_000))
    assert bench.engine.stats().stranded == {}
    restart(bench, has_outlet=True)
    bench.run(5_000)
    assert bench.arrived() == [b"moved"]


def test_they_return_in_order_and_before_what_is_due_after_them(bench: Bench) -> None:
    def schedule(n: int, delay_ms: int) -> None:
        bench.schedule(FOREIGN, payload=b"%d" % n, key="k", delay_ms=delay_ms)

    for n in range(3):
        schedule(n, 10 - n)
    schedule(9, 60_000)
    restart(bench, has_outlet=False)
    bench.wait(10_000)
    assert bench.engine.stats().stranded == {"sim": 3}
    bench.kill()
    bench.clock.advance(60_000)
    bench.has_outlet = True
    bench.start()
    bench.run()
    assert bench.arrived() == [b"2", b"1", b"0", b"9"]


def test_one_that_a_command_made_due_goes_out_when_it_returns(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, delay_ms=DAY_MS)
    restart(bench, has_outlet=False)
    bench.ask(bench.engine.send(done.id))
    bench.rest()
    assert bench.engine.stats().stranded == {"sim": 1}
    restart(bench, has_outlet=True)
    bench.rest()
    assert bench.attempt().delivery.id == done.id


def test_many_return_in_several_steps() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 20))
    messages = [Message(destination=FOREIGN, payload=b"%d" % n, delay_ms=1_000) for n in range(2_500)]
    bench.ask(bench.engine.schedule_many(messages))
    restart(bench, has_outlet=False)
    bench.wait(1_000)
    assert bench.engine.stats().stranded == {"sim": 2_500}
    restart(bench, has_outlet=True)
    bench.run(2_000)
    assert sorted(map(int, bench.arrived())) == list(range(2_500))
    assert bench.engine.stats().pending == 0


@pytest.mark.parametrize("index_first", [True, False])
def test_those_that_only_the_index_has_return_too(index_first: bool) -> None:
    bench = Bench(
        settings=EngineSettings(snapshot_every_ms=1_000, reclaim_every_ms=1_000),
        ledger_settings=LedgerSettings(segment_bytes=1 << 14),
    )
    done = bench.schedule(FOREIGN, payload=b"p", delay_ms=1_000)
    restart(bench, has_outlet=False)
    if index_first:
        bench.index.flush(bench.ledger)
    bench.wait(1_000)
    stranded = bench.next_seq - 1
    for _ in range(40):
        bench.schedule(payload=bytes(1_000), delay_ms=1)
    bench.wait(1_000)
    bench.index.flush(bench.ledger)
    bench.wait(30_000)
    assert bench.first_seq > stranded
    assert bench.state(done.id) == "scheduled"
    restart(bench, has_outlet=True)
    bench.run(1_000)
    assert bench.arrived() == [b"p"]
    assert bench.state(done.id) == "sent"


def test_a_verdict_that_a_part_is_missing_is_no_attempt(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"p", key="k", delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("busy", after_ms=10))
    bench.wait(10)
    bench.verdict(Missing("there is no component"))
    view = bench.view(done.id)
    assert (view.state, view.attempts) == ("scheduled", 1)
    assert bench.engine.stats().stranded == {"sim": 1}
    bench.wait(200_000)
    assert not bench.outlet.under_way
    restart(bench, has_outlet=True)
    bench.rest()
    assert bench.attempt().delivery.attempt == 2


def test_a_member_of_a_group_waits_and_its_sibling_may_go(bench: Bench) -> None:
    stranded = bench.schedule(FOREIGN, group="g", delay_ms=10)
    sibling = bench.schedule("orders", group="g", delay_ms=20)
    restart(bench, has_outlet=False)
    bench.wait(20)
    assert (bench.state(stranded.id), bench.state(sibling.id)) == ("cancelled", "sent")
    assert bench.engine.stats().stranded == {}


def test_its_time_to_live_is_its_own(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, ttl_ms=60_000, delay_ms=10)
    restart(bench, has_outlet=False)
    bench.wait(100_000)
    assert bench.state(done.id) == "scheduled"
    restart(bench, has_outlet=True)
    bench.run(1_000)
    view = bench.view(done.id)
    assert (view.state, bench.arrived()) == ("failed", [])
    assert "time to live" in (view.reason or "")


def test_an_index_that_cannot_be_read_holds_nothing_else_up_for_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.schedule(FOREIGN, payload=b"stranded", delay_ms=10)
    restart(bench, has_outlet=False)
    bench.wait(10)
    bench.index.flush(bench.ledger)
    load = SimulatedView.load

    def fail(view: SimulatedView, low: Key, high: Key, limit: int) -> LoadedRows:
        if low.fire_at_ms == STRANDED_MS:
            raise Unavailable("the disk is away")
        return load(view, low, high, limit)

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedView, "load", fail)
        restart(bench, has_outlet=True)
        bench.schedule(FOREIGN, payload=b"other", delay_ms=10)
        bench.run(4_000)
        assert bench.arrived() == [b"other"]
    bench.run(4_000)
    assert bench.arrived() == [b"other", b"stranded"]


def test_the_instant_is_behind_all_due_instants() -> None:
    assert Key(STRANDED_MS, 0) > Key(Bench().now_ms + 101 * 366 * DAY_MS, 0)
