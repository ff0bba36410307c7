"""Appending, group commit, answers, failures and closing."""

import pytest

from tarry.core.errors import NotFound, TarryError, TooLarge, Unavailable
from tarry.ledger.frame import HEADER_BYTES, ROW_BYTES, Encoding
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.segment import usable_bytes
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import FOLDER, SMALL, Model, contents, open_ledger, record

LARGE = LedgerSettings(segment_bytes=1 << 20, spare_segments=1)


def nothing(error: TarryError | None) -> None:
    assert error is None


def frames_in(ledger: Ledger) -> int:
    return sum(segment.frames for segment in ledger._reader.segments)


def test_seqs_begin_at_one_and_are_given_at_once() -> None:
    ledger = open_ledger(SimulatedDisk())
    assert (ledger.next_seq, ledger.durable_seq, ledger.first_seq) == (1, 0, 1)
    assert ledger.append([record(0), record(1)], nothing) == 1
    assert ledger.append([record(2)], nothing) == 3
    assert (ledger.next_seq, ledger.durable_seq) == (4, 0)
    assert ledger.commit() == 3
    assert ledger.durable_seq == 3
    assert ledger.commit() == 0


def test_a_ledger_id_is_made_once() -> None:
    disk = SimulatedDisk()
    first = open_ledger(disk).ledger_id
    assert len(first) == 16
    assert open_ledger(disk).ledger_id == first


def test_nothing_is_answered_or_readable_before_it_is_durable() -> None:
    disk = SimulatedDisk()
    ledger = open_ledger(disk)
    answers: list[TarryError | None] = []
    ledger.append([record(0)], answers.append)
    assert answers == []
    with pytest.raises(NotFound, match="not durable"):
        ledger.read(1)
    ledger.commit()
    assert answers == [None]
    assert ledger.read(1).body == record(0).body


def test_what_has_queued_becomes_one_frame_and_one_sync() -> None:
    disk = SimulatedDisk()
    ledger = open_ledger(disk, LARGE)
    for n in range(50):
        ledger.append([record(n)], nothing)
    before = disk.operations
    assert ledger.commit() == 50
    assert disk.operations - before == 3, "write, sync, head"
    assert frames_in(ledger) == 1


def test_a_frame_is_bounded_in_records_and_bytes() -> None:
    settings = LedgerSettings(segment_bytes=1 << 20, commit_max_records=10, commit_max_bytes=2000)
    ledger = open_ledger(SimulatedDisk(), settings)
    for n in range(25):
        ledger.append([record(n, 10)], nothing)
    assert [ledger.commit() for _ in range(4)] == [10, 10, 5, 0]
    for n in range(5):
        ledger.append([record(n, 700)], nothing)
    assert [ledger.commit() for _ in range(4)] == [2, 2, 1, 0]
    ledger.append([record(n, 10) for n in range(30)], nothing)
    assert ledger.commit() == 30, "a unit is never split"


def test_an_empty_unit_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one"):
        open_ledger(SimulatedDisk()).append([], nothing)


def test_a_unit_as_large_as_a_segment_fits_and_a_larger_one_is_refused() -> None:
    ledger, model = open_ledger(SimulatedDisk()), Model()
    most = usable_bytes(SMALL.segment_bytes) - HEADER_BYTES - ROW_BYTES
    for _ in range(3):
        model.append(ledger, [record(1, most)])
        model.append(ledger, [record(2)])
    for size in (most + 1, most * 2):
        with pytest.raises(TooLarge):
            ledger.append([record(1, size)], nothing)
    while ledger.commit():
        pass
    model.check(ledger)
    ledger.close()


def test_the_queue_is_bounded_but_not_for_essential_units() -> None:
    settings = LedgerSettings(segment_bytes=1 << 20, queue_max_bytes=3 * (ROW_BYTES + 100))
    ledger, model = open_ledger(SimulatedDisk(), settings), Model()
    for n in range(3):
        model.append(ledger, [record(n, 100)])
    with pytest.raises(Unavailable, match="try again"):
        ledger.append([record(3, 100)], nothing)
    model.append(ledger, [record(3, 100)], essential=True)
    ledger.commit()
    model.append(ledger, [record(4, 100)])
    ledger.commit()
    model.check(ledger)


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_write_or_sync_stops_it_for_good(operation: str) -> None:
    disk = SimulatedDisk(3)
    ledger, model = open_ledger(disk), Model()
    model.append(ledger, [record(0)])
    ledger.commit()
    big = usable_bytes(SMALL.segment_bytes) - 200
    model.append(ledger, [record(1)])
    model.append(ledger, [record(2, big)])
    disk.fail_next(operation, 5)
    assert ledger.commit() == 0
    assert [str(error) for error in model.failures] == [model.failures[0].args[0]] * 2
    assert "may or may not be stored" in str(model.failures[0])
    assert isinstance(model.failures[0], Unavailable)
    assert ledger.failed is not None
    assert ledger.failed.errno == 5
    for essential in (False, True):
        with pytest.raises(Unavailable, match="disk failed"):
            ledger.append([record(3)], nothing, essential=essential)
    assert ledger.commit() == 0
    assert model.answered_seq == ledger.durable_seq == 1
    assert ledger.read(1).body == record(0).body
    operations = disk.operations
    ledger.close()
    assert disk.operations == operations, "no seal after a failure"
    model.check_after_restart(open_ledger(disk))


