"""Registry snapshots in shared storage, and the log that is trimmed no further than they allow (R12)."""

import hashlib
import io
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest

from tarry.core.errors import Damage, NotFound, Unavailable
from tarry.core.limits import HOUR_MS
from tarry.core.time.clock import SystemClock
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.record import NO_KEY
from tarry.registry.registry import REGISTRY_FILE, Meta, Registry
from tarry.registry.shared_snapshots import SharedSnapshots, SnapshotOrigin, usable
from tarry.registry.shared_storage import SharedStorage
from tarry.serve.composition.shared import SnapshotFetches, SnapshotUploads
from tarry.testing.disk import SimulatedDisk
from tarry.testing.log import SimulatedLog
from tests.unit.ledger_kit import FOLDER, LEDGER_ID, SMALL, StandingClock, contents
from tests.unit.log_kit import UNITS, Node, fill

CLAIM = LogClaim("a", b"nonce", LEDGER_ID, b"key", 1, 1, 0)


@pytest.fixture
def storage(tmp_path: Path) -> SharedStorage:
    return SharedStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "shared"))


@pytest.fixture
def shared(storage: SharedStorage) -> SharedSnapshots:
    return SharedSnapshots(storage)


def origin(seq: int, offset: int = 1, first_seq: int = 1) -> SnapshotOrigin:
    return SnapshotOrigin(claim=CLAIM, seq=seq, begin=LogPosition(offset, 1, first_seq), made_at_ms=seq)


def upload(shared: SharedSnapshots, seq: int, offset: int = 1, first_seq: int = 1) -> bytes:
    content = b"snapshot %d" % seq * 1000
    shared.upload(io.BytesIO(content), hashlib.sha256(content).hexdigest(), origin(seq, offset, first_seq))
    return content


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "shared").iterdir()}


# Snapshots


def test_what_was_uploaded_is_fetched_and_the_newest_comes_first(
    shared: SharedSnapshots, tmp_path: Path
) -> None:
    assert shared.newest() == []
    contents = {seq: upload(shared, seq) for seq in (9, 80, 100)}
    newest = shared.newest()
    assert [one.origin for one in newest] == [origin(100), origin(80), origin(9)]
    path = str(tmp_path / "fetched")
    for one in newest:
        shared.fetch(one, path)
        assert Path(path).read_bytes() == contents[one.origin.seq]
        assert Path(path).stat().st_mode & 0o777 == 0o600


