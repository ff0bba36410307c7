"""A disk in memory that loses unsynced writes, and fails when told to.

It keeps two images of everything. The volatile one is what the running program sees; the durable one
is what is on the medium. The faults, all drawn from the generator that is passed in:

- `crash`: the power fails. Each write since the file's last sync is kept whole, torn at sector boundaries,
  or lost, and they may have reached the medium in another order. Of each folder's creations, renames and
  removals since its last sync, the first few are kept (in order) and the rest lost.
- `kill`: the process ends and the machine goes on. Everything written stays; nothing more is durable than before.
- `crash_at(n)`: the n-th operation from now on ends in `SimulatedCrash`. A write, truncation, creation, rename
  or removal has been done by then, and is as lost as anything unsynced may be; a sync has not.
- `fail_next`: an operation fails with an errno. After a failed sync the program still sees its writes, but those
  that did not reach the medium never will by a later sync, as on Linux.
- `flip_bit`, and `capacity_bytes` for a full disk.

Folders are durable once made. Not for several threads.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from errno import EBADF, ENOENT, ENOSPC
from os import strerror
from random import Random
from typing import Final

SECTOR_BYTES: Final = 512
_CHANGES: Final = frozenset({"create", "write", "truncate", "sync", "rename", "remove", "sync_folder"})


class SimulatedCrash(BaseException):
    """The machine stopped here. Not an `Exception`, so that nothing catches it by mistake."""


class _Inode:
    """The content of a file: both images, and the writes that the durable one lacks."""

    __slots__ = ("durable", "pending", "volatile")

    def __init__(self) -> None:
        self.durable = bytearray()
        self.volatile = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """(offset, bytes) of a write, or (size, None) of a truncation."""

    def copy(self) -> "_Inode":
        new = _Inode()
        new.durable, new.volatile, new.pending = self.durable[:], self.volatile[:], self.pending[:]
        return new


class _Folder:
    """The names in a folder: both images, and the changes that the durable one lacks."""

    __slots__ = ("durable", "pending", "volatile")

    def __init__(self) -> None:
        self.durable: dict[str, _Inode] = {}
        self.volatile: dict[str, _Inode] = {}
        self.pending: list[tuple[str, str, _Inode | None]] = []
        """(name to remove or empty, name to set or empty, what it is set to)."""


def _apply(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        if offset <= len(image):
            del image[offset:]
        else:
            image.extend(bytes(offset - len(image)))
        return
    if offset > len(image):
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def _relink(names: dict[str, _Inode], change: tuple[str, str, _Inode | None]) -> None:
    gone, new, inode = change
    if gone:
        names.pop(gone, None)
    if new and inode is not None:
        names[new] = inode


class SimulatedFile:
    """An open file of a `SimulatedDisk`. It is of no use any more after a crash or kill."""

    __slots__ = ("_disk", "_inode", "_life", "path")

    def __init__(self, disk: "SimulatedDisk", inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._life: int | None = disk.lives
        self.path = path

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` into the volatile image."""
        self._check()
        disk, inode = self._disk, self._inode
        disk.begin("write", f"{self.path} {offset}+{len(data)}")
        disk.claim(offset + len(data) - len(inode.volatile))
        data = bytes(data)
        _apply(inode.volatile, offset, data)
        inode.pending.append((offset, data))
        disk.end()

    def write_parts(self, parts: Sequence[bytes], offset: int) -> None:
        """Write parts one after another."""
        self.write(b"".join(parts), offset)

    def read(self, size: int, offset: int) -> bytes:
        """Read from the volatile image."""
        self._check()
        return bytes(self._inode.volatile[offset : offset + size])

    def sync(self) -> None:
        """Bring every write to the durable image."""
        self._check()
        disk, inode = self._disk, self._inode
        try:
            disk.begin("sync", self.path, before=True)
        except OSError:
            for offset, data in inode.pending:
                if disk.random.random() < 0.5:
                    _apply(inode.durable, offset, data)
            inode.pending.clear()
            raise
        for offset, data in inode.pending:
            _apply(inode.durable, offset, data)
        inode.pending.clear()

    def size(self) -> int:
        """The size that the running program sees."""
        self._check()
        return len(self._inode.volatile)

    def truncate(self, size: int) -> None:
        """Cut or extend the volatile image."""
        self._check()
        disk, inode = self._disk, self._inode
        disk.begin("truncate", f"{self.path} {size}")
        disk.claim(size - len(inode.volatile))
        _apply(inode.volatile, size, None)
        inode.pending.append((size, None))
        disk.end()

    def close(self) -> None:
        """Close the file."""
        self._life = None

    def _check(self) -> None:
        self._disk.check_up()
        if self._life != self._disk.lives:
            raise OSError(EBADF, "the file is closed, or was opened before a crash", self.path)


