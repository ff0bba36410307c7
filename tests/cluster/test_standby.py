"""A server that stands by, on real brokers: what it does when the topic is not the one that it has read."""

from pathlib import Path

from tarry.cluster.kafka_partition import KafkaPartition
from tarry.cluster.standby import LogAddress, Standby
from tarry.core.time.clock import SystemClock
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tests.cluster.brokers import Brokers
from tests.unit.ledger_kit import LEDGER_ID, SMALL, StandingClock
from tests.unit.log_kit import UNITS, fill
from tests.waiting import wait_until


class NoSnapshots:
    """Shared storage that must not be asked for a beginning."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def begin(self, first_offset: int, end: int) -> None:
        self.asked.append((first_offset, end))

    def renew(self, copy: LedgerCopy) -> None:
        """There is never a newer one."""


def test_a_topic_that_was_made_anew_leaves_the_copy_alone(one_broker: Brokers, tmp_path: Path) -> None:
    topic = one_broker.make_topic("made-anew", min_insync_replicas="1")
    client = {"bootstrap.servers": one_broker.addresses}
    folder = str(tmp_path / "ledger")
    copy = LedgerCopy.open(RealDisk(), folder)
    side = ReplicatedLog(KafkaPartition(client, topic, 0), copy, LogNode("a", b"key"))
    side.claim(0, b"a", LEDGER_ID)
    ledger = Ledger.open(RealDisk(), folder, SMALL, StandingClock(), log=side)
    fill(ledger, UNITS)
    ledger.close()
    files = {path.name: path.read_bytes() for path in (tmp_path / "ledger").iterdir()}

    one_broker.admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in one_broker.admin.list_topics(timeout=30).topics)
    one_broker.make_topic(topic, min_insync_replicas="1")
    snapshots = NoSnapshots()
    standby = Standby(
        LogAddress(client=client, topic=topic, session_timeout_ms=2_000),
        RealDisk(),
        folder,
        LogNode("a", b"key"),
        SystemClock(),
        lambda told: None,
        snapshots,
    )
    standby.start()
    try:
        wait_until(lambda: standby.trouble is not None and "was made anew" in standby.trouble)
    finally:
        standby.close()
    assert not standby.level
    assert snapshots.asked == []
    assert {path.name: path.read_bytes() for path in (tmp_path / "ledger").iterdir()} == files
