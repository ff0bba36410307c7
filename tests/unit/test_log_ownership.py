"""The rules of the replicated log, cell by cell: what a reader takes for valid, and what an owner takes for durable (R14)."""

from collections import Counter

import pytest

from tarry.ledger.frame import FORMAT_VERSION, rows_parts, segment_id_of, unit_of
from tarry.ledger.log.envelope import (
    BadEnvelope,
    Envelope,
    EnvelopeKind,
    LogClaim,
    LogRelease,
    encode_claim,
    encode_frame,
    encode_record,
    encode_release,
)
from tarry.ledger.log.fold import Fold, LogPosition, ValidClaim, ValidFrame, ValidRelease, Void
from tarry.ledger.log.ownership import Gap, Ownership
from tests.unit.ledger_kit import LEDGER_ID, record


def claim(epoch: int, node: str = "a", next_seq: int = 1) -> bytes:
    return encode_claim(epoch, LogClaim(node, node.encode(), LEDGER_ID, b"", FORMAT_VERSION, next_seq, 0))


def frame(epoch: int, first_seq: int, size: int = 40, part_bytes: int = 1 << 20) -> list[bytes]:
    pieces = rows_parts(
        [unit_of([record(first_seq, size)])], segment_id_of(LEDGER_ID, 1), first_seq, first_seq
    )
    return encode_frame(epoch, 1, 4096 * first_seq, pieces, part_bytes)


def read(*records: bytes) -> tuple[list[object], Fold]:
    """The valid records in short: seqs of frames, epochs of claims."""
    fold = Fold()
    found: list[object] = []
    for offset, data in enumerate(records):
        match fold.take(offset, data):
            case ValidFrame() as valid:
                found.append(valid.first_seq)
            case ValidClaim(position):
                found.append(f"epoch {position.epoch}")
            case ValidRelease():
                found.append("released")
            case None:
                pass
    return found, fold


class TestReaders:
    def test_frames_of_the_owner_in_order_are_valid(self) -> None:
        found, fold = read(claim(1), *frame(1, 1), *frame(1, 2), encode_release(1, LogRelease("a", 0)))
        assert found == ["epoch 1", 1, 2, "released"]
        assert fold.position == LogPosition(4, 1, 3)
        assert not fold.void

    def test_of_two_claims_of_one_epoch_the_first_counts(self) -> None:
        found, fold = read(claim(1, "a"), claim(1, "b"), claim(2, "b"), claim(4, "c"), claim(3, "c"))
        assert found == ["epoch 1", "epoch 2", "epoch 3"]
        assert fold.void == Counter({Void.TAKEN: 2})

    def test_frames_of_an_earlier_owner_are_void_after_the_claim(self) -> None:
        found, fold = read(claim(1), *frame(1, 1), claim(2), *frame(1, 2), *frame(2, 2), *frame(1, 3))
        assert found == ["epoch 1", 1, "epoch 2", 2]
        assert fold.void == Counter({Void.SUPERSEDED: 2})
        assert fold.position == LogPosition(6, 2, 3)

    def test_a_frame_that_does_not_follow_is_void(self) -> None:
        found, fold = read(claim(1), *frame(1, 1), *frame(1, 1), *frame(1, 3), *frame(1, 2))
        assert found == ["epoch 1", 1, 2]
        assert fold.void == Counter({Void.DISPLACED: 2})

    def test_nothing_is_valid_before_a_claim(self) -> None:
        found, _ = read(*frame(1, 1), *frame(0, 1)[:0], claim(1), *frame(1, 1))
        assert found == ["epoch 1", 1]

    def test_a_foreign_record_is_void_wherever_it_stands(self) -> None:
        one, two = frame(1, 1, 200, 150)
        found, fold = read(b"hello", claim(1), b"", one, b"{}", two)
        assert found == ["epoch 1", 1]
        assert fold.void == Counter({Void.FOREIGN: 3})

    def test_a_frame_without_all_its_parts_is_void(self) -> None:
        one, two, three = frame(1, 1, 300, 150)
        for records, void in (
            ((one, two), 0),
            ((one, three), 2),
            ((two, three), 2),
            ((one, two, *frame(1, 1)), 2),
            ((one, one, two, three), 1),
            ((one, two, claim(2), three), 3),
            ((one, two, encode_release(1, LogRelease("a", 0)), three), 3),
        ):
            _, fold = read(claim(1), *records)
            assert sum(fold.void.values()) == void, records
        assert read(claim(1), one, two, three)[0] == ["epoch 1", 1]

    def test_last_frames_of_an_earlier_owner_between_the_parts_change_nothing(self) -> None:
        one, two, three = frame(2, 1, 300, 150)
        found, fold = read(claim(1), claim(2), one, *frame(1, 1), two, claim(2, "c"), three)
        assert found == ["epoch 1", "epoch 2", 1]
        assert fold.void == Counter({Void.SUPERSEDED: 1, Void.TAKEN: 1})

    def test_a_reader_goes_on_at_the_frame_whose_parts_it_has_not_all_read(self) -> None:
        one, two, _ = frame(1, 1, 300, 150)
        _, fold = read(claim(1), one, two)
        assert fold.position == LogPosition(1, 1, 1)
        assert fold.offset == 3

    def test_the_log_of_a_ledger_that_was_moved_begins_where_its_folder_ends(self) -> None:
        found, fold = read(claim(1, next_seq=500), *frame(1, 500), claim(2, next_seq=7), *frame(2, 501))
        assert found == ["epoch 1", 500, "epoch 2", 501]
        assert fold.position.next_seq == 502

    def test_a_record_that_was_read_before_is_a_mistake(self) -> None:
        fold = Fold()
        fold.take(3, claim(1))
        with pytest.raises(ValueError, match="4 is next"):
            fold.take(3, claim(2))

    def test_what_is_no_frame_is_bad(self) -> None:
        for content in (b"", bytes(100), frame(1, 1)[0][32:] + b"\0"):
            with pytest.raises(BadEnvelope, match="no frame"):
                read(claim(1), encode_record(Envelope(EnvelopeKind.FRAME, 1), content))


