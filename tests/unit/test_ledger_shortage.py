"""Open files and memory that run out: the ledger waits and goes on; only a failed write or sync stops it for good."""

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from errno import EIO, EMFILE
from pathlib import Path

import pytest

from tarry.core.errors import TarryError, Unavailable
from tarry.ledger import writer
from tarry.ledger.disk import RealDisk
from tarry.ledger.frame import frame_bytes
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import StandingClock, contents, open_ledger, record
from tests.waiting import until

WITHIN_S = 20


@contextlib.contextmanager
def no_open_files() -> Iterator[None]:
    """While this lasts, the process gets no further descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is on the numbers of new ones: those that are open stay.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_segment_is_rolled_without_a_further_open_file(tmp_path: Path) -> None:
    """Once, it opened the folder to sync it, and stopped for good."""
    settings = LedgerSettings(segment_bytes=1 << 18)
    ledger = Ledger.open(RealDisk(), str(tmp_path / "ledger"), settings, StandingClock())
    ledger.start(asyncio.get_running_loop().call_soon_threadsafe)
    answers: list[TarryError | None] = []
    appended = 0
    await until(lambda: ledger._spares.prepared >= 2, WITHIN_S)
    with no_open_files():
        with pytest.raises(Unavailable):
            while True:
                ledger.append([record(appended, 60_000)], answers.append)
                appended += 1
                await until(lambda: len(answers) == ledger.next_seq - 1, WITHIN_S)
        assert ledger.segments()[-1].number > 1
        assert ledger.failed is None
    # Spares are made again by themselves, and everything is accepted again.
    await until(lambda: not ledger.low_space and ledger._spares.prepared > 2, WITHIN_S)
    ledger.append([record(appended, 60_000)], answers.append)
    await until(lambda: len(answers) == appended + 1, WITHIN_S)
    assert set(answers) == {None}
    ledger.close()
    again = Ledger.open(RealDisk(), str(tmp_path / "ledger"), settings, StandingClock())
    assert contents(again) == [record(n, 60_000) for n in range(appended + 1)]
    again.close()


def rolling(disk: SimulatedDisk) -> tuple[Ledger, list[TarryError | None]]:
    """A ledger whose next commit begins a new segment, and its answers."""
    ledger = open_ledger(disk)
    answers: list[TarryError | None] = []
    while True:
        ledger.append([record(len(answers), 300)], answers.append)
        if frame_bytes(ledger._writer.queue[0].content_bytes) > ledger._writer.space.free_bytes:
            return ledger, answers
        ledger.commit()


def test_a_frame_that_could_not_be_begun_is_tried_again() -> None:
    disk = SimulatedDisk()
    ledger, answers = rolling(disk)
    disk.fail_next("rename", EMFILE, 2)
    before = len(answers)
    assert [ledger.commit(), ledger.commit(), ledger.commit()] == [0, 0, 1]
    assert len(answers) == before + 1
    assert set(answers) == {None}
    assert ledger.failed is None
    ledger.close()
    assert len(contents(open_ledger(disk))) == len(answers)


def test_at_a_stop_a_frame_that_cannot_be_begun_is_told_as_lost() -> None:
    disk = SimulatedDisk()
    ledger, answers = rolling(disk)
    disk.fail_next("rename", EMFILE, 2)
    before = len(answers)
    ledger.commit()
    ledger.close()
    assert isinstance(answers[-1], Unavailable)
    assert len(answers) == before + 1
    assert len(contents(open_ledger(disk))) == before


def test_a_disk_that_fails_at_a_roll_stops_it_for_good() -> None:
    disk = SimulatedDisk()
    ledger, answers = rolling(disk)
    disk.fail_next("rename", EIO)
    ledger.commit()
    assert ledger.failed is not None
    assert isinstance(answers[-1], Unavailable)


def test_a_frame_that_there_was_no_memory_for_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    ledger = open_ledger(disk)
    answers: list[TarryError | None] = []
    ledger.append([record(0)], answers.append)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "rows_parts", _no_memory)
        assert ledger.commit() == 0
    assert answers == []
    assert ledger.commit() == 1
    assert answers == [None]
    ledger.close()


def test_a_spare_that_there_was_no_memory_for_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    ledger = open_ledger(disk)
    with monkeypatch.context() as patched:
        patched.setattr(type(ledger._spares), "_zero", _no_memory)
        assert not ledger._spares.prepare()
    assert ledger.low_space
    ledger.commit()
    assert not ledger._spares.error
    ledger.close()


def _no_memory(*_: object) -> None:
    raise MemoryError


def test_a_shortage_while_a_frame_is_synced_is_a_failed_sync() -> None:
    """Something of the frame was written: nobody knows what the disk has, and trying again would not find out."""
    disk = SimulatedDisk()
    ledger = open_ledger(disk)
    answers: list[TarryError | None] = []
    ledger.append([record(1)], answers.append)
    disk.fail_next("sync", EMFILE)
    ledger.commit()
    assert ledger.failed is not None
    assert [type(answer) for answer in answers] == [Unavailable]
