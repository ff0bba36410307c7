"""Crash at every operation of a scripted run, recover, and check (R1, R2, Recovery)."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tarry.core.errors import Damage
from tarry.ledger import recovery, writer
from tarry.ledger.head import HEAD_BYTES, HEAD_NAME, decode_head, encode_head
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.frame_log import PlacedFrame
from tarry.ledger.log.local_log import LocalLog
from tarry.ledger.segment import BLOCK_BYTES, Segment
from tarry.testing.disk import SimulatedCrash, SimulatedDisk, SimulatedFile
from tests.unit.ledger_kit import FOLDER, Model, open_ledger, record

ROUNDS = 26


def script(disk: SimulatedDisk, model: Model) -> None:
    """A run with several segments, units of all sizes, a clean restart and a reclaim."""
    random = Random(5)
    ledger = open_ledger(disk)
    n = 0
    for turn in range(ROUNDS):
        for _ in range(random.randint(1, 3)):
            records = random.choice((1, 1, 2, 5))
            model.append(ledger, [record(n + i, random.choice((0, 40, 300))) for i in range(records)])
            n += records
        while ledger.commit():
            pass
        if turn == 5:
            ledger.close()
            ledger = open_ledger(disk)
            model.check(ledger)
        if turn == ROUNDS - 10:
            model.reclaimed_upto = ledger.durable_seq - 20
            assert ledger.reclaim(model.reclaimed_upto)
    model.check(ledger)
    ledger.close()


def crashed_after(nth: int, seed: int, again_at: int | None = None) -> tuple[SimulatedDisk, Model]:
    """Run until the nth operation, lose the power, and check what is left."""
    disk, model = SimulatedDisk(Random(seed)), Model()
    disk.crash_at(nth)
    with pytest.raises(SimulatedCrash):
        script(disk, model)
    disk.crash()
    if again_at is not None:
        disk.crash_at(again_at)
        try:
            open_ledger(disk)
        except SimulatedCrash:
            pass
        disk.crash()
    check_recovered(disk, model)
    return disk, model


def check_recovered(disk: SimulatedDisk, model: Model) -> None:
    """Check that the recovered records are right and durable, and that the ledger can go on."""
    found = model.check_after_restart(open_ledger(disk))
    disk.crash()
    ledger = open_ledger(disk)
    assert model.check_after_restart(ledger) == found, "recovery said it was durable, but it was not"
    disk.kill()
    ledger = open_ledger(disk)
    assert model.check_after_restart(ledger) == found
    assert not ledger.notes, "a recovered ledger is clean"
    for n in range(5):
        model.append(ledger, [record(n, 700), record(n, 3)])
    while ledger.commit():
        pass
    model.check(ledger)
    disk.crash()
    model.check_after_restart(open_ledger(disk))


def operations() -> int:
    disk = SimulatedDisk(0)
    script(disk, Model())
    return disk.operations


OPERATIONS = operations()


def test_the_script_is_worth_it() -> None:
    disk, model = SimulatedDisk(0), Model()
    script(disk, model)
    ledger = open_ledger(disk)
    assert len(ledger.segments()) >= 3
    assert ledger.first_seq > 1
    assert OPERATIONS > 100


@pytest.mark.parametrize("seed", range(3))
def test_crash_at_every_operation(seed: int) -> None:
    for nth in range(1, OPERATIONS + 1):
        try:
            crashed_after(nth, seed * 10_000 + nth)
        except BaseException as error:
            error.add_note(f"crashed_after({nth}, {seed * 10_000 + nth})")
            raise


def test_crash_again_at_every_operation_of_the_recovery() -> None:
    for nth in range(1, OPERATIONS + 1, 3):
        for again_at in range(1, 8):
            try:
                crashed_after(nth, nth, again_at)
            except BaseException as error:
                error.add_note(f"crashed_after({nth}, {nth}, {again_at})")
                raise


def test_killed_at_every_operation() -> None:
    """Without a power loss everything that was written is there, answered or not."""
    for nth in range(1, OPERATIONS + 1):
        disk, model = SimulatedDisk(nth), Model()
        disk.crash_at(nth)
        with pytest.raises(SimulatedCrash):
            script(disk, model)
        disk.kill()
        ledger = open_ledger(disk)
        model.check_after_restart(ledger)
        assert not ledger.notes


# The checker must be able to fail: each of these breaks the code in one place, and it must notice.


def skip_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimulatedFile.sync

    def forgetful(file: SimulatedFile) -> None:
        pending = file._inode.pending
        if not pending or pending[-1][0] < BLOCK_BYTES:  # the header of a segment, or zeros
            sync(file)

    monkeypatch.setattr(SimulatedFile, "sync", forgetful)


def call_back_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    take = writer.Writer._take

    def early(self: writer.Writer) -> writer.TakenUnits:
        taken = take(self)
        records = sum(queued.unit.records for queued in taken.batch)
        self.durable_seq += records
        self._call_back([queued.done for queued in taken.batch], None)
        self.durable_seq -= records
        told = [msgspec.structs.replace(queued, done=lambda error: None) for queued in taken.batch]
        return msgspec.structs.replace(taken, batch=told)

    monkeypatch.setattr(writer.Writer, "_take", early)


def publish_the_head_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    append = LocalLog.append

    def early(self: LocalLog, frame: PlacedFrame) -> None:
        head = decode_head(self._disk.open(f"{FOLDER}/{HEAD_NAME}").read(HEAD_BYTES, 0))
        if head is not None and head.segment == frame.segment:
            ahead = head._replace(offset=frame.offset + 1000)
            self._disk.open(f"{FOLDER}/{HEAD_NAME}").write(encode_head(ahead), 0)
        append(self, frame)

    monkeypatch.setattr(LocalLog, "append", early)


def skip_the_zeroing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "clear_rest", lambda segment: None)


def skip_the_sync_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDisk, "sync_folder", lambda disk, folder: None)


def tear_units_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Ledger.append

    def apart(self: Ledger, unit, done, *, essential=False):  # type: ignore[no-untyped-def]
        if len(unit) == 1:
            return append(self, unit, done, essential=essential)
        first = append(self, unit[:1], lambda error: None, essential=essential)
        self.commit()
        append(self, unit[1:], done, essential=essential)
        return first

    monkeypatch.setattr(Ledger, "append", apart)


@pytest.mark.parametrize(
    "sabotage",
    [
        skip_the_sync,
        call_back_before_the_sync,
        publish_the_head_before_the_sync,
        skip_the_zeroing,
        skip_the_sync_of_the_folder,
        tear_units_apart,
    ],
)
def test_the_checker_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises((AssertionError, Damage)):
        for nth in range(20, operations()):
            crashed_after(nth, nth)


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 3 of the recovery. The process ends after a failed sync, and later the power does."""

    def run(seed: int) -> None:
        disk, model = SimulatedDisk(seed), Model()
        ledger = open_ledger(disk)
        model.append(ledger, [record(1)])
        assert ledger.commit() == 1
        model.append(ledger, [record(2)])
        disk.fail_next("sync", 5)
        assert ledger.commit() == 0
        disk.kill()
        found = model.check_after_restart(open_ledger(disk))
        disk.crash()
        assert model.check_after_restart(open_ledger(disk)) == found

    for seed in range(20):
        run(seed)

    write, scan_all = SimulatedFile.write, Segment.scan
    rewriting = False

    def without_the_rewrite(file: SimulatedFile, data: bytes, offset: int) -> None:
        if rewriting:
            return
        write(file, data, offset)

    def scan(self: Segment):  # type: ignore[no-untyped-def]
        nonlocal rewriting
        yield from scan_all(self)
        rewriting = True

    monkeypatch.setattr(SimulatedFile, "write", without_the_rewrite)
    monkeypatch.setattr(Segment, "scan", scan)
    with pytest.raises(AssertionError):
        for seed in range(20):
            rewriting = False
            run(seed)
