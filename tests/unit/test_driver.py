"""Between the ledger's thread and the engine's: every call that is brought over is made there, once and in order."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tarry.engine.loop.driver import Driver, Offloader
from tarry.index.index import IndexView
from tarry.ledger.wakeup import Wakeup
from tarry.testing.insides import InsidesOf
from tests.serving import serving
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
    heard = Wakeup.wait

    def late(bell: Wakeup) -> None:
        if "second" not in made:
            driver.post(lambda: made.append("second"))
        heard(bell)

    monkeypatch.setattr(Wakeup, "wait", late)
    driver.post(lambda: made.append("first"))
    await until(lambda: made == ["first", "second"])


async def test_what_comes_during_a_turn_is_seen_to_before_the_next() -> None:
    """Consumers would wait for a whole burst else: its turns follow one another, and the bell is heard behind them."""
    driver = driven()
    made: list[str] = []
    driver._posted.append(lambda: made.append("durable"))
    driver.start()
    assert made == ["durable"]
    driver.stop()


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


async def test_once_closed_nothing_is_brought_over() -> None:
    driver = driven()
    made: list[str] = []
    driver.post(lambda: made.append("too late"))
    driver.close()
    await asyncio.sleep(0.02)
    assert made == []


# Slow work


async def test_slow_work_is_done_elsewhere_and_told_here() -> None:
    faults: list[Exception] = []
    offload = Offloader(asyncio.get_running_loop(), "slow", faults.append)
    told: list[tuple[Exception | None, int]] = []
    done: list[int] = []
    offload(
        lambda: done.append(threading.get_ident()), lambda error: told.append((error, threading.get_ident()))
    )
    await until(lambda: bool(told))
    assert told == [(None, threading.get_ident())]
    assert done != [threading.get_ident()]
    assert faults == []
    offload.close()


async def test_what_was_under_way_when_it_was_closed_ends_and_nobody_goes_on_from_it() -> None:
    """Going on would mean more slow work, or a registry that is closed: a fault in a server that is only stopping."""
    faults: list[Exception] = []
    offload = Offloader(asyncio.get_running_loop(), "slow", faults.append)
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        go_on.wait(30)
        done.append("first")

    offload(work, lambda _: done.append("told"))
    offload(lambda: done.append("not begun yet"), lambda _: None)
    begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    offload.close()
    await asyncio.sleep(0.02)
    offload(lambda: done.append("too late"), lambda _: None)
    assert done == ["first"]
    assert faults == []


async def test_a_server_that_stops_while_it_reads_its_index_has_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with serving(tmp_path / "data") as server:
        horizon = InsidesOf(server.engine).horizon
        newest = horizon.index.newest

        def slow() -> IndexView:
            begun.set()
            go_on.wait(30)
            return newest()

        def look_again(_: IndexView | None) -> None:
            horizon.look(lambda _: None)

        monkeypatch.setattr(horizon.index, "newest", slow)
        while not begun.is_set():
            horizon.look(look_again)
            await asyncio.sleep(0.001)
        # By then it is stopping; `serving` asserts that there was no fault.
        threading.Timer(0.3, go_on.set).start()


# The bell


def test_a_bell_that_was_rung_often_has_been_rung_once() -> None:
    bell = Wakeup()
    for _ in range(3):
        bell.ring()
    bell.wait()
    os.set_blocking(bell.fd, False)
    with pytest.raises(BlockingIOError):
        bell.wait()


def test_who_waits_for_a_bell_is_woken_by_it() -> None:
    bell = Wakeup()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(bell.wait)
        wait_until(waiting.running)
        assert not waiting.done()
        bell.ring()
        waiting.result(30)


def test_a_bell_that_nobody_has_any_more_is_closed() -> None:
    bell = Wakeup()
    fd = bell.fd
    del bell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
