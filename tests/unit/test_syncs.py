"""Syncs that nobody can see without a power loss: they are recorded, with the renames that must follow them."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tarry.index.files import write_partitions
from tarry.index.merge import PartitionWriter
from tarry.index.schema import INDEX
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.disk import RealDisk
from tarry.registry import snapshots


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to the operating system, in order: syncs by the name of their file, and renames by the new name."""
    told: list[str] = []

    def of(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def sync(descriptor: int, real: object = real, name: str = name) -> None:
            told.append(f"{name} {of(descriptor)}")
            real(descriptor)  # type: ignore[operator]

        monkeypatch.setattr(os, name, sync)
    replace = os.replace

    def rename(old: str, new: str) -> None:
        told.append(f"rename {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "replace", rename)
    return told


def test_a_frame_is_synced_to_the_disk(tmp_path: Path, done: list[str]) -> None:
    """R1: an answer is given after `fdatasync`, and not after a write."""
    disk = RealDisk()
    file = disk.open(str(tmp_path / "1.seg"), create=True)
    file.write(b"frame", 0)
    file.sync()
    assert done == ["fdatasync 1.seg"]


def test_a_snapshot_has_its_name_only_once_its_bytes_are_on_disk(tmp_path: Path, done: list[str]) -> None:
    """R12: segments of the ledger go because of it."""
    path = tmp_path / "snapshots" / "a.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(tmp_path / "registry.sqlite") as registry:
        registry.execute("CREATE TABLE t (n INTEGER)")
        snapshots.write_snapshot(registry, str(path), lambda _: None)
    registry.close()
    ours = [one for one in done if "draft" in one or "rename" in one or one == "fsync snapshots"]
    assert ours == [
        "fsync a.sqlite.draft", "fsync a.sqlite.sha256.draft", "rename a.sqlite", "rename a.sqlite.sha256",
        "fsync snapshots",
    ]  # fmt: skip


def test_a_commit_of_the_index_is_in_its_log_for_good(tmp_path: Path, done: list[str]) -> None:
    """R12: segments of the ledger go because the index has what is in them."""
    table = GuardedTable.open(str(tmp_path / "index"), INDEX, bytes(16))
    assert done == ["fsync 00000000000000000000.json", "fsync _delta_log", "fsync index"]
    for seq in range(1, 50):
        done.clear()
        table.append([], seq, seq, {})
        assert done[0] == f"fsync {seq:020}.json"
        assert done[-2:] == ["fsync _delta_log", "fsync index"]
    assert f"fsync {49:020}.checkpoint.parquet" in done, "readers begin with it"
    assert "fsync _last_checkpoint" in done


def in_pieces(rows: pa.Table, uri: str) -> list[IndexFile]:
    writer = PartitionWriter(uri, INDEX, "test")
    writer.write(rows)
    return writer.close()


@pytest.mark.parametrize("write", [lambda rows, uri: write_partitions(rows, uri, INDEX, "test"), in_pieces])
def test_a_file_of_the_index_and_its_folders_are_on_disk_before_anybody_is_told(
    tmp_path: Path, done: list[str], write: Callable[[pa.Table, str], list[IndexFile]]
) -> None:
    """R6: the commit that names them comes after."""
    numbers = {
        name: pa.array([7], type_) for name, type_ in (("fire_at_ms", pa.int64()), ("seq", pa.int64()))
    }
    rows = pa.table({"slot": ["300000_0"], **numbers, "op": pa.array([1], pa.int32())})
    (tmp_path / "index").mkdir()
    (file,) = write(rows, str(tmp_path / "index"))
    assert done == [f"fsync {Path(file.path).name}", "fsync slot=300000_0", "fsync index"]
