"""Backups under way: while there is one, nothing of the ledger is reclaimed (R12 d).

A backup is copied by another process, from the files. It begins with a snapshot of the registry, made for it; everything that
it needs beside that, the ledger from there on, stays until it says that it is done or its time is over: a
program that died must not keep everybody's storage.
"""

import logging
import os
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from tarry.core.errors import Conflict, NotFound, TarryError, Unavailable
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.due.horizon import Offload
from tarry.engine.upkeep.reclaim import Reclaim
from tarry.registry.registry import Registry
from tarry.registry.snapshots import BACKUP, remove_snapshot

log = logging.getLogger(__name__)

MAX_BACKUPS: Final = 4


class Backup(Struct, frozen=True, kw_only=True):
    """A backup under way."""

    name: str
    until_ms: int
    """When it is taken to have died, unless it says that it goes on."""
    snapshot: str
    """The file in the registry's folder that is a snapshot of the registry; its SHA-256 is beside it."""


class Backups:
    """Begins and ends backups."""

    def __init__(
        self,
        reclaim: Reclaim,
        registry: Registry,
        clock: Clock,
        flush: Callable[[], Answer[None]],
        offload: Offload,
        folder: str | None,
    ) -> None:
        self._reclaim = reclaim
        self._registry = registry
        self._clock = clock
        self._flush = flush
        self._offload = offload
        self._folder = folder
        self._under_way: dict[str, Backup] = {}

    def begin(self, for_ms: int) -> Answer[Backup]:
        """Hold the ledger, and answer once there is a snapshot of the registry."""
        if self._folder is None:
            return failed(Unavailable("this server keeps no snapshots, and a backup needs one"))
        if len(self._under_way) >= MAX_BACKUPS:
            return failed(Conflict(f"{MAX_BACKUPS} backups are under way; wait for one to end", "busy"))
        name = secrets.token_hex(8)
        backup = Backup(
            name=name, until_ms=self._clock.now_ms() + for_ms, snapshot=f"{BACKUP}{name}.snapshot"
        )
        path = os.path.join(self._folder, backup.snapshot)
        answer: Answer[Backup] = Answer()
        self._under_way[name] = backup
        self._tell()

        def flushed(flush: Answer[None]) -> None:
            error = flush.error()
            if error is not None:
                made(error)
            else:
                self._offload(lambda: self._registry.snapshot(path), made)

        def made(error: BaseException | None) -> None:
            if error is None:
                answer.settle(self._under_way.get(name, backup))
            else:
                self._forget(name)
                answer.fail(error if isinstance(error, TarryError) else Unavailable(str(error)))

        self._flush().then(flushed)
        return answer

    def renew(self, name: str, for_ms: int) -> Backup:
        """Let a backup go on; raises `NotFound` if it was given up already."""
        found = self._find(name)
        renewed = Backup(name=name, until_ms=self._clock.now_ms() + for_ms, snapshot=found.snapshot)
        self._under_way[name] = renewed
        return renewed

    def end(self, name: str) -> None:
        """End a backup that has all that it needs; raises `NotFound` if it was given up already."""
        self._find(name)
        self._forget(name)

    def turn(self, now_ms: int) -> None:
        """Give up those whose time is over."""
        for backup in list(self._under_way.values()):
            if now_ms >= backup.until_ms:
                log.warning("a backup was begun and never ended; what it held is let go")
                self._forget(backup.name)

    def _find(self, name: str) -> Backup:
        self.turn(self._clock.now_ms())
        found = self._under_way.get(name)
        if found is None:
            raise NotFound("there is no such backup under way, or its time is over")
        return found

    def _forget(self, name: str) -> None:
        backup = self._under_way.pop(name, None)
        self._tell()
        if backup is not None and self._folder is not None:
            path = os.path.join(self._folder, backup.snapshot)
            self._offload(partial(remove_snapshot, path), _told)

    def _tell(self) -> None:
        self._reclaim.held = len(self._under_way)


def _told(error: Exception | None) -> None:
    if error is not None:
        log.warning("the snapshot of a backup could not be removed: %s", error)
