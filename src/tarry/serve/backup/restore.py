"""A data folder from a backup: every file is proved before anything is where a server would look for it.

It is made aside and renamed as a whole, so that a data folder is there completely or not at all. Tables that are kept
elsewhere are written there first: without their data folder nobody takes them for anything.
"""

import os
import shutil
from pathlib import Path

import pyarrow.fs

from tarry.core.errors import Damage, Unavailable
from tarry.index.files import filesystem_of
from tarry.ledger.disk import sync_path
from tarry.serve.backup.archive import (
    PIECE_BYTES,
    FileDigest,
    Manifest,
    copy_proved,
    need_empty,
    prove,
    read_manifest,
)
from tarry.serve.backup.backup import TABLES


def restore(backup: Path, data: Path, tables: str) -> Manifest:
    """Make a data folder of a backup, with its tables at their place."""
    manifest = read_manifest(backup)
    _need_all(backup, manifest)
    need_empty(data)
    data = Path(os.path.abspath(data))
    aside = data.with_name(data.name + ".restoring")
    if aside.exists():
        raise Unavailable(f"{aside} is there from a restore that did not end; remove it and begin again")
    own_tables = tables == str(data / TABLES)
    inside = {name: of for name, of in manifest.files.items() if own_tables or not _is_table(name)}
    outside = {name: of for name, of in manifest.files.items() if name not in inside}
    try:
        aside.mkdir(parents=True, mode=0o700)
        for name, expected in inside.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with (backup / name).open("rb") as source:
                copy_proved(source, path, expected, str(backup / name))
        for folder in sorted({(aside / name).parent for name in inside}, reverse=True):
            sync_path(folder)
        _restore_tables(backup, outside, tables)
        if data.exists():
            data.rmdir()
        aside.rename(data)
        sync_path(data.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return manifest


def _need_all(backup: Path, manifest: Manifest) -> None:
    """Raise `Damage` for a file that is missing or has another size, before anything is copied."""
    for name, expected in manifest.files.items():
        path = backup / name
        if not path.is_file() or path.stat().st_size != expected.size_bytes:
            raise Damage(str(path), 0, "this file of the backup is missing or has another size")


def _is_table(name: str) -> bool:
    return name.startswith(f"{TABLES}/")


def _restore_tables(backup: Path, files: dict[str, FileDigest], tables: str) -> None:
    """Write tables where the configuration says; there must be none."""
    if not files:
        return
    filesystem, root = filesystem_of(tables)
    there = pyarrow.fs.FileSelector(root, allow_not_found=True)
    if filesystem.get_file_info(there):
        raise Unavailable(
            f"{tables} is not empty: there are tables already; remove them or configure another folder"
        )
    for name, expected in files.items():
        target = f"{root.rstrip('/')}/{name.removeprefix(f'{TABLES}/')}"
        with (backup / name).open("rb") as source:
            if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
                path = Path(target)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                copy_proved(source, path, expected, str(backup / name))
                sync_path(path.parent)
            else:
                prove(source, expected, str(backup / name))
                with filesystem.open_output_stream(target) as out:
                    shutil.copyfileobj(source, out, PIECE_BYTES)
