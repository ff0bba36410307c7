import time

import pytest

from tarry.core.time.clock import SystemClock
from tarry.testing.clock import SimulatedClock


def test_the_system_clock_rounds_down(monkeypatch: pytest.MonkeyPatch) -> None:
    # Up to the last nanosecond of a millisecond, the next one has not been reached: it would be early.
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_999_999)
    assert SystemClock().now_ms() == 1_700_000_000_123


def test_the_system_clock_is_the_wall_clock() -> None:
    before = time.time()
    now_ms = SystemClock().now_ms()
    assert before * 1000 - 1 <= now_ms <= time.time() * 1000


def test_a_simulated_clock_moves_only_when_told() -> None:
    clock = SimulatedClock(1000)
    assert [clock.now_ms(), clock.now_ms()] == [1000, 1000]
    clock.advance(5)
    assert clock.now_ms() == 1005
    clock.jump(-100)
    assert clock.now_ms() == 905
    clock.set(7)
    assert clock.now_ms() == 7
    assert clock.readings == [1000, 1005, 905, 7]
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
