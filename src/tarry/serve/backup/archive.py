"""A backup as a folder: files as they are in a data folder, and a manifest that proves them.

    manifest.json           what the backup is of, and of each file its size and its SHA-256; written last
    manifest.json.sha256    of the manifest itself
    id.key, id.check, ledger/…, registry/…, tables/…

A folder without its manifest is no backup: whatever stopped it, nothing takes half of one for the whole. Everything is
synced before the manifest is written.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.disk import sync_path
from tarry.registry.shared_storage import Source

MANIFEST: Final = "manifest.json"
SUM: Final = ".sha256"
FORMAT: Final = 1
PIECE_BYTES: Final = 1 << 20


class FileDigest(Struct, frozen=True):
    """Size and digest of one file of a backup."""

    size_bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The manifest of a backup."""

    format: int = FORMAT
    tarry: str
    """The version that made it."""
    made_at_ms: int
    ledger_id: str
    seq: int
    """Everything that was durable up to this seq is in it."""
    index_cursor: int | None
    """The seq up to which its index is complete; None if it has none."""
    files: dict[str, FileDigest]

    @property
    def size_bytes(self) -> int:
        """Size of the backup's files."""
        return sum(file.size_bytes for file in self.files.values())


class Archive:
    """A backup that is being made, in a folder of its own."""

    def __init__(self, folder: Path, after: Callable[[int], None]) -> None:
        """Begin in a folder that is new or empty. `after` is told of each piece that was copied, by its bytes."""
        need_empty(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self.files: dict[str, FileDigest] = {}
        self._after = after

    def add(
        self, name: str, source: Source, size_bytes: int | None = None, padded_bytes: int = 0
    ) -> FileDigest:
        """Copy all of a file, or its first bytes with zeros after them."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = copy(source, path, self._after, size_bytes, padded_bytes)
        self.files[name] = content
        return content

    def discard(self, *prefixes: str) -> None:
        """Take out the files that were added below some folders: it is copied again."""
        for name in [name for name in self.files if name.startswith(prefixes)]:
            (self.folder / name).unlink()
            del self.files[name]

    def seal(self, manifest: Manifest) -> None:
        """Sync everything and write the manifest: from now on it is a backup."""
        for folder in {(self.folder / name).parent for name in self.files}:
            while folder != self.folder.parent:
                sync_path(folder)
                folder = folder.parent
        text = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        sum_ = hashlib.sha256(text).hexdigest().encode()
        for name, content in ((MANIFEST + SUM, sum_ + b"\n"), (MANIFEST, text)):
            with (self.folder / name).open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
        sync_path(self.folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup; raises `Unavailable` if there is none, `Damage` if its bytes are damaged."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
        sum_ = (folder / (MANIFEST + SUM)).read_bytes().strip()
    except OSError as error:
        raise Unavailable(f"{folder} is no backup, or an unfinished one: {error.strerror}") from None
    if hashlib.sha256(text).hexdigest().encode() != sum_:
        raise Damage(str(path), 0, "the manifest does not match its checksum")
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise Damage(str(path), 0, str(error)) from None
    if manifest.format > FORMAT:
        raise Unavailable(f"{folder} has format {manifest.format}, and this version reads up to {FORMAT}")
    for name in manifest.files:
        # Whoever made this, a restore writes nothing outside the folder that it makes.
        if name.startswith("/") or ".." in name.split("/"):
            raise Damage(str(path), 0, f"{name!r} is no file of a backup")
    return manifest


def copy(
    source: Source,
    path: Path,
    after: Callable[[int], None],
    size_bytes: int | None = None,
    padded_bytes: int = 0,
) -> FileDigest:
    """Copy bytes into a new file that only its owner may read, and sync it."""
    digest, copied = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:

        def write(piece: bytes) -> None:
            nonlocal copied
            out.write(piece)
            digest.update(piece)
            copied += len(piece)
            after(len(piece))

        while size_bytes is None or copied < size_bytes:
            wanted = PIECE_BYTES if size_bytes is None else min(PIECE_BYTES, size_bytes - copied)
            piece = source.read(wanted)
            if not piece:
                break
            write(piece)
        if size_bytes is not None and copied < size_bytes:
            raise Damage(str(path), copied, f"the file is shorter than the {size_bytes:,} bytes that it had")
        while copied < padded_bytes:
            write(bytes(min(PIECE_BYTES, padded_bytes - copied)))
        out.flush()
        os.fsync(out.fileno())
    return FileDigest(copied, digest.hexdigest())


def copy_proved(source: BinaryIO, path: Path, expected: FileDigest, name: str) -> None:
    """Copy a file of a backup; raises `Damage` if its bytes are damaged."""
    found = copy(source, path, lambda _: None)
    if found != expected:
        raise Damage(name, 0, "this file of the backup differs from its digest in the manifest")


def prove(source: BinaryIO, expected: FileDigest, name: str) -> None:
    """Read a file of a backup and go back to its beginning; raises `Damage` if its bytes are damaged."""
    digest = hashlib.sha256()
    while piece := source.read(PIECE_BYTES):
        digest.update(piece)
    if digest.hexdigest() != expected.sha256:
        raise Damage(name, 0, "this file of the backup differs from its digest in the manifest")
    source.seek(0)


def need_empty(folder: Path) -> None:
    """Raise `Unavailable` unless a folder is empty or not there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Unavailable(f"{folder} is not empty; name a folder that is empty or not there")
