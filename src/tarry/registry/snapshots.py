"""Checksummed snapshots of the registry, and the way back from one.

Two are kept. Segments of the ledger are reclaimed only up to the older one (R12), so that either of them, and
the ledger after it, give the registry again.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from typing import Final

from tarry.ledger.disk import sync_path

MARK: Final = "damaged"
"""The file that says that the registry was found damaged while it was in use."""
SNAPSHOTS: Final = ("registry-0.snapshot", "registry-1.snapshot")
BACKUP: Final = "backup-"
"""How the names of snapshots begin that are made for a backup, and removed with it."""

log = logging.getLogger(__name__)


def write_snapshot(
    connection: sqlite3.Connection, path: str, prove: Callable[[sqlite3.Connection], None]
) -> None:
    """Write a copy of a database, and beside it its SHA-256. `prove` raises if the copy is not good."""
    draft, sum_draft = path + ".draft", path + ".sha256.draft"
    with contextlib.suppress(FileNotFoundError):
        os.remove(draft)
    connection.execute("VACUUM INTO ?", (draft,))
    with contextlib.closing(sqlite3.connect(draft)) as copy:
        prove(copy)
    with open(sum_draft, "w", encoding="ascii") as out:
        out.write(_digest(draft))
    for file in (draft, sum_draft):
        sync_path(file)
    # The old sum goes first: a copy without its sum is not taken for a snapshot.
    with contextlib.suppress(FileNotFoundError):
        os.remove(path + ".sha256")
    os.replace(draft, path)
    os.replace(sum_draft, path + ".sha256")
    sync_path(os.path.dirname(path))


def remove_snapshot(path: str) -> None:
    """Remove a snapshot and its sum."""
    for suffix in (".sha256", ""):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path + suffix)


def remove_backups(folder: str) -> None:
    """Remove what backups have left that were under way when the server ended."""
    for name in os.listdir(folder):
        if name.startswith(BACKUP):
            os.remove(os.path.join(folder, name))


def restore(folder: str, path: str) -> bool:
    """Put the newest sound snapshot in the place of a damaged registry, which is set aside; whether there was one."""
    sound = [file for name in SNAPSHOTS if _is_sound(file := os.path.join(folder, name))]
    if not sound:
        return False
    newest = max(sound, key=os.path.getmtime)
    draft = path + ".draft"
    # First the copy, so that a full disk leaves everything as it is.
    shutil.copyfile(newest, draft)
    sync_path(draft)
    set_aside(path)
    os.replace(draft, path)
    sync_path(folder)
    log.error(
        "the registry was damaged; it is set aside, and its snapshot %s and the ledger replace it", newest
    )
    return True


def replace_by(folder: str, path: str, draft: str, sha256: str) -> None:
    """Put a proved snapshot from elsewhere in the place of a registry that nobody has open, and of its snapshots."""
    for name in SNAPSHOTS:
        remove_snapshot(os.path.join(folder, name))
    kept = os.path.join(folder, SNAPSHOTS[0])
    shutil.copyfile(draft, kept)
    with open(kept + ".sha256", "w", encoding="ascii") as out:
        out.write(sha256)
    for file in (kept, kept + ".sha256"):
        sync_path(file)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path + suffix)
    os.replace(draft, path)
    sync_path(folder)


def mark_damaged(folder: str, reason: str) -> None:
    """Leave word for the next start that the registry is to be replaced."""
    with open(os.path.join(folder, MARK), "w", encoding="utf-8") as out:
        out.write(reason)


def marked_damaged(folder: str) -> str | None:
    """The reason given to `mark_damaged`, if the registry is to be replaced."""
    try:
        with open(os.path.join(folder, MARK), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def unmark(folder: str) -> None:
    """The registry has been replaced."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, MARK))


def set_aside(path: str) -> None:
    """Put a damaged registry out of the way, so that it can be looked at."""
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path + suffix, f"{path}.damaged{suffix}")


def _is_sound(path: str) -> bool:
    try:
        with open(path + ".sha256", encoding="ascii") as file:
            return file.read().strip() == _digest(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
