"""Retention: what nobody needs goes, and nothing else does."""

import os
from pathlib import Path

import pytest

from tarry.core.errors import Unavailable
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.index.files import Folder
from tarry.index.table import IndexFile
from tarry.ledger.follow import FolderFollower
from tarry.ledger.record import Key, Mark
from tarry.pipeline import cascade as cascading
from tarry.pipeline import plan as planning
from tarry.pipeline import stream
from tarry.pipeline.cascade import cascade, tidy_history
from tarry.pipeline.plan import plan_history
from tarry.pipeline.retention import Swept, sweep
from tarry.pipeline.stream import Tables
from tests.pipeline.kit import START_MS, Writer, history, index_locally, live, put, record, staged, tables_of

FIVE_MS = 300_000


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    at(monkeypatch, START_MS)
    return Writer(tmp_path)


def at(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    monkeypatch.setattr(stream, "now_ms", lambda: now_ms)
    monkeypatch.setattr(cascading, "now_ms", lambda: now_ms)


def root(tables: Tables) -> Path:
    return Path(tables.index.uri.removeprefix("file://"))


def aged(tables: Tables, now_ms: int) -> None:
    """Everything in the folder was written at this instant."""
    for path in root(tables).rglob("*"):
        os.utime(path, (now_ms / 1000, now_ms / 1000))


def swept(writer: Writer, tables: Tables, now_ms: int) -> Swept:
    return sweep(tables.index, FolderFollower(writer.folder), HOUR_MS, now_ms)


def test_what_was_replaced_is_kept_for_those_who_read_it_and_then_goes(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(writer)
    for n in range(9):
        record(writer, put(START_MS + DAY_MS + n))
        index_locally(writer, tables)
    old = [root(tables) / file.path for file in tables.index.files()]
    aged(tables, START_MS - HOUR_MS)
    cascade(None, tables.index, FIVE_MS)
    # The commit that replaced them is young: somebody may read the version before it.
    newest = max((root(tables) / "_delta_log").glob("*.json"))
    os.utime(newest, (START_MS / 1000, START_MS / 1000))
    assert swept(writer, tables, START_MS + MINUTE_MS).files == 0
    assert all(path.exists() for path in old)
    assert swept(writer, tables, START_MS + 2 * HOUR_MS).files == 9
    assert not any(path.exists() for path in old)
    assert len(live(tables)) == 9


def test_orphans_go_when_they_are_old_and_their_folders_with_them(writer: Writer) -> None:
    tables = tables_of(writer)
    record(writer, put(START_MS + DAY_MS))
    index_locally(writer, tables)
    orphan = root(tables) / "slot=300000_0/died-1.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half a file")
    aged(tables, START_MS)
    assert swept(writer, tables, START_MS + MINUTE_MS) == Swept(0, 0, 0)
    assert swept(writer, tables, START_MS + 2 * HOUR_MS).files == 1
    assert not orphan.exists()
    os.utime(orphan.parent, (START_MS / 1000, START_MS / 1000))
    swept(writer, tables, START_MS + 4 * HOUR_MS)
    assert not orphan.parent.exists()
    assert len(live(tables)) == 1


def test_staged_files_go_only_if_no_manifest_has_them_and_they_are_a_day_old(writer: Writer) -> None:
    tables = tables_of(writer)
    record(writer, staged(writer, "indexed", [[START_MS + DAY_MS]], first_seq=1 << 47))
    index_locally(writer, tables)
    record(writer, staged(writer, "adopted", [[START_MS + DAY_MS]], first_seq=2 << 47))
    staged(writer, "never", [[START_MS + DAY_MS]])
    aged(tables, START_MS)
    assert swept(writer, tables, START_MS + DAY_MS).files == 0
    assert swept(writer, tables, START_MS + DAY_MS + 1).files == 1
    assert sorted(path.parent.name for path in root(tables).glob("staged/*/*")) == ["adopted", "indexed"]
    index_locally(writer, tables)
    assert len(live(tables)) == 2


def test_the_log_shrinks_behind_a_checkpoint_and_the_table_still_opens(writer: Writer) -> None:
    tables = tables_of(writer)
    for n in range(60):
        record(writer, put(START_MS + DAY_MS + n))
        index_locally(writer, tables)
    aged(tables, START_MS)
    assert swept(writer, tables, START_MS + MINUTE_MS).log_files == 0
    assert swept(writer, tables, START_MS + 2 * HOUR_MS).log_files == 49
    again = tables_of(writer)
    assert (again.index.cursor(), len(live(again)), again.index.state()["default_ms"]) == (60, 60, FIVE_MS)
    record(writer, Mark(Key(START_MS + 2, 0), START_MS))
    index_locally(writer, again)
    assert again.index.state()["watermark"] == [START_MS + 2, 0]


def test_delivered_slots_go(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(writer)
    record(writer, put(START_MS + MINUTE_MS), put(START_MS + DAY_MS))
    index_locally(writer, tables)
    record(writer, Mark(Key(START_MS + HOUR_MS, 0), START_MS + HOUR_MS))
    index_locally(writer, tables)
    assert cascade(None, tables.index, FIVE_MS)["expired"] == 1
    assert [fire for fire, _ in live(tables)] == [START_MS + DAY_MS]


def test_a_missing_version_of_the_table_is_refused(writer: Writer) -> None:
    tables = tables_of(writer)
    for n in range(5):
        record(writer, put(START_MS + DAY_MS + n))
        index_locally(writer, tables)
    (root(tables) / "_delta_log/00000000000000000003.json").unlink()
    with pytest.raises(Unavailable, match="cannot be opened"):
        tables_of(writer)


def day_file(day: str, name: str, size: int = 100) -> IndexFile:
    return IndexFile(f"day={day}/{name}.parquet", size, 10, day, 0, 1)


def test_the_history_keeps_its_days_and_few_files_for_each() -> None:
    old = day_file("2026-01-01", "a")
    kept = [day_file("2026-01-02", str(n)) for n in range(planning.FILES_PER_SLOT + 1)]
    todo = plan_history([old, *kept], "2026-01-02")
    assert (todo.expired, [rewrite.files for rewrite in todo.rewrites]) == ([old], [kept])
    assert plan_history([*kept[1:]], "2026-01-02").rewrites == []


def test_the_history_is_put_together_and_loses_nothing(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(writer)
    for n in range(planning.FILES_PER_SLOT + 1):
        writer.schedule(1, key=str(n))
        writer.run(5)
        index_locally(writer, tables)
    before = sorted(row["key"] for row in history(tables))
    assert len(before) == planning.FILES_PER_SLOT + 1
    assert tidy_history(tables.history, 90 * DAY_MS)["files"] == 1
    assert sorted(row["key"] for row in history(tables)) == before
    [only] = tables.history.files()
    [rows] = Folder(tables.history.uri).read(only.path)
    assert rows["finalised_at_ms"].to_pylist() == sorted(rows["finalised_at_ms"].to_pylist())
    assert tidy_history(tables.history, 90 * DAY_MS) == {}
    at(monkeypatch, START_MS + 92 * DAY_MS)
    assert tidy_history(tables.history, 90 * DAY_MS)["expired"] == 1
    assert history(tables) == []
    # What it is complete up to stays.
    assert tables.history.cursor() == writer.ledger.durable_seq
