"""The rule of the owner: which of its frames are durable, and when it has been superseded (R14).

The owner sends frames in order and is told the offset of each record that the log has taken. A frame is **durable** when its
records directly follow the owner's frame before it, or its claim: then no other claim can be between them. Where they do not,
or where the log tells no offset, the owner reads from there up to its own frame before it answers:

    what it reads there            what it means
    -----------------------------  ------------------------------------------------------------------
    void records                   the last frames of earlier owners: go on
    its own frame                  that is durable
    a valid claim                  superseded: it never appends again
    its own frame, but void        something before it was lost: its outcome and all later are unknown

A record that the log refused, or said nothing about in time, has an unknown outcome: the owner stops for good, as after
a failed sync (R2).

This module is pure: it is told what happened and says what must be read. Nothing in it depends on a clock or on
who others think the owner is.
"""

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from tarry.ledger.log.fold import Fold, LogPosition, ValidClaim, ValidFrame


class Gap(NamedTuple):
    """A stretch of the log that the owner must read before it knows more of its oldest frame."""

    offset: int
    """Where it begins."""
    upto: int | None
    """The offset of the last record of the owner's frame; None if the log did not tell."""


class SentFrame(Struct):
    """A frame on its way into the log."""

    next_seq: int
    """The seq after its last record."""
    tickets: range
    """The numbers of its records, in the order of sending."""
    offsets: dict[int, int | None]
    """Where the log has put them, as far as it has told."""


class Ownership:
    """The owner's knowledge of its frames: which are durable, and whether it still is the owner."""

    def __init__(self, position: LogPosition) -> None:
        """Begin as the owner: `position` is the one after its own claim."""
        self.position = position
        """After the last frame that is durable, or the last record of a gap that was read."""
        self.superseded: ValidClaim | None = None
        """The claim by which another node became the owner."""
        self.unknown: str = ""
        """Why the outcome of the frames in flight is unknown; empty if it is not."""
        self.gaps = 0
        """How often there was a gap to read."""
        self.void = 0
        """How many void records were in them."""
        self._sent: deque[SentFrame] = deque()
        self._durable: list[LogPosition] = []
        self._reading: Fold | None = None

    @property
    def in_flight(self) -> int:
        """How many frames are on their way."""
        return len(self._sent)

    @property
    def ended(self) -> bool:
        """Whether it is the owner no more, or must not go on as one."""
        return self.superseded is not None or bool(self.unknown)

    def sent(self, next_seq: int, tickets: range) -> None:
        """A frame was sent, as records with these numbers."""
        self._sent.append(SentFrame(next_seq, tickets, {}))

    def delivered(self, ticket: int, offset: int | None) -> None:
        """The log has taken a record, at this offset; None if it does not tell where."""
        for frame in self._sent:
            if ticket in frame.tickets:
                frame.offsets[ticket] = offset
                break
        self._settle()

    def failed(self, reason: str) -> None:
        """The log refused a record, or said nothing about it in time."""
        self.unknown = self.unknown or reason

    def durable(self) -> list[LogPosition]:
        """The frames that have become durable since the last call, in order: each by the position after it."""
        durable, self._durable = self._durable, []
        return durable

    @property
    def gap(self) -> Gap | None:
        """The stretch to read before more can be said of the oldest frame; None if there is none."""
        if self.ended or not self._sent or not self._all_delivered(self._sent[0]):
            return None
        offset = self.position.offset if self._reading is None else self._reading.offset
        known = [place for place in self._sent[0].offsets.values() if place is not None]
        complete = len(known) == len(self._sent[0].tickets)
        return Gap(offset, known[-1] if complete else None)

    def read(self, offset: int, data: bytes) -> bool:
        """Take the next record of the gap; return whether there still is one. Raises as `Fold.take` does."""
        gap = self.gap
        if gap is None:
            return False
        if offset < gap.offset:
            # Of frames that turned out to be durable while a gap before them was read.
            return True
        if self._reading is None:
            self.gaps += 1
            self._reading = Fold(self.position)
        valid = self._reading.take(offset, data)
        if isinstance(valid, ValidClaim):
            self.superseded = valid
        elif isinstance(valid, ValidFrame):
            self._found(valid)
        elif gap.upto is not None and offset >= gap.upto:
            self.failed("the log holds a frame of this node, but not as a valid one")
        return self.gap is not None

    def _found(self, valid: ValidFrame) -> None:
        """A valid frame was read in the gap: it is the oldest of our own, since nobody else has this epoch."""
        if valid.position.next_seq != self._sent[0].next_seq:
            self.failed("the log holds a frame with the epoch of this node that it did not send")
            return
        self.void += self._reading.void.total() if self._reading else 0
        self._reading = None
        self._become_durable(valid.position)
        self._settle()

    def _settle(self) -> None:
        """Let the oldest frames become durable as long as each directly follows the one before it."""
        while not self.ended and self._reading is None and self._sent and self._follows(self._sent[0]):
            frame = self._sent[0]
            offset = self.position.offset + len(frame.tickets)
            self._become_durable(LogPosition(offset, self.position.epoch, frame.next_seq))

    def _become_durable(self, position: LogPosition) -> None:
        self._sent.popleft()
        self.position = position
        self._durable.append(position)

    def _all_delivered(self, frame: SentFrame) -> bool:
        return len(frame.offsets) == len(frame.tickets)

    def _follows(self, frame: SentFrame) -> bool:
        first = self.position.offset
        return self._all_delivered(frame) and all(
            frame.offsets[ticket] == first + i for i, ticket in enumerate(frame.tickets)
        )
