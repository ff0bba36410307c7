"""The treatment of a ledger's end after a crash: one decision table.

Frames are written one at a time, each only after the one before it was synced (R1). So a crash can
spoil at most the last frame of the newest segment, and every other bad byte is damage:

    after the last good frame    a later frame    below the published    verdict
    of the newest segment        is good          head
    ---------------------------  ---------------  ---------------------  ------------------------------
    zeros to the end             -                no                     KEEP      a clean end
    zeros to the end             -                yes                    DAMAGE    durable frames are gone
    something else               no               no                     TRUNCATE  a frame was not finished
    something else               no               yes                    DAMAGE    a durable frame is bad
    something else               yes              no                     DAMAGE    a durable frame is bad
    something else               yes              yes                    DAMAGE    a durable frame is bad

"Something else" is a bad frame, or a header of zeros with other bytes after it: the parts of a frame may
have reached the disk in any order. One ambiguity remains: a damaged last frame above the last persisted
head, after a power loss, cannot be told from one that was never finished.

    a segment file                                   verdict
    -----------------------------------------------  ---------------------------------------------------
    its header is good, its number follows           it is part of the ledger
    written by a newer format                        refuse, naming the version
    of another ledger                                refuse: mixed from two backups
    a number is missing, or seqs do not follow       refuse, naming the segment
    not of the size that its header says             refuse
    bad header, newest, otherwise zeros, not in head dropped: it never held a frame
    bad header, else                                 refuse, naming the place

    the head file                                    verdict
    -----------------------------------------------  ---------------------------------------------------
    missing, empty or torn                           ignored; with a note if torn
    of another ledger                                refuse: mixed from two backups
    there, but no segment is                         refuse
    in a segment above the newest                    refuse: segments are missing
    in an older segment, or a reclaimed one          true but old: the newest segment is above it

    spare-N.tmp, or a spare of another size          removed

Older segments are not read here: a start must not take longer because much is pending. Their frames are
proved when they are replayed or read, and a chain that does not reach the next segment is damage there.
"""

import logging
from enum import Enum
from typing import Final, NamedTuple

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.disk import Disk, File
from tarry.ledger.frame import HEADER, MAGIC, BadFrame, Encoding, Header, check_frame, decode_header
from tarry.ledger.head import HEAD_BYTES, HEAD_NAME, DurableHead, decode_head
from tarry.ledger.segment import (
    BLOCK_BYTES,
    WINDOW_BYTES,
    Scanned,
    Segment,
    SegmentHeader,
    decode_segment_header,
    segment_name,
    segment_number,
)

log = logging.getLogger(__name__)


class Treatment(Enum):
    """The treatment of the newest segment's end."""

    KEEP = "keep"
    TRUNCATE = "truncate"
    DAMAGE = "damage"


class End(NamedTuple):
    """The bytes after the last good frame, classified: the left-hand columns of the table."""

    only_zeros: bool
    later_frame: bool
    below_head: bool


TABLE: Final[dict[End, Treatment]] = {
    End(only_zeros=True, later_frame=False, below_head=False): Treatment.KEEP,
    End(only_zeros=True, later_frame=False, below_head=True): Treatment.DAMAGE,
    End(only_zeros=False, later_frame=False, below_head=False): Treatment.TRUNCATE,
    End(only_zeros=False, later_frame=False, below_head=True): Treatment.DAMAGE,
    End(only_zeros=False, later_frame=True, below_head=False): Treatment.DAMAGE,
    End(only_zeros=False, later_frame=True, below_head=True): Treatment.DAMAGE,
}


class Recovered(NamedTuple):
    """A ledger as it was found, made safe to continue."""

    ledger_id: bytes
    segments: list[Segment]
    """At least one; the last is the one to write to."""
    sealed: bool
    """Whether it ends with a seal: it was closed cleanly."""
    notes: list[str]
    """Findings that an operator may want to know."""


def recover(disk: Disk, folder: str) -> Recovered | None:
    """Find the ledger in this folder and make its end safe; None if there is none yet.

    Raises `Damage` or `Unavailable`, having changed nothing, if it cannot be continued.
    """
    notes: list[str] = []
    numbers = sorted(n for name in disk.listdir(folder) if (n := segment_number(name)) is not None)
    head_path = f"{folder}/{HEAD_NAME}"
    head_exists = disk.exists(head_path)
    head = _read_head(disk, head_path, notes) if head_exists else None
    if not numbers:
        if head_exists:
            raise Damage(head_path, 0, "there is a head but no segment: the segment files are missing")
        return None
    dropped = _drop_unborn(disk, folder, numbers, head, head_exists)
    if dropped:
        notes.append(f"{dropped} never held a frame and was dropped")
        if not numbers:
            return None
    segments = _read_segments(disk, folder, numbers)
    ledger_id = segments[0][1].ledger_id
    _check_head(head, ledger_id, numbers, head_path)
    found = [segment for segment, _ in segments]
    last = _settle_end(found[-1], head, notes)
    for note in notes:
        log.warning("ledger: %s", note)
    sealed = last is not None and last.header.encoding == Encoding.SEAL
    return Recovered(ledger_id, found, sealed, notes)


def _read_head(disk: Disk, path: str, notes: list[str]) -> DurableHead | None:
    file = disk.open(path)
    try:
        block = file.read(HEAD_BYTES, 0)
    finally:
        file.close()
    head = decode_head(block)
    if head is None and block:
        notes.append(f"{path} is torn and was ignored")
    return head


