"""A server that stands by leaves its copy alone, unless the log was trimmed past it: the copy may be all that is left."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tarry.cluster import standby as standby_module
from tarry.cluster.candidacy import Candidacy
from tarry.cluster.standby import LogAddress, Standby
from tarry.core.errors import Unavailable
from tarry.core.time.clock import SystemClock
from tarry.ledger.copy import LedgerCopy, begin_copy
from tarry.ledger.log import replicated_log
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.replicated_log import LogNode
from tarry.testing.disk import SimulatedDisk
from tarry.testing.log import SimulatedLog, SimulatedPartition
from tests.unit.ledger_kit import FOLDER, LEDGER_ID
from tests.unit.log_kit import UNITS, Node, fill
from tests.waiting import wait_until

SESSION_S = 30
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


class Beginnings:
    """The shared snapshots: each is asked for here, and the copy begins anew where a test says."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.asked: list[tuple[int, int]] = []
        self.begin_at: LogPosition | None = None
        self.again = threading.Event()

    def begin(self, first_offset: int, end: int) -> None:
        self.asked.append((first_offset, end))
        if self.begin_at is None:
            raise Unavailable("shared storage has no snapshot")
        for name in self.disk.listdir(FOLDER):
            self.disk.remove(f"{FOLDER}/{name}")
        begin_copy(self.disk, FOLDER, LogClaim("a", b"a", LEDGER_ID, b"key", 1, 1, 0), self.begin_at)

    def renew(self, copy: LedgerCopy) -> None:
        """There is never a newer one."""


class World:
    """A log with an owner, and a standby with a copy of some of it."""

    def __init__(self) -> None:
        self.log = SimulatedLog()
        self.node = Node(self.log, "a")
        self.owner = self.node.own()
        fill(self.owner, UNITS[:10])
        self.disk = SimulatedDisk()
        self.before = Node(self.log, "b", self.disk)
        self.before.follow()
        self.read_to = self.before.log.position
        self.before.log.copy.sync()
        self.before.log.close()
        self.files = self.before.files()
        self.beginnings = Beginnings(self.disk)
        self.told: list[Any] = []
        self.standby: Standby | None = None
        self.partition: SimulatedPartition

    def start(self) -> Standby:
        self.partition = self.log.connect("b")
        self.standby = standby = Standby(
            LogAddress(client=NOBODY, topic="tarry", session_timeout_ms=1000 * SESSION_S),
            self.disk,
            FOLDER,
            LogNode("b", b"key"),
            SystemClock(),
            self.told.append,
            self.beginnings,
            partition=self.partition,
        )
        standby.start()
        return standby


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(standby_module, "TRY_AGAIN_S", 0.02)
    monkeypatch.setattr(standby_module, "MEASURE_EVERY_S", 0.0)
    # Nobody is to get the turn here.
    monkeypatch.setattr(Candidacy, "start", lambda self: None)
    made = World()
    yield made
    if made.standby is not None:
        made.standby.close()


def shortened(log: SimulatedLog) -> None:
    log.shorten(log.end - 3)


def made_anew(log: SimulatedLog) -> None:
    log.shorten(start=0)


@pytest.mark.parametrize("lost", [shortened, made_anew])
def test_a_log_that_ends_before_the_copy_leaves_the_copy_alone(
    lost: Callable[[SimulatedLog], None], world: World
) -> None:
    lost(world.log)
    world.beginnings.begin_at = LogPosition(0, 0, 1)
    standby = world.start()
    wait_until(lambda: standby.trouble is not None)
    assert "the log has lost records, or the topic was made anew" in str(standby.trouble)
    assert not standby.level
    standby.close()
    assert world.beginnings.asked == []
    assert world.before.files() == world.files
    assert world.told == []


def test_a_topic_that_was_made_anew_and_is_longer_by_now_leaves_the_copy_alone(world: World) -> None:
    """Its records would be read from the middle on, as if they followed."""
    world.start().close()
    files = world.before.files()
    world.log.identity = "the second"
    standby = world.start()
    wait_until(lambda: standby.trouble is not None)
    assert "the topic was made anew" in str(standby.trouble)
    standby.close()
    assert world.before.files() == files


@pytest.mark.parametrize("lost", [shortened, made_anew])
def test_one_that_stands_ends_when_the_log_has_lost_records_and_says_so(
    lost: Callable[[SimulatedLog], None], world: World
) -> None:
    standby = world.start()
    wait_until(lambda: standby.level)
    lost(world.log)
    wait_until(lambda: bool(world.told))
    assert isinstance(world.told[0], Unavailable)
    assert "has lost records" in str(world.told[0])
    assert world.beginnings.asked == []
    standby.close()
    assert world.before.files() == world.files


def test_it_says_that_it_stands_only_while_the_group_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = world.start()
    wait_until(lambda: standby.level)
    assert not standby.stands, "it has only asked to be let in"
    with monkeypatch.context() as joined:
        joined.setattr(Candidacy, "is_member", True)
        wait_until(lambda: standby.stands)
        standby._candidacy.trouble = "the group refused it"
        wait_until(lambda: not standby.stands)
        assert standby.trouble == "the group refused it"


def own_turn(standby: Standby) -> None:
    """The group gives it the turn."""
    wait_until(lambda: standby.level)
    standby._chosen(True)


def test_a_connection_that_failed_for_good_at_a_claim_is_replaced(world: World) -> None:
    standby = world.start()
    wait_until(lambda: standby.level)
    world.partition.sever("the producer has failed for good")
    own_turn(standby)
    wait_until(lambda: bool(world.told))
    assert world.told == [standby.side]
    assert standby.owner == "b"


def test_its_own_earlier_claim_that_wins_keeps_it_from_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicated_log, "PATIENCE", 2)
    standby = world.start()
    wait_until(lambda: standby.level)
    # The brokers take its claim, and do not say so in time: it comes into the log when the next one is sent.
    late: list[bytes] = []
    send, deliveries = world.partition.send, world.partition.deliveries

    def held(data: bytes) -> int:
        if not late:
            late.append(data)
            monkeypatch.setattr(world.partition, "deliveries", lambda wait_s: [])
            return -1
        monkeypatch.setattr(world.partition, "deliveries", deliveries)
        if len(late) == 1:
            world.log.write(late[0])
            late.append(data)
        return send(data)

    monkeypatch.setattr(world.partition, "send", held)
    own_turn(standby)
    wait_until(lambda: bool(world.told), within_s=SESSION_S)
    assert world.told == [standby.side]
    assert len(late) == 2


def test_a_log_that_was_trimmed_past_the_copy_is_begun_anew_at_a_snapshot(world: World) -> None:
    fill(world.owner, UNITS[10:])
    begin = world.node.log.copy.begin_of(world.read_to.next_seq + 1, 0)
    assert begin is not None
    world.log.trim(begin.offset)
    world.beginnings.begin_at = begin
    standby = world.start()
    wait_until(lambda: standby.level)
    assert world.beginnings.asked == [(begin.offset, world.log.end)]
    assert standby.side.copy.reader.segments[0].first_seq == begin.next_seq


def test_without_a_snapshot_that_goes_with_the_log_it_waits_and_asks_no_more_often_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world.owner, UNITS[10:])
    world.log.trim(world.read_to.offset + 1)
    monkeypatch.setattr(standby_module, "TRY_AGAIN_S", 60.0)
    standby = world.start()
    wait_until(lambda: standby.trouble is not None)
    assert len(world.beginnings.asked) == 1
    assert world.before.files() == world.files
