"""Following a ledger by its log alone: what is given, from where, and what is refused (R12, R14)."""

import pickle
from pathlib import Path
from random import Random

import pyarrow.fs
import pytest

from tarry.config import Config
from tarry.config.cluster import Cluster
from tarry.config.settings import LedgerSection
from tarry.core.errors import Damage, NotFound, Unavailable
from tarry.ledger.aside import SET_ASIDE
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.log import follow
from tarry.ledger.log.envelope import LogClaim, encode_claim
from tarry.ledger.log.follow import KnownLog, LogFollower, LogNotes, LogScan
from tarry.ledger.log.partition import LogRecord
from tarry.ledger.record import Encoded
from tarry.pipeline.kafka import SharedNotes
from tarry.pipeline.ledger_parts import planned
from tarry.registry.shared_snapshots import SharedSnapshots, registry_folder
from tarry.registry.shared_storage import SharedStorage
from tarry.serve.composition.shared import share_set_aside
from tarry.testing.log import SimulatedLog, SimulatedPartition
from tests.unit.engine_kit import Bench
from tests.unit.ledger_kit import LEDGER_ID, contents, record
from tests.unit.log_kit import UNITS, Node, fill
from tests.unit.test_reclaim import QUICK, churn, settle
from tests.unit.test_shared_snapshots import Owner

LARGE = LedgerSettings(segment_bytes=8 << 20, spare_segments=1)


@pytest.fixture(autouse=True)
def small_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PLACE_EVERY_BYTES", 1000)


class Reads:
    """Connections to a log that tell which offsets were read."""

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self.offsets: list[int] = []

    def __call__(self) -> SimulatedPartition:
        partition = self._log.connect("reader")
        read = partition.read

        def noted(offset: int, wait_s: float) -> list[LogRecord]:
            self.offsets.append(offset)
            return read(offset, wait_s)

        partition.read = noted  # type: ignore[method-assign]
        return partition


def follower_of(log: SimulatedLog) -> LogFollower:
    return LogFollower(LogScan(lambda: log.connect("reader")), 0)


def rows(follower: LogFollower, first_seq: int, last_seq: int) -> list[Encoded]:
    found: list[Encoded] = []
    for frame in follower.frames(first_seq, last_seq):
        assert frame.first_seq == first_seq + len(found)
        for i, (kind, _, lane, _, crc, fire_at_ms, kills_seq, kills_fire_at_ms) in enumerate(
            frame.fixed.tolist()
        ):
            found.append(Encoded(kind, lane, crc, fire_at_ms, kills_seq, kills_fire_at_ms, frame.body(i)))
    return found


def same(found: list[Encoded], ledger: Ledger, first_seq: int, last_seq: int) -> bool:
    begin = ledger.first_seq
    return found == contents(ledger)[first_seq - begin : last_seq - begin + 1]


def test_it_gives_what_the_ledger_gives_across_takeovers_and_segments() -> None:
    log = SimulatedLog(Random(3))
    a = Node(log, "a")
    fill(a.own(), UNITS)
    # What a has under way arrives behind b's claim, and is void.
    ledger = a.own()
    ledger.append(UNITS[0], lambda error: None)
    b = Node(log, "b")
    taken = b.own()
    log.write(b"somebody else's record")
    while log.step():
        pass
    fill(taken, UNITS)
    follower = follower_of(log)
    head = follower.durable_seq()
    assert (follower.ledger_id(), head, follower.first_seq()) == (LEDGER_ID, taken.durable_seq, 1)
    assert len(follower.bounds()) > 4
    assert same(rows(follower, 1, head), taken, 1, head)
    assert same(rows(follower, 7, 70), taken, 7, 70)
    assert rows(follower, head + 1, head + 9) == []
    assert same(rows(follower, head, head + 9), taken, head, head)