def test_without_its_note_a_snapshot_does_not_count(shared: SharedSnapshots, tmp_path: Path) -> None:
    upload(shared, 9)
    upload(shared, 10)
    note = max(path for path in (tmp_path / "shared").iterdir() if path.suffix == ".json")
    whole = note.read_bytes()
    for torn in (b"", whole[: len(whole) // 2], b"\xff"):
        note.write_bytes(torn)
        assert [one.origin.seq for one in shared.newest()] == [9]
    note.unlink()
    assert [one.origin.seq for one in shared.newest()] == [9]


def test_a_note_without_its_snapshot_does_not_count(shared: SharedSnapshots, tmp_path: Path) -> None:
    upload(shared, 9)
    (snapshot,) = (path for path in (tmp_path / "shared").iterdir() if path.suffix != ".json")
    snapshot.unlink()
    assert shared.newest() == []


def test_damage_is_found_before_it_is_shared_and_before_it_is_used(
    shared: SharedSnapshots, tmp_path: Path
) -> None:
    with pytest.raises(Damage, match="does not match its checksum"):
        shared.upload(io.BytesIO(b"damaged"), hashlib.sha256(b"whole").hexdigest(), origin(1))
    assert shared.newest() == []
    upload(shared, 9)
    (one,) = shared.newest()
    stored = tmp_path / "shared" / one.name
    stored.write_bytes(stored.read_bytes()[:-1] + b"!")
    path = tmp_path / "fetched"
    with pytest.raises(Damage, match="does not match its checksum"):
        shared.fetch(one, str(path))
    assert not path.exists()
    stored.unlink()
    with pytest.raises(NotFound):
        shared.fetch(one, str(path))


def test_the_two_newest_are_kept_and_what_uploads_left_goes_after_a_day(
    shared: SharedSnapshots, storage: SharedStorage, tmp_path: Path
) -> None:
    for seq in range(1, 6):
        upload(shared, seq)
    storage.put("under-way", io.BytesIO(b"no note yet"))
    now_ms = SystemClock().now_ms()
    shared.prune(LEDGER_ID, now_ms)
    assert [one.origin.seq for one in shared.newest()] == [5, 4]
    assert len(files(tmp_path)) == 5
    shared.prune(LEDGER_ID, now_ms + 23 * HOUR_MS)
    assert len(files(tmp_path)) == 5
    shared.prune(LEDGER_ID, now_ms + 25 * HOUR_MS)
    assert len(files(tmp_path)) == 4


def test_the_log_is_needed_from_the_place_of_the_older_of_the_two_newest(shared: SharedSnapshots) -> None:
    assert shared.trimmable_seq(LEDGER_ID) == 0
    upload(shared, 90, offset=40, first_seq=50)
    assert shared.trimmable_seq(LEDGER_ID) == 0
    upload(shared, 100, offset=70, first_seq=80)
    assert shared.trimmable_seq(LEDGER_ID) == 49
    upload(shared, 120, offset=80, first_seq=90)
    assert shared.trimmable_seq(LEDGER_ID) == 79
    # Of an owner that was superseded, or that came after it, and had not reclaimed as much: it goes with less of the log.
    upload(shared, 119, offset=60, first_seq=70)
    assert shared.trimmable_seq(LEDGER_ID) == 79


def test_an_owner_that_reaches_further_back_does_not_push_out_what_goes_with_the_trimmed_log(
    shared: SharedSnapshots,
) -> None:
    upload(shared, 75, offset=16, first_seq=23)
    upload(shared, 76, offset=16, first_seq=23)
    # The log is trimmed to offset 16; then another server owns the ledger, whose copy has all of it.
    for seq in (80, 86):
        upload(shared, seq, offset=1, first_seq=1)
        shared.prune(LEDGER_ID, 0)
    assert [one.origin.seq for one in usable(shared.newest(), 16, 99)] == [76, 75]


def test_snapshots_of_another_ledger_in_the_same_folder_neither_count_nor_go(shared: SharedSnapshots) -> None:
    upload(shared, 90, offset=40, first_seq=50)
    upload(shared, 100, offset=70, first_seq=80)
    other = bytes(16)
    assert shared.newest(other) == []
    assert shared.trimmable_seq(other) == 0
    shared.prune(other, 0)
    assert len(shared.newest()) == 2


def test_only_a_snapshot_with_a_log_from_its_place_on_is_of_use(shared: SharedSnapshots) -> None:
    upload(shared, 90, offset=40, first_seq=50)
    upload(shared, 100, offset=30, first_seq=45)
    for first_offset, seqs in ((0, [90, 100]), (30, [90, 100]), (31, [90])):
        assert [one.origin.seq for one in usable(shared.newest(), first_offset, 40)] == seqs
    with pytest.raises(
        Unavailable, match=r"has the offsets from 41 to 99, and shared storage has no snapshot"
    ):
        usable(shared.newest(), 41, 99)
    # A log that was made anew goes with none of them.
    assert [one.origin.seq for one in usable(shared.newest(), 0, 39)] == [100]
    with pytest.raises(Unavailable, match=r"has the offsets from 0 to 29"):
        usable(shared.newest(), 0, 29)


def test_storage_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    shared = SharedSnapshots(SharedStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "file")))
    with pytest.raises(Unavailable, match=r"file/.* cannot be written"):
        upload(shared, 1)


# The owner and its log


class Owner:
    """A node that owns the log, with a registry and the uploads of its snapshots."""

    def __init__(self, log: SimulatedLog, shared: SharedSnapshots, folder: Path, name: str = "a") -> None:
        folder.mkdir()
        self.node = Node(log, name)
        self.ledger: Ledger = self.node.own()
        self.folder = folder
        self.registry = Registry(str(folder / REGISTRY_FILE))
        self.offloaded: deque[tuple[Callable[[], Any], Callable[[Exception | None], None]]] = deque()
        self.uploads = SnapshotUploads(
            shared, self.node.log, StandingClock(), lambda *work: self.offloaded.append(work)
        )
        self._slot = 0

    def snapshot(self) -> None:
        """Make one, as the engine's upkeep does, and have it uploaded."""
        first_seq, seq = self.ledger.first_seq, self.ledger.durable_seq
        flush = self.registry.begin(Meta(LEDGER_ID, seq, NO_KEY, {"reached": seq}))
        self.registry.write(flush)
        self.registry.done(flush)
        self._slot = 1 - self._slot
        path = str(self.folder / f"registry-{self._slot}.snapshot")
        self.registry.snapshot(path)
        self.uploads.made(path, seq, first_seq)

    def work(self) -> None:
        """Let the upload that is on its way arrive."""
        while self.offloaded:
            work, done = self.offloaded.popleft()
            error = None
            try:
                work()
            except Exception as raised:  # noqa: BLE001 - told, as by a real thread
                error = raised
            done(error)

    def go_on(self) -> None:
        """Some more traffic, with which the log is trimmed."""
        fill(self.ledger, UNITS[:1])


