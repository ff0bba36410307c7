"""The rule of every reader: which records of the log are valid, decided in the order of their offsets (R14).

The state is (epoch, next seq). Before the first claim the epoch is 0, which nobody has.

    record                        valid if                                          it then
    ----------------------------  ------------------------------------------------  -------------------------
    a claim                       its epoch is the epoch plus one                   sets the epoch
    a frame, whole or in parts    its epoch is the epoch, all its parts are there,  moves the next seq on
                                  and it begins with the next seq
    a release                     its epoch is the epoch                            -

Everything else is void, and counted by its reason. A void record changes nothing, wherever it stands: also between two parts of a
frame, where the last frames of an owner that was superseded may come to lie. Every reader sees the same records in the
same order, so all find the same ones valid.

This module is pure: records in, valid ones out.
"""

from collections import Counter
from enum import StrEnum
from typing import Final, NamedTuple

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.frame import HEADER, HEADER_BYTES, MAGIC, Header
from tarry.ledger.log.envelope import (
    BadEnvelope,
    Envelope,
    EnvelopeKind,
    LogClaim,
    LogRelease,
    NewerEnvelope,
    decode_claim,
    decode_record,
    decode_release,
)
from tarry.ledger.segment import BLOCK_BYTES


class LogPosition(NamedTuple):
    """Where a reader of the log goes on, and the state that it has there."""

    offset: int
    """The offset of the next record."""
    epoch: int
    next_seq: int


BEGINNING: Final = LogPosition(0, 0, 1)
"""The position before the first record of a log."""


class Void(StrEnum):
    """Why a record is not valid."""

    FOREIGN = "foreign"
    """Not written by Tarry."""
    TAKEN = "taken"
    """A claim of an epoch that had been claimed."""
    SUPERSEDED = "superseded"
    """A frame or release of whoever is not the owner, or not any more."""
    UNFINISHED = "unfinished"
    """Parts of a frame that never became whole."""
    DISPLACED = "displaced"
    """A frame that does not begin with the next seq: one before it is missing, or it was written twice."""


class ValidClaim(NamedTuple):
    """A claim that made its node the owner."""

    position: LogPosition
    """After the record."""
    claim: LogClaim


class ValidRelease(NamedTuple):
    """A release by the owner."""

    position: LogPosition
    release: LogRelease


class ValidFrame(NamedTuple):
    """A frame that belongs to the ledger, and where it stands in its segments."""

    position: LogPosition
    segment: int
    offset: int
    """The place of `data` in the segment."""
    data: bytes
    """The frame; behind the block of its segment's header if it is the first one there."""
    header: Header

    @property
    def first_seq(self) -> int:
        """The seq of its first record."""
        return self.header.first_seq


Valid = ValidClaim | ValidRelease | ValidFrame


class Fold:
    """The state of a reader of the log."""

    __slots__ = ("_epoch", "_next_seq", "_offset", "_parts", "_parts_from", "_parts_of", "void")

    def __init__(self, position: LogPosition = BEGINNING) -> None:
        self._offset, self._epoch, self._next_seq = position
        self._parts: list[bytes] = []
        """The parts of the frame that is being read."""
        self._parts_of: tuple[int, ...] = ()
        self._parts_from = 0
        """The offset of the first of them."""
        self.void: Counter[Void] = Counter()

    @property
    def position(self) -> LogPosition:
        """Where to read on with another fold: behind the last record, or at the frame whose parts are not all read."""
        return LogPosition(self._parts_from if self._parts else self._offset, self._epoch, self._next_seq)

    @property
    def offset(self) -> int:
        """The offset of the record to take next."""
        return self._offset

    def take(self, offset: int, data: bytes) -> Valid | None:
        """Take the next record of the log; return the frame that it makes valid, if there is one.

        Raises `BadEnvelope` or `NewerEnvelope`: nothing after such a record can be judged.
        """
        if offset < self._offset:
            raise ValueError(f"the record at {offset} was read before: {self._offset} is next")
        decoded = decode_record(data)
        self._offset = offset + 1
        if decoded is None:
            self._pass_over(Void.FOREIGN)
            return None
        envelope, content = decoded
        if envelope.kind is EnvelopeKind.CLAIM:
            return self._claimed(envelope, content)
        if envelope.epoch != self._epoch or not self._epoch:
            self._pass_over(Void.SUPERSEDED)
            return None
        if envelope.kind is EnvelopeKind.RELEASE:
            self._drop_parts()
            return ValidRelease(self.position, decode_release(content))
        return self._part(envelope, offset, content)

    def _claimed(self, envelope: Envelope, content: bytes) -> ValidClaim | None:
        if envelope.epoch != self._epoch + 1:
            self._pass_over(Void.TAKEN)
            return None
        claim = decode_claim(content)
        self._drop_parts()
        if not self._epoch:
            self._next_seq = claim.next_seq
        self._epoch = envelope.epoch
        return ValidClaim(self.position, claim)

    def _part(self, envelope: Envelope, offset: int, content: bytes) -> ValidFrame | None:
        """Put a part of a frame to those before it; return the frame once it is whole."""
        if envelope.part == 0:
            self._drop_parts()
            self._parts_of, self._parts_from = envelope[3:], offset
        elif envelope.part != len(self._parts) or envelope[3:] != self._parts_of:
            self._drop_parts()
            self._pass_over(Void.UNFINISHED)
            return None
        self._parts.append(content)
        if len(self._parts) < envelope.parts:
            return None
        parts, self._parts = self._parts, []
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        header = _frame_header(data, envelope.offset)
        if header.first_seq != self._next_seq:
            self._pass_over(Void.DISPLACED, len(parts))
            return None
        self._next_seq += header.records
        return ValidFrame(self.position, envelope.segment, envelope.offset, data, header)

    def _drop_parts(self) -> None:
        if self._parts:
            self.void[Void.UNFINISHED] += len(self._parts)
            self._parts = []

    def _pass_over(self, reason: Void, records: int = 1) -> None:
        """Count void records; nothing is valid by them."""
        self.void[reason] += records


def folded(fold: Fold, offset: int, data: bytes, name: str) -> Valid | None:
    """Take the next record of the log of this name, as `Fold.take`; raises `Damage` or `Unavailable` if that cannot be judged."""
    try:
        return fold.take(offset, data)
    except BadEnvelope as bad:
        raise Damage(name, offset, str(bad)) from None
    except NewerEnvelope as newer:
        raise Unavailable(f"{name}: {newer}") from None


def _frame_header(data: bytes, offset: int) -> Header:
    """The header of the frame in `data`; what the envelope's checksum proved is a frame, unless a program was wrong."""
    at = BLOCK_BYTES if offset == 0 else 0
    if len(data) < at + HEADER_BYTES:
        raise BadEnvelope("there is no frame in it")
    header = Header._make(HEADER.unpack_from(data, at))
    if header.magic != MAGIC or header.length != len(data) - at:
        raise BadEnvelope("there is no frame in it")
    return header
