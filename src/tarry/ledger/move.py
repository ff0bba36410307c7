"""Moving a ledger of this disk into a replicated log, and out of one: byte for byte, and to be gone on with after a crash.

    in      claim the log for a move → append every frame of the folder at its place, seals too → read the log back and compare
            → the folder becomes a copy of the log → claim the log for good
    out     claim the log for a move → read up to that claim → prove and sync every segment → the folder stops being a copy

    a crash                                  leaves the folder                   leaves the log
    ---------------------------------------  ----------------------------------  ---------------------------------------
    in, before the folder becomes a copy     as it was, a ledger of its own      nobody's: no server can claim it
    in, after that                           a copy: not served from the disk    nobody's, until the move is done again
    out, before the folder stops being one   a copy                              nobody's, until the move is done again
    out, after that                          a ledger of its own                 closed for good

So at no moment can two servers go on with one ledger; and a move that is done again takes up what is there. Nothing else may
have the folder open. What the log holds is known by reading it (R14): what the log said about records that were sent is only
listened to.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tarry.core.errors import Conflict, Damage, Unavailable
from tarry.ledger.copy import COPY_NAME, CopyState, LedgerCopy, read_copy_state, write_copy_state
from tarry.ledger.disk import Disk
from tarry.ledger.frame import FORMAT_VERSION, BadFrame
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
from tarry.ledger.log.fold import Fold, LogPosition, ValidClaim, ValidFrame
from tarry.ledger.log.partition import LogPartition
from tarry.ledger.log.replicated_log import PATIENCE, READ_WAIT_S, LogNode, ReplicatedLog
from tarry.ledger.recovery import recover
from tarry.ledger.segment import BLOCK_BYTES, Segment, segment_number

UNTOLD_BYTES: Final = 8 << 20
"""So much may be on its way to the log."""

OnProgress = Callable[[str, int], None]
"""Told of the step that runs, and of the bytes that it has done so far."""


class MovedLedger(NamedTuple):
    """A ledger that was moved."""

    ledger_id: bytes
    first_seq: int
    last_seq: int
    segments: int


class FolderFrame(NamedTuple):
    """A frame of the folder, as the log holds it."""

    segment: int
    offset: int
    """Its place in the segment; 0 if the block of the segment's header is in front of it."""
    data: bytes

    @property
    def place(self) -> tuple[int, int]:
        """The order of frames."""
        return self.segment, self.offset