@pytest.fixture
def log() -> SimulatedLog:
    return SimulatedLog()


@pytest.fixture
def owner(log: SimulatedLog, shared: SharedSnapshots, tmp_path: Path) -> Owner:
    owner = Owner(log, shared, tmp_path / "owner")
    fill(owner.ledger, UNITS)
    return owner


def test_the_log_is_trimmed_once_two_uploaded_snapshots_do_without_and_not_before(
    log: SimulatedLog, owner: Owner
) -> None:
    owner.ledger.reclaim(60)
    begin = owner.node.log.copy.begin_of(owner.ledger.first_seq, 0)
    assert begin is not None
    assert begin.offset > 0
    for why in ("nothing is there yet", "it may be damaged: two are needed"):
        owner.go_on()
        assert log.start == 0, why
        owner.snapshot()
        owner.go_on()
        assert log.start == 0, "it is on its way"
        owner.work()
    owner.go_on()
    assert log.start == begin.offset


def test_what_was_reclaimed_after_the_older_snapshot_stays_in_the_log(
    log: SimulatedLog, owner: Owner
) -> None:
    for _ in range(2):
        owner.snapshot()
        owner.work()
    owner.ledger.reclaim(60)
    owner.go_on()
    assert log.start == 0
    owner.snapshot()
    owner.work()
    owner.go_on()
    assert log.start == 0
    owner.snapshot()
    owner.work()
    owner.go_on()
    assert log.start > 0


def test_an_upload_that_fails_trims_nothing_and_the_next_does(
    log: SimulatedLog, owner: Owner, tmp_path: Path
) -> None:
    owner.ledger.reclaim(60)
    (tmp_path / "shared").write_text("no folder")
    for _ in range(3):
        owner.snapshot()
        owner.work()
        owner.go_on()
    assert "cannot be written" in owner.uploads.failed
    assert log.start == 0
    (tmp_path / "shared").unlink()
    for _ in range(2):
        owner.snapshot()
        owner.work()
    owner.go_on()
    assert owner.uploads.failed == ""
    assert log.start > 0


def test_while_an_upload_is_on_its_way_no_other_begins_and_it_is_of_the_snapshot_that_it_began_with(
    shared: SharedSnapshots, owner: Owner
) -> None:
    owner.snapshot()
    reached = owner.ledger.durable_seq
    for _ in range(3):
        owner.go_on()
        owner.snapshot()
    owner.work()
    assert [one.origin.seq for one in shared.newest()] == [reached]


def test_a_log_that_lacks_what_the_folder_has_is_not_trimmed(
    log: SimulatedLog, shared: SharedSnapshots, tmp_path: Path
) -> None:
    disk = SimulatedDisk()
    local = Ledger.open(disk, FOLDER, SMALL, StandingClock(), new_ledger_id=LEDGER_ID)
    fill(local, UNITS)
    local.close()
    node = Node(log, "a", disk)
    ledger = node.own()
    uploads = SnapshotUploads(shared, node.log, StandingClock(), lambda work, done: done(work()))
    uploads.made("none", ledger.durable_seq, ledger.first_seq)
    assert "tarry move" in uploads.failed
    assert node.log.trimmable_seq == 0


# Standbys


class Standby:
    """A node with an empty data folder."""

    def __init__(self, log: SimulatedLog, shared: SharedSnapshots, folder: Path, name: str = "b") -> None:
        self.disk = SimulatedDisk()
        self.fetches = SnapshotFetches(shared, self.disk, Path(FOLDER), folder)
        self.folder = folder
        self.log = log
        self.name = name

    def node(self) -> Node:
        """Begin from a snapshot, as far as that is needed, and follow."""
        if self.log.start:
            self.fetches.begin(self.log.start, self.log.end)
        node = Node(self.log, self.name, self.disk)
        node.follow()
        return node

    def reached(self) -> int:
        registry = Registry(str(self.folder / REGISTRY_FILE))
        try:
            return registry.meta.applied_seq if registry.meta is not None else 0
        finally:
            registry.close()


