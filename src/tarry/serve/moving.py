"""Moving a data folder's ledger into the configured log, or out of it, with its id key: the id key, and the registry.

`tarry.ledger.move` moves the ledger itself and says what a crash leaves. All that is found out before it begins changes nothing.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from tarry.cluster.inspection import topic_settings
from tarry.cluster.kafka_partition import KafkaPartition
from tarry.cluster.topic_safety import unsafe
from tarry.config import Config, ConfigError
from tarry.config.kafka import kafka_settings
from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.ledger.copy import read_copy_state
from tarry.ledger.disk import RealDisk
from tarry.ledger.follow import FolderFollower
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.replicated_log import LogNode
from tarry.ledger.move import MovedLedger, MoveIn, OnProgress, move_out
from tarry.registry.registry import REGISTRY_FILE, Registry
from tarry.registry.shared_snapshots import SnapshotOrigin
from tarry.registry.snapshots import BACKUP, remove_snapshot
from tarry.serve.composition.node import node_name
from tarry.serve.composition.shared import SnapshotFetches, shared_snapshots
from tarry.serve.datafolder import DataFolder, DataFolderError

QUIET_S: Final = 3.0
"""An owner marks its log every second: one that says nothing for so long is not there."""
PARTITION: Final = 0


class MovePlan(Struct, frozen=True, kw_only=True):
    """The work of a move, as far as it can be told without changing anything."""

    ledger_id: str
    first_seq: int
    last_seq: int
    size_bytes: int
    log: str
    log_records: int
    """Records that are in the log now."""
    goes_on: bool
    """Whether there was an attempt before, with which it goes on."""


class Move:
    """A data folder, its configured log, and the way between them. Holds the folder's lock."""

    def __init__(self, config: Config, folder: DataFolder, partition: KafkaPartition) -> None:
        self._config = config
        self._folder = folder
        self._partition = partition
        self._node = LogNode(node_name(config), folder.id_check())
        self._snapshots = shared_snapshots(config)

    def plan_in(self) -> MovePlan:
        """The plan of a move into the log; raises what would keep it from that."""
        self._check_topic()
        ledger = str(self._folder.ledger)
        disk = RealDisk()
        if not self._folder.ledger.is_dir() or not any(self._folder.ledger.iterdir()):
            raise Conflict(f"{ledger} has no ledger: a server begins a new one in the log by itself", "empty")
        state = read_copy_state(disk, ledger)
        if state is not None and state.claim.moving != "in":
            raise Conflict(f"{ledger} is the copy of a log already", "moved")
        follower = FolderFollower(ledger)
        head = follower.head()
        self._folder.check_key(head.ledger_id)
        first_seq = follower.first_seq()
        if first_seq > 1 and self._snapshots is None:
            raise ConfigError(
                f"the ledger begins at seq {first_seq}, since earlier segments were reclaimed: other servers need the registry "
                "to begin there. Set cluster.shared to a folder or bucket that all servers see"
            )
        first, end = self._partition.ends()
        if first:
            raise Conflict(
                f"{self._partition.name} was trimmed, so it has been in use: make a new topic", "taken"
            )
        return MovePlan(
            ledger_id=head.ledger_id.hex(),
            first_seq=first_seq,
            last_seq=head.seq,
            size_bytes=sum(path.stat().st_size for path in self._folder.ledger.glob("*.seg")),
            log=self._partition.name,
            log_records=end,
            goes_on=end > 0,
        )

    def into_log(self, told: OnProgress) -> MovedLedger:
        """Move the ledger into the log; may be done again after a crash."""
        self.plan_in()
        mover = MoveIn(self._partition, RealDisk(), str(self._folder.ledger), self._node, told)
        return mover.run(time.time_ns() // 1_000_000, os.urandom(16), self._share_registry)

    def _share_registry(self, claim: LogClaim, begin: LogPosition) -> None:
        """Put a snapshot of the registry where other servers begin with it."""
        path = self._folder.registry / REGISTRY_FILE
        if self._snapshots is None or not path.exists():
            return
        registry = Registry(str(path))
        snapshot = str(self._folder.registry / f"{BACKUP}move.snapshot")
        try:
            if registry.meta is None:
                return
            seq = registry.meta.applied_seq
            registry.snapshot(snapshot)
            origin = SnapshotOrigin(claim=claim, seq=seq, begin=begin, made_at_ms=claim.clock_ms)
            with open(snapshot, "rb") as source:
                self._snapshots.upload(source, Path(snapshot + ".sha256").read_text("ascii").strip(), origin)
        finally:
            registry.close()
            remove_snapshot(snapshot)

    def plan_out(self) -> MovePlan:
        """The plan of a move out of the log; raises what would keep it from that. Waits a while for a sign of an owner."""
        first, end = self._partition.ends()
        if not end:
            raise Conflict(f"{self._partition.name} has no ledger", "empty")
        ledger = str(self._folder.ledger)
        state = read_copy_state(RealDisk(), ledger) if self._folder.ledger.is_dir() else None
        time.sleep(QUIET_S)
        if self._partition.ends()[1] != end:
            raise Conflict(
                "a server owns the ledger and appends to its log: stop all of its servers first", "owned"
            )
        head = FolderFollower(ledger).head() if state is not None else None
        return MovePlan(
            ledger_id=state.ledger_id.hex() if state is not None else "",
            first_seq=FolderFollower(ledger).first_seq() if head is not None else 0,
            last_seq=head.seq if head is not None else 0,
            size_bytes=sum(path.stat().st_size for path in self._folder.ledger.glob("*.seg")) if head else 0,
            log=self._partition.name,
            log_records=end - first,
            goes_on=state is not None and state.claim.moving == "out",
        )

    def out_of_log(self, told: OnProgress) -> MovedLedger:
        """Move the ledger out of the log, into this data folder; may be done again after a crash."""
        self.plan_out()
        disk, ledger = RealDisk(), self._folder.ledger
        first, end = self._partition.ends()
        if first and (not ledger.is_dir() or read_copy_state(disk, str(ledger)) is None):
            if self._snapshots is None:
                raise NotFound(
                    f"{self._partition.name} was trimmed, and {ledger} is no copy of it: move it out at a server that has owned "
                    "the ledger or stood by, or set cluster.shared"
                )
            SnapshotFetches(self._snapshots, disk, ledger, self._folder.registry).begin(first, end)
        return move_out(
            self._partition,
            disk,
            str(ledger),
            self._node,
            time.time_ns() // 1_000_000,
            os.urandom(16),
            self._keep_key,
            told,
        )

    def _keep_key(self, ledger_id: bytes) -> None:
        """Have the id key in the data folder, where a server looks for it that shares nothing."""
        self._folder.check_key(ledger_id)
        self._folder.keep_key()

    def _check_topic(self) -> None:
        settings = topic_settings(kafka_settings(self._config), self._config.ledger.topic)
        if reasons := unsafe(settings):
            raise Unavailable("; ".join(reasons))


@contextmanager
def moving(config: Config) -> Iterator[Move]:
    """The configured data folder and log, for a move; raises `ConfigError` if no log is configured, or the folder is in use."""
    if config.ledger.log != "kafka":
        raise ConfigError(
            'no log is configured: set ledger.log = "kafka", and what belongs to it, for the move'
        )
    key = config.cluster.id_key_file
    try:
        with DataFolder.open(Path(config.data), Path(key) if key else None) as folder:
            partition = KafkaPartition(kafka_settings(config), config.ledger.topic, PARTITION)
            try:
                yield Move(config, folder, partition)
            finally:
                partition.close()
    except DataFolderError as error:
        raise Unavailable(str(error)) from None
    except OSError as error:
        raise Unavailable(f"the ledger cannot be moved: {error}") from error
