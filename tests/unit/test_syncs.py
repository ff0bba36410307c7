"""Syncs that nobody can see without a power loss: they are recorded, with the renames that must follow them."""

import os
import sqlite3
from pathlib import Path

import pytest

from tarry.ledger.disk import RealDisk
from tarry.registry import snapshots


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the system, in order: syncs by the name of their file, and renames by the new name."""
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
