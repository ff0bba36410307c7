"""The copy of a replicated log: its valid frames as segment files, byte for byte at their places, not synced (R14).

The owner of a ledger and each standby keep one, and all reading is from it. Because it may lose what was not synced, the file
`copy` among the segments, which is synced, says where in the log each segment begins; so after a crash the log heals it:

    what is found at the start                          what is done
    --------------------------------------------------  -----------------------------------------------------------
    the newest segment proves up to the head            its frames are written again, since a sync may have failed before;
                                                        read on from the head's position
    ... ends or goes bad below the head                 read again from where the segment begins in the log
    a segment is missing, of the wrong size, or its     it and all after it are removed, and read again
    header is bad
    what is missing was in the log before it began      refused: it is nowhere else
    (a ledger that was moved there)

A segment is synced when the next one begins. Older segments are not read here, as with a ledger on this disk; damage that is
found in one later is `Damage`, until `forget_from` lets it be read again at the next start.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.disk import Disk, File
from tarry.ledger.frame import FORMAT_VERSION, BadFrame
from tarry.ledger.head import HEAD_BYTES, HEAD_NAME, DurableHead, decode_head, encode_head
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import BEGINNING, LogPosition, Valid, ValidClaim, ValidFrame
from tarry.ledger.reader import Reader
from tarry.ledger.recovery import clear_rest, first_nonzero, recover
from tarry.ledger.segment import (
    BLOCK_BYTES,
    WINDOW_BYTES,
    Segment,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
    segment_name,
    segment_number,
)
from tarry.ledger.spares import Spares

COPY_NAME: Final = "copy"

log = logging.getLogger(__name__)


class CopyState(Struct, frozen=True):
    """The content of the file `copy`."""

    ledger_id: bytes
    claim: LogClaim
    """The last valid one that was read."""
    begins: int
    """The seq with which the log begins: what the folder has of earlier ones is nowhere else."""
    starts: dict[int, LogPosition]
    """For each segment the position in the log before its first frame; of a ledger that was moved to a log, before the
    first that is in it."""
    read_from: LogPosition = BEGINNING
    """Where to read the log from if no segment is left: after its first claim, or at the place of a snapshot."""
    log_identity: str = ""
    """The log's own name, which one that is made anew in its place does not have; empty if that is not known."""


