"""The log in a partition, which several nodes read and at most one of them owns: follow it, claim it, append to it (R14).

    follow    read what is new into the copy: a standby does nothing else
    claim     read to the end, append a claim, read up to one's own claim: then this node is the owner
    append    as the owner, until it is superseded or an outcome is unknown; then it never appends again

It drives the pure rules of `fold` and `ownership` over a `LogPartition` and writes the copy. All methods but `trim` are called on
one thread at a time: a standby's, and after the claim the writer's.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from errno import EIO, ESTALE
from typing import Final

from msgspec import Struct

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.telemetry.figure import Histogram
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.frame import FORMAT_VERSION
from tarry.ledger.log.envelope import (
    PART_BYTES,
    BadEnvelope,
    LogClaim,
    LogRelease,
    Moving,
    NewerEnvelope,
    encode_claim,
    encode_frame,
    encode_release,
)
from tarry.ledger.log.fold import Fold, LogPosition, Valid, ValidClaim, folded
from tarry.ledger.log.frame_log import PlacedFrame
from tarry.ledger.log.ownership import Ownership
from tarry.ledger.log.partition import LogPartition, LogRecord
from tarry.ledger.segment import Segment, SegmentHeader, encode_segment_header

READ_WAIT_S: Final = 1.0
"""So long one attempt to read waits for the first record."""
PATIENCE: Final = 30
"""So many attempts in a row bring nothing until an outcome counts as unknown."""

APPEND_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds between which the durations of appends are counted, in seconds."""

_MOVING: Final[dict[Moving, str]] = {
    "in": "a ledger is being moved into this log, and is not all there: end it with `tarry move kafka` at {node}",
    "out": "the ledger was moved out of this log, to the disk of {node}: nobody can own it here any more",
}

log = logging.getLogger(__name__)


class LogNode(Struct, frozen=True):
    """A server as the log knows it."""

    name: str
    id_check: bytes
    """Shows which id key it has."""
    addresses: Mapping[str, str] = {}
    """Where clients reach its doors."""