def test_a_task_reads_its_own_offsets_and_no_others() -> None:
    log = SimulatedLog(Random(5))
    ledger = Node(log, "a").own()
    fill(ledger, UNITS)
    reads = Reads(log)
    scan = LogScan(reads)
    head = LogFollower(scan, 0).durable_seq()
    place = scan.known().place_before(60)
    assert place is not None
    assert place.next_seq > 1
    told: KnownLog = pickle.loads(pickle.dumps(scan.known()))
    reads.offsets.clear()
    assert same(rows(LogFollower(LogScan(reads, known=told), 0), 60, 64), ledger, 60, 64)
    assert min(reads.offsets) == place.offset
    last = scan.known().place_before(head)
    assert last is not None
    assert max(reads.offsets) < last.offset


def test_a_frame_of_several_parts_is_one() -> None:
    log = SimulatedLog(Random(1))
    ledger = Node(log, "a").own(LARGE)
    fill(ledger, [[record(1, 3 << 20)], [record(2)], [record(3, 2 << 20), record(4)]])
    while ledger.durable_seq < 4:
        ledger.commit(0.1)
    follower = follower_of(log)
    assert len(log.records()) > 6
    assert same(rows(follower, 1, follower.durable_seq()), ledger, 1, ledger.durable_seq)
    assert same(rows(follower, 3, 3), ledger, 3, 3)


def test_what_comes_later_is_found_by_who_looks_again() -> None:
    log = SimulatedLog(Random(1))
    ledger = Node(log, "a").own()
    fill(ledger, UNITS[:3])
    follower = follower_of(log)
    before = follower.durable_seq()
    fill(ledger, UNITS[3:9])
    assert follower.durable_seq() == ledger.durable_seq > before
    fill(ledger, UNITS[9:12])
    assert same(rows(follower, before, ledger.durable_seq), ledger, before, ledger.durable_seq)


def test_a_log_without_a_ledger_says_so() -> None:
    log = SimulatedLog()
    log.write(b"somebody else's record")
    with pytest.raises(Unavailable, match="no ledger in the log yet"):
        follower_of(log).ledger_id()


def test_a_ledger_that_came_into_the_log_from_its_middle_begins_there() -> None:
    log = SimulatedLog()
    log.write(b"somebody else's record")
    log.write(encode_claim(1, LogClaim("a", b"a", LEDGER_ID, b"", 1, 500, 0)))
    follower = follower_of(log)
    assert (follower.first_seq(), follower.durable_seq()) == (500, 499)
    with pytest.raises(NotFound, match="500 is the first"):
        rows(follower, 499, 499)


def test_a_ledger_that_is_being_moved_is_not_read() -> None:
    for moving in ("in", "out"):
        log = SimulatedLog()
        Node(log, "a").log.claim(0, b"a", LEDGER_ID, moving)
        with pytest.raises(Unavailable, match="being moved, or was moved away, by a"):
            follower_of(log).durable_seq()


def test_a_log_that_lost_records_or_became_another_ledgers_is_refused() -> None:
    def claim(next_seq: int, ledger_id: bytes, version: int = 1) -> bytes:
        return encode_claim(2, LogClaim("b", b"b", ledger_id, b"", version, next_seq, 0))

    for wrong, error, told in (
        (claim(1_000, LEDGER_ID), Damage, "claimed it at seq 1000.*has lost records"),
        (claim(1, b"another ledger.."), Unavailable, "for another ledger"),
        (claim(1, LEDGER_ID, 99), Unavailable, "format version 99.*run the newer program"),
    ):
        log = SimulatedLog()
        fill(Node(log, "a").own(), UNITS[:3])
        log.write(wrong)
        follower = follower_of(log)
        for _ in range(2):
            with pytest.raises(error, match=told):
                follower.durable_seq()


def test_a_log_that_ends_before_what_was_read_is_refused() -> None:
    log = SimulatedLog()
    fill(Node(log, "a").own(), UNITS[:3])
    follower = follower_of(log)
    follower.durable_seq()
    log._records.pop()
    with pytest.raises(Unavailable, match="has lost records, or the topic was made anew"):
        follower.durable_seq()


