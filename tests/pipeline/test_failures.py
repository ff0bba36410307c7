"""Failures around a commit: a driver killed at any point, two at once, a lost checkpoint. Nothing lost, none twice.

The drivers are real processes, killed by SIGKILL while they index a ledger; instead of Spark, which is slow to start, they
run the stream's tasks themselves.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tarry.core.errors import NotFound
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.index.table import GuardedTable
from tarry.pipeline import stream
from tests.pipeline.kit import START_MS, Writer, history, index_locally, live, put, record, tables_of

DRIVER = """
import os, signal, sys
from pathlib import Path
from tarry.index import files
from tarry.index.table import GuardedTable
from tests.pipeline import kit

folder, point = sys.argv[1], sys.argv[2]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def at(cls, name, table, before):
    real = getattr(cls, name)
    def dying(self, *arguments, **named):
        hit = table in getattr(self, "uri", table)
        if hit and before:
            die()
        real(self, *arguments, **named)
        if hit:
            die()
    setattr(cls, name, dying)

if point == "writing":
    at(files.FileWriter, "write", "", False)
elif point == "before":
    at(GuardedTable, "append", "history", True)
elif point == "between":
    at(GuardedTable, "append", "history", False)
elif point == "after":
    at(GuardedTable, "append", "index", False)
kit.index_folder(folder)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def drive(writer: Writer, point: str) -> int:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, writer.folder, point], env=environment, cwd=root, timeout=120
    ).returncode


def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(writer: Writer) -> None:
    expected: list[tuple[int, int]] = []
    ended = 0
    for point in ("writing", "before", "between", "after", "none"):
        writer.schedule(1)
        writer.run(10)
        ended += 1
        record(writer, *(put(START_MS + DAY_MS + n) for n in range(3)))
        last = writer.ledger.durable_seq
        expected += [(START_MS + DAY_MS + n, last - 2 + n) for n in range(3)]
        assert drive(writer, point) == (0 if point == "none" else -signal.SIGKILL)
        assert set(live(tables_of(writer))) <= set(expected)
    tables = tables_of(writer)
    assert live(tables) == sorted(expected)
    assert len(history(tables)) == ended
    assert tables.index.cursor() == tables.history.cursor() == writer.ledger.durable_seq


def test_two_drivers_at_once_index_everything_once(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS)
    for n in range(20):
        writer.schedule(1)
        writer.run(5)
        record(writer, put(START_MS + HOUR_MS + n))
    last = writer.ledger.durable_seq
    failures: list[BaseException] = []

    def one(step: int) -> None:
        tables = tables_of(writer)
        try:
            for upto in range(step, last + step, step):
                index_locally(writer, tables, last_seq=min(upto, last))
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    tables_of(writer)
    threads = [threading.Thread(target=one, args=(step,)) for step in (7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    tables = tables_of(writer)
    assert tables.index.cursor() == tables.history.cursor() == last
    assert [fire for fire, _ in live(tables)] == [START_MS + HOUR_MS + n for n in range(20)]
    assert len(history(tables)) == 20


def test_a_second_driver_that_is_late_covers_only_what_is_new(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its history and its index are refused, whatever commit of the other one comes in between."""
    record(writer, *(put(START_MS + HOUR_MS + n) for n in range(3)))
    real = GuardedTable.append
    raced: list[str] = []

    def overtaken(self: GuardedTable, *arguments: object) -> None:
        name = self.uri.rstrip("/").rsplit("/", 1)[-1]
        if name not in raced:
            raced.append(name)
            later_ms = 10 * len(raced)
            index_locally(writer, tables_of(writer))
            record(writer, put(START_MS + HOUR_MS + later_ms))
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GuardedTable, "append", overtaken)
    tables = tables_of(writer)
    index_locally(writer, tables)
    index_locally(writer, tables)
    assert sorted(raced) == ["history", "index"]
    offsets = [fire - START_MS - HOUR_MS for fire, _ in live(tables)]
    assert offsets == [0, 1, 2, 10, 20]
    assert tables.index.cursor() == writer.ledger.durable_seq


def test_a_lost_checkpoint_means_nothing(writer: Writer) -> None:
    """Spark begins at the ledger's first record again, and all of it is covered."""
    record(writer, *(put(START_MS + HOUR_MS + n) for n in range(5)))
    tables = tables_of(writer)
    index_locally(writer, tables)
    version = tables.index.version
    for batch in ((1, 2), (3, 5)):
        index_locally(writer, tables, first_seq=batch[0], last_seq=batch[1])
    assert (tables.index.version, len(live(tables))) == (version, 5)


def test_a_lost_newest_version_is_indexed_again(writer: Writer) -> None:
    record(writer, put(START_MS + HOUR_MS))
    tables = tables_of(writer)
    index_locally(writer, tables)
    record(writer, put(START_MS + HOUR_MS + 1))
    index_locally(writer, tables)
    newest = max((Path(tables.index.uri.removeprefix("file://")) / "_delta_log").glob("*.json"))
    newest.unlink()
    again = tables_of(writer)
    assert again.index.cursor() == 1
    index_locally(writer, again)
    assert [seq for _, seq in live(again)] == [1, 2]


def test_what_was_reclaimed_before_it_was_indexed_is_refused(writer: Writer) -> None:
    small = Writer(Path(writer.folder).parent / "small", segment_bytes=16 << 10)
    for _ in range(4):
        record(small, *(put(START_MS + HOUR_MS) for _ in range(40)))
    first = min(Path(small.folder).glob("0*.seg"))
    first.unlink()
    with pytest.raises(NotFound, match="has been reclaimed"):
        index_locally(small, tables_of(small))
    assert tables_of(small).index.cursor() == 0


def test_a_put_in_one_task_and_its_end_in_another_add_up(writer: Writer) -> None:
    kept, dead = writer.schedule(HOUR_MS), writer.schedule(HOUR_MS)
    writer.settle(writer.engine.cancel(dead.id))
    tables = tables_of(writer)
    index_locally(writer, tables, rows=1)
    assert [fire for fire, _ in live(tables)] == [kept.due_at_ms]
    assert tables.index.cursor() == writer.ledger.durable_seq


def test_a_task_writes_before_it_holds_too_much(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(12):
        record(writer, put(START_MS + DAY_MS + n))
    tables = tables_of(writer)
    # The ledger's records come in one piece here, and go on in as many as the bounds say.
    monkeypatch.setattr(stream, "FLUSH_ROWS", 1)
    held = [len(part) for part in stream.gathered(iter([batch(4), batch(0), batch(3)]))]
    assert held == [4, 3]
    monkeypatch.setattr(stream, "FLUSH_ROWS", 1 << 30)
    monkeypatch.setattr(stream, "FLUSH_BYTES", 50)
    assert [len(part) for part in stream.gathered(iter([batch(2), batch(7), batch(2)]))] == [9, 2]
    index_locally(writer, tables)
    assert len(live(tables)) == 12


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"seq": pa.array(range(rows), pa.int64())})
