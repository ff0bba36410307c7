"""Shared storage of several servers: the owner uploads snapshots of its registry, the log is trimmed by them, and a server that the
log does not reach begins at one (R12).

What counts and how far the log may be trimmed is decided by the program's own `SharedSnapshots`, over storage in memory. Here is
only what a server does around it with real files.
"""

import hashlib
import io
import os
from typing import TYPE_CHECKING

from pyarrow._fs import _MockFileSystem

from tarry.ledger.copy import COPY_NAME, begin_copy
from tarry.registry.shared_snapshots import SharedSnapshot, SharedSnapshots, SnapshotOrigin, usable
from tarry.registry.shared_storage import SharedStorage
from tarry.registry.snapshots import SNAPSHOTS
from tarry.testing.registry import SimulatedRegistry
from tarry.testing.world import World

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

FOLDER = "ledger"


class Shared:
    """The shared storage of one run."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        memory = _MockFileSystem()
        memory.create_dir("shared")
        self._storage = SharedStorage(memory, "shared")
        self._snapshots = SharedSnapshots(self._storage)

    def made(self, world: World, path: str, seq: int, first_seq: int) -> None:
        """A server has made a snapshot: it is uploaded, and then the log may be trimmed further."""
        side = world.side
        assert side is not None
        begin, claim = side.copy.begin_of(first_seq, side.first_offset), side.copy.claim
        if begin is None or claim is None:
            return
        origin = SnapshotOrigin(claim=claim, seq=seq, begin=begin, made_at_ms=world.clock.now_ms())
        image = world.registry_disk.snapshots[path]

        def work() -> None:
            self._snapshots.upload(io.BytesIO(image), hashlib.sha256(image).hexdigest(), origin)
            self._snapshots.prune(claim.ledger_id, 0)

        def done(error: Exception | None) -> None:
            if error is None:
                trimmable = self._snapshots.trimmable_seq(claim.ledger_id)
                side.trimmable_seq = max(side.trimmable_seq, trimmable)

        world.offloaded.append((work, done))

    def begin(self, world: World) -> None:
        """Have a server that the log does not reach begin at the newest snapshot; raises `Unavailable` if none goes with the log."""
        found = usable(self._snapshots.newest(), self._cluster.log.start, self._cluster.log.end)[0]
        world.disk.make_folder(FOLDER)
        self._use(world, found)
        for name in world.disk.listdir(FOLDER):
            if name != COPY_NAME:
                world.disk.remove(f"{FOLDER}/{name}")
        world.disk.sync_folder(FOLDER)
        begin_copy(world.disk, FOLDER, found.origin.claim, found.origin.begin)

    def renew(self, world: World) -> None:
        """Have a standby, whose registry nobody has open, use the newest snapshot, if it has not got so far."""
        assert world.side is not None
        copy = world.side.copy
        newest = next(iter(self._snapshots.newest(copy.ledger_id)), None)
        registry = SimulatedRegistry(world.registry_disk)
        reached = registry.meta.applied_seq if registry.meta is not None else 0
        registry.close()
        if newest is not None and reached < newest.origin.seq <= copy.last_seq:
            self._use(world, newest)
            copy.forget_upto(newest.origin.begin.next_seq - 1)

    def _use(self, world: World, snapshot: SharedSnapshot) -> None:
        with self._storage.open(snapshot.name) as stored:
            image = stored.read()
        registry = world.registry_disk
        registry.snapshots.clear()
        registry.snapshots[os.path.join("snapshots", SNAPSHOTS[0])] = image
        registry.images.clear()
        registry.images.append(image)
