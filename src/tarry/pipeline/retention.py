"""Retention deletes files that nothing needs any more from a table's folder: replaced files, orphans, the old part of the log.

A file may go when it is in no version that anybody may still be reading: it is not in the newest version, no commit of the last
`keep_ms` speaks of it, and it is itself older than that. So `keep_ms` must be longer than the longest job and the longest hold of a
reader; one that is later all the same finds the file missing, and reads a newer version. Files that a job left behind
when it died are no different.

Staged files (R10) belong to who staged them until their batch is adopted. They go when they are in no manifest, neither in the
table nor in a record above its cursor, and a day old.
"""

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.fs
from msgspec import Struct

from tarry.core.limits import DAY_MS
from tarry.index.files import Folder
from tarry.index.schema import STAGED
from tarry.index.table import GuardedTable
from tarry.ledger.follow import Follower
from tarry.ledger.record import Adopt, Kind, decode

LOG: Final = "_delta_log"
KEEP_STAGED_MS: Final = DAY_MS
_LOG_FILE: Final = re.compile(r"^(\d{20})\.(json|crc|checkpoint\b.*)$")


class Swept(Struct, frozen=True):
    """Counts and bytes of deleted files."""

    files: int
    bytes: int
    log_files: int


class StoredFile(Struct, frozen=True):
    """A file in a table's folder."""

    path: str
    """Relative to the table."""
    size: int
    changed_at_ms: int


def sweep(table: GuardedTable, follower: Follower, keep_ms: int, now_ms: int) -> Swept:
    """Delete what a table's folder holds beyond what its newest version and recent readers need."""
    folder = Folder(table.uri)
    # First what is there, then what is needed: whatever is committed meanwhile is among the needed.
    stored = list(listed(folder))
    table.refresh()
    log = [file for file in stored if file.path.startswith(f"{LOG}/")]
    young = now_ms - keep_ms
    needed = {file.path for file in table.files()} | spoken_of(folder, log, young)
    old = [file for file in stored if file.path.endswith(".parquet") and file.changed_at_ms < young]
    unneeded = [file for file in old if not file.path.startswith(f"{LOG}/") and file.path not in needed]
    staged = [file for file in unneeded if file.path.startswith(f"{STAGED}/")]
    gone = [file for file in unneeded if not file.path.startswith(f"{STAGED}/")]
    abandoned = [file for file in staged if file.changed_at_ms < now_ms - max(keep_ms, KEEP_STAGED_MS)]
    if abandoned:
        adopted = adopted_above(follower, table.cursor())
        gone += [file for file in abandoned if file.path not in adopted]
    for file in gone:
        folder.filesystem.delete_file(folder.path(file.path))
    spent = spent_log(folder, log, young)
    for file in spent:
        folder.filesystem.delete_file(folder.path(file.path))
    _remove_empty(folder, young)
    return Swept(len(gone), sum(file.size for file in gone), len(spent))


def listed(folder: Folder) -> Iterator[StoredFile]:
    """All files below a table's folder."""
    selector = pyarrow.fs.FileSelector(folder.root, recursive=True)
    for info in folder.filesystem.get_file_info(selector):
        if info.type == pyarrow.fs.FileType.File:
            path = info.path[len(folder.root) :].lstrip("/")
            yield StoredFile(path, info.size, int((info.mtime_ns or 0) // 1_000_000))


def spoken_of(folder: Folder, log: list[StoredFile], young_ms: int) -> set[str]:
    """The files that commits since an instant have added or removed: readers of versions of that time may need them."""
    paths: set[str] = set()
    for commit in log:
        if commit.changed_at_ms < young_ms or not commit.path.endswith(".json"):
            continue
        with folder.filesystem.open_input_stream(folder.path(commit.path)) as opened:
            text: bytes = opened.read()
        for line in text.splitlines():
            action: dict[str, Any] = json.loads(line) if line else {}
            paths |= {action[name]["path"] for name in ("add", "remove") if name in action}
    return paths


def spent_log(folder: Folder, log: list[StoredFile], young_ms: int) -> list[StoredFile]:
    """The files of the log that a checkpoint has replaced, and that are old."""
    versions: list[tuple[int, StoredFile]] = []
    for file in log:
        if found := _LOG_FILE.match(file.path.removeprefix(f"{LOG}/")):
            versions.append((int(found[1]), file))
    checkpoints = [version for version, file in versions if ".checkpoint" in file.path]
    if not checkpoints:
        return []
    # It is what readers begin with from now on: it must be on the disk before what it replaces goes.
    newest = max(checkpoints)
    for version, file in versions:
        if version == newest and ".checkpoint" in file.path:
            folder.sync(folder.path(file.path))
    folder.sync(folder.path(LOG))
    return [file for version, file in versions if version < newest and file.changed_at_ms < young_ms]


def adopted_above(follower: Follower, cursor: int) -> set[str]:
    """The staged files of batches that the ledger has adopted and the index has not."""
    head = follower.durable_seq()
    paths: set[str] = set()
    for frame in follower.frames(cursor + 1, head) if head > cursor else ():
        for at in (frame.fixed["kind"] == Kind.ADOPT).nonzero()[0].tolist():
            adopt = decode(frame.body(at))
            assert isinstance(adopt, Adopt)
            paths |= {file.path for file in adopt.files}
    return paths


def _remove_empty(folder: Folder, young_ms: int) -> None:
    """Remove the folders of slots, days and staged batches that have been empty for long."""
    if not folder.is_local:
        # In an object store folders are not there by themselves.
        return
    for top in (folder.root, folder.path(STAGED)):
        if not os.path.isdir(top):
            continue
        for entry in list(os.scandir(top)):
            is_ours = "=" in entry.name or top != folder.root
            if entry.is_dir() and is_ours and entry.stat().st_mtime * 1000 < young_ms:
                try:
                    os.rmdir(entry.path)
                except OSError:
                    # It is not empty.
                    continue
