"""Registry snapshots in shared storage: the owner uploads its own, a standby fetches those of others (R12).

    owner     snapshot made → upload → the log may be trimmed up to the older of the two newest uploads
    standby   at its start: newest upload → its registry; segments of its copy that are not needed with it go

So a node with an empty folder begins at the place of a snapshot, and has only the log from there to read. None of this is needed for
a message to be safe: without shared storage the log is simply not trimmed.
"""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tarry.config import Config
from tarry.core.errors import Damage, NotFound, TarryError, Unavailable
from tarry.core.time.clock import Clock
from tarry.engine.due.horizon import Offload
from tarry.index.files import filesystem_of
from tarry.ledger.copy import COPY_NAME, LedgerCopy, begin_copy
from tarry.ledger.disk import Disk
from tarry.ledger.log.replicated_log import ReplicatedLog
from tarry.ledger.segment import segment_number
from tarry.registry.registry import REGISTRY_FILE, Registry
from tarry.registry.shared_aside import aside_folder, share_aside
from tarry.registry.shared_snapshots import (
    SharedSnapshot,
    SharedSnapshots,
    SnapshotOrigin,
    registry_folder,
    usable,
)
from tarry.registry.shared_storage import SharedStorage
from tarry.registry.snapshots import replace_by, set_aside
from tarry.registry.table import RegistryDamage

FETCHED: Final = "registry.fetched"

log = logging.getLogger("tarry.serve")


def shared_snapshots(config: Config) -> SharedSnapshots | None:
    """The snapshots in the storage that the configuration names; None if it names none."""
    if config.cluster.shared is None:
        return None
    filesystem, root = filesystem_of(config.cluster.shared)
    return SharedSnapshots(SharedStorage(filesystem, registry_folder(root, config.ledger.topic)))


def share_set_aside(config: Config, seqs: Collection[int]) -> None:
    """Tell readers of a shared ledger's log which records its owner goes on without; whoever cannot be told may stop there."""
    if config.cluster.shared is None or not seqs:
        return
    filesystem, root = filesystem_of(config.cluster.shared)
    try:
        share_aside(SharedStorage(filesystem, aside_folder(root, config.ledger.topic)), seqs)
    except TarryError as error:
        log.warning("a pipeline that reads the log cannot know which records are set aside: %s", error)


class SnapshotUploads:
    """Uploads of the owner's snapshots, one at a time. All but the work is on the engine's thread."""

    def __init__(
        self, snapshots: SharedSnapshots, replicated: ReplicatedLog, clock: Clock, offload: Offload
    ) -> None:
        self._snapshots = snapshots
        self._log = replicated
        self._clock = clock
        self._offload = offload
        self._under_way = False
        self.uploaded_seq = 0
        """The seq that the newest upload of this life has reached."""
        self.failed = ""
        """Why the last upload failed, if it did."""

    def made(self, path: str, seq: int, first_seq: int) -> None:
        """Upload a snapshot that was made, unless an earlier one is still on its way: another one follows."""
        if self._under_way:
            return
        copy = self._log.copy
        begin, claim = copy.begin_of(first_seq, self._log.first_offset), copy.claim
        if begin is None or claim is None:
            self._ended("the log does not have all that the data folder has: `tarry move` brings it there")
            return
        origin = SnapshotOrigin(claim=claim, seq=seq, begin=begin, made_at_ms=self._clock.now_ms())
        # Opened now: its name is that of a newer one before long.
        source = open(path, "rb")  # noqa: SIM115 - closed by the work
        sha256 = Path(path + ".sha256").read_text("ascii").strip()
        trimmable: list[int] = []

        def work() -> None:
            with source:
                self._snapshots.upload(source, sha256, origin)
            trimmable.append(self._snapshots.trimmable_seq(claim.ledger_id))
            self._snapshots.prune(claim.ledger_id, self._clock.now_ms())

        def done(error: Exception | None) -> None:
            self._under_way = False
            if trimmable:
                self.uploaded_seq = seq
                self._log.trimmable_seq = max(self._log.trimmable_seq, trimmable[0])
            self._ended(str(error) if error is not None else "")

        self._under_way = True
        self._offload(work, done)

    def _ended(self, reason: str) -> None:
        if reason and reason != self.failed:
            log.warning(
                "the log is not trimmed, since no snapshot of the registry could be shared: %s", reason
            )
        self.failed = reason