class LedgerCopy:
    """The segments of one folder as a copy of a replicated log."""

    def __init__(
        self, disk: Disk, folder: str, segments: list[Segment], state: CopyState | None, position: LogPosition
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._folder = folder
        self._head: File | None = None
        self._state = state
        self.reader = Reader(segments)
        self.position = position
        """Where in the log to read on."""
        self._log_identity = state.log_identity if state else ""
        self.spares: Spares | None = None
        """Prepared files for new segments, if whoever appends has some."""
        self.local_id: bytes | None = None
        """The id of the ledger on this disk that the copy was made from, until a claim has been read."""
        self.notes: list[str] = []
        """Findings at the start that an operator may want to know."""

    @classmethod
    def open(cls, disk: Disk, folder: str) -> "LedgerCopy":
        """Find the copy in this folder and make its end safe; an empty one if there is none.

        A ledger that was never replicated is taken as the copy of a log that is still empty. The caller holds the lock of the folder.
        """
        try:
            disk.make_folder(folder)
            state = read_copy_state(disk, folder)
            if state is None:
                return cls._of_local(disk, folder)
            return cls._healed(disk, folder, state)
        except OSError as error:
            raise Unavailable(f"the copy in {folder} cannot be opened: {error}") from error

    @classmethod
    def _of_local(cls, disk: Disk, folder: str) -> "LedgerCopy":
        found = recover(disk, folder)
        if found is None:
            return cls(disk, folder, [], None, BEGINNING)
        segments = found.segments
        while segments and segments[-1].end == BLOCK_BYTES:
            # The log has the header of a segment together with its first frame.
            disk.remove(segments.pop().path)
            if segments and (bad := _prove(segments[-1])):
                raise Damage(segments[-1].path, segments[-1].end, bad)
        last_seq = segments[-1].last_seq if segments else 0
        copy = cls(disk, folder, segments, None, LogPosition(0, 0, last_seq + 1))
        copy.local_id = found.ledger_id
        copy.notes = found.notes
        return copy

    @classmethod
    def _healed(cls, disk: Disk, folder: str, state: CopyState) -> "LedgerCopy":
        numbers = sorted(n for name in disk.listdir(folder) if (n := segment_number(name)) is not None)
        good, reason = _good_segments(disk, folder, numbers, state.ledger_id)
        head = _read_head(disk, folder)
        position = state.read_from
        while good:
            newest = good[-1]
            reason = _prove(newest) or reason
            found = _position(newest, state, head)
            if found is not None:
                position = found
                break
            good.pop()
            if newest.number == 1 or good:
                reason = reason or f"{newest.path}: its place in the log is not known"
        if position.next_seq < state.begins or (good and position.next_seq > good[-1].last_seq + 1):
            raise Damage(
                f"{folder}/{segment_name(numbers[0] if numbers else 1)}",
                0,
                f"{reason or 'segments are missing'}; the log begins with seq {state.begins}, so it cannot be read again there",
            )
        copy = cls(disk, folder, good, state, position)
        if gone := numbers[len(good) :]:
            for number in gone:
                disk.remove(f"{folder}/{segment_name(number)}")
            # Lest one comes back after a power loss, behind an older one that has gone bad since.
            disk.sync_folder(folder)
        if good:
            if first_nonzero(good[-1].file, good[-1].end, good[-1].size_bytes) is not None:
                clear_rest(good[-1])
            _write_again(good[-1])
        if reason:
            copy.notes.append(f"{reason}: it is read again from the log")
            log.warning("ledger: %s", copy.notes[-1])
        return copy

    @property
    def ledger_id(self) -> bytes | None:
        """The id of the ledger; None until a frame of it was read."""
        return self._state.ledger_id if self._state else self.local_id

    @property
    def claim(self) -> LogClaim | None:
        """The last valid claim that was read: who owns the ledger, as far as the copy goes."""
        return self._state.claim if self._state else None

    @property
    def last_seq(self) -> int:
        """The last seq that is here."""
        segments = self.reader.segments
        return segments[-1].last_seq if segments else self.position.next_seq - 1

    def belong_to(self, log_identity: str) -> None:
        """Take note of the log that this is a copy of; raises `Unavailable` if it is the copy of another one."""
        if log_identity in ("", self._log_identity):
            return
        if self._log_identity:
            raise Unavailable(
                f"the topic was made anew: {self._folder} is the copy of the one before, and may be all that is left of it"
            )
        self._log_identity = log_identity
        if self._state is not None:
            self._save(self._state)

    def take(self, valid: Valid) -> None:
        """Take the frames that the next record of the log makes valid; raises `Damage` or `Unavailable` if they do not follow."""
        if isinstance(valid, ValidClaim):
            self._claimed(valid)
        elif isinstance(valid, ValidFrame):
            header = valid.header
            self.put(
                valid.position,
                valid.segment,
                valid.offset,
                [valid.data],
                header.first_seq,
                header.records,
                header.length,
            )
        self.position = valid.position

    def _claimed(self, valid: ValidClaim) -> None:
        claim, known = valid.claim, self.ledger_id
        if claim.format_version > FORMAT_VERSION:
            raise Unavailable(
                f"the owner of the log, {claim.node}, writes format version {claim.format_version}; "
                f"this program reads up to version {FORMAT_VERSION}: run the newer program"
            )
        if known is not None and claim.ledger_id != known:
            raise Unavailable(
                f"the log and {self._folder} belong to different ledgers: "
                "another topic is meant, or the folder is to be emptied first"
            )
        if claim.next_seq > valid.position.next_seq:
            raise Damage(
                self._folder,
                0,
                f"{claim.node} claimed the log at seq {claim.next_seq}, and it has records only below seq "
                f"{valid.position.next_seq} here: the log has lost records, or the copy is not of this log",
            )
        state = self._state
        if state is None:
            begins = valid.position.next_seq
            if self.reader.segments:
                starts = {self.reader.segments[-1].number: valid.position}
                state = CopyState(claim.ledger_id, claim, begins, starts)
            else:
                state = CopyState(claim.ledger_id, claim, begins, {}, valid.position)
        self._save(msgspec.structs.replace(state, claim=claim))

    def put(
        self,
        position: LogPosition,
        number: int,
        offset: int,
        pieces: Sequence[bytes],
        first_seq: int,
        records: int,
        length: int,
    ) -> None:
        """Write a durable frame at its place, unless it is there; `position` is the one after it.

        At offset 0 the block of the segment's header is in front of the frame.
        """
        if not self._has(number, offset):
            segments = self.reader.segments
            follows = bool(segments) and number == segments[-1].number and offset == segments[-1].end
            if offset and not (follows and first_seq == self.last_seq + 1):
                raise Unavailable(
                    f"{self._folder} lacks what comes before byte {offset} of segment {number} (seq {first_seq}): "
                    "begin with a copy of the owner's folder or of a backup"
                )
            if offset == 0:
                self._begin(number, pieces[0][:BLOCK_BYTES])
            segment = self.reader.segments[-1]
            segment.file.write_parts(pieces, offset)
            segment.add(first_seq, records, length)
        self.position = position

    def _has(self, number: int, offset: int) -> bool:
        """Whether the frame of this place is here. Its seq would not tell: the seal that a clean end leaves has no records."""
        segments = self.reader.segments
        if not segments or number != segments[-1].number:
            return bool(segments) and number < segments[-1].number
        return segments[-1].end > max(offset, BLOCK_BYTES)

    def _begin(self, number: int, block: bytes) -> None:
        """Begin a segment: those before it are whole, and synced now."""
        path = f"{self._folder}/{segment_name(number)}"
        header = decode_segment_header(block, path)
        segments = self.reader.segments
        file: File | None = None
        begun: Segment | None = None
        if segments and segments[-1].number == number and segments[-1].end == BLOCK_BYTES:
            # Begun here before its first frame was in the log, which is that of another owner perhaps.
            begun, segments = segments[-1], segments[:-1]
            if begun.size_bytes == header.size_bytes:
                file = begun.file
        if segments and (number != segments[-1].number + 1 or header.first_seq != self.last_seq + 1):
            raise Unavailable(
                f"{self._folder} lacks the segments before {number}: begin with a copy of the owner's folder"
            )
        if segments:
            segments[-1].file.sync()
        assert self._state is not None, "a claim comes before any frame"
        self._save(msgspec.structs.replace(self._state, starts={**self._state.starts, number: self.position}))
        segment = Segment(self._disk, path, header, file or self._new_file(path, header.size_bytes))
        segment.walked = True
        if begun is None:
            self.reader.add(segment)
        else:
            self.reader.replace(begun, segment)

    def _new_file(self, path: str, size_bytes: int) -> File:
        spares = self.spares
        if spares is not None and spares.ready and spares.next.file.size() == size_bytes:
            spare = spares.take()
            self._disk.rename(spare.path, path)
            return spare.file
        file = self._disk.open(path, create=True)
        file.truncate(0)
        file.truncate(size_bytes)
        return file

    def begin(self, header: SegmentHeader) -> None:
        """Begin the first segment of an empty ledger here, before its first frame is in the log."""
        block = encode_segment_header(header)
        self._begin(header.number, block)
        self.reader.segments[-1].file.write(block, 0)

    def publish(self) -> None:
        """Write the head, for readers elsewhere and the next start."""
        segments = self.reader.segments
        if self._state is None or not segments:
            return
        if self._head is None:
            self._head = self._disk.open(f"{self._folder}/{HEAD_NAME}", create=True)
        offset, epoch, _ = self.position
        newest = segments[-1]
        head = DurableHead(self._state.ledger_id, newest.last_seq, newest.number, newest.end, epoch, offset)
        self._head.write(encode_head(head), 0)

    def begin_of(self, first_seq: int, first_offset: int) -> LogPosition | None:
        """Where in the log the segments from this first seq on begin, as far as the log still has them.

        None if some of them are not in the log: they were in the folder before.
        """
        if self._state is None or first_seq < self._state.begins:
            return None
        starts = self._state.starts.values()
        return min(
            (one for one in starts if one.next_seq >= first_seq and one.offset >= first_offset), default=None
        )

    def trimmed_seq(self, first_offset: int) -> int:
        """The last seq of the segments that a log lacks as a whole which begins at this offset; 0 if none is known."""
        starts = self._state.starts.values() if self._state else ()
        return max((one.next_seq - 1 for one in starts if one.offset <= first_offset), default=0)

    def forget_upto(self, seq: int) -> int:
        """Remove the segments that end at or before a seq, oldest first, but for the newest; return how many.

        Each removal is durable before the next, as with a ledger on this disk.
        """
        forgotten = 0
        for segment in self.reader.segments[:-1]:
            if segment.last_seq > seq:
                break
            self._disk.remove(segment.path)
            self._disk.sync_folder(self._folder)
            self.reader.forget(segment)
            segment.close()
            forgotten += 1
        return forgotten

    def trim_to(self, seq: int) -> LogPosition | None:
        """Where the log has to begin for the records after a seq, by whole segments; None if that is not known.

        The segment may have been reclaimed here. Where those before it begin is forgotten.
        """
        state = self._state
        starts = state.starts if state else {}
        keep = max((number for number, start in starts.items() if start.next_seq <= seq + 1), default=None)
        if state is None or keep is None:
            return None
        if any(number < keep for number in starts):
            kept = {number: start for number, start in starts.items() if number >= keep}
            self._save(msgspec.structs.replace(state, starts=kept))
        return starts[keep]

    def sync(self) -> None:
        """Sync the newest segment: a clean end needs nothing read again."""
        if self.reader.segments:
            self.reader.segments[-1].file.sync()
            self._disk.sync_folder(self._folder)

    def close(self) -> None:
        """Let go of the files."""
        for segment in self.reader.segments:
            segment.close()
        if self._head is not None:
            self._head.close()

    def _save(self, state: CopyState) -> None:
        state = msgspec.structs.replace(state, log_identity=self._log_identity)
        write_copy_state(self._disk, self._folder, state)
        self._state = state


def begin_copy(disk: Disk, folder: str, claim: LogClaim, begin: LogPosition) -> None:
    """Have an empty folder be the copy of a log from a place on, before a segment; the claim is that of the owner there."""
    disk.make_folder(folder)
    write_copy_state(disk, folder, CopyState(claim.ledger_id, claim, begin.next_seq, {}, begin))


def write_copy_state(disk: Disk, folder: str, state: CopyState) -> None:
    """Write the file `copy`, durably and whole."""
    path = f"{folder}/{COPY_NAME}"
    file = disk.open(f"{path}.new", create=True)
    try:
        data = msgspec.json.encode(state)
        file.truncate(0)
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    disk.rename(f"{path}.new", path)
    disk.sync_folder(folder)


def read_copy_state(disk: Disk, folder: str) -> CopyState | None:
    """Read the file `copy`; None if there is none, and so the folder is no copy. Raises `Damage`."""
    path = f"{folder}/{COPY_NAME}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return msgspec.json.decode(file.read(file.size(), 0), type=CopyState)
    except msgspec.DecodeError as error:
        raise Damage(path, 0, f"{error}; empty the folder, and it is read again from the log") from None
    finally:
        file.close()


def _read_head(disk: Disk, folder: str) -> DurableHead | None:
    path = f"{folder}/{HEAD_NAME}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return decode_head(file.read(HEAD_BYTES, 0))
    finally:
        file.close()


def _good_segments(
    disk: Disk, folder: str, numbers: list[int], ledger_id: bytes
) -> tuple[list[Segment], str]:
    """The segments up to the first whose header does not follow, and the fault of that one."""
    good: list[Segment] = []
    for number in numbers:
        path = f"{folder}/{segment_name(number)}"
        file = disk.open(path)
        try:
            header = decode_segment_header(file.read(BLOCK_BYTES, 0), path)
            size_bytes = file.size()
        except Damage as damage:
            return good, str(damage)
        finally:
            file.close()
        if header.ledger_id != ledger_id:
            raise Unavailable(f"{path} belongs to another ledger than the rest of the folder")
        if header.number != number or header.size_bytes != size_bytes:
            return good, f"{path}: not of the number and size that its header says"
        if good:
            if number != good[-1].number + 1 or header.first_seq < good[-1].first_seq:
                return good, f"{folder}/{segment_name(good[-1].number + 1)}: the segment is missing"
            good[-1].last_seq = header.first_seq - 1
        good.append(Segment(disk, path, header))
    return good, ""


def _prove(segment: Segment) -> str:
    """Prove the frames of the newest segment; say why it ends, if it ends with something else than zeros."""
    try:
        for _ in segment.scan():
            pass
    except BadFrame as bad:
        return f"{segment.path}: at byte {segment.end}: {bad}"
    return ""


def _write_again(segment: Segment) -> None:
    """Write the frames of the newest segment again: after a failed sync the page cache may show what the disk does not have."""
    for offset in range(0, segment.end, WINDOW_BYTES):
        segment.file.write(segment.file.read(min(WINDOW_BYTES, segment.end - offset), offset), offset)


def _position(newest: Segment, state: CopyState, head: DurableHead | None) -> LogPosition | None:
    """Where to read on behind the frames of the newest segment that are good."""
    if newest.end == BLOCK_BYTES:
        return None
    if (
        head is not None
        and head.ledger_id == state.ledger_id
        and head.epoch
        and (head.segment, head.offset) <= (newest.number, newest.end)
        and newest.first_seq - 1 <= head.seq <= newest.last_seq
    ):
        return LogPosition(head.log_offset, head.epoch, head.seq + 1)
    return state.starts.get(newest.number)