def test_damage_is_told_with_its_offset_and_nothing_after_it_is_given() -> None:
    log = SimulatedLog()
    fill(Node(log, "a").own(), UNITS[:9])
    scan = LogScan(lambda: log.connect("reader"))
    LogFollower(scan, 0).durable_seq()
    at = len(log._records) - 3
    log._records[at] = log._records[at][:-1] + b"!"
    with pytest.raises(Damage, match=f"damaged at byte {at}"):
        rows(LogFollower(scan, 0), 1, 18)
    again = follower_of(log)
    for _ in range(2):
        with pytest.raises(Damage, match=f"damaged at byte {at}"):
            again.durable_seq()


def test_brokers_that_do_not_answer_are_asked_again() -> None:
    log = SimulatedLog()
    ledger = Node(log, "a").own()
    fill(ledger, UNITS[:9])
    made: list[SimulatedPartition] = []

    def connect() -> SimulatedPartition:
        partition = log.connect("reader")
        read = partition.read
        failures = [Unavailable("no answer")]

        def read_at_last(offset: int, wait_s: float) -> list[LogRecord]:
            if failures:
                raise failures.pop()
            return read(offset, wait_s)

        partition.read = read_at_last  # type: ignore[method-assign]
        made.append(partition)
        return partition

    follower = LogFollower(LogScan(connect), 30)
    assert same(rows(follower, 1, follower.durable_seq()), ledger, 1, ledger.durable_seq)
    assert len(made) == 2
    assert made[1].closed
    with pytest.raises(Unavailable, match="no answer"):
        LogFollower(LogScan(connect), 0).durable_seq()


# A log that was trimmed


def trimmed(log: SimulatedLog, owner: Owner, upto_seq: int) -> None:
    """Have the owner reclaim, and share two snapshots, by which it trims the log."""
    owner.ledger.reclaim(upto_seq)
    for _ in range(2):
        owner.snapshot()
        owner.work()
    owner.go_on()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def owner(shared: Path, tmp_path: Path) -> Owner:
    storage = SharedStorage(pyarrow.fs.LocalFileSystem(), registry_folder(str(shared), "tarry"))
    owner = Owner(SimulatedLog(Random(9)), SharedSnapshots(storage), tmp_path / "owner")
    fill(owner.ledger, UNITS)
    return owner


def log_of(owner: Owner) -> SimulatedLog:
    return owner.node.partition._log


def test_a_trimmed_log_is_begun_at_the_place_that_the_servers_share(owner: Owner, shared: Path) -> None:
    log = log_of(owner)
    trimmed(log, owner, 60)
    assert log.start > 0
    with pytest.raises(Unavailable, match=r"set cluster\.shared, or give the source the option shared"):
        follower_of(log).durable_seq()
    follower = LogFollower(LogScan(lambda: log.connect("reader"), SharedNotes(str(shared), "tarry")), 0)
    first, head = owner.ledger.first_seq, owner.ledger.durable_seq
    assert (follower.first_seq(), follower.durable_seq()) == (first, head)
    assert follower.ledger_id() == LEDGER_ID
    assert same(rows(follower, first, head), owner.ledger, first, head)
    with pytest.raises(
        NotFound, match=f"seq {first - 1} of the ledger has been reclaimed; {first} is the first"
    ):
        rows(follower, first - 1, head)
    other = LogScan(lambda: log.connect("reader"), SharedNotes(str(shared), "another-topic"))
    with pytest.raises(Unavailable, match="has no snapshot of the registry that goes with it"):
        LogFollower(other, 0).durable_seq()


