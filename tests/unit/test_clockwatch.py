"""The watch on the wall clock: which steps elapsed time confirms, and for how long a step forward is doubted."""

import pytest

from tarry.core.time.clockwatch import TRUSTED_AFTER_MS, ClockWatch
from tarry.testing.clock import SimulatedClock

TOLERANCE_MS = 5_000
HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


def look(watch: ClockWatch, clock: SimulatedClock) -> str | None:
    return watch.look(clock.now_ms())


def test_passing_time_is_no_step(clock: SimulatedClock) -> None:
    watch = ClockWatch(clock, TOLERANCE_MS)
    for ms in (1, 1_000, HOUR_MS, 400 * 24 * HOUR_MS):
        clock.advance(ms)
        assert look(watch, clock) is None
        assert watch.confirmed_ms(clock.now_ms()) == clock.now_ms()


def test_a_clock_that_is_slewed_is_followed_however_far_it_goes(clock: SimulatedClock) -> None:
    watch = ClockWatch(clock, TOLERANCE_MS)
    for _ in range(100):
        clock.advance(1_000)
        clock.jump(TOLERANCE_MS)
        assert look(watch, clock) is None
    assert watch.steps == {"ahead": 0, "back": 0}


def test_a_step_forward_is_doubted_until_the_clock_is_back(clock: SimulatedClock) -> None:
    watch = ClockWatch(clock, TOLERANCE_MS)
    clock.jump(HOUR_MS)
    assert look(watch, clock) == "ahead"
    clock.advance(6_000)
    assert look(watch, clock) is None
    assert watch.confirmed_ms(clock.now_ms()) == clock.now_ms() - HOUR_MS
    clock.jump(-HOUR_MS)
    assert look(watch, clock) == "back"
    assert (watch.ahead_ms, watch.steps) == (0, {"ahead": 1, "back": 1})


def test_a_clock_that_stays_ahead_is_trusted_in_the_end_and_then_like_any_other(
    clock: SimulatedClock,
) -> None:
    watch = ClockWatch(clock, TOLERANCE_MS)
    clock.jump(HOUR_MS)
    assert look(watch, clock) == "ahead"
    clock.advance(TRUSTED_AFTER_MS - 1)
    assert look(watch, clock) is None
    assert watch.ahead_ms == HOUR_MS
    clock.advance(1)
    assert look(watch, clock) == "trusted"
    assert watch.confirmed_ms(clock.now_ms()) == clock.now_ms()
    clock.jump(-HOUR_MS)
    assert look(watch, clock) == "back"


def test_a_step_back_is_believed_at_once(clock: SimulatedClock) -> None:
    watch = ClockWatch(clock, TOLERANCE_MS)
    clock.jump(-HOUR_MS)
    assert look(watch, clock) == "back"
    assert watch.confirmed_ms(clock.now_ms()) == clock.now_ms()
    clock.jump(HOUR_MS)
    assert look(watch, clock) == "ahead"
