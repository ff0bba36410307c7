"""A full disk refuses new work while there is still room for what must go on (R2), and reclaim (R12)."""

from errno import ENOSPC
from itertools import pairwise
from random import Random

import pytest

from tarry.core.errors import Invalid, NotFound, TarryError, Unavailable
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.segment_space import SegmentSpace
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import FOLDER, SMALL, Model, open_ledger, record


def nothing(error: TarryError | None) -> None:
    assert error is None


def low(ledger: Ledger) -> bool:
    """Asked by a call, because the type checker takes a property to stay as it was."""
    return ledger.low_space


def room_for(segments: float) -> int:
    return int(segments * SMALL.segment_bytes) + 100


def filled(disk: SimulatedDisk) -> tuple[Ledger, Model]:
    """Append until the ledger refuses."""
    ledger, model = open_ledger(disk), Model()
    with pytest.raises(Unavailable, match="no space"):
        for n in range(1000):
            model.append(ledger, [record(n, 200)])
            ledger.commit()
    return ledger, model


def test_a_full_disk_leaves_a_whole_segment_for_essential_units() -> None:
    ledger, model = filled(SimulatedDisk(capacity_bytes=room_for(3.5)))
    assert ledger.low_space
    assert ledger.failed is None
    taken = 0
    with pytest.raises(Unavailable, match="no space"):
        for n in range(1000):
            model.append(ledger, [record(n, 200)], essential=True)
            taken += 200
            if n % 2:
                ledger.commit()
    assert taken > (SMALL.segment_bytes - 4096) // 2
    while ledger.commit():
        pass
    model.check(ledger)
    ledger.close()


def test_what_an_essential_unit_has_left_of_the_reserve_is_for_its_like() -> None:
    ledger, model = open_ledger(SimulatedDisk(capacity_bytes=room_for(2.5))), Model()
    room = ledger._writer.space
    while not room.plan_rolls:
        model.append(ledger, [record(0, 200)], essential=True)
    assert room.plan_free_bytes > 1000
    assert not low(ledger), "nobody has asked the disk for more yet"
    with pytest.raises(Unavailable, match="no space"):
        ledger.append([record(0, 5)], nothing)
    model.append(ledger, [record(0, 5)], essential=True)


def test_everything_accepted_on_a_full_disk_is_kept() -> None:
    disk = SimulatedDisk(capacity_bytes=room_for(3))
    _, model = filled(disk)
    disk.crash()
    ledger = open_ledger(disk)
    model.check_after_restart(ledger)
    with pytest.raises(Unavailable):
        for n in range(100):
            model.append(ledger, [record(n)])
            ledger.commit()


def test_reclaiming_makes_room_again() -> None:
    disk = SimulatedDisk(capacity_bytes=room_for(4))
    ledger, model = filled(disk)
    model.reclaimed_upto = ledger.durable_seq
    assert ledger.reclaim(ledger.durable_seq) == 2
    assert not ledger.low_space
    model.append(ledger, [record(1)])
    ledger.commit()
    model.check(ledger)


def test_more_space_is_noticed_at_the_next_commit() -> None:
    disk = SimulatedDisk(capacity_bytes=room_for(3))
    ledger, model = filled(disk)
    disk.capacity_bytes = None
    ledger.commit()
    assert not ledger.low_space
    model.append(ledger, [record(1)])


def test_nobody_waits_for_room_on_a_full_disk() -> None:
    ledger, _ = filled(SimulatedDisk(capacity_bytes=room_for(3)))
    told = []
    ledger.when_space(100, lambda: told.append("refused"))
    assert told == ["refused"]
    with pytest.raises(Unavailable, match="no space"):
        ledger.append([record(1)], nothing)


def test_a_unit_larger_than_a_segment_does_not_wait_for_ever() -> None:
    told = []
    open_ledger(SimulatedDisk()).when_space(1 << 40, lambda: told.append("too large"))
    assert told == ["too large"]


