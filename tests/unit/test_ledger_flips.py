"""A bit flips anywhere in a small ledger: it is found and its place named, or no record is different.

Exactly which is which:

    segment header                         Damage
    a frame                                Damage, but for the last frame when the head does not cover it: then
                                           that frame is taken for unfinished, and the records before it are kept
    zeros after the end                    nothing; in the newest segment they are cleared with a note
    head                                   ignored, with a note
    a spare                                nothing
"""

from collections.abc import Iterator

import numpy as np
import pytest

from tarry.core.errors import Damage
from tarry.ledger import frame
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Encoded
from tarry.ledger.segment import BLOCK_BYTES
from tarry.testing.disk import SimulatedDisk
from tests.unit.ledger_kit import FOLDER, Model, contents, open_ledger, record

SETTINGS = LedgerSettings(segment_bytes=BLOCK_BYTES + 1000, spare_segments=1)
HEADER_SAMPLE = (*range(64), *range(64, BLOCK_BYTES, 97), BLOCK_BYTES - 1)


class Specimen:
    """Two segments with frames of every encoding, and where they are."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(1)
        ledger, model = open_ledger(self.disk, SETTINGS), Model()
        model.append(ledger, [record(0)])
        ledger.commit()
        model.append(ledger, [record(n, 20) for n in range(1, 4)])
        ledger.commit()
        model.append(ledger, [record(n) for n in range(4, 7)])
        ledger.commit()
        ledger.close()
        ledger = open_ledger(self.disk, SETTINGS)
        for n in range(7, 12):
            model.append(ledger, [record(n, 90)])
            ledger.commit()
        self.records = contents(ledger)
        first, second = ledger.segments()
        assert second.last_seq > second.first_seq
        self.ends = {1: first.used_bytes, 2: second.used_bytes}
        self.last_frame_at = second.used_bytes - frame.frame_bytes(frame.ROW_BYTES + 90)
        self.disk.kill()

    def opened(self, path: str, at: int) -> tuple[list[Encoded] | Damage, list[str]]:
        """Flip one bit of that byte, and open and replay."""
        disk = self.disk.copy(0)
        disk.flip_bit(path, at, at % 8)
        try:
            ledger = open_ledger(disk, SETTINGS)
            found = contents(ledger)
            assert [ledger.read(seq).body for seq in range(1, len(found) + 1)] == [of.body for of in found]
            return found, ledger.notes
        except Damage as damage:
            return damage, []


@pytest.fixture
def specimen() -> Specimen:
    return Specimen()


def segment_bytes(specimen: Specimen, number: int) -> Iterator[int]:
    yield from HEADER_SAMPLE
    yield from range(BLOCK_BYTES, specimen.ends[number])


@pytest.mark.parametrize("number", [1, 2])
def test_every_byte_of_the_headers_and_frames_is_guarded(specimen: Specimen, number: int) -> None:
    path = f"{FOLDER}/0000000{number}.seg"
    for at in segment_bytes(specimen, number):
        found, _ = specimen.opened(path, at)
        assert isinstance(found, Damage), f"byte {at} of {path}"
        assert found.file == path
        assert found.offset <= at, "the place is that of the header or frame that the byte is in"
        assert at - found.offset < BLOCK_BYTES


def test_only_the_last_frame_is_ambiguous_when_the_head_is_lost(specimen: Specimen) -> None:
    specimen.disk.remove(f"{FOLDER}/head")
    path = f"{FOLDER}/00000002.seg"
    for at in segment_bytes(specimen, 2):
        found, notes = specimen.opened(path, at)
        if at >= specimen.last_frame_at:
            assert found == specimen.records[:-1]
            assert notes
        else:
            assert isinstance(found, Damage), f"byte {at}"


@pytest.mark.parametrize("number", [1, 2])
def test_zeros_after_the_end_do_not_matter(specimen: Specimen, number: int) -> None:
    for at in range(specimen.ends[number], SETTINGS.segment_bytes):
        found, notes = specimen.opened(f"{FOLDER}/0000000{number}.seg", at)
        assert found == specimen.records
        assert bool(notes) == (number == 2)


def test_the_head_and_the_spares_do_not_matter(specimen: Specimen) -> None:
    for at in range(64):
        found, notes = specimen.opened(f"{FOLDER}/head", at)
        assert found == specimen.records
        assert notes
    spare = next(name for name in specimen.disk.listdir(FOLDER) if name.startswith("spare"))
    for at in range(0, SETTINGS.segment_bytes, 53):
        assert specimen.opened(f"{FOLDER}/{spare}", at) == (specimen.records, [])


def test_a_record_that_went_bad_while_running_is_never_returned(specimen: Specimen) -> None:
    """Every read proves what it returns: there is no need to have replayed it before (R3)."""
    path = f"{FOLDER}/00000001.seg"
    for at in range(BLOCK_BYTES, specimen.ends[1]):
        ledger = open_ledger(specimen.disk, SETTINGS)
        last = ledger.segments()[0].last_seq
        specimen.disk.flip_bit(path, at, at % 8)
        damaged = 0
        for seq in range(1, last + 1):
            try:
                stored = ledger.read(seq)
            except Damage:
                damaged += 1
            else:
                of = specimen.records[seq - 1]
                assert stored == (seq, of.kind, of.lane, of.fire_at_ms, of.body)
        specimen.disk.flip_bit(path, at, at % 8)
        if damaged == 0:
            assert at >= specimen.ends[1] - 8 or in_unread(specimen, at), f"byte {at}"


def test_nor_is_it_when_many_are_read(specimen: Specimen) -> None:
    path = f"{FOLDER}/00000001.seg"
    batch = next(seg for seg in open_ledger(specimen.disk, SETTINGS)._reader.segments).point(2)[1]
    bodies_at = batch + frame.frame_bytes(frame.ROW_BYTES + 40) + frame.HEADER_BYTES + 3 * frame.ROW_BYTES
    for at in range(bodies_at, bodies_at + 60):
        ledger = open_ledger(specimen.disk, SETTINGS)
        specimen.disk.flip_bit(path, at, at % 8)
        with pytest.raises(Damage, match=f"seq {2 + (at - bodies_at) // 20} "):
            ledger.bodies(np.array([4, 2, 3]))
        specimen.disk.flip_bit(path, at, at % 8)


def in_unread(specimen: Specimen, at: int) -> bool:
    """Whether reading by seq does not need this byte: the checksum over a whole frame, pads, and seals."""
    segment = open_ledger(specimen.disk, SETTINGS)._reader.segments[0]
    for scanned in segment.scan_from(BLOCK_BYTES, 1, None):
        start, header = scanned.offset, scanned.header
        if start <= at < start + header.length:
            whole_crc = start + 4 <= at < start + 8
            return whole_crc or header.records == 0 or at >= start + header.length - header.pad
    return False


def test_without_checksums_a_flip_would_get_through(
    specimen: Specimen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail."""
    monkeypatch.setattr("tarry.ledger.segment.check_frame", lambda data, at, header: None)
    with pytest.raises(AssertionError):
        test_every_byte_of_the_headers_and_frames_is_guarded(specimen, 2)
