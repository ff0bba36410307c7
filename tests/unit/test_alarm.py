"""An alarm rings at its instant, and the driver turns with it."""

import asyncio
import ctypes
import errno
import os
import select
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tarry.core.time.clock import SystemClock
from tarry.engine.loop import alarm as module
from tarry.engine.loop import driver as driver_module
from tarry.engine.loop.alarm import Alarm
from tarry.engine.loop.driver import Driver
from tests.waiting import until

CLOCK = SystemClock()


def rings_within(alarm: Alarm, seconds: float) -> bool:
    return bool(select.select([alarm.fd], [], [], seconds)[0])


def test_it_rings_at_its_instant_and_not_before() -> None:
    alarm = Alarm()
    for _ in range(20):
        at_ms = CLOCK.now_ms() + 7
        alarm.set(at_ms)
        assert rings_within(alarm, 30)
        assert CLOCK.now_ms() >= at_ms
        alarm.heard()
        assert not rings_within(alarm, 0)


@pytest.mark.parametrize("at_ms", [-5, 0, 1, 1_700_000_000_000])
def test_an_instant_that_is_past_rings_at_once(at_ms: int) -> None:
    alarm = Alarm()
    alarm.set(at_ms)
    assert rings_within(alarm, 30)


def test_the_last_instant_counts() -> None:
    alarm = Alarm()
    alarm.set(CLOCK.now_ms() + 3_600_000)
    alarm.set(CLOCK.now_ms() + 1)
    assert rings_within(alarm, 30)
    alarm.set(CLOCK.now_ms() + 3_600_000)
    assert not rings_within(alarm, 0)
    # Who was about to hear it finds it still.
    alarm.heard()


@pytest.mark.parametrize("number", [errno.ECANCELED, errno.EINVAL])
def test_a_clock_that_was_set_unheard_is_no_error_and_anything_else_is(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the manual page of timerfd_settime has it; nobody sets this machine's clock for a test."""

    def settime(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(module, "_libc", SimpleNamespace(timerfd_settime=settime))
    alarm = object.__new__(Alarm)
    alarm.fd = os.open(os.devnull, os.O_RDONLY)
    if number == errno.ECANCELED:
        alarm.set(1)
        return
    with pytest.raises(OSError, match="Invalid argument"):
        alarm.set(1)


def test_one_that_nobody_has_any_more_is_closed() -> None:
    alarm = Alarm()
    fd = alarm.fd
    del alarm
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


class Turning:
    """As much of an engine as the driver wants: each turn asks for the next one."""

    def __init__(self, *steps_ms: int) -> None:
        self.clock = CLOCK
        self.on_earlier: Callable[[int], None] = lambda _: None
        self.asked_ms: list[int] = []
        self.turned_ms: list[int] = []
        self._steps_ms = list(steps_ms)

    def tell_of_earlier(self, on_earlier: Callable[[int], None]) -> None:
        self.on_earlier = on_earlier

    def tick(self) -> int:
        self.turned_ms.append(self.clock.now_ms())
        step_ms = self._steps_ms.pop(0) if self._steps_ms else 3_600_000
        self.asked_ms.append(self.clock.now_ms() + step_ms if step_ms else 0)
        return self.asked_ms[-1]


def driven(engine: Any) -> Driver:
    return Driver(engine, asyncio.get_running_loop(), lambda error: pytest.fail(str(error)))


async def test_the_driver_turns_when_it_was_asked_to_and_not_before() -> None:
    engine = Turning(3, 0, 11, 1, 0, 0, 5)
    driver = driven(engine)
    driver.start()
    await until(lambda: len(engine.turned_ms) == 8)
    driver.stop()
    assert all(turned >= asked for asked, turned in zip(engine.asked_ms, engine.turned_ms[1:], strict=False))


async def test_the_driver_turns_earlier_if_something_is_due_earlier_and_not_at_all_once_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_module, "MAX_SLEEP_MS", 3_600_000)
    engine = Turning()
    driver = driven(engine)
    driver.start()
    engine.on_earlier(CLOCK.now_ms() + 5)
    await until(lambda: len(engine.turned_ms) == 2)
    at_ms = CLOCK.now_ms() + 5
    engine.on_earlier(at_ms)
    driver.stop()
    other = Alarm()
    other.set(at_ms)
    await until(lambda: rings_within(other, 0))
    await asyncio.sleep(0)
    assert len(engine.turned_ms) == 2
