"""The ledger on a replicated log: claims, copies, takeovers, and what is refused (R14)."""

import asyncio
import errno
from functools import partial
from pathlib import Path

import pytest

from tarry.core.errors import Conflict, Damage, NotFound, TarryError, Unavailable
from tarry.ledger.copy import COPY_NAME, LedgerCopy
from tarry.ledger.disk import RealDisk
from tarry.ledger.head import HEAD_BYTES, HEAD_NAME, decode_head
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.log.envelope import PART_BYTES
from tarry.ledger.log.fold import Fold, ValidFrame
from tarry.ledger.log.partition import LogRecord
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog
from tarry.testing.disk import SimulatedDisk
from tarry.testing.log import SimulatedLog, SimulatedPartition
from tests.unit.ledger_kit import FOLDER, LEDGER_ID, SMALL, StandingClock, contents, open_ledger, record
from tests.unit.log_kit import UNITS, Node, fill


def test_a_standby_whose_disk_was_full_reads_again_what_it_had_no_room_for() -> None:
    log = SimulatedLog()
    a, b = Node(log, "a"), Node(log, "b")
    fill(a.own(), UNITS)
    for room_bytes in (0, 5_000, 20_000):
        b.disk.capacity_bytes = room_bytes
        with pytest.raises(Unavailable, match="the copy of the log cannot be written"):
            b.follow()
    b.disk.capacity_bytes = None
    b.follow()
    assert a.files() == b.files()


def test_a_standby_has_the_owners_files_byte_for_byte_and_takes_over() -> None:
    log = SimulatedLog()
    a, b = Node(log, "a"), Node(log, "b")
    ledger = a.own()
    assert fill(ledger, UNITS) == [None] * len(UNITS)
    b.follow()
    assert len(a.files()) > 2
    assert a.files() == b.files()
    heads = [decode_head(node.disk.open(f"{FOLDER}/{HEAD_NAME}").read(HEAD_BYTES, 0)) for node in (a, b)]
    assert heads[0] == heads[1]
    assert heads[0] is not None
    assert (heads[0].seq, heads[0].epoch) == (80, 1)
    after = b.own()
    assert contents(after) == [one for unit in UNITS for one in unit]
    assert fill(after, UNITS[:2]) == [None] * 2
    answers: list[TarryError | None] = []
    ledger.append([record(1)], answers.append)
    ledger.commit(0.1)
    ledger.commit(0.1)
    assert [type(answer) for answer in answers] == [Unavailable]
    assert "b owns the ledger now, from epoch 2" in str(ledger.failed)
    with pytest.raises(Unavailable, match="the log failed"):
        ledger.append([record(1)], answers.append)


def test_frames_on_their_way_at_a_takeover_are_either_replayed_or_never_answered() -> None:
    log = SimulatedLog()
    a, b = Node(log, "a"), Node(log, "b")
    ledger = a.own()
    fill(ledger, UNITS[:3])
    answers: list[TarryError | None] = []
    for unit in UNITS[3:6]:
        ledger.append(unit, answers.append)
        ledger._writer._send()
    a.partition.arrive()
    after = b.own()
    assert after.durable_seq == 8
    while a.partition.arrive():
        pass
    assert fill(after, UNITS[6:8]) == [None] * 2
    assert b.log.gaps == 1
    assert b.log.void == 2
    ledger.commit(0.1)
    ledger.commit(0.1)
    assert [type(answer) for answer in answers] == [type(None), Unavailable, Unavailable]


def test_the_copy_loses_what_was_not_synced_and_reads_it_again() -> None:
    log = SimulatedLog()
    expected = [one for unit in UNITS for one in unit]
    for seed in range(30):
        a = Node(log, f"a{seed}", SimulatedDisk(seed))
        a.follow()
        ledger = a.own()
        if not seed:
            fill(ledger, UNITS)
        a.disk.crash()
        again = Node(log, f"b{seed}", a.disk)
        again.follow()
        assert contents(again.own()) == expected


