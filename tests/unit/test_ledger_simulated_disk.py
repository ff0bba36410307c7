"""The simulated disk does what it says: a simulation is worth as much as its faults."""

from collections import Counter
from errno import EIO, ENOSPC
from random import Random

import pytest

from tarry.testing.disk import SECTOR_BYTES, SimulatedCrash, SimulatedDisk

FOLDER = "d"


def made(random: Random | int = 0, capacity_bytes: int | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(random, capacity_bytes)
    disk.make_folder(FOLDER)
    return disk


def after_crash(disk: SimulatedDisk, name: str = "a") -> bytes | None:
    disk.crash()
    return disk.open(f"{FOLDER}/{name}").read(1 << 20, 0) if disk.exists(f"{FOLDER}/{name}") else None


def test_what_is_synced_survives() -> None:
    for seed in range(30):
        disk = made(seed)
        file = disk.open(f"{FOLDER}/a", create=True)
        file.write(b"abc", 0)
        file.write(b"d", 3)
        file.sync()
        disk.sync_folder(FOLDER)
        assert after_crash(disk) == b"abcd"


def test_what_is_not_synced_is_kept_torn_or_lost() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(200):
        disk = made(seed)
        file = disk.open(f"{FOLDER}/a", create=True)
        file.write(b"o" * 4 * SECTOR_BYTES, 0)
        file.sync()
        disk.sync_folder(FOLDER)
        file.write(b"n" * 4 * SECTOR_BYTES, 0)
        found = after_crash(disk)
        assert found is not None
        sectors = [found[at : at + SECTOR_BYTES] for at in range(0, len(found), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors), "a sector is never torn"
        outcomes["".join(chr(sector[0]) for sector in sectors)] += 1
    assert outcomes["oooo"] > 20
    assert outcomes["nnnn"] > 20
    assert len(outcomes) > 8


def test_unsynced_writes_may_be_reordered() -> None:
    found = set()
    for seed in range(100):
        disk = made(seed)
        file = disk.open(f"{FOLDER}/a", create=True)
        disk.sync_folder(FOLDER)
        file.write(b"1", 0)
        file.write(b"2", 0)
        found.add(after_crash(disk))
    assert found == {b"", b"1", b"2"}


def test_names_are_lost_from_the_end_until_the_folder_is_synced() -> None:
    found = set()
    for seed in range(100):
        disk = made(seed)
        for name in "abc":
            disk.open(f"{FOLDER}/{name}", create=True)
        disk.rename(f"{FOLDER}/a", f"{FOLDER}/z")
        disk.crash()
        found.add("".join(disk.listdir(FOLDER)))
    assert found == {"", "a", "ab", "abc", "bcz"}


def test_a_removed_file_may_come_back() -> None:
    found = set()
    for seed in range(50):
        disk = made(seed)
        disk.open(f"{FOLDER}/a", create=True)
        disk.sync_folder(FOLDER)
        disk.remove(f"{FOLDER}/a")
        disk.crash()
        found.add(disk.exists(f"{FOLDER}/a"))
    assert found == {True, False}


def test_a_killed_process_loses_nothing_and_its_files_are_dead() -> None:
    disk = made()
    file = disk.open(f"{FOLDER}/a", create=True)
    file.write(b"abc", 0)
    disk.kill()
    assert disk.open(f"{FOLDER}/a").read(9, 0) == b"abc"
    with pytest.raises(OSError, match="crash"):
        file.write(b"zombie", 0)


def test_a_crash_at_an_operation_stops_the_machine() -> None:
    disk = made()
    file = disk.open(f"{FOLDER}/a", create=True)
    disk.crash_at(2)
    file.write(b"abc", 0)
    with pytest.raises(SimulatedCrash):
        file.sync()
    for use in (file.sync, file.size, lambda: disk.listdir(FOLDER), lambda: disk.remove(f"{FOLDER}/a")):
        with pytest.raises(SimulatedCrash):
            use()
    assert file._inode.pending, "a sync at which the machine stops has done nothing yet"
    disk.crash()
    disk.listdir(FOLDER)


def test_a_failed_sync_leaves_writes_that_only_seem_to_be_there() -> None:
    found: Counter[bytes | None] = Counter()
    for seed in range(60):
        disk = made(seed)
        file = disk.open(f"{FOLDER}/a", create=True)
        disk.sync_folder(FOLDER)
        file.write(b"abc", 0)
        disk.fail_next("sync", EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
        assert file.read(9, 0) == b"abc"
        found[after_crash(disk)] += 1
    assert found.keys() == {b"", b"abc"}


def test_faults_come_once_and_in_turn() -> None:
    disk = made()
    disk.fail_next("create", ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            disk.open(f"{FOLDER}/a", create=True)
    disk.open(f"{FOLDER}/a", create=True)


def test_a_full_disk_refuses_to_grow_but_not_to_overwrite() -> None:
    disk = made(capacity_bytes=100)
    file = disk.open(f"{FOLDER}/a", create=True)
    file.write(bytes(90), 0)
    assert disk.free_bytes(FOLDER) == 10
    with pytest.raises(OSError, match="No space left"):
        file.write(bytes(11), 90)
    with pytest.raises(OSError, match="No space left"):
        file.truncate(101)
    file.write(bytes(90), 0)
    disk.remove(f"{FOLDER}/a")
    assert disk.free_bytes(FOLDER) == 100


def test_a_flipped_bit_stays() -> None:
    disk = made()
    file = disk.open(f"{FOLDER}/a", create=True)
    file.write(b"\0\0", 0)
    file.sync()
    disk.sync_folder(FOLDER)
    disk.flip_bit(f"{FOLDER}/a", 1, 3)
    assert file.read(2, 0) == b"\0\x08"
    assert after_crash(disk) == b"\0\x08"


def test_the_same_seed_gives_the_same_crash() -> None:
    def run(seed: int) -> bytes | None:
        disk = made(seed)
        file = disk.open(f"{FOLDER}/a", create=True)
        for n in range(9):
            file.write(bytes([n]) * 1000, n * 700)
        return after_crash(disk)

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]


def test_a_copy_goes_its_own_way() -> None:
    disk = made()
    file = disk.open(f"{FOLDER}/a", create=True)
    file.write(b"abc", 0)
    other = disk.copy(5)
    other.open(f"{FOLDER}/a").write(b"z", 0)
    assert file.read(9, 0) == b"abc"
    other.rename(f"{FOLDER}/a", f"{FOLDER}/b")
    assert disk.listdir(FOLDER) == ["a"]


def test_missing_files_and_folders() -> None:
    disk = made()
    for use in (
        lambda: disk.open(f"{FOLDER}/x"),
        lambda: disk.remove(f"{FOLDER}/x"),
        lambda: disk.rename(f"{FOLDER}/x", f"{FOLDER}/y"),
        lambda: disk.listdir("nowhere"),
        lambda: disk.open("nowhere/x", create=True),
    ):
        with pytest.raises(FileNotFoundError):
            use()
    assert not disk.exists("nowhere/x")
    assert disk.exists(FOLDER)