def test_a_full_disk_is_not_filled_to_its_last_byte_to_find_that_out() -> None:
    """The registry is on it too."""
    disk = SimulatedDisk(capacity_bytes=room_for(2.5))
    ledger = open_ledger(disk)
    operations = disk.operations
    assert not ledger._spares.prepare()
    assert disk.operations == operations


def test_a_new_ledger_on_a_full_disk_says_so() -> None:
    with pytest.raises(Unavailable, match="No space left"):
        open_ledger(SimulatedDisk(capacity_bytes=5000))


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "sync_folder"])
def test_a_spare_that_fails_at_any_step_is_tried_again(operation: str) -> None:
    disk = SimulatedDisk(1)
    ledger, model = open_ledger(disk), Model()
    model.append(ledger, [record(0, 2000)])
    ledger.commit()
    disk.fail_next(operation, ENOSPC)
    with pytest.raises(Unavailable):
        ledger.append([record(1, 2000)], nothing)
    assert ledger.low_space
    model.append(ledger, [record(1, 2000)], essential=True)
    ledger.commit()
    assert not low(ledger)
    model.append(ledger, [record(2, 2000)])
    ledger.commit()
    model.check(ledger)
    disk.crash()
    model.check_after_restart(open_ledger(disk))


@pytest.mark.parametrize("larger", [False, True])
def test_spares_of_another_size_are_made_anew(larger: bool) -> None:
    """Else what was promised would be promised in segments that have no room for it."""
    sizes = (SMALL.segment_bytes, 2 * SMALL.segment_bytes)
    before, after = (
        LedgerSettings(segment_bytes=size, spare_segments=1) for size in sizes[:: 1 if larger else -1]
    )
    disk, model = SimulatedDisk(1), Model()
    ledger = open_ledger(disk, before)
    model.append(ledger, [record(0)])
    ledger.commit()
    ledger.close()
    ledger = open_ledger(disk, after)
    for n in range(40):
        model.append(ledger, [record(n, 200)])
        ledger.commit()
    model.check(ledger)
    ledger.close()
    names = [name for name in disk.listdir(FOLDER) if name.endswith(".seg")]
    assert sorted(disk.open(f"{FOLDER}/{name}").size() for name in names) == sorted(
        [before.segment_bytes, *[after.segment_bytes] * (len(names) - 1)]
    )


def test_a_spare_that_failed_gives_its_space_back() -> None:
    disk = SimulatedDisk(1, capacity_bytes=room_for(2.5))
    ledger = open_ledger(disk)
    free = disk.free_bytes(FOLDER)
    disk.capacity_bytes = room_for(4)
    disk.fail_next("sync", 5)
    assert not ledger._spares.prepare()
    disk.capacity_bytes = room_for(2.5)
    assert disk.free_bytes(FOLDER) == free


def test_what_is_promised_always_fits() -> None:
    """Units of any size, committed in any grouping: there is always a spare when one is needed."""
    for seed in range(60):
        random = Random(seed)
        disk = SimulatedDisk(seed, capacity_bytes=room_for(random.choice((2.5, 3, 4, 9))))
        ledger, model = open_ledger(disk), Model()
        for n in range(80):
            unit = [
                record(n, random.choice((0, 5, 60, 700, 1500))) for _ in range(random.choice((1, 1, 2, 4)))
            ]
            try:
                model.append(ledger, unit, essential=random.random() < 0.3)
            except TarryError:
                pass
            while random.random() < 0.4 and ledger.commit():
                pass
        while ledger.commit():
            pass
        assert ledger.failed is None
        assert not model.failures
        model.check(ledger)
        ledger.close()
        model.check_after_restart(open_ledger(disk))