class SnapshotFetches:
    """A standby's registry, which may begin as a snapshot from shared storage. Called before an engine has it open."""

    def __init__(self, snapshots: SharedSnapshots, disk: Disk, ledger: Path, registry: Path) -> None:
        """`disk` has the folder of the ledger's copy, `registry` is the registry's own folder."""
        self._snapshots = snapshots
        self._disk = disk
        self._ledger = ledger
        self._registry = registry

    def begin(self, first_offset: int, end: int) -> SharedSnapshot:
        """Have a copy that cannot read on begin at the place of a snapshot, with its registry; raises `Unavailable`.

        A node needs this whose folder is empty, or which was away while the log was trimmed. `first_offset` is where the log
        begins, and `end` where it ends. The storage is waited for.
        """
        snapshots = usable(self._snapshots.newest(), first_offset, end)
        folder = str(self._ledger)
        self._disk.make_folder(folder)
        names = self._disk.listdir(folder)
        if COPY_NAME not in names and any(segment_number(name) is not None for name in names):
            raise Unavailable(
                f"{folder} has a ledger that was never in a log: bring it there with `tarry move`, or empty the folder"
            )
        found = self._fetch_one(snapshots)
        self._use(found)
        # What says that this is a copy goes last: nothing takes the rest for a ledger of its own.
        for name in names:
            if name != COPY_NAME:
                self._disk.remove(f"{folder}/{name}")
        self._disk.sync_folder(folder)
        begin_copy(self._disk, folder, found.origin.claim, found.origin.begin)
        log.info("this node begins at seq %d of the log, with a snapshot of the registry", found.origin.seq)
        return found

    def renew(self, copy: LedgerCopy) -> SharedSnapshot | None:
        """Use the newest snapshot if the registry is behind it, and let go of the segments that are not needed with it.

        None if there is nothing newer, or the storage does not answer: all that the snapshot saves is time and space.
        """
        try:
            newest = next(iter(self._snapshots.newest(copy.ledger_id)), None)
            # Of what the copy does not have, nothing can be replayed.
            if newest is None or not self._reached() < newest.origin.seq <= copy.last_seq:
                return None
            self._fetch(newest)
        except TarryError as error:
            log.warning("no newer snapshot of the registry could be fetched: %s", error)
            return None
        self._use(newest)
        copy.forget_upto(newest.origin.begin.next_seq - 1)
        return newest

    def _reached(self) -> int:
        """The seq that the registry here has reached; 0 without one."""
        path = self._registry / REGISTRY_FILE
        if not path.exists():
            return 0
        try:
            registry = Registry(str(path))
        except RegistryDamage:
            set_aside(str(path))
            return 0
        try:
            return registry.meta.applied_seq if registry.meta is not None else 0
        finally:
            registry.close()

    def _fetch_one(self, snapshots: list[SharedSnapshot]) -> SharedSnapshot:
        """Fetch the first snapshot that is there and whole."""
        for snapshot in snapshots[:-1]:
            try:
                self._fetch(snapshot)
            except (Damage, NotFound) as error:
                log.error("an older snapshot of the registry is used: %s", error)
            else:
                return snapshot
        self._fetch(snapshots[-1])
        return snapshots[-1]

    def _fetch(self, snapshot: SharedSnapshot) -> None:
        self._registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._snapshots.fetch(snapshot, str(self._registry / FETCHED))

    def _use(self, snapshot: SharedSnapshot) -> None:
        """Have the snapshot that was fetched be the registry."""
        folder = str(self._registry)
        replace_by(
            folder, os.path.join(folder, REGISTRY_FILE), os.path.join(folder, FETCHED), snapshot.sha256
        )
