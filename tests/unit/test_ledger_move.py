"""A ledger moves into a replicated log and out of it: byte for byte, whatever crashes when, and never with two owners."""

from collections.abc import Callable

import pytest

from tarry.core.errors import Conflict, Damage, Unavailable
from tarry.ledger.copy import COPY_NAME
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.replicated_log import LogNode
from tarry.ledger.move import MovedLedger, MoveIn, frames_of, move_out
from tarry.ledger.record import Encoded
from tarry.testing.disk import SimulatedDisk
from tarry.testing.log import SimulatedLog
from tests.unit.ledger_kit import FOLDER, SMALL, StandingClock, contents, open_ledger
from tests.unit.log_kit import UNITS, Node, fill

EXPECTED = [one for unit in UNITS for one in unit]
NODE = LogNode("a", b"key")


class Crash(Exception):
    """The program ends here."""


def crash_at(step: int) -> Callable[[str, int], None]:
    """A listener to progress that ends the program when it is told for the so-manieth time."""
    left = [step]

    def told(_step: str, _done: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    return told


def local(seed: int = 0) -> SimulatedDisk:
    """A ledger of its own, which was closed and opened in between: with seals, also in the middle of a segment."""
    disk = SimulatedDisk(seed)
    for units in (UNITS[:7], UNITS[7:30], UNITS[30:]):
        ledger = open_ledger(disk)
        fill(ledger, units)
        ledger.close()
    return disk


def move_in(
    log: SimulatedLog,
    disk: SimulatedDisk,
    node: LogNode = NODE,
    told: Callable[[str, int], None] = lambda _step, _done: None,
    before_last: Callable[[LogClaim, LogPosition], object] = lambda _claim, _begin: None,
    part_bytes: int = 4096,
) -> MovedLedger:
    partition = log.connect(node.name)
    try:
        return MoveIn(partition, disk, FOLDER, node, told, part_bytes).run(
            5, b"nonce%d" % log.end, before_last
        )
    except Crash:
        partition.sever()
        raise


def out(
    log: SimulatedLog,
    disk: SimulatedDisk,
    node: LogNode = NODE,
    told: Callable[[str, int], None] = lambda _step, _done: None,
    before_last: Callable[[bytes], object] = lambda _: None,
) -> MovedLedger:
    return move_out(log.connect(node.name), disk, FOLDER, node, 5, b"nonce%d" % log.end, before_last, told)


def segment_files(disk: SimulatedDisk) -> dict[str, bytes]:
    return {
        name: disk.open(f"{FOLDER}/{name}").read(1 << 30, 0)
        for name in disk.listdir(FOLDER)
        if name[0] == "0"
    }


def test_every_byte_goes_into_the_log_and_every_node_has_all_of_it() -> None:
    log, disk = SimulatedLog(), local()
    before = segment_files(disk)
    moved = move_in(log, disk)
    assert (moved.first_seq, moved.last_seq, moved.segments) == (1, 80, len(before))
    assert segment_files(disk) == before
    a, b = Node(log, "a", disk), Node(log, "b")
    a.follow()
    b.follow()
    assert a.log.copy.notes == []
    assert b.files() == before
    ledger = b.own()
    assert contents(ledger) == EXPECTED
    fill(ledger, UNITS[:20])
    a.follow()
    assert a.files() == b.files()
    assert contents(a.own()) == EXPECTED + [one for unit in UNITS[:20] for one in unit]


def test_the_folder_is_refused_as_a_ledger_of_its_own_from_then_on() -> None:
    log, disk = SimulatedLog(), local()
    move_in(log, disk)
    with pytest.raises(Unavailable, match="copy of a replicated log"):
        open_ledger(disk)


def test_a_reclaimed_ledger_begins_in_the_log_where_it_begins() -> None:
    log, disk = SimulatedLog(), local()
    ledger = open_ledger(disk)
    ledger.reclaim(40)
    first = ledger.first_seq
    assert first > 1
    ledger.close()
    assert move_in(log, disk).first_seq == first
    assert contents(Node(log, "b").own()) == EXPECTED[first - 1 :]


def test_there_and_back() -> None:
    log, disk = SimulatedLog(), local()
    move_in(log, disk)
    node = Node(log, "a", disk)
    ledger = node.own()
    fill(ledger, UNITS)
    ledger.close()
    assert out(log, disk).last_seq == 160
    ledger = open_ledger(disk)
    assert contents(ledger) == EXPECTED * 2
    fill(ledger, UNITS)
    ledger.close()
    with pytest.raises(Conflict, match="cannot take this ledger: a has moved it out"):
        move_in(log, disk)
    fresh = SimulatedLog()
    move_in(fresh, disk)
    assert contents(Node(fresh, "b").own()) == EXPECTED * 3


def test_another_node_takes_the_ledger_out_with_an_empty_disk() -> None:
    log, disk = SimulatedLog(), SimulatedDisk()
    move_in(log, local())
    assert out(log, disk, LogNode("b", b"key")).last_seq == 80
    assert contents(open_ledger(disk)) == EXPECTED


# Crashes


def may_own(log: SimulatedLog, name: str = "other") -> bool:
    """Whether a server with an empty disk can own the ledger in the log."""
    try:
        Node(log, name).own()
    except Unavailable:
        return False
    return True


def opens(disk: SimulatedDisk) -> bool:
    """Whether a server on this disk alone would begin."""
    try:
        assert contents(open_ledger(disk.copy())) == EXPECTED
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("power", [False, True], ids=["process", "machine"])
def test_a_crash_at_any_step_into_the_log_leaves_one_owner_at_most_and_is_gone_on_with(power: bool) -> None:
    for step in range(1000):
        log, disk = SimulatedLog(step), local(step)
        try:
            move_in(log, disk, told=crash_at(step))
        except Crash:
            ended = False
        else:
            ended = True
        if power:
            disk.crash()
        if not ended:
            assert log.end == 0 or not may_own(log)
            assert opens(disk)
            move_in(log, disk)
        assert not opens(disk)
        assert contents(Node(log, "b").own()) == EXPECTED
        if ended:
            break
    assert step > 30


@pytest.mark.parametrize("sabotage", ["before", "copy", "claim"])
def test_a_crash_around_the_last_step_leaves_one_owner_at_most(sabotage: str) -> None:
    log, disk = SimulatedLog(), local()
    partition = log.connect("a")

    def last(claim: LogClaim, _begin: LogPosition) -> None:
        assert claim.moving == "in"
        assert not may_own(log)
        if sabotage == "before":
            raise Crash
        # The claim that ends the move does not arrive; or it does, and nothing is heard of it.
        partition.unreachable = sabotage == "copy"
        partition.disturb = (lambda: partition.sever("gone")) if sabotage == "claim" else None

    with pytest.raises((Crash, Unavailable)):
        MoveIn(partition, disk, FOLDER, NODE, part_bytes=4096).run(5, b"nonce", last)
    log.step()
    disk.crash()
    assert opens(disk) == (sabotage == "before")
    assert not may_own(log)
    move_in(log, disk)
    assert not opens(disk)
    assert contents(Node(log, "b").own()) == EXPECTED


def test_a_ledger_that_went_on_from_the_disk_between_two_attempts_is_moved_as_it_is_then() -> None:
    log, disk = SimulatedLog(), local()
    with pytest.raises(Crash):
        move_in(log, disk, told=crash_at(40))
    ledger = open_ledger(disk)
    fill(ledger, UNITS)
    ledger.close()
    move_in(log, disk)
    assert contents(Node(log, "b").own()) == EXPECTED * 2


def test_a_crash_on_the_way_out_leaves_a_copy_that_only_this_node_takes_out() -> None:
    for step in range(1000):
        log, disk = SimulatedLog(step), local(step)
        move_in(log, disk)
        try:
            out(log, disk, told=crash_at(step))
        except Crash:
            assert not opens(disk)
            # Nothing was claimed by its first word.
            assert may_own(log) == (step == 0)
            disk.crash()
            if step == 0:
                continue
            with pytest.raises(Unavailable, match="moved out of this log, to the disk of a"):
                out(log, SimulatedDisk(), LogNode("b", b"key"))
            out(log, disk)
        else:
            break
        assert contents(open_ledger(disk)) == EXPECTED
    assert step > 30


# Refusals


def test_a_log_that_holds_something_else_is_refused_and_stays_as_it_is() -> None:
    log = SimulatedLog()
    stranger = SimulatedDisk()
    other = Ledger.open(stranger, FOLDER, SMALL, StandingClock(), new_ledger_id=bytes(16))
    fill(other, UNITS[:3])
    other.close()
    move_in(log, stranger)
    end = log.end
    with pytest.raises(Conflict, match="another ledger in it; make a new topic"):
        move_in(log, local())
    assert log.end == end
    used = SimulatedLog()
    used.write(b"x")
    used.trim(1)
    with pytest.raises(Conflict, match="it was trimmed"):
        move_in(used, local())


def test_a_ledger_that_differs_from_what_is_in_the_log_is_refused() -> None:
    log = SimulatedLog()
    with pytest.raises(Crash):
        move_in(log, local(), told=crash_at(60))
    differing = SimulatedDisk()
    ledger = open_ledger(differing)
    fill(ledger, list(reversed(UNITS)))
    ledger.close()
    with pytest.raises(Conflict, match=r"it differs from ledger/\d+\.seg at byte"):
        move_in(log, differing)


def test_damage_is_found_before_the_folder_becomes_a_copy() -> None:
    log, disk = SimulatedLog(), local()
    disk.flip_bit(f"{FOLDER}/00000001.seg", 5000, 3)
    with pytest.raises(Damage):
        move_in(log, disk)
    assert not disk.exists(f"{FOLDER}/{COPY_NAME}")
    assert not may_own(log)


def test_damage_is_found_before_the_folder_stops_being_a_copy() -> None:
    log, disk = SimulatedLog(), local()
    move_in(log, disk)
    disk.flip_bit(f"{FOLDER}/00000001.seg", 5000, 3)
    with pytest.raises(Damage):
        out(log, disk)
    assert disk.exists(f"{FOLDER}/{COPY_NAME}")


def test_what_is_done_is_not_done_again() -> None:
    log, disk = SimulatedLog(), local()
    with pytest.raises(Conflict, match="is a ledger of its own already"):
        out(log, disk)
    move_in(log, disk)
    with pytest.raises(Conflict, match="is in a already, and a owned it last: start the servers"):
        move_in(log, disk)
    Node(log, "a", disk).follow()
    with pytest.raises(Conflict, match="is the copy of a log already"):
        move_in(log, disk)
    with pytest.raises(Conflict, match="has no ledger: a server begins a new one"):
        move_in(SimulatedLog(), SimulatedDisk())
    with pytest.raises(Conflict, match="has no ledger"):
        out(SimulatedLog(), SimulatedDisk())


def test_another_id_key_is_refused() -> None:
    log, disk = SimulatedLog(), local()
    with pytest.raises(Crash):
        move_in(log, disk, told=crash_at(60))
    with pytest.raises(Unavailable, match="another id key"):
        move_in(log, disk, LogNode("a", b"other"))


def test_another_node_does_not_end_a_move() -> None:
    log, disk = SimulatedLog(), local()
    with pytest.raises(Crash):
        move_in(log, disk, told=crash_at(60))
    with pytest.raises(Conflict, match="a is moving this ledger"):
        move_in(log, disk, LogNode("b", b"key"))


def test_all_frames_are_found_seals_too() -> None:
    disk = local()
    ledger = open_ledger(disk)
    found: list[Encoded] = contents(ledger)
    frames = list(frames_of(ledger._reader.segments))
    assert found == EXPECTED
    assert sum(len(frame.data) for frame in frames) == sum(one.used_bytes for one in ledger.segments())
    assert [frame.place for frame in frames] == sorted(frame.place for frame in frames)