def test_the_plan_is_never_too_hopeful() -> None:
    """Merging queued units into frames never takes more segments than the plan said."""
    random = Random(1)
    for _ in range(2000):
        free, size = random.randint(-10, 100), 100
        room = SegmentSpace(free, size)
        needs = [random.randint(1, 100) for _ in range(random.randint(1, 12))]
        for need in needs:
            assert room.promise(need, 1000, essential=False)
        while needs:
            need = needs.pop(0)
            room.needs_roll(need)
            while needs and need + needs[0] - 1 <= room.free_bytes and random.random() < 0.7:
                need += needs.pop(0) - 1  # two frames made one are smaller
            room.free_bytes -= need
        assert room.rolls <= room.plan_rolls


def test_the_plan_does_not_become_too_gloomy() -> None:
    """The plan counts a header for each unit; over many segments these must not add up to segments."""
    ledger = open_ledger(SimulatedDisk(1))
    room = ledger._writer.space
    for _ in range(100):
        ledger._spares.prepare()  # as many as the preparer would make for a plan that is too gloomy
    for n in range(600):
        for _ in range(3):
            ledger.append([record(n, 20)], nothing)
        ledger.commit()
        assert room.rolls <= room.plan_rolls <= room.rolls + 1
    assert room.rolls > 20


def test_the_size_of_segments_has_bounds() -> None:
    for size in (0, 4096, 1 << 32):
        with pytest.raises(Invalid, match="segment_bytes"):
            open_ledger(SimulatedDisk(1), LedgerSettings(segment_bytes=size))


def test_reclaim_deletes_whole_segments_up_to_the_seq_and_never_the_active_one() -> None:
    disk = SimulatedDisk(1)
    ledger, model = open_ledger(disk), Model()
    for n in range(40):
        model.append(ledger, [record(n, 200)])
        ledger.commit()
    infos = ledger.segments()
    assert [info.sealed for info in infos] == [True] * (len(infos) - 1) + [False]
    assert [info.number for info in infos] == list(range(1, len(infos) + 1))
    assert all(after.first_seq == before.last_seq + 1 for before, after in pairwise(infos))
    assert ledger.reclaim(infos[0].last_seq - 1) == 0
    ledger.read(3)
    assert ledger.reclaim(infos[1].last_seq) == 2
    assert ledger.first_seq == infos[2].first_seq
    for seq in (1, infos[1].last_seq):
        with pytest.raises(NotFound, match="reclaimed"):
            ledger.read(seq)
        with pytest.raises(NotFound, match="reclaimed"):
            next(ledger.frames(seq))
    model.reclaimed_upto = infos[1].last_seq
    model.check(ledger)
    assert ledger.reclaim(1 << 60) == len(infos) - 3
    first_seq = ledger.first_seq
    model.reclaimed_upto = ledger.durable_seq
    for seed in range(20):
        after = disk.copy(seed)
        after.crash()
        ledger = open_ledger(after)
        assert ledger.first_seq == first_seq
        model.check_after_restart(ledger)


@pytest.mark.parametrize("operation", ["remove", "sync_folder"])
def test_a_segment_that_cannot_be_removed_is_tried_again_before_any_other(operation: str) -> None:
    for seed in range(10):
        disk = SimulatedDisk(seed)
        ledger, model = open_ledger(disk), Model()
        for n in range(40):
            model.append(ledger, [record(n, 200)])
            ledger.commit()
        second, third = ledger.segments()[1:3]
        model.reclaimed_upto = third.last_seq
        disk.fail_next(operation, 5)
        # What was removed is not read any more, though the removal is not durable.
        gone = operation == "sync_folder"
        assert ledger.reclaim(second.last_seq) == gone
        assert ledger.first_seq == (second.first_seq if gone else 1)
        assert ledger.read(ledger.first_seq).seq == ledger.first_seq
        after = disk.copy(seed)
        after.crash()
        model.check_after_restart(open_ledger(after))
        assert ledger.reclaim(second.last_seq) == 2 - gone
        disk.fail_next(operation, 5)
        assert ledger.reclaim(third.last_seq) == gone
        disk.crash()
        model.check_after_restart(open_ledger(disk))