class MoveIn:
    """One attempt to move the ledger of a folder into a log."""

    def __init__(
        self,
        partition: LogPartition,
        disk: Disk,
        folder: str,
        node: LogNode,
        told: OnProgress = lambda _step, _done: None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Find the ledger in the folder, whose lock the caller holds; raises `Conflict` if there is none to be moved."""
        disk.make_folder(folder)
        found = recover(disk, folder)
        state = read_copy_state(disk, folder)
        if found is None:
            raise Conflict(f"{folder} has no ledger: a server begins a new one in the log by itself", "empty")
        if state is not None and state.claim.moving != "in":
            raise Conflict(f"{folder} is the copy of a log already", "moved")
        self._partition = partition
        self._disk = disk
        self._folder = folder
        self._node = node
        self._told = told
        self._part_bytes = part_bytes
        self._ledger_id = found.ledger_id
        # The log has the header of a segment together with its first frame.
        self._segments = {one.number: one for one in found.segments if one.last_seq >= one.first_seq}
        self._fold = Fold()
        self._claim: LogClaim | None = None
        """The last valid claim of the log."""
        self._begun: LogPosition | None = None
        """The position after the first valid claim."""
        self._position = self._fold.position
        """The position after the last valid record."""
        self._starts: dict[int, LogPosition] = {}
        self._reached = (0, 0)
        """The place of the last frame that is in the log."""
        self._last_place = (0, 0)
        """The place of the folder's last frame."""
        self._read_bytes = 0
        self._untold: deque[int] = deque()
        """The sizes of records that were sent, and of which the log has said nothing."""

    def run(
        self, now_ms: int, nonce: bytes, before_last: Callable[[LogClaim, LogPosition], object]
    ) -> MovedLedger:
        """Move it. `before_last` is told of the claim, and of where the oldest segment begins, before the folder becomes a copy."""
        if not self._segments:
            raise Conflict(f"{self._folder} has no records: begin with an empty folder instead", "empty")
        first, end = self._partition.ends()
        if first:
            raise self._foreign("it was trimmed, so it has been in use")
        self._read_upto(end)
        self._own("in", now_ms, nonce + b"-in")
        self._send()
        newest = self._segments[max(self._segments)]
        self._told("reading it back", 0)
        self._read_until(
            lambda: self._fold.position.next_seq > newest.last_seq and self._reached >= self._last_place
        )
        assert self._claim is not None
        assert self._begun is not None
        oldest = self._segments[min(self._segments)]
        before_last(self._claim, self._starts[oldest.number])
        state = CopyState(self._ledger_id, self._claim, self._begun.next_seq, self._starts, self._begun)
        write_copy_state(self._disk, self._folder, state)
        self._own("", now_ms, nonce)
        self._append(encode_release(self._fold.position.epoch, LogRelease(self._node.name, now_ms)))
        self._settle(0)
        for segment in self._segments.values():
            segment.close()
        return MovedLedger(self._ledger_id, oldest.first_seq, newest.last_seq, len(self._segments))

    # What the log holds

    def _read_upto(self, end: int) -> None:
        self._told("reading the log", 0)
        self._read_until(lambda: self._fold.offset >= end)

    def _read_until(self, reached: Callable[[], bool]) -> None:
        attempts = 0
        while not reached():
            records = self._partition.read(self._fold.offset, READ_WAIT_S)
            attempts = 0 if records else attempts + 1
            if attempts > PATIENCE:
                raise Unavailable(f"{self._partition.name} does not show what it has taken")
            for record in records:
                self._take(record.offset, record.data)

    def _take(self, offset: int, data: bytes) -> None:
        try:
            valid = self._fold.take(offset, data)
        except (BadEnvelope, NewerEnvelope) as error:
            raise Damage(self._partition.name, offset, str(error)) from None
        if isinstance(valid, ValidClaim):
            self._take_claim(valid)
        elif isinstance(valid, ValidFrame):
            self._take_frame(valid)
        if valid is not None:
            self._position = valid.position

    def _take_claim(self, valid: ValidClaim) -> None:
        claim = valid.claim
        if claim.ledger_id != self._ledger_id:
            raise self._foreign(f"{claim.node} keeps another ledger in it")
        if claim.id_check != self._node.id_check:
            raise Unavailable(
                f"{claim.node} began this move with another id key: give all nodes the same id.key"
            )
        self._claim = claim
        self._begun = self._begun or valid.position

    def _take_frame(self, valid: ValidFrame) -> None:
        """Compare a frame with the folder, which may have reclaimed it since."""
        if self._claim is None or self._claim.moving != "in":
            # A server's, or what was moved out: the last claim says why this log is refused.
            return
        segment = self._segments.get(valid.segment)
        if segment is not None:
            if segment.file.read(len(valid.data), valid.offset) != valid.data:
                raise self._foreign(f"it differs from {segment.path} at byte {valid.offset}")
        elif valid.segment > min(self._segments):
            raise self._foreign(f"it has frames of segment {valid.segment}, and {self._folder} has not")
        if valid.offset == 0:
            self._starts[valid.segment] = self._position
        self._reached = valid.segment, valid.offset
        self._read_bytes += len(valid.data)
        self._told("reading the log", self._read_bytes)

    def _check_last(self) -> None:
        """Raise `Conflict` unless the last claim, if there is one, is one of this node for a move into the log."""
        last, log = self._claim, self._partition.name
        if last is None:
            return
        if last.moving == "out":
            raise self._foreign(f"{last.node} has moved it out")
        if not last.moving:
            raise Conflict(
                f"the ledger is in {log} already, and {last.node} owned it last: start the servers", "moved"
            )
        if last.node != self._node.name:
            raise Conflict(f"{last.node} is moving this ledger into {log}: end it there", "claimed")

    def _foreign(self, why: str) -> Conflict:
        return Conflict(
            f"{self._partition.name} cannot take this ledger: {why}; make a new topic and configure that",
            "taken",
        )

    # What is added

    def _own(self, moving: Moving, now_ms: int, nonce: bytes) -> None:
        """Claim the log, and read up to that claim."""
        self._check_last()
        epoch, next_seq = self._fold.position.epoch + 1, self._fold.position.next_seq
        if self._claim is None:
            next_seq = self._segments[min(self._segments)].first_seq
        node = self._node
        claim = LogClaim(
            node.name,
            nonce,
            self._ledger_id,
            node.id_check,
            FORMAT_VERSION,
            next_seq,
            now_ms,
            node.addresses,
            moving,
        )
        self._append(encode_claim(epoch, claim))
        self._settle(0)
        self._read_until(lambda: self._fold.position.epoch >= epoch)
        if self._claim != claim:
            raise Conflict(f"another program has claimed {self._partition.name} at the same time", "claimed")

    def _send(self) -> None:
        """Append the frames that are not in the log, each after those before it."""
        epoch, done = self._fold.position.epoch, 0
        for frame in frames_of(list(self._segments.values())):
            self._last_place = frame.place
            if frame.place > self._reached:
                for record in encode_frame(
                    epoch, frame.segment, frame.offset, [frame.data], self._part_bytes
                ):
                    self._append(record)
                self._settle(UNTOLD_BYTES)
            done += len(frame.data)
            self._told("writing to the log", done)
        self._settle(0)

    def _append(self, record: bytes) -> None:
        self._partition.send(record)
        self._untold.append(len(record))

    def _settle(self, most_bytes: int) -> None:
        """Wait until the log has taken all records but so many bytes."""
        attempts = 0
        while sum(self._untold) > most_bytes:
            told = self._partition.deliveries(READ_WAIT_S)
            attempts = 0 if told else attempts + 1
            if attempts > PATIENCE:
                raise Unavailable(f"{self._partition.name} says nothing about what was sent")
            for one in told:
                if one.error:
                    raise Unavailable(f"{self._partition.name} did not take a record: {one.error}")
                self._untold.popleft()


def frames_of(segments: Sequence[Segment]) -> Iterator[FolderFrame]:
    """Every frame of a ledger, seals too, proved; raises `Damage` where one is damaged."""
    for number, segment in enumerate(segments):
        offset, seq = BLOCK_BYTES, segment.first_seq
        try:
            for scanned in segment.scan_from(BLOCK_BYTES, segment.first_seq, 0):
                header = scanned.header
                data = scanned.data[scanned.at : scanned.at + header.length]
                if scanned.offset == BLOCK_BYTES:
                    yield FolderFrame(segment.number, 0, segment.file.read(BLOCK_BYTES, 0) + data)
                else:
                    yield FolderFrame(segment.number, scanned.offset, data)
                offset, seq = scanned.offset + header.length, seq + header.records
        except BadFrame as bad:
            raise Damage(segment.path, offset, str(bad)) from None
        if number + 1 < len(segments) and seq != segments[number + 1].first_seq:
            raise Damage(
                segment.path, offset, f"the segment ends before seq {segments[number + 1].first_seq - 1}"
            )


def move_out(
    partition: LogPartition,
    disk: Disk,
    folder: str,
    node: LogNode,
    now_ms: int,
    nonce: bytes,
    before_last: Callable[[bytes], object],
    told: OnProgress = lambda _step, _done: None,
) -> MovedLedger:
    """Move a ledger out of its log, into the copy in a folder whose lock the caller holds; it is a ledger of its own then.

    No server may own it. `before_last` is told of the ledger's id, before the folder stops being a copy. Closes the partition.
    """
    state = read_copy_state(disk, folder)
    if state is None and disk.exists(folder) and any(segment_number(name) for name in disk.listdir(folder)):
        raise Conflict(f"{folder} is a ledger of its own already, and no copy of a log", "moved")
    side = ReplicatedLog(partition, LedgerCopy.open(disk, folder), node)
    try:
        told("reading the log", 0)
        if state is None and not partition.ends()[1]:
            raise Conflict(f"{partition.name} has no ledger", "empty")
        side.claim(now_ms, nonce, b"", moving="out")
        copy = side.copy
        segments = copy.reader.segments
        if not segments or copy.ledger_id is None:
            raise Conflict(f"{partition.name} has no records", "empty")
        done = 0
        for frame in frames_of(segments):
            done += len(frame.data)
            told("proving the segments", done)
        for segment in segments:
            segment.file.sync()
        copy.publish()
        before_last(copy.ledger_id)
        disk.sync_folder(folder)
        disk.remove(f"{folder}/{COPY_NAME}")
        disk.sync_folder(folder)
        return MovedLedger(copy.ledger_id, segments[0].first_seq, copy.last_seq, len(segments))
    finally:
        side.close()
