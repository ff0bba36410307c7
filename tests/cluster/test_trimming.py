"""A log on real brokers and snapshots in a real object store: what is trimmed, and that a node with an empty disk finds the rest (R12)."""

import io
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tarry.cluster.kafka_partition import KafkaPartition
from tarry.core.errors import NotFound, Unavailable
from tarry.index.files import filesystem_of
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tarry.ledger.record import NO_KEY
from tarry.registry.registry import REGISTRY_FILE, Meta, Registry
from tarry.registry.shared_snapshots import SharedSnapshots
from tarry.registry.shared_storage import SharedStorage
from tarry.serve.composition.shared import SnapshotFetches, SnapshotUploads
from tests.cluster.brokers import Brokers
from tests.cluster.object_store import BUCKET, ObjectStore
from tests.unit.ledger_kit import LEDGER_ID, SMALL, StandingClock, contents
from tests.unit.log_kit import UNITS, fill
from tests.waiting import wait_until

_names = itertools.count()


@pytest.fixture
def storage(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> SharedStorage:
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    return SharedStorage(*filesystem_of(f"s3://{BUCKET}/shared-{next(_names)}"))


def test_objects_come_and_go(storage: SharedStorage) -> None:
    large = bytes(range(256)) * 50_000
    assert storage.objects() == []
    storage.put("large", io.BytesIO(large))
    storage.put("small", io.BytesIO(b"small"))
    assert [one.name for one in storage.objects()] == ["large", "small"]
    with storage.open("large") as stored:
        assert stored.read() == large
    for _ in range(2):
        storage.remove("large")
    assert [one.name for one in storage.objects()] == ["small"]
    with pytest.raises(NotFound, match="large cannot be read"), storage.open("large"):
        pass


def test_a_bucket_that_is_not_there_is_unavailable(store: ObjectStore, storage: SharedStorage) -> None:
    other = SharedStorage(*filesystem_of("s3://no-such-bucket/shared"))
    with pytest.raises(Unavailable, match="no-such-bucket/shared/x cannot be written"):
        other.put("x", io.BytesIO(b"x"))


class Node:
    """A node with a disk and a registry of its own."""

    def __init__(self, brokers: Brokers, topic: str, storage: SharedStorage, folder: Path) -> None:
        self.folder = folder
        self.snapshots = SharedSnapshots(storage)
        self.partition = KafkaPartition({"bootstrap.servers": brokers.addresses}, topic, 0)
        self.fetches = SnapshotFetches(self.snapshots, RealDisk(), folder / "ledger", folder / "registry")
        first_offset, end = self.partition.ends()
        if first_offset:
            self.fetches.begin(first_offset, end)
        copy = LedgerCopy.open(RealDisk(), str(folder / "ledger"))
        self.log = ReplicatedLog(self.partition, copy, LogNode(folder.name, b"key"))

    def own(self) -> Ledger:
        self.log.claim(0, self.folder.name.encode(), LEDGER_ID)
        folder = str(self.folder / "ledger")
        return Ledger.open(RealDisk(), folder, SMALL, StandingClock(), log=self.log)

    def share(self, ledger: Ledger) -> None:
        """Make a snapshot of the registry, and upload it."""
        registry_folder = self.folder / "registry"
        registry_folder.mkdir(exist_ok=True)
        registry = Registry(str(registry_folder / REGISTRY_FILE))
        flush = registry.begin(Meta(LEDGER_ID, ledger.durable_seq, NO_KEY, {}))
        registry.write(flush)
        registry.done(flush)
        path = str(registry_folder / "registry-0.snapshot")
        registry.snapshot(path)
        registry.close()
        uploads = SnapshotUploads(self.snapshots, self.log, StandingClock(), lambda work, done: done(work()))
        uploads.made(path, ledger.durable_seq, ledger.first_seq)
        assert uploads.failed == ""


@pytest.fixture
def topic(one_broker: Brokers) -> str:
    return one_broker.make_topic(f"trimmed-{next(_names)}", min_insync_replicas="1")


@pytest.fixture
def opened() -> Iterator[list[Node]]:
    nodes: list[Node] = []
    yield nodes
    for node in nodes:
        node.partition.close()


def test_the_brokers_delete_what_uploaded_snapshots_do_without(
    one_broker: Brokers, topic: str, storage: SharedStorage, tmp_path: Path, opened: list[Node]
) -> None:
    start = partial(Node, one_broker, topic, storage)
    owner = start(tmp_path / "owner")
    opened.append(owner)
    ledger = owner.own()
    fill(ledger, UNITS)
    ledger.reclaim(60)
    begin = owner.log.copy.begin_of(ledger.first_seq, 0)
    assert begin is not None
    owner.share(ledger)
    fill(ledger, UNITS[:4])
    assert owner.partition.ends()[0] == 0
    owner.share(ledger)
    fill(ledger, UNITS[:4])
    wait_until(lambda: owner.partition.ends()[0] == begin.offset)
    empty = start(tmp_path / "empty")
    opened.append(empty)
    after = empty.own()
    assert after.first_seq == ledger.first_seq
    assert contents(after) == contents(ledger)
    assert fill(after, UNITS[:2]) == [None, None]