class ReplicatedLog:
    """One node's side of the log of one ledger."""

    medium = "log"

    def __init__(
        self, partition: LogPartition, copy: LedgerCopy, node: LogNode, part_bytes: int = PART_BYTES
    ) -> None:
        self._partition = partition
        self._node = node
        self._part_bytes = part_bytes
        self._fold = Fold(copy.position)
        self._ownership: Ownership | None = None
        self._block = b""
        """The header of the segment that the next frame begins; empty if it begins none."""
        self._sent: deque[tuple[PlacedFrame, float]] = deque()
        """Frames on their way, each with the instant at which it was sent."""
        self._trim_to = 0
        self._trimmed = 0
        self.copy = copy
        self.first_offset = 0
        """Where the log began when it was last looked at."""
        self.in_flight = partition.in_flight
        self.claims = 0
        """Takeovers that this node has read in the log, or made."""
        self.appends = Histogram(APPEND_S)
        """Times from the sending of a frame until it was durable, in seconds."""
        self.trimmable_seq = 0
        """Up to this seq the log may be trimmed: whatever could need it is stored elsewhere (R12)."""

    @property
    def position(self) -> LogPosition:
        """After the last frame in the copy."""
        return self.copy.position

    @property
    def offset(self) -> int:
        """The offset of the record to read next."""
        return self._fold.offset

    @property
    def active(self) -> Segment:
        """The newest segment of the copy."""
        return self.copy.reader.segments[-1]

    @property
    def epoch(self) -> int:
        """The epoch of the present owner, as far as the log was read."""
        return self._fold.position.epoch

    @property
    def owns(self) -> bool:
        """Whether this node owns the ledger, as far as it knows."""
        return self._ownership is not None and not self._ownership.ended

    @property
    def gaps(self) -> int:
        """How often the owner had to read a gap before it could answer."""
        return self._ownership.gaps if self._ownership else 0

    @property
    def void(self) -> int:
        """How many void records were read."""
        return self._fold.void.total() + (self._ownership.void if self._ownership else 0)

    @property
    def trimmed_seq(self) -> int:
        """Up to this seq the log was trimmed by whole segments, when it was last looked at."""
        return self.copy.trimmed_seq(self.first_offset)

    def read_again(self) -> None:
        """Read on where the copy ends: an error may have come between a record and the copy of it."""
        self._fold = Fold(self.copy.position)

    def lag(self) -> int:
        """How many records of the log are not read yet; raises as `check` does."""
        return self.check() - self._fold.offset

    def follow(self, wait_s: float = READ_WAIT_S) -> list[Valid]:
        """Read new records of the log into the copy; waits up to so long for the first one.

        Raises `NotFound` if the log has no record there (`check` tells why), `Unavailable` if it cannot be reached or
        understood or the copy cannot be written, `Damage` if it is not what was written. It may be called again.
        """
        records = self._partition.read(self._fold.offset, wait_s)
        try:
            found = [valid for record in records if (valid := self._fold_in(record)) is not None]
            if found:
                self.copy.publish()
        except OSError as error:
            # What the disk did not take is read again.
            self._fold = Fold(self.copy.position)
            raise Unavailable(f"the copy of the log cannot be written: {error}") from error
        return found

    def _fold_in(self, record: LogRecord) -> Valid | None:
        valid = folded(self._fold, *record, self._partition.name)
        if valid is not None:
            self.copy.take(valid)
            self.claims += isinstance(valid, ValidClaim)
        return valid

    def check(self) -> int:
        """Compare the log with the part that was read; return where it ends.

        Raises `Unavailable` if the log has lost some of that, `NotFound` if it was trimmed further than the copy reads. An attempt
        to read does not tell these two apart.
        """
        first, end = self._partition.ends()
        self.first_offset = first
        offset = self.copy.position.offset
        if end < self._fold.offset:
            raise Unavailable(
                f"{self._partition.name} ends at offset {end}, and was read up to {self._fold.offset} before: the log "
                "has lost records, or the topic was made anew"
            )
        if first > offset:
            raise NotFound(
                f"{self._partition.name} begins at offset {first}; {offset} is the next that is needed"
            )
        return end

    def check_identity(self) -> None:
        """Raise `Unavailable` if this is not the log that the copy is of: how long it is would not tell for ever."""
        self.copy.belong_to(self._partition.identity())

    def check_key(self) -> None:
        """Raise `Unavailable` if the ledger's ids were made with another key than this node has."""
        last = self.copy.claim
        if last is not None and last.id_check != self._node.id_check:
            raise Unavailable(
                f"the ledger is of another id key than this node's ({last.node} claimed it last): "
                "give all nodes the same id.key"
            )

    def claim(self, now_ms: int, nonce: bytes, new_ledger_id: bytes, moving: Moving = "") -> list[Valid]:
        """Become the owner; return the frames that were valid up to the own claim, and the claim.

        `moving` claims it in order to take it out of the log (`tarry.ledger.move`). Raises `Conflict` if another node was
        quicker, and as `follow` does. It may then be called again, with another nonce.
        """
        self.check()
        self.check_identity()
        found = self._read_upto(self._partition.ends()[1])
        self.check_key()
        last = self.copy.claim
        if last is not None and last.moving and (last.moving, last.node) != (moving, self._node.name):
            raise Unavailable(f"{self._partition.name}: {_MOVING[last.moving].format(node=last.node)}")
        epoch, position = self.epoch + 1, self._fold.position
        claim = LogClaim(
            self._node.name,
            nonce,
            self.copy.ledger_id or new_ledger_id,
            self._node.id_check,
            FORMAT_VERSION,
            position.next_seq,
            now_ms,
            self._node.addresses,
            moving,
        )
        ticket = self._partition.send(encode_claim(epoch, claim))
        self._await(ticket)
        return found + self._read_own_claim(epoch, nonce)

    def _read_own_claim(self, epoch: int, nonce: bytes) -> list[Valid]:
        """Read until the epoch that was claimed has an owner: what came in before is valid, and replayed."""
        found: list[Valid] = []
        attempts = 0
        while True:
            new = self.follow()
            found += new
            for valid in new:
                if isinstance(valid, ValidClaim) and valid.position.epoch == epoch:
                    if valid.claim.nonce != nonce:
                        raise Conflict(f"{valid.claim.node} claimed the ledger first", "claimed")
                    if valid is not new[-1]:
                        raise Conflict(
                            "the ledger was claimed again at once: another server owns it", "claimed"
                        )
                    self._ownership = Ownership(self._fold.position)
                    log.info("%s owns %s from epoch %d", self._node.name, self._partition.name, epoch)
                    return found
            attempts = 0 if new else attempts + 1
            if attempts > PATIENCE:
                raise Unavailable(f"{self._partition.name}: the claim was taken and cannot be read")

    def _await(self, ticket: int) -> None:
        """Wait until the log has taken a record."""
        for _ in range(PATIENCE):
            for told in self._partition.deliveries(READ_WAIT_S):
                if told.ticket != ticket:
                    # Of an earlier claim.
                    continue
                if told.error:
                    raise Unavailable(f"{self._partition.name} did not take the record: {told.error}")
                return
        raise Unavailable(f"{self._partition.name} said nothing about a record")

    def _read_upto(self, end: int) -> list[Valid]:
        found: list[Valid] = []
        attempts = 0
        while self._fold.offset < end:
            before = self._fold.offset
            found += self.follow()
            attempts = attempts + 1 if self._fold.offset == before else 0
            if attempts > PATIENCE:
                raise Unavailable(f"{self._partition.name} has records up to {end} and does not give them")
        return found

    def begin_first(self, header: SegmentHeader) -> None:
        """Begin the first segment of a new ledger."""
        self.copy.begin(header)
        self.begin(header)

    def begin(self, header: SegmentHeader) -> None:
        """Let the next frame bring the header of a new segment with it."""
        self._block = encode_segment_header(header)

    def append(self, frame: PlacedFrame) -> None:
        """Send a frame into the log, in parts if it is large."""
        ownership = self._owner()
        pieces = frame.pieces
        offset = frame.offset
        if self._block:
            pieces, offset, self._block = [self._block, *pieces], 0, b""
            frame = PlacedFrame(frame.first_seq, frame.records, frame.segment, 0, frame.length, pieces)
        epoch = ownership.position.epoch
        tickets = [
            self._partition.send(record)
            for record in encode_frame(epoch, frame.segment, offset, pieces, self._part_bytes)
        ]
        ownership.sent(frame.first_seq + frame.records, range(tickets[0], tickets[-1] + 1))
        self._sent.append((frame, time.monotonic()))

    def settle(self, wait_s: float) -> int:
        """Listen to the log, read gaps, and put frames that have become durable into the copy."""
        ownership = self._ownership
        assert ownership is not None
        self._hear(ownership, wait_s)
        self._read_gap(ownership)
        durable = ownership.durable()
        for position in durable:
            frame, sent_s = self._sent.popleft()
            self.appends.observe(time.monotonic() - sent_s)
            self.copy.put(
                position,
                frame.segment,
                frame.offset,
                frame.pieces,
                frame.first_seq,
                frame.records,
                frame.length,
            )
        if not durable:
            self._owner()
        self._trim()
        return len(durable)

    def _owner(self) -> Ownership:
        ownership = self._ownership
        if ownership is None:
            raise OSError(EIO, "the log was not claimed")
        if ownership.superseded is not None:
            by = ownership.superseded
            reason = f"{by.claim.node} owns the ledger now, from epoch {by.position.epoch}"
            raise OSError(ESTALE, reason)
        if ownership.unknown:
            raise OSError(EIO, ownership.unknown)
        return ownership

    def _hear(self, ownership: Ownership, wait_s: float) -> None:
        for told in self._partition.deliveries(wait_s):
            if told.error:
                ownership.failed(f"{self._partition.name}: {told.error}")
            else:
                ownership.delivered(told.ticket, told.offset)

    def _read_gap(self, ownership: Ownership) -> None:
        """Read the gap before the oldest frame, if there is one, until it is known what became of the frame."""
        attempts = 0
        reason = "has taken a frame and does not show it"
        while (gap := ownership.gap) is not None and attempts <= PATIENCE:
            try:
                records = self._partition.read(gap.offset, READ_WAIT_S)
                attempts = 0 if records else attempts + 1
                for record in records:
                    if not ownership.read(*record):
                        break
            except (BadEnvelope, NewerEnvelope, NotFound) as error:
                ownership.failed(f"{self._partition.name} could not be read: {error}")
            except Unavailable as error:
                # As when a broker was replaced: the frame's outcome is there, and others are heard of meanwhile.
                attempts, reason = attempts + 1, f"could not be read: {error}"
                self._hear(ownership, READ_WAIT_S)
        if attempts > PATIENCE:
            ownership.failed(f"{self._partition.name} {reason}")

    def finish(self, next_seq: int) -> bool:
        """Let go of the ledger, so that another node may claim it at once, and leave a copy that is whole."""
        try:
            self._partition.send(encode_release(self._owner().position.epoch, LogRelease(self._node.name, 0)))
            self._partition.deliveries(READ_WAIT_S)
        except Unavailable as error:
            log.warning("the ledger could not be released: %s", error)
        self.copy.sync()
        return True

    def trim(self, upto_seq: int) -> None:
        """Let the log forget segments that were reclaimed here and are stored elsewhere; soon, on the writer's thread."""
        self._trim_to = max(self._trim_to, upto_seq)

    def _trim(self) -> None:
        seq = min(self._trim_to, self.trimmable_seq)
        if seq <= self._trimmed:
            return
        self._trimmed = seq
        begin = self.copy.trim_to(seq)
        if begin is not None:
            self._partition.trim(begin.offset)

    def close(self) -> None:
        """Let go of the partition and of the copy."""
        self._partition.close()
        self.copy.close()
