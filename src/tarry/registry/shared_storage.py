"""Shared storage: objects under names, in a folder that all nodes see or in an object store.

Once `put` has returned, an object is whole and durable. If it fails, or its process dies, an object may be there in part: so
whoever puts several puts last the one by which the others count. An object is never changed.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs

from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.disk import sync_path

PIECE_BYTES: Final = 1 << 20


class Source(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read up to so many more bytes; none at the end."""


class StoredObject(NamedTuple):
    """An object of shared storage, as a list shows it."""

    name: str
    changed_at_ms: int | None


class SharedStorage:
    """One folder of shared storage."""

    def __init__(self, filesystem: pyarrow.fs.FileSystem, root: str) -> None:
        """A folder of a file system of pyarrow; on this machine's, objects are synced."""
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._is_local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)

    def put(self, name: str, source: Source) -> None:
        """Store all of a source under a name that is not taken; raises `Unavailable`."""
        path = f"{self._root}/{name}"
        with _told(f"{path} cannot be written"):
            if self._is_local:
                os.makedirs(self._root, mode=0o700, exist_ok=True)
            with self._filesystem.open_output_stream(path) as out:
                while piece := source.read(PIECE_BYTES):
                    out.write(piece)
            if self._is_local:
                sync_path(path)
                sync_path(self._root)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Read an object; raises `NotFound` or `Unavailable`."""
        path = f"{self._root}/{name}"
        with _told(f"{path} cannot be read"), self._filesystem.open_input_stream(path) as opened:
            yield opened

    def objects(self) -> list[StoredObject]:
        """All objects; raises `Unavailable`."""
        folder = pyarrow.fs.FileSelector(self._root, allow_not_found=True)
        with _told(f"{self._root} cannot be listed"):
            found = self._filesystem.get_file_info(folder)
        files = [info for info in found if info.type == pyarrow.fs.FileType.File]
        return [
            StoredObject(info.base_name, None if info.mtime_ns is None else info.mtime_ns // 1_000_000)
            for info in files
        ]

    def remove(self, name: str) -> None:
        """Remove an object, if it is there; raises `Unavailable`."""
        path = f"{self._root}/{name}"
        with contextlib.suppress(NotFound), _told(f"{path} cannot be removed"):
            self._filesystem.delete_file(path)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of the file system, as `NotFound` or `Unavailable`."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"{what}: {error}") from None
    except (OSError, pa.ArrowException) as error:
        raise Unavailable(f"{what}: {error}") from None