def test_frames_that_a_failed_sync_dropped_are_on_disk_before_the_next_segment_begins() -> None:
    """The kernel takes pages for written once a sync of them has failed: a later sync, that goes well, writes none of them."""
    log = SimulatedLog()
    a = Node(log, "a")
    ledger = a.own()
    standbys = [Node(log, f"b{seed}", SimulatedDisk(seed)) for seed in range(20)]
    fill(ledger, UNITS[:3])
    for standby in standbys:
        standby.follow()
        standby.disk.fail_next("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            standby.log.copy.sync()
    fill(ledger, UNITS[3:])
    for standby in standbys:
        Node(log, f"{standby.name} again", standby.disk).follow()
        standby.disk.crash()
        healed = Node(log, f"{standby.name} healed", standby.disk)
        healed.follow()
        assert healed.files() == a.files()


@pytest.mark.parametrize("name", ["00000001.seg", "00000002.seg", "newest"])
def test_a_segment_that_is_missing_or_bad_is_read_again(name: str) -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    fill(a.own(), UNITS)
    files = a.files()
    name = max(files) if name == "newest" else name
    # The first one may have been reclaimed.
    for spoil in ("header", "truncate", *(["remove"] if "1" not in name else [])):
        path = f"{FOLDER}/{name}"
        if spoil == "remove":
            a.disk.remove(path)
        elif spoil == "header":
            a.disk.flip_bit(path, 40, 1)
        else:
            a.disk.open(path).truncate(5000)
        a = Node(log, "a", a.disk)
        assert a.log.copy.notes or spoil == "remove"
        a.follow()
        assert a.files() == files


def test_every_bit_of_the_newest_segment_may_flip() -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    fill(a.own(), UNITS[:20])
    files = a.files()
    newest = f"{FOLDER}/{max(files)}"
    for at in range(0, a.disk.open(newest).size(), 61):
        disk = a.disk.copy()
        disk.flip_bit(newest, at, at % 8)
        again = Node(log, "b", disk)
        again.follow()
        assert again.files() == files


def test_a_ledger_of_this_disk_moves_to_the_log_and_back() -> None:
    disk = SimulatedDisk()
    local = open_ledger(disk)
    fill(local, UNITS[:20])
    local.close()
    log = SimulatedLog()
    a = Node(log, "a", disk)
    ledger = a.own()
    assert fill(ledger, UNITS[20:]) == [None] * 20
    ledger.close()
    with pytest.raises(Unavailable, match="copy of a replicated log"):
        open_ledger(disk)
    late = Node(log, "late")
    with pytest.raises(Unavailable, match="begin with a copy of the owner's folder"):
        late.follow()
    b = Node(log, "b", disk.copy())
    b.follow()
    assert b.log.copy.last_seq == 80
    disk.remove(f"{FOLDER}/{COPY_NAME}")
    back = open_ledger(disk)
    assert contents(back) == [one for unit in UNITS for one in unit]
    back.close()


def test_what_only_the_folder_has_is_damage_if_it_goes_bad() -> None:
    disk = SimulatedDisk()
    local = open_ledger(disk)
    fill(local, UNITS[:4])
    local.close()
    Node(SimulatedLog(), "a", disk).own().close()
    disk.flip_bit(f"{FOLDER}/00000001.seg", 4200, 1)
    with pytest.raises(Damage, match="cannot be read again"):
        LedgerCopy.open(disk, FOLDER)
    assert disk.exists(f"{FOLDER}/00000001.seg")


def test_a_node_with_another_id_key_does_not_own() -> None:
    log = SimulatedLog()
    fill(Node(log, "a").own(), UNITS[:2])
    stranger = Node(log, "b", key=b"other")
    with pytest.raises(Unavailable, match="another id key"):
        stranger.own()
    assert log.end == 3


def test_two_ledgers_in_one_log_are_refused() -> None:
    log = SimulatedLog()
    fill(Node(log, "a").own(), UNITS[:2])
    disk = SimulatedDisk()
    other = Ledger.open(disk, FOLDER, SMALL, StandingClock(), new_ledger_id=bytes(16))
    fill(other, UNITS[:2])
    other.close()
    with pytest.raises(Unavailable, match="different ledgers"):
        Node(log, "b", disk).own()


def test_of_two_that_claim_at_once_one_owns() -> None:
    log = SimulatedLog()
    a, b = Node(log, "a"), Node(log, "b")

    def quicker() -> None:
        a.partition.disturb = None
        b.own()

    a.partition.disturb = quicker
    with pytest.raises(Conflict, match="b claimed the ledger first"):
        a.own()
    assert b.log.owns
    assert not a.log.owns


def test_a_log_that_has_lost_records_is_refused() -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    fill(a.own(), UNITS[:4])
    del log._records[-2:]
    again = Node(log, "a", a.disk)
    with pytest.raises(Unavailable, match="has lost records"):
        again.own()


def test_a_log_that_has_lost_records_of_others_is_noticed_at_the_next_claim() -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    fill(a.own(), UNITS[:4])
    b = Node(log, "b", a.disk.copy())
    lost = log._records.pop(-1)
    log.write(b"in its place")
    b.own()
    late = Node(log, "late")
    with pytest.raises(Damage, match="lost records"):
        late.follow()
    assert lost


def test_a_log_is_trimmed_only_as_far_as_is_allowed_and_by_whole_segments() -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    ledger = a.own()
    fill(ledger, UNITS)
    bounds = [one.first_seq for one in ledger.segments()]
    assert ledger.reclaim(60) >= 2
    fill(ledger, UNITS[:1])
    assert log.start == 0
    a.log.trimmable_seq = bounds[2]
    ledger.reclaim(60)
    fill(ledger, UNITS[:1])
    first = next(
        valid.first_seq
        for one in log.records()
        if isinstance(valid := Fold(a.log.copy._state.starts[3]).take(*one), ValidFrame)  # type: ignore[union-attr]
    )
    assert first == bounds[2]
    with pytest.raises(NotFound):
        Node(log, "b").own()
    b = Node(log, "b", a.disk.copy())
    b.follow()
    assert b.log.copy.last_seq == ledger.durable_seq


def test_frames_over_a_mebibyte_go_in_parts() -> None:
    log = SimulatedLog()
    a, b = Node(log, "a"), Node(log, "b")
    settings = LedgerSettings(segment_bytes=4 << 20, spare_segments=1)
    ledger = a.own(settings)
    units = [[record(1, 10)], [record(2, 2 * PART_BYTES)], [record(3, PART_BYTES - 1000)]]
    assert fill(ledger, units) == [None] * 3
    assert [len(one.data) > 1 << 19 for one in log.records()] == [False, False, True, True, False, True]
    assert max(len(one.data) for one in log.records()) < 1 << 20
    b.follow()
    assert contents(b.own(settings)) == [one for unit in units for one in unit]


def test_a_clean_end_releases_the_ledger_and_the_copy_needs_nothing() -> None:
    log = SimulatedLog()
    a = Node(log, "a")
    ledger = a.own()
    fill(ledger, UNITS[:4])
    ledger.close()
    a.disk.crash()
    again = Node(log, "a", a.disk)
    assert again.log.copy.notes == []
    assert again.log.copy.position.next_seq == 9


class Slow(SimulatedPartition):
    """A log that takes what it was sent only when it was asked for deliveries several times."""

    most = 0
    turns = 0

    def deliveries(self, wait_s: float) -> list:  # type: ignore[type-arg]
        self.turns += 1
        Slow.most = max(Slow.most, len(self._under_way))
        if self.turns % 7 == 0:
            return super().deliveries(wait_s)
        return []


async def test_the_writers_thread_keeps_several_frames_on_their_way_and_answers_in_order(
    tmp_path: Path,
) -> None:
    log = SimulatedLog()
    partition = Slow(log, "a", 5)
    log.connections.append(partition)
    disk = RealDisk()
    replicated = ReplicatedLog(partition, LedgerCopy.open(disk, str(tmp_path / "a")), LogNode("a", b""))
    while True:
        try:
            replicated.claim(0, b"nonce", LEDGER_ID)
            break
        except Unavailable:
            continue
    settings = LedgerSettings(segment_bytes=1 << 16, commit_max_records=4)
    ledger = Ledger.open(disk, str(tmp_path / "a"), settings, StandingClock(), log=replicated)
    loop = asyncio.get_running_loop()
    ledger.start(loop.call_soon_threadsafe)
    answered: list[int] = []
    done = asyncio.Event()

    def answer(seq: int, error: TarryError | None) -> None:
        assert error is None
        answered.append(seq)
        if len(answered) == 600:
            done.set()

    for n in range(600):
        room = asyncio.Event()
        ledger.when_space(400, room.set)
        await room.wait()
        ledger.append([record(n, 300)], partial(answer, ledger.next_seq))
    await asyncio.wait_for(done.wait(), 30)
    assert answered == sorted(answered)
    assert 1 < Slow.most <= 5
    assert len(contents(ledger)) == 600
    assert len(ledger.segments()) > 2
    ledger.close()


def test_a_log_that_has_lost_what_was_read_is_no_log_that_was_read_to_its_end() -> None:
    log = SimulatedLog()
    fill(Node(log, "a").own(), UNITS[:5])
    standby = Node(log, "b")
    standby.follow()
    assert standby.log.lag() == 0
    log.shorten(log.end - 1)
    with pytest.raises(Unavailable, match="has lost records"):
        standby.log.lag()


@pytest.mark.parametrize(("failures", "lives"), [(3, True), (1_000, False)])
def test_a_gap_that_cannot_be_read_at_once_is_read_again_before_its_outcome_is_unknown(
    failures: int, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log does not say where the frames are, so each is read to be answered.
    node = Node(SimulatedLog(silence=1.0), "a")
    ledger = node.own()
    read, left = node.partition.read, [failures]

    def failing(offset: int, wait_s: float) -> list[LogRecord]:
        if left[0]:
            left[0] -= 1
            raise Unavailable("the leader has just changed")
        return read(offset, wait_s)

    monkeypatch.setattr(node.partition, "read", failing)
    answers = fill(ledger, UNITS[:1])
    assert answers == [None] if lives else isinstance(answers[0], Unavailable)
    assert (ledger.failed is None) is lives
    assert lives or "could not be read: the leader has just changed" in str(ledger.failed)