def trimmed(owner: Owner) -> None:
    """Go on until the log has lost its beginning."""
    for _ in range(2):
        owner.ledger.reclaim(60)
        owner.snapshot()
        owner.work()
        owner.go_on()
    assert owner.node.partition.ends()[0] > 0


def test_an_empty_node_begins_at_a_snapshot_and_takes_over(
    log: SimulatedLog, shared: SharedSnapshots, owner: Owner, tmp_path: Path
) -> None:
    trimmed(owner)
    standby = Standby(log, shared, tmp_path / "standby")
    node = standby.node()
    assert standby.reached() == shared.newest()[0].origin.seq
    assert contents(node.own()) == contents(owner.ledger)
    assert node.files() == owner.node.files()


def test_it_begins_at_the_older_one_if_the_newer_is_damaged(
    log: SimulatedLog, shared: SharedSnapshots, owner: Owner, tmp_path: Path
) -> None:
    trimmed(owner)
    newest, older = shared.newest()
    (tmp_path / "shared" / newest.name).write_bytes(b"damaged")
    standby = Standby(log, shared, tmp_path / "standby")
    node = standby.node()
    assert standby.reached() == older.origin.seq
    assert contents(node.own()) == contents(owner.ledger)


def test_a_node_that_was_away_while_the_log_was_trimmed_begins_anew(
    log: SimulatedLog, shared: SharedSnapshots, owner: Owner, tmp_path: Path
) -> None:
    standby = Standby(log, shared, tmp_path / "standby")
    before = standby.node()
    owner.ledger.reclaim(60)
    for _ in range(2):
        owner.snapshot()
        owner.work()
        owner.go_on()
    fill(owner.ledger, UNITS)
    assert before.log.copy.reader.segments[0].first_seq < owner.ledger.first_seq
    after = standby.node()
    assert contents(after.own()) == contents(owner.ledger)


def test_a_standby_fetches_what_is_newer_and_lets_go_of_old_segments(
    log: SimulatedLog, shared: SharedSnapshots, owner: Owner, tmp_path: Path
) -> None:
    standby = Standby(log, shared, tmp_path / "standby")
    node = standby.node()
    assert standby.fetches.renew(node.log.copy) is None
    owner.ledger.reclaim(60)
    owner.snapshot()
    owner.work()
    assert standby.fetches.renew(node.log.copy) is not None
    assert standby.fetches.renew(node.log.copy) is None
    assert standby.reached() == 80
    assert node.files() == owner.node.files()
    owner.go_on()
    owner.snapshot()
    owner.work()
    assert standby.fetches.renew(node.log.copy) is None, "its log is not read that far here"
    node.follow()
    assert standby.fetches.renew(node.log.copy) is not None
    assert contents(node.own()) == contents(owner.ledger)


def test_a_storage_that_does_not_answer_keeps_a_standby_from_nothing(
    log: SimulatedLog, owner: Owner, tmp_path: Path
) -> None:
    (tmp_path / "none").write_bytes(b"")
    down = SharedSnapshots(SharedStorage(pyarrow.fs.LocalFileSystem(), str(tmp_path / "none")))
    standby = Standby(log, down, tmp_path / "standby")
    node = standby.node()
    assert standby.fetches.renew(node.log.copy) is None
    assert contents(node.own()) == contents(owner.ledger)


def test_a_folder_with_a_ledger_of_its_own_is_left_alone(
    log: SimulatedLog, shared: SharedSnapshots, owner: Owner, tmp_path: Path
) -> None:
    trimmed(owner)
    standby = Standby(log, shared, tmp_path / "standby")
    own = Ledger.open(standby.disk, FOLDER, SMALL, StandingClock(), new_ledger_id=LEDGER_ID)
    fill(own, UNITS[:3])
    own.close()
    with pytest.raises(Unavailable, match="`tarry move`"):
        standby.node()
    assert contents(Ledger.open(standby.disk, FOLDER, SMALL, StandingClock())) == [
        one for unit in UNITS[:3] for one in unit
    ]