class SimulatedDisk:
    """A file system in memory; see the module."""

    def __init__(self, random: Random | int = 0, capacity_bytes: int | None = None) -> None:
        self.random = Random(random) if isinstance(random, int) else random
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        """How many changing operations there were: creations, writes, truncations, syncs, renames, removals."""
        self.recent: deque[str] = deque(maxlen=50)
        """The last of them, for people."""
        self.failed: Counter[str] = Counter()
        """How often each operation failed because it was told to, and `claim` because the disk was full."""
        self.lives = 0
        self._folders: dict[str, _Folder] = {}
        self._faults: dict[str, list[int]] = {}
        self._crash_at: int | None = None
        self._down = False

    # What a program does with it.

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        """Open a file."""
        self.check_up()
        folder, name = self._find(path)
        inode = folder.volatile.get(name)
        if inode is None:
            if not create:
                raise FileNotFoundError(ENOENT, strerror(ENOENT), path)
            self.begin("create", path)
            inode = _Inode()
            self._change(folder, ("", name, inode))
            self.end()
        return SimulatedFile(self, inode, path)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder of that name."""
        self.check_up()
        folder, _, name = path.rpartition("/")
        return path in self._folders or (folder in self._folders and name in self._folders[folder].volatile)

    def listdir(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted."""
        self.check_up()
        return sorted(self._find(f"{folder}/")[0].volatile)

    def rename(self, old: str, new: str) -> None:
        """Rename a file within its folder."""
        self.check_up()
        folder, old_name = self._find(old)
        to_folder, new_name = self._find(new)
        assert folder is to_folder, "only within one folder"
        if old_name not in folder.volatile:
            raise FileNotFoundError(ENOENT, strerror(ENOENT), old)
        self.begin("rename", f"{old} {new}")
        self._change(folder, (old_name, new_name, folder.volatile[old_name]))
        self.end()

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.check_up()
        folder, name = self._find(path)
        if name not in folder.volatile:
            raise FileNotFoundError(ENOENT, strerror(ENOENT), path)
        self.begin("remove", path)
        self._change(folder, (name, "", None))
        self.end()

    def sync_folder(self, folder: str) -> None:
        """Bring every change of names to the durable image."""
        self.check_up()
        found, _ = self._find(f"{folder}/")
        self.begin("sync_folder", folder, before=True)
        for change in found.pending:
            _relink(found.durable, change)
        found.pending.clear()

    def make_folder(self, folder: str) -> None:
        """Make a folder; it is durable at once."""
        self.check_up()
        self._folders.setdefault(folder, _Folder())

    def free_bytes(self, folder: str) -> int:
        """Bytes that can still be written."""
        self.check_up()
        return 1 << 60 if self.capacity_bytes is None else max(0, self.capacity_bytes - self._used_bytes())

    # What a test does to it.

    def crash(self) -> None:
        """The power fails, and comes back: what was not synced is kept, torn or lost."""
        mode = self.random.choice(("all", "none", "mixed", "mixed"))
        for folder in self._folders.values():
            kept = {"all": len(folder.pending), "none": 0}.get(mode)
            for change in folder.pending[
                : self.random.randint(0, len(folder.pending)) if kept is None else kept
            ]:
                _relink(folder.durable, change)
            folder.pending.clear()
            folder.volatile = dict(folder.durable)
            for inode in folder.durable.values():
                self._settle(inode, mode)
        self._restart()

    def kill(self) -> None:
        """The process ends; the machine goes on."""
        self._restart()

    def crash_at(self, nth: int) -> None:
        """Let the `nth` changing operation from now on end in a crash; 1 is the next one."""
        self._crash_at = self.operations + nth

    def fail_next(self, operation: str, errno: int, times: int = 1) -> None:
        """Let the next operations of this name fail."""
        assert operation in _CHANGES, operation
        self._faults.setdefault(operation, []).extend([errno] * times)

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """The medium goes bad."""
        folder, name = self._find(path)
        inode = folder.volatile[name]
        for image in (inode.durable, inode.volatile):
            if offset < len(image):
                image[offset] ^= 1 << bit

    def copy(self, random: Random | int | None = None) -> "SimulatedDisk":
        """Another disk in the same state, without its faults and open files."""
        new = SimulatedDisk(self.random.getrandbits(32) if random is None else random, self.capacity_bytes)
        copies: dict[int, _Inode] = {}

        def copied(inode: _Inode) -> _Inode:
            return copies.setdefault(id(inode), inode.copy())

        for path, folder in self._folders.items():
            made = new._folders[path] = _Folder()
            made.durable = {name: copied(inode) for name, inode in folder.durable.items()}
            made.volatile = {name: copied(inode) for name, inode in folder.volatile.items()}
            made.pending = [(gone, name, inode and copied(inode)) for gone, name, inode in folder.pending]
        return new

    # What its files call.

    def begin(self, operation: str, what: str, before: bool = False) -> None:
        """Count an operation, and let it fail if it is to. With `before`, it crashes before it is done."""
        self.operations += 1
        self.recent.append(f"{self.operations} {operation} {what}")
        if faults := self._faults.get(operation):
            errno = faults.pop(0)
            self.failed[operation] += 1
            raise OSError(errno, strerror(errno), what)
        if before:
            self.end()

    def end(self) -> None:
        """Crash here if it is time to."""
        if self._crash_at is not None and self.operations >= self._crash_at:
            self._down = True
            raise SimulatedCrash(self.recent[-1])

    def claim(self, more_bytes: int) -> None:
        """Fail if a file cannot grow by so much."""
        if more_bytes > 0 and more_bytes > self.free_bytes(""):
            self.failed["claim"] += 1
            raise OSError(ENOSPC, strerror(ENOSPC))

    def check_up(self) -> None:
        """Nothing works between a crash and the restart, not even cleaning up."""
        if self._down:
            raise SimulatedCrash("the machine is down")

    def _find(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            raise FileNotFoundError(ENOENT, strerror(ENOENT), folder)
        return self._folders[folder], name

    def _change(self, folder: _Folder, change: tuple[str, str, _Inode | None]) -> None:
        _relink(folder.volatile, change)
        folder.pending.append(change)

    def _used_bytes(self) -> int:
        inodes = {id(inode): inode for inode in self._all_inodes()}
        return sum(len(inode.volatile) for inode in inodes.values())

    def _all_inodes(self) -> Iterable[_Inode]:
        for folder in self._folders.values():
            yield from folder.volatile.values()

    def _settle(self, inode: _Inode, mode: str) -> None:
        """Decide what of the unsynced writes reached the medium."""
        random, pending = self.random, inode.pending
        if mode == "mixed" and random.random() < 0.5:
            pending = random.sample(pending, len(pending))
        for offset, data in pending if mode != "none" else ():
            fate = "whole" if mode == "all" else random.choice(("whole", "lost", "torn"))
            if fate == "whole" or (fate == "torn" and data is None):
                _apply(inode.durable, offset, data)
            elif fate == "torn" and data is not None:
                self._tear(inode.durable, offset, data)
        inode.pending = []
        inode.volatile = inode.durable[:]

    def _tear(self, image: bytearray, offset: int, data: bytes) -> None:
        """Keep some of the sectors of a write."""
        at = 0
        while at < len(data):
            until = min(len(data), at + SECTOR_BYTES - (offset + at) % SECTOR_BYTES)
            if self.random.random() < 0.5:
                _apply(image, offset + at, data[at:until])
            at = until

    def _restart(self) -> None:
        self.lives += 1
        self._down = False
        self._crash_at = None
        self._faults.clear()
        self.recent.append("--- restart ---")
