"""The watchdog: a long turn of the loop is told with its place, and measured."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tarry.serve.composition.watchdog import LONG_S, Watchdog
from tests.serving import serving
from tests.waiting import until


def dawdle(seconds: float) -> None:
    """Keep the loop from turning, by sleeping."""
    time.sleep(seconds)


def toil(seconds: float) -> None:
    """Keep the loop from turning, by working."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_long_turn_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(asyncio.get_running_loop())
    watchdog.start()
    with caplog.at_level(logging.WARNING, "tarry.serve.composition.watchdog"):
        dawdle(LONG_S + 0.3)
        await until(lambda: watchdog.long_turns > 0)
    watchdog.stop()
    assert "in dawdle" in caplog.text
    # It is measured from the first sign that was asked for during the turn.
    assert watchdog.longest_s > LONG_S
    # Sleeping is no work.
    assert watchdog.longest_cpu_s < watchdog.longest_s


async def test_work_is_measured_by_the_processor() -> None:
    watchdog = Watchdog(asyncio.get_running_loop())
    watchdog.start()
    toil(0.6)
    await until(lambda: watchdog.long_turns > 0)
    watchdog.stop()
    assert watchdog.longest_cpu_s > LONG_S


async def test_a_loop_that_turns_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(asyncio.get_running_loop())
    watchdog.start()
    await until(lambda: watchdog.longest_s > 0)
    watchdog.stop()
    assert watchdog.longest_cpu_s < LONG_S
    assert not watchdog._thread.is_alive()


async def test_a_server_has_one_and_its_figures_are_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as server:
        toil(0.6)

        async def told() -> bool:
            text = (await server.client.get("/metrics")).text
            found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tarry_loop"))
            return (
                float(found["tarry_loop_long_turns_total"]) > 0
                and float(found["tarry_loop_longest_turn_seconds"]) > LONG_S
                and float(found["tarry_loop_longest_turn_cpu_seconds"]) > LONG_S
            )

        await until(told)
