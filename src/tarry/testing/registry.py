"""The registry in memory, with the images of itself that a crash can bring back.

SQLite keeps transactions whole and in order, so a crash never tears the registry: a process that is killed
finds its newest transaction again, and a power loss may take the newest few away.
"""

import functools
import sqlite3
import weakref
from collections import deque
from typing import Final

from tarry.core.errors import Unavailable
from tarry.registry.registry import Flush, Registry

IMAGES: Final = 32
"""How many of the newest transactions a power loss may take away, at most."""


class RegistryDisk:
    """The part of a registry that outlives the process."""

    def __init__(self) -> None:
        self.images: deque[bytes | None] = deque([None], maxlen=IMAGES)
        """The database after each of the last transactions, oldest first; None is before the first one."""
        self.snapshots: dict[str, bytes] = {}
        """By path."""
        self.failing = 0
        """How many of the next transactions fail, as on a full disk."""
        self.failed = 0
        """How many have failed."""

    def lose(self, newest: int) -> None:
        """A power loss takes the newest transactions away; the oldest that is kept here always stays."""
        for _ in range(min(newest, len(self.images) - 1)):
            self.images.pop()

    def lose_everything(self) -> None:
        """The file of the registry is gone; its snapshots are there."""
        self.images.clear()
        self.images.append(None)

    def restore(self, path: str) -> None:
        """Put a snapshot back, as an operator would."""
        self.images.clear()
        self.images.append(self.snapshots[path])


class SimulatedRegistry(Registry):
    """A registry in memory that begins with the newest image."""

    def __init__(self, disk: RegistryDisk) -> None:
        image = disk.images[-1]
        super().__init__(":memory:", _new() if image is None else image)
        self._disk = disk
        # A process that crashes closes nothing, and takes its connection with it.
        weakref.finalize(self, self._writer.close)

    def write(self, flush: Flush) -> None:
        """Write a cut, or fail if that is to be."""
        if self._disk.failing:
            self._disk.failing -= 1
            self._disk.failed += 1
            raise Unavailable("the registry cannot be written: the simulated disk is full")
        super().write(flush)
        self._disk.images.append(self.serialize())

    def snapshot(self, path: str) -> None:
        """Keep a copy in memory."""
        self._disk.snapshots[path] = self.serialize()


@functools.cache
def _new() -> bytes:
    """A registry that holds nothing: to copy it takes a fraction of the time that it takes to make its tables.

    Its pages are small, so that each image has an eighth of the size: there are some for each second of a test.
    """
    empty = sqlite3.connect(":memory:")
    empty.execute("PRAGMA page_size = 512")
    empty.execute("VACUUM")
    registry = Registry(":memory:", empty.serialize())
    empty.close()
    try:
        return registry.serialize()
    finally:
        registry.close()
