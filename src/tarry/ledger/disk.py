"""The little of a file system that the ledger needs, as an interface, and the real one.

Everything durable goes through `Disk`, so that the simulated disk in `tarry.testing` can lose,
tear and reorder what was not synced. Errors are `OSError`s and pass through unchanged:
what an error means is decided by the ledger (R2), never here.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

COPIED_BYTES: Final = 32 * 1024
"""Up to this size it is quicker to put parts together than to name them all to the kernel."""
MAX_PARTS: Final = os.sysconf("SC_IOV_MAX")


class File(Protocol):
    """An open file. Reads and writes name their offset, so it can be used by several threads."""

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data`. It is not durable before `sync`."""

    def write_parts(self, parts: Sequence[bytes], offset: int) -> None:
        """Write parts one after another, as if they were one."""

    def read(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def sync(self) -> None:
        """Return once all that was written is durable (`fdatasync`). After an error it never may be."""

    def size(self) -> int:
        """The size in bytes."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""

    def close(self) -> None:
        """Let go of the file, without syncing it."""


class Disk(Protocol):
    """A file system. Creating, renaming and removing are durable only after `sync_folder`."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing; with `create`, make an empty file if there is none."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of that name."""

    def listdir(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file within a folder, replacing a file of the new name."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def sync_folder(self, folder: str) -> None:
        """Return once the names in the folder are durable."""

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it, durably; nothing happens if it exists."""

    def free_bytes(self, folder: str) -> int:
        """How much can still be written there, as far as the file system tells."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data`, however the kernel cuts it up."""
        written = os.pwrite(self._fd, data, offset)
        while written < len(data):
            data = memoryview(data)[written:]
            offset += written
            written = os.pwrite(self._fd, data, offset)

    def write_parts(self, parts: Sequence[bytes], offset: int) -> None:
        """Write parts one after another; megabytes are not put together for it."""
        size_bytes = sum(map(len, parts))
        if size_bytes <= COPIED_BYTES or len(parts) > MAX_PARTS:
            self.write(b"".join(parts), offset)
            return
        written = os.pwritev(self._fd, parts, offset)
        if written < size_bytes:
            self.write(memoryview(b"".join(parts))[written:], offset + written)

    def read(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        data = os.pread(self._fd, size, offset)
        if len(data) == size:
            return data
        parts = [data]
        got = len(data)
        while got < size and data:
            data = os.pread(self._fd, size - got, offset + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def sync(self) -> None:
        """`fdatasync`."""
        os.fdatasync(self._fd)

    def sync_whole(self) -> None:
        """`fsync`: with the names that are in it, if it is a folder."""
        os.fsync(self._fd)

    def size(self) -> int:
        """The size in bytes."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """`ftruncate`."""
        os.ftruncate(self._fd, size)

    def close(self) -> None:
        """Close it; closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A reclaimed segment may still be read in another thread: its descriptor must live
        # until the last user is gone, or a new file could take its number.
        self.close()


class RealDisk:
    """The operating system's file system. The folders that it made stay open: to sync one takes no further descriptor."""

    def __init__(self) -> None:
        self._kept: dict[str, RealFile] = {}

    def open(self, path: str, create: bool = False) -> RealFile:
        """Open for reading and writing."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o600), path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of that name."""
        return Path(path).exists()

    def listdir(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        return sorted(path.name for path in Path(folder).iterdir())

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing a file of the new name."""
        Path(old).rename(new)

    def remove(self, path: str) -> None:
        """Remove a file."""
        Path(path).unlink()

    def sync_folder(self, folder: str) -> None:
        """`fsync` of the folder."""
        kept = self._kept.get(folder)
        if kept is None:
            sync_path(folder)
        else:
            kept.sync_whole()

    def make_folder(self, folder: str) -> None:
        """Make the folder, and sync the one that each new name is in."""
        missing = []
        path = Path(folder).absolute()
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for new in reversed(missing):
            new.mkdir(0o700)
            self.sync_folder(str(new.parent))
        self._kept[folder] = RealFile(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), folder)

    def free_bytes(self, folder: str) -> int:
        """Bytes that an ordinary user can still write."""
        stat = os.statvfs(folder)
        return stat.f_bavail * stat.f_frsize


def sync_path(path: str | Path) -> None:
    """`fsync` of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
