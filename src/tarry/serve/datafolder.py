"""The data folder: one server at a time owns it, and it holds the key that ids are made with.

    lock        held (flock) by the server that owns the folder; its text is that server's pid
    id.key      32 random bytes that only the owner may read; ids cannot be read without it. Servers that share a ledger
                have it in a file elsewhere
    id.check    shows that this key and this ledger belong together
    ledger/     the ledger's segments
    registry/   the registry and its snapshots
    tables/     the index and the history, which the pipeline writes
    pipeline/   the pipeline's own lock, progress and scratch; nothing is lost with it
    homeserver/ the private homeserver that `tarry up` runs, if it does

Everything that is wrong with the folder is one `DataFolderError`, a line that says what to do.
Knows nothing of what the ledger or the registry put into their folders.
"""

import errno
import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tarry.core.messages.ids import KEY_BYTES
from tarry.ledger.disk import sync_path

LOCK: Final = "lock"
ID_KEY: Final = "id.key"
ID_CHECK: Final = "id.check"
LEDGER: Final = "ledger"
REGISTRY: Final = "registry"
PIPELINE: Final = "pipeline"


class DataFolderError(Exception):
    """The data folder cannot be used. The text says why and what to do."""


class DataFolder:
    """A data folder that this process owns, from `open` until `close`."""

    def __init__(self, path: Path, lock: int, id_key_file: Path | None = None) -> None:
        self.path = path
        self._lock = lock
        self._id_key_file = id_key_file

    @classmethod
    def open(cls, path: Path, id_key_file: Path | None = None) -> Self:
        """Make the folder if it is not there, and take its lock. The key is in it, unless a file elsewhere is given."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderError(explain(path, error)) from None
        try:
            _take(path, lock)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, lock, id_key_file)

    @property
    def ledger(self) -> Path:
        """The ledger's folder."""
        return self.path / LEDGER

    @property
    def registry(self) -> Path:
        """The registry's folder."""
        return self.path / REGISTRY

    @property
    def pipeline(self) -> Path:
        """The folder of the pipeline's progress."""
        return self.path / PIPELINE

    def id_key(self) -> bytes:
        """The key that ids are made with; made once, when the folder is new."""
        file = self._id_key_file or self.path / ID_KEY
        try:
            key = file.read_bytes()
        except FileNotFoundError:
            if self._id_key_file is not None:
                raise DataFolderError(
                    f"there is no file {file} (cluster.id_key_file): put the key there that all servers of this ledger have"
                ) from None
            return self._make_id_key(file)
        except OSError as error:
            raise DataFolderError(explain(file, error)) from None
        if len(key) != KEY_BYTES:
            raise DataFolderError(
                f"{file} holds {len(key)} bytes and not {KEY_BYTES}; bring it back from a backup"
            )
        return key

    def keep_key(self) -> None:
        """Put the key into the folder, if it is in a file elsewhere."""
        file = self.path / ID_KEY
        if not file.exists():
            try:
                _write_durably(file, self.id_key())
            except OSError as error:
                raise DataFolderError(explain(file, error)) from None

    def id_check(self) -> bytes:
        """A check value that tells id keys apart, and reveals no key."""
        return hashlib.blake2b(b"tarry id key", key=self.id_key(), digest_size=16).digest()

    def _make_id_key(self, file: Path) -> bytes:
        # Without its key no id that was given out can ever be read again, so a new one is made only
        # where there cannot be any.
        if self.ledger.is_dir() and any(self.ledger.iterdir()):
            raise DataFolderError(
                f"{file} is missing but the folder holds a ledger; bring it back from a backup, "
                "for without it no id that was given out can be read"
            )
        key = secrets.token_bytes(KEY_BYTES)
        try:
            _write_durably(file, key)
        except OSError as error:
            raise DataFolderError(explain(file, error)) from None
        return key

    def check_key(self, ledger_id: bytes) -> None:
        """Refuse a key with which the ids of this ledger were not made. What is new is taken down."""
        file = self.path / ID_CHECK
        expected = hashlib.blake2b(ledger_id, key=self.id_key(), digest_size=16).digest()
        try:
            if file.exists():
                found = file.read_bytes()
            else:
                _write_durably(file, found := expected)
        except OSError as error:
            raise DataFolderError(explain(file, error)) from None
        if found != expected:
            raise DataFolderError(
                f"{self._id_key_file or self.path / ID_KEY} and the ledger do not belong together: were two backups mixed? "
                f"Restore one of them whole; {ID_CHECK} is one of its files"
            )

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def owner_pid(path: Path) -> int | None:
    """The pid of the server that owns a folder; None if nobody does. 0 if it did not say."""
    try:
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_pid(lock)
    finally:
        os.close(lock)
    return None


def explain(path: Path, error: OSError) -> str:
    """The meaning of an error of the operating system for this path, and the remedy."""
    advice = {
        errno.EROFS: "is on a read-only file system; remount it or set `data` to another folder",
        errno.EACCES: "may not be used by this user; change its owner or set `data` to another folder",
        errno.EPERM: "may not be used by this user; change its owner or set `data` to another folder",
        errno.ENOSPC: "has no space left on its disk; free some",
        errno.EDQUOT: "has no space left in its quota; free some",
        errno.ENOTDIR: "is not a folder; set `data` to a folder",
        errno.EEXIST: "is not a folder; set `data` to a folder",
        errno.EMFILE: "cannot be opened: too many open files; raise the limit (ulimit -n)",
        errno.EIO: "cannot be read or written: the disk reports an error; look at the kernel's log",
    }
    known = advice.get(error.errno or 0)
    return f"{path} {known}" if known else f"{path}: {error.strerror or error}"


def _take(path: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        pid = _read_pid(lock)
        who = f"the server with pid {pid}" if pid else "another server"
        raise DataFolderError(
            f"{path} is in use by {who}; stop that one, or set `data` to another folder"
        ) from None
    except OSError as error:
        raise DataFolderError(explain(path, error)) from None


def _read_pid(lock: int) -> int:
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _write_durably(file: Path, content: bytes) -> None:
    """Write a file whole or not at all, whenever the power goes: write aside, sync, rename, sync the folder."""
    aside = file.with_name(file.name + ".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(aside, file)
    sync_path(file.parent)