def test_a_reader_that_was_there_before_goes_on_from_the_very_place_to_which_the_log_is_trimmed(
    owner: Owner, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that has come up to the end of a segment needs the next one from its first record on."""
    monkeypatch.setattr(follow, "PLACE_EVERY_BYTES", 1 << 30)
    log = log_of(owner)
    scan = LogScan(lambda: log.connect("reader"))
    follower = LogFollower(scan, 0)
    follower.durable_seq()
    fill(owner.ledger, UNITS)
    trimmed(log, owner, 60)
    assert log.start > 0
    first, head = owner.ledger.first_seq, owner.ledger.durable_seq
    assert follower.first_seq() == first
    assert same(rows(follower, first, head), owner.ledger, first, head)


def test_records_that_an_owner_goes_on_without_are_flagged(
    owner: Owner, shared: Path, tmp_path: Path
) -> None:
    log = log_of(owner)
    config = Config(ledger=LedgerSection(topic="tarry"), cluster=Cluster(shared=str(shared)))
    share_set_aside(config, [])
    assert not (shared / "tarry" / "set-aside").exists()
    for seqs in ([5], [5, 8], [8]):
        share_set_aside(config, seqs)
    assert len(list((shared / "tarry" / "set-aside").iterdir())) == 2
    follower = LogFollower(LogScan(lambda: log.connect("reader"), SharedNotes(str(shared), "tarry")), 0)
    assert follower.set_aside() == {5, 8}
    flags = [row.kind & SET_ASIDE for row in rows(follower, 1, 10)]
    assert [seq for seq, flag in enumerate(flags, 1) if flag] == [5, 8]
    # The next owner may have been told to go on without another one.
    share_set_aside(config, [11])
    fill(Node(log, "b").own(), UNITS[:1])
    follower.durable_seq()
    assert follower.set_aside() == {5, 8, 11}
    file = tmp_path / "a-file"
    file.write_text("no folder")
    share_set_aside(Config(cluster=Cluster(shared=str(file))), [5])


class Telling(LogNotes):
    """Notes of an owner that tells late, in storage that is not always there."""

    def __init__(self) -> None:
        self.seqs: frozenset[int] = frozenset()
        self.gone = False

    def set_aside(self) -> frozenset[int]:
        if self.gone:
            raise Unavailable("the storage is not there")
        return self.seqs


def test_what_an_owner_goes_on_without_is_asked_until_a_frame_of_its_own_was_read(owner: Owner) -> None:
    """Its claim is in the log before it has told; and the storage may not answer in the turn that reads the claim."""
    log = log_of(owner)
    notes = Telling()
    follower = LogFollower(LogScan(lambda: log.connect("reader"), notes), 0)
    follower.durable_seq()
    node = Node(log, "b")
    ledger = node.own()
    notes.gone = True
    with pytest.raises(Unavailable):
        follower.durable_seq()
    notes.gone = False
    assert follower.set_aside() == set()
    notes.seqs = frozenset([5])
    fill(ledger, UNITS[:1])
    assert follower.set_aside() == {5}


def test_parts_of_a_range_carry_the_seqs_that_are_set_aside(owner: Owner) -> None:
    """Spark pickles the reader before it plans, so that nothing the driver finds out later travels with that."""
    log = log_of(owner)
    notes = Telling()
    notes.seqs = frozenset([5, 8])
    follower = LogFollower(LogScan(lambda: log.connect("reader"), notes), 0)
    parts = planned(follower, 1, 10, 5)
    assert [part.aside for part in parts] == [{5}, {8}]


def test_the_log_keeps_what_the_index_still_needs() -> None:
    """Whatever else allows it to be trimmed; a pipeline that reads the log has no other way to what it lacks."""
    log = SimulatedLog()
    bench = Bench(log=log, node="a", settings=QUICK, ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    assert bench.side is not None
    # As if all nodes had snapshots that do without the whole log.
    bench.side.trimmable_seq = 1 << 60
    follower = follower_of(log)
    bench.index.begin()
    starts = []
    for behind in (False, True, False):
        churn(bench, 4)
        # What is indexed, a pipeline has read.
        follower.durable_seq()
        if not behind:
            bench.index.flush(bench.ledger)
        churn(bench, 4)
        settle(bench)
        cursor, head = bench.index.cursor, bench.ledger.durable_seq
        assert follower.first_seq() <= cursor + 1
        lacking = sum(frame.count for frame in follower.frames(cursor + 1, head))
        assert lacking == head - cursor
        starts.append(log.start)
    first, second, third = starts
    assert 0 < first == second < third