def _drop_unborn(
    disk: Disk, folder: str, numbers: list[int], head: DurableHead | None, head_exists: bool
) -> str:
    """Remove a newest segment that never held a frame; return its path, or an empty string."""
    newest = numbers[-1]
    path = f"{folder}/{segment_name(newest)}"
    file = disk.open(path)
    try:
        try:
            decode_segment_header(file.read(BLOCK_BYTES, 0), path)
            return ""
        except Damage:
            pointed_at = head is not None and head.segment >= newest
            first = len(numbers) == 1 and head_exists
            if pointed_at or first or first_nonzero(file, BLOCK_BYTES, file.size()) is not None:
                raise
    finally:
        file.close()
    disk.remove(path)
    disk.sync_folder(folder)
    numbers.pop()
    return path


def _read_segments(disk: Disk, folder: str, numbers: list[int]) -> list[tuple[Segment, SegmentHeader]]:
    """Read every segment's header and check that they are one ledger without a gap."""
    found: list[tuple[Segment, SegmentHeader]] = []
    for number in numbers:
        path = f"{folder}/{segment_name(number)}"
        file = disk.open(path)
        try:
            header = decode_segment_header(file.read(BLOCK_BYTES, 0), path)
            size_bytes = file.size()
        finally:
            file.close()
        if header.number != number:
            raise Damage(path, 0, f"the file holds segment {header.number}: it was renamed or copied")
        if header.size_bytes != size_bytes:
            raise Damage(
                path, size_bytes, f"the file has {size_bytes} bytes, but was made with {header.size_bytes}"
            )
        if found:
            _check_follows(found[-1], header, path)
        found.append((Segment(disk, path, header), header))
    return found


def _check_follows(before: tuple[Segment, SegmentHeader], header: SegmentHeader, path: str) -> None:
    previous, previous_header = before
    if header.ledger_id != previous_header.ledger_id:
        raise Unavailable(
            f"{path} and {previous.path} belong to different ledgers: "
            "the folder is mixed from two backups; restore one of them whole"
        )
    if header.number != previous.number + 1:
        missing = path.rpartition("/")[0] + "/" + segment_name(previous.number + 1)
        raise Damage(missing, 0, f"segment {previous.number + 1} is missing")
    if header.first_seq < previous.first_seq:
        raise Damage(
            path, 0, f"the segment begins with seq {header.first_seq}, before the segment ahead of it"
        )
    previous.last_seq = header.first_seq - 1


def _check_head(head: DurableHead | None, ledger_id: bytes, numbers: list[int], path: str) -> None:
    if head is None:
        return
    if head.ledger_id != ledger_id:
        raise Unavailable(
            f"{path} and the segments belong to different ledgers: "
            "the folder is mixed from two backups; restore one of them whole"
        )
    if head.segment > numbers[-1]:
        missing = path.rpartition("/")[0] + "/" + segment_name(numbers[-1] + 1)
        raise Damage(missing, 0, f"segment {numbers[-1] + 1} is missing: the head is in {head.segment}")


def _settle_end(segment: Segment, head: DurableHead | None, notes: list[str]) -> Scanned | None:
    """Steps 2 and 3 for the newest segment; return the last frame that was kept."""
    last: Scanned | None = None
    reason = "there are zeros where a frame should be"
    try:
        for scanned in segment.scan():
            last = scanned
    except BadFrame as bad:
        reason = str(bad)
    end = segment.end
    nonzero = first_nonzero(segment.file, end, segment.size_bytes)
    later = _later_frame(segment) if nonzero is not None else None
    below_head = head is not None and head.segment == segment.number and end < head.offset
    match TABLE[End(nonzero is None, later is not None, below_head)]:
        case Treatment.DAMAGE:
            proof = f"a good frame follows at byte {later}" if later else "it is below the published head"
            raise Damage(segment.path, end, f"{reason}; {proof}, so it was durable")
        case Treatment.TRUNCATE:
            notes.append(f"{segment.path}: an unfinished frame at byte {end} was cleared ({reason})")
            clear_rest(segment)
    if last is not None:
        # After a failed sync the page cache may show what the disk does not have: write it again.
        frame = last.data[last.at : last.at + last.header.length]
        segment.file.write(frame, last.offset)
        segment.file.sync()
        return last._replace(data=frame, at=0)
    return None


def first_nonzero(file: File, offset: int, size_bytes: int) -> int | None:
    """Where the first byte that is not zero is, in windows so that little memory is needed."""
    zeros = bytes(WINDOW_BYTES)
    while offset < size_bytes:
        data = file.read(min(WINDOW_BYTES, size_bytes - offset), offset)
        if not data:
            return None
        if data != zeros[: len(data)]:
            return offset + len(data) - len(data.lstrip(b"\0"))
        offset += len(data)
    return None


def _later_frame(segment: Segment) -> int | None:
    """The offset of a good frame of this segment with a higher number than the one that belongs at the end."""
    base = segment.end
    data = segment.file.read(segment.size_bytes - base, base)
    at = data.find(MAGIC, 1)
    while at >= 0 and at + HEADER.size <= len(data):
        header = Header._make(HEADER.unpack_from(data, at))
        if not at % 8 and header.segment_id == segment.segment_id and header.frame_number > segment.frames:
            try:
                decode_header(data, at, segment.segment_id, header.first_seq, len(data) - at)
                check_frame(data, at, header)
                return base + at
            except BadFrame:
                pass
        at = data.find(MAGIC, at + 1)
    return None


def clear_rest(segment: Segment) -> None:
    """Fill a segment with zeros behind its last good frame."""
    zeros = memoryview(bytes(WINDOW_BYTES))
    for offset in range(segment.end, segment.size_bytes, WINDOW_BYTES):
        segment.file.write(zeros[: segment.size_bytes - offset], offset)
    segment.file.sync()
