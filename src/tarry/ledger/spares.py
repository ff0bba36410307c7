"""Zero-filled segments ahead of use (R1), the last of which is the reserve (R2).

A spare is written as `spare-N.tmp`, synced, and only then renamed to `spare-N.seg`: one that bears that
name is complete. Counting is by two numbers that only grow, `prepared` here and the writer's own
count of rolls, so that no lock is needed to know how many are left.

It knows nothing of frames.
"""

import logging
import re
from collections import deque
from errno import ENOMEM, ENOSPC
from typing import Final, NamedTuple

from tarry.ledger.disk import Disk, File

_CHUNK_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"spare-(\d+)\.(seg|tmp)")
log = logging.getLogger(__name__)


class Spare(NamedTuple):
    """A prepared file, all zeros."""

    path: str
    file: File


class Spares:
    """The prepared files of one ledger folder."""

    def __init__(self, disk: Disk, folder: str, size_bytes: int) -> None:
        self._disk = disk
        self._folder = folder
        self._size_bytes = size_bytes
        self._ready: deque[Spare] = deque()
        self._next_number = 0
        self.prepared = 0
        """How many have been made or found, ever."""
        self.error: OSError | None = None
        """Why the last attempt failed; None if it did not."""

    def find(self) -> None:
        """Take in spare segments of an earlier run; remove unfinished ones, and those of another size."""
        for name in self._disk.listdir(self._folder):
            match = _NAME.fullmatch(name)
            if not match:
                continue
            path = f"{self._folder}/{name}"
            self._next_number = max(self._next_number, int(match[1]) + 1)
            if match[2] == "seg":
                file = self._disk.open(path)
                if file.size() == self._size_bytes:
                    self._add(Spare(path, file))
                    continue
                file.close()
            self._disk.remove(path)

    def prepare(self) -> bool:
        """Make one more. False if the disk does not allow it; `error` says why."""
        path = f"{self._folder}/spare-{self._next_number}.tmp"
        file: File | None = None
        try:
            # Asking first keeps a full disk from being filled to the last byte at every attempt.
            if self._disk.free_bytes(self._folder) < self._size_bytes:
                raise OSError(ENOSPC, "No space left on device for another segment")
            file = self._disk.open(path, create=True)
            self._zero(file)
            file.sync()
            ready = path.removesuffix(".tmp") + ".seg"
            self._disk.rename(path, ready)
            self._disk.sync_folder(self._folder)
        except (OSError, MemoryError) as error:
            if self.error is None:
                log.warning("no spare segment could be prepared: %r", error)
            self.error = error if isinstance(error, OSError) else OSError(ENOMEM, "no memory for it")
            self._discard(path, file)
            return False
        self._next_number += 1
        self.error = None
        self._add(Spare(ready, file))
        return True

    @property
    def ready(self) -> int:
        """How many are there to be taken."""
        return len(self._ready)

    @property
    def next(self) -> Spare:
        """The prepared file that becomes the next segment."""
        return self._ready[0]

    def take(self) -> Spare:
        """Hand the next prepared file over: it has become a segment, or is about to."""
        return self._ready.popleft()

    def close(self) -> None:
        """Close the files; they stay prepared for the next run."""
        for spare in self._ready:
            spare.file.close()
        self._ready.clear()

    def _add(self, spare: Spare) -> None:
        self._ready.append(spare)
        self.prepared += 1

    def _zero(self, file: File) -> None:
        zeros = bytes(min(_CHUNK_BYTES, self._size_bytes))
        for offset in range(0, self._size_bytes, _CHUNK_BYTES):
            file.write(memoryview(zeros)[: self._size_bytes - offset], offset)

    def _discard(self, path: str, file: File | None) -> None:
        """Give the space back. A leftover is removed at the next start."""
        if file is None:
            return
        file.close()
        try:
            if self._disk.exists(path):
                self._disk.remove(path)
        except OSError as error:
            log.warning("%s could not be removed: %s", path, error)