@pytest.mark.parametrize("operation", ["rename", "sync_folder", "sync"])
def test_a_failure_while_beginning_a_segment_stops_it_too(operation: str) -> None:
    disk = SimulatedDisk(3)
    ledger, model = open_ledger(disk), Model()
    model.append(ledger, [record(0, 2500)])
    ledger.commit()
    model.append(ledger, [record(1, 2500)])
    disk.fail_next(operation, 5)
    assert ledger.commit() == 0
    assert ledger.failed
    assert len(model.failures) == 1
    disk.crash()
    model.check_after_restart(open_ledger(disk))


def test_a_head_that_cannot_be_written_stops_it_but_what_is_durable_is_answered() -> None:
    disk = SimulatedDisk(3)
    ledger, model = open_ledger(disk), Model()
    model.append(ledger, [record(0, 2500)])
    model.append(ledger, [record(1, 2500)])
    head = ledger._head

    def fail(data: bytes, offset: int) -> None:
        raise OSError(5, "no")

    ledger._writer._head = type("Bad", (), {"write": staticmethod(fail)})()
    assert ledger.commit() == 1
    assert model.answered_seq == 1
    assert ledger.failed
    # What queued behind it is in a frame of its own, and that is not written any more.
    ledger._writer._head = head
    assert ledger.commit() == 0
    assert len(model.failures) == 1
    assert model.answered_seq == ledger.durable_seq == 1
    head.close()


def test_closing_writes_out_seals_once_and_refuses_more() -> None:
    disk = SimulatedDisk(3)
    ledger, model = open_ledger(disk), Model()
    model.append(ledger, [record(0)])
    ledger.close()
    ledger.close()
    assert model.answered_seq == 1
    with pytest.raises(Unavailable, match="stopping"):
        ledger.append([record(0)], nothing)
    used = open_ledger(disk).segments()[-1].used_bytes
    for _ in range(100):
        open_ledger(disk).close()
    ledger = open_ledger(disk)
    assert ledger.segments()[-1].used_bytes == used, "a sealed ledger needs no second seal"
    assert contents(ledger) == [record(0)]


def test_what_is_appended_after_a_seal_is_sealed_again() -> None:
    disk = SimulatedDisk(3)
    for n in range(3):
        ledger = open_ledger(disk)
        ledger.append([record(n)], nothing)
        ledger.close()
        frames = list(open_ledger(disk)._reader.segments[-1].scan_from(4096, 1, 0))
        assert [frame.header.encoding for frame in frames] == [Encoding.ROWS, Encoding.SEAL] * (n + 1)


def test_a_seal_always_has_room() -> None:
    """However full the segment is: its room is set aside."""
    for size in range(2860, 2960):
        disk = SimulatedDisk(3)
        ledger, model = open_ledger(disk), Model()
        for _ in range(4):
            try:
                model.append(ledger, [record(0, size)])
            except TooLarge:
                break
            ledger.commit()
            ledger.close()
            ledger = open_ledger(disk)
            assert not ledger.failed
            model.check(ledger)


def test_one_answer_that_raises_does_not_keep_the_others_from_theirs() -> None:
    ledger = open_ledger(SimulatedDisk())
    answers: list[TarryError | None] = []

    def bad(error: TarryError | None) -> None:
        raise KeyError("a fault of the engine")

    ledger.append([record(0)], bad)
    ledger.append([record(1)], answers.append)
    with pytest.raises(KeyError):
        ledger.commit()
    assert answers == [None]
    assert ledger.failed is None
    assert ledger.durable_seq == 2


def test_an_answer_may_append() -> None:
    ledger = open_ledger(SimulatedDisk())
    seqs: list[int] = []
    ledger.append([record(0)], lambda error: seqs.append(ledger.append([record(1)], nothing)))
    assert ledger.commit() == 1
    assert ledger.commit() == 1
    assert seqs == [2]


def test_the_folder_holds_what_the_format_says() -> None:
    disk = SimulatedDisk()
    ledger = open_ledger(disk)
    ledger.append([record(0)], nothing)
    ledger.commit()
    assert disk.listdir(FOLDER) == ["00000001.seg", "head", "spare-0.seg"]
