"""Between the ledger's thread and the engine's: every call that is brought over is made there, once and in order."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tarry.engine.drive import Driver
from tarry.ledger.bell import Bell
from tests.unit.engine_kit import Bench
from tests.waiting import until, wait_until


def driven(faults: list[Exception] | None = None) -> Driver:
    told: list[Exception] = [] if faults is None else faults
    return Driver(Bench().engine, asyncio.get_running_loop(), told.append)


async def test_calls_from_a_thread_are_made_on_the_loops_in_order() -> None:
    driver = driven()
    made: list[tuple[int, int]] = []

    def bring() -> None:
        for number in range(1000):
            driver.post(lambda number=number: made.append((number, threading.get_ident())))  # type: ignore[misc]

    thread = threading.Thread(target=bring)
    thread.start()
    await until(lambda: len(made) == 1000)
    thread.join()
    assert made == [(number, threading.get_ident()) for number in range(1000)]


async def test_what_is_brought_just_as_the_bell_is_heard_is_not_left_lying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own ring goes with the one before it: nothing else would come to look."""
    driver = driven()
    made: list[str] = []
    heard = Bell.wait

    def late(bell: Bell) -> None:
        if "second" not in made:
            driver.post(lambda: made.append("second"))
        heard(bell)

    monkeypatch.setattr(Bell, "wait", late)
    driver.post(lambda: made.append("first"))
    await until(lambda: made == ["first", "second"])


async def test_a_call_may_bring_another() -> None:
    driver = driven()
    made: list[str] = []
    driver.post(lambda: driver.post(lambda: made.append("inner")))
    await until(lambda: made == ["inner"])
    driver.post(lambda: made.append("next"))
    await until(lambda: made == ["inner", "next"])


async def test_a_fault_in_one_call_is_told_and_the_others_are_made() -> None:
    faults: list[Exception] = []
    driver = driven(faults)
    made: list[str] = []

    def fail() -> None:
        raise ValueError("broken")

    for call in (fail, lambda: made.append("after"), fail):
        driver.post(call)
    await until(lambda: len(faults) == 2)
    assert made == ["after"]
    assert [str(fault) for fault in faults] == ["broken", "broken"]


def test_nothing_is_brought_to_a_loop_that_is_closed() -> None:
    async def make() -> Driver:
        return driven()

    driver = asyncio.run(make())
    with pytest.raises(RuntimeError):
        driver.post(lambda: None)


# The bell


def test_a_bell_that_was_rung_often_has_been_rung_once() -> None:
    bell = Bell()
    for _ in range(3):
        bell.ring()
    bell.wait()
    os.set_blocking(bell.fd, False)
    with pytest.raises(BlockingIOError):
        bell.wait()


def test_who_waits_for_a_bell_is_woken_by_it() -> None:
    bell = Bell()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bell.wait)
        wait_until(waiting.running)
        assert not waiting.done()
        bell.ring()
        waiting.result(30)


def test_a_bell_that_nobody_has_any_more_is_closed() -> None:
    bell = Bell()
    fd = bell.fd
    del bell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
