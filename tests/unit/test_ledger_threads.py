"""The ledger with its threads, on the real disk."""

import asyncio
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tarry.core.errors import TarryError, Unavailable
from tarry.ledger.disk import COPIED_BYTES, MAX_PARTS, RealDisk, RealFile
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.segment import Segment
from tarry.ledger.spares import Spares
from tarry.ledger.writer import LARGE_BYTES
from tests.unit.ledger_kit import StandingClock, contents, record

SETTINGS = LedgerSettings(segment_bytes=1 << 18)
WAIT_S = 20


def opened(path: Path, settings: LedgerSettings = SETTINGS) -> Ledger:
    return Ledger.open(RealDisk(), str(path / "ledger"), settings, StandingClock())


async def appended(ledger: Ledger, unit: list, essential: bool = False) -> int:  # type: ignore[type-arg]
    """Append as the engine does: on the loop's thread, waiting for the answer there."""
    future = asyncio.get_running_loop().create_future()
    engine = threading.get_ident()

    def done(error: TarryError | None) -> None:
        assert threading.get_ident() == engine
        future.set_exception(error) if error else future.set_result(None)

    seq = ledger.append(unit, done, essential=essential)
    await asyncio.wait_for(future, WAIT_S)
    assert ledger.durable_seq >= seq + len(unit) - 1
    return seq


async def test_answers_come_on_the_engines_thread_in_order(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    loop = asyncio.get_running_loop()
    ledger.start(loop.call_soon_threadsafe)
    order: list[int] = []

    async def client(client: int) -> None:
        for n in range(30):
            order.append(await appended(ledger, [record(client * 100 + n, 90)] * (1 + n % 3)))

    await asyncio.gather(*map(client, range(20)))
    assert ledger.durable_seq == ledger.next_seq - 1 == 20 * 60
    assert len(ledger.segments()) == 1
    ledger.close()
    ledger = opened(tmp_path)
    assert ledger.durable_seq == 20 * 60
    assert len(contents(ledger)) == 20 * 60
    ledger.close()


async def test_segments_roll_while_being_read_and_reclaimed(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    last = 0
    for n in range(60):
        unit = [record(n * 50 + i, 400) for i in range(50)]
        while True:
            try:
                last = await appended(ledger, unit)
                break
            except Unavailable:  # the preparer is behind
                await asyncio.sleep(0.01)
        bodies = await asyncio.to_thread(ledger.bodies, np.arange(last, last + 50))
        assert bodies == [of.body for of in unit]
        if n % 20 == 19:
            await asyncio.to_thread(ledger.reclaim, last - 300)
            assert 1 < ledger.first_seq <= last - 299
    assert ledger.segments()[-1].number > 4
    ledger.close()


async def test_closing_answers_all_that_has_queued(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    answers: list[TarryError | None] = []
    for n in range(100):
        ledger.append([record(n)], answers.append)
    ledger.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert answers == [None] * 100
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tarry-ledger")]


async def test_a_failed_sync_answers_everyone_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened(tmp_path)
    await_failure = threading.Event()
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    await appended(ledger, [record(0)])

    def fail(file: RealFile) -> None:
        await_failure.wait(WAIT_S)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RealFile, "sync", fail)
    tasks = [asyncio.create_task(appended(ledger, [record(n)])) for n in range(10)]
    await asyncio.sleep(0)
    await_failure.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
    assert "may or may not be stored" in str(results[0])
    with pytest.raises(Unavailable):
        ledger.append([record(0)], print, essential=True)
    ledger.close()


async def test_a_fault_in_the_writer_is_never_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = opened(tmp_path)
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)

    def fault(segment: Segment, first_seq: int, records: int, length: int) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(Segment, "add", fault)
    with pytest.raises(Unavailable, match="writer failed"):
        await appended(ledger, [record(0)])
    assert ledger.failed is not None
    ledger.close()


async def test_a_closed_loop_does_not_stop_the_writer(tmp_path: Path) -> None:
    def post(call: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    ledger = opened(tmp_path)
    ledger.start(post)
    ledger.append([record(0)], print)
    ledger.close()
    assert ledger.failed is None
    assert ledger.durable_seq == 1


async def test_low_space_is_left_when_space_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.ledger.writer.RETRY_PREPARING_S", 0.01)
    free = [1 << 40]
    monkeypatch.setattr(RealDisk, "free_bytes", lambda disk, folder: free[0])
    ledger = opened(tmp_path)
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    free[0] = 0
    with pytest.raises(Unavailable, match=r"[Nn]o space"):
        for n in itertools.count():
            try:
                await appended(ledger, [record(n, 60_000)])
            except Unavailable as refused:
                if "slower" not in str(refused):
                    raise
                await asyncio.sleep(0.01)
    assert ledger.low_space
    await appended(ledger, [record(1, 1000)], essential=True)
    free[0] = 1 << 40
    async with asyncio.timeout(WAIT_S):
        while ledger._spares.error is not None:  # noqa: ASYNC110 - a thread clears it
            await asyncio.sleep(0.01)
    await appended(ledger, [record(1, 1000)])
    ledger.close()


async def test_who_waits_for_room_is_told_when_a_spare_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    prepare = Spares.prepare

    def slow(spares: Spares) -> bool:
        ready.wait(WAIT_S)
        return prepare(spares)

    ledger = opened(tmp_path)
    monkeypatch.setattr(Spares, "prepare", slow)
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    with pytest.raises(Unavailable, match="slower"):
        for n in itertools.count():
            await appended(ledger, [record(n, 60_000)])
    told = asyncio.Event()
    ledger.when_space(60_000, told.set)
    assert not told.is_set()
    ready.set()
    await asyncio.wait_for(told.wait(), WAIT_S)
    await appended(ledger, [record(0, 60_000)])
    ledger.close()


async def test_who_waits_for_room_is_told_when_the_queue_is_shorter(tmp_path: Path) -> None:
    ledger = opened(tmp_path, LedgerSettings(segment_bytes=1 << 18, queue_max_bytes=2000))
    ledger.append([record(0, 1500)], lambda _: None)
    told = asyncio.Event()
    ledger.when_space(1500, told.set)
    assert not told.is_set()
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    await asyncio.wait_for(told.wait(), WAIT_S)
    await appended(ledger, [record(0, 1500)])
    ledger.close()


async def test_who_waits_for_room_is_told_when_there_will_be_none(tmp_path: Path) -> None:
    told = []
    ledger = opened(tmp_path, LedgerSettings(segment_bytes=1 << 18, queue_max_bytes=2000))
    ledger.append([record(0, 1500)], lambda _: None)
    ledger.when_space(1500, lambda: told.append("closed"))
    assert not told
    ledger.close()
    assert told == ["closed"]
    with pytest.raises(Unavailable, match="stopping"):
        ledger.append([record(0, 1500)], print)


def test_the_real_disk(tmp_path: Path) -> None:
    disk, folder = RealDisk(), str(tmp_path / "a" / "b")
    disk.make_folder(folder)
    disk.make_folder(folder)
    assert disk.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/x")
    file = disk.open(f"{folder}/x", create=True)
    file.write(b"abc", 5)
    file.write(memoryview(b"def"), 0)
    file.sync()
    assert file.read(100, 0) == b"def\0\0abc"
    assert file.read(2, 5) == b"ab"
    assert file.read(2, 50) == b""
    assert file.size() == 8
    file.truncate(2)
    assert file.read(9, 0) == b"de"
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(1, 0)
    disk.rename(f"{folder}/x", f"{folder}/y")
    disk.sync_folder(folder)
    assert disk.exists(f"{folder}/y")
    assert not disk.exists(f"{folder}/x")
    disk.remove(f"{folder}/y")
    assert disk.listdir(folder) == []
    assert disk.free_bytes(folder) > 0


def test_a_write_that_the_kernel_cuts_up_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pread = os.pwrite, os.pread
    file = RealDisk().open(str(tmp_path / "x"), create=True)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data[:3]), offset))
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 4), offset))
    file.write(b"0123456789", 0)
    assert file.read(10, 0) == b"0123456789"
    assert file.read(100, 2) == b"23456789"
    file.close()