def owner(at: int = 10) -> Ownership:
    """An owner of epoch 2 whose claim is just below this offset."""
    return Ownership(LogPosition(at, 2, 1))


def seqs(ownership: Ownership) -> list[int]:
    return [position.next_seq for position in ownership.durable()]


class TestOwner:
    def test_a_frame_is_durable_where_it_follows(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.sent(3, range(1, 2))
        assert mine.in_flight == 2
        mine.delivered(0, 10)
        assert seqs(mine) == [2]
        mine.delivered(1, 11)
        assert seqs(mine) == [3]
        assert mine.position == LogPosition(12, 2, 3)
        assert mine.in_flight == mine.gaps == 0

    def test_a_frame_in_parts_is_durable_with_its_last_part(self) -> None:
        mine = owner()
        mine.sent(2, range(3))
        for ticket in range(2):
            mine.delivered(ticket, 10 + ticket)
            assert seqs(mine) == []
            assert mine.gap is None
        mine.delivered(2, 12)
        assert seqs(mine) == [2]

    def test_last_frames_of_earlier_owners_in_a_gap_are_passed_over(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.sent(3, range(1, 2))
        mine.delivered(0, 12)
        mine.delivered(1, 13)
        assert seqs(mine) == []
        assert mine.gap == Gap(10, 12)
        assert mine.read(10, frame(1, 1)[0])
        assert mine.read(11, b"foreign")
        assert not mine.read(12, frame(2, 1)[0])
        assert seqs(mine) == [2, 3]
        assert not mine.ended
        assert mine.position == LogPosition(14, 2, 3)
        assert mine.gaps == 1

    def test_a_newer_claim_in_a_gap_ends_it(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.delivered(0, 11)
        assert not mine.read(10, claim(3, "b"))
        assert mine.superseded is not None
        assert mine.superseded.claim.node == "b"
        assert mine.ended
        assert seqs(mine) == []
        assert mine.gap is None

    def test_a_void_claim_in_a_gap_does_not(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.delivered(0, 11)
        assert mine.read(10, claim(2, "b"))
        assert not mine.read(11, frame(2, 1)[0])
        assert seqs(mine) == [2]

    def test_a_success_without_an_offset_is_looked_for(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.sent(3, range(1, 2))
        mine.delivered(0, None)
        mine.delivered(1, 11)
        assert mine.gap == Gap(10, None)
        assert not mine.read(10, frame(2, 1)[0])
        assert seqs(mine) == [2, 3]

    def test_what_was_in_before_a_newer_claim_is_durable_and_what_came_after_is_not(self) -> None:
        mine = owner()
        mine.sent(2, range(1))
        mine.sent(3, range(1, 2))
        mine.delivered(0, None)
        mine.delivered(1, None)
        assert mine.read(10, frame(2, 1)[0])
        assert seqs(mine) == [2]
        assert mine.gap == Gap(11, None)
        assert not mine.read(11, claim(3, "b"))
        assert seqs(mine) == []
        assert mine.superseded

    def test_a_frame_of_its_own_that_is_void_ends_it(self) -> None:
        mine = owner()
        mine.sent(3, range(1))
        mine.delivered(0, 11)
        assert mine.read(10, b"foreign")
        assert not mine.read(11, frame(2, 2)[0])
        assert "not as a valid one" in mine.unknown
        assert seqs(mine) == []

    def test_an_error_ends_it_and_nothing_later_is_durable(self) -> None:
        mine = owner()
        for n in range(3):
            mine.sent(2 + n, range(n, n + 1))
        mine.delivered(0, 10)
        mine.failed("timed out")
        mine.delivered(2, 11)
        assert seqs(mine) == [2]
        assert mine.ended
        assert mine.unknown == "timed out"
        assert mine.gap is None