@pytest.mark.parametrize("count", [1, 3, MAX_PARTS, MAX_PARTS + 1])
@pytest.mark.parametrize("size", [0, 1, 3 * COPIED_BYTES])
@pytest.mark.parametrize("cut", [False, True])
def test_parts_are_written_as_if_they_were_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, size: int, cut: bool
) -> None:
    whole = os.urandom(size)
    step = -(-size // count)
    parts = [whole[at * step : (at + 1) * step] for at in range(count)]
    file = RealDisk().open(str(tmp_path / "x"), create=True)
    if cut:
        # The kernel writes a byte of the second part, and no more.
        writev, upto = os.pwritev, len(parts[0]) + 1
        monkeypatch.setattr(os, "pwritev", lambda fd, _, at: writev(fd, [whole[:upto]], at))
    file.write(b"before", 0)
    file.write_parts(parts, 6)
    assert file.read(size + 100, 0) == b"before" + whole
    file.close()


async def test_small_units_of_one_turn_are_written_together_and_a_large_one_does_not_wait_for_more(
    tmp_path: Path,
) -> None:
    ledger = opened(tmp_path, LedgerSettings(segment_bytes=4 << 20))
    loop = asyncio.get_running_loop()
    deferred: list[Callable[[], None]] = []
    ledger.start(loop.call_soon_threadsafe, deferred.append)
    answers: list[TarryError | None] = []
    small = [asyncio.ensure_future(appended(ledger, [record(n)])) for n in range(3)]
    await asyncio.sleep(0)
    assert len(deferred) == 1
    assert not any(answer.done() for answer in small)
    # Nobody nudges the writer for it.
    await appended(ledger, [record(7, LARGE_BYTES)])
    assert len(deferred) == 1
    assert [await answer for answer in small] == [1, 2, 3]
    deferred[0]()
    ledger.append([record(9)], answers.append)
    assert len(deferred) == 2
    ledger.close()
