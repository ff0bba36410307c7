"""How frames are laid out in a segment file, and how a seq is found in it.

A segment is `NNNNNNNN.seg`: one block with the segment's header, then frames one after another,
then zeros to the end of the file. The file has its full size before its first frame (R1).

In memory a segment is a sparse list of points (first seq, offset), one for about every 4 KiB: 12
bytes for a dozen records of 300 bytes. A seq is found by bisection and a walk over a few headers.

Points may be added by the writer's thread while others read: offsets are added before seqs,
and readers go by the seqs.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final, NamedTuple

from google_crc32c import value

from tarry.core.errors import Damage, NotFound, Unavailable
from tarry.ledger.disk import Disk, File
from tarry.ledger.frame import (
    FORMAT_VERSION,
    HEADER_BYTES,
    SEAL_BYTES,
    SKIM,
    BadFrame,
    Header,
    check_frame,
    decode_header,
    segment_id_of,
)

BLOCK_BYTES: Final = 4096
"""The size of the segment's header: a page, so that no later write touches it."""

POINT_EVERY_BYTES: Final = 4096
WINDOW_BYTES: Final = 1 << 20
"""How much is read at once when reading in order."""

_MAGIC: Final = b"TARRYseg"
_LAYOUT: Final = Layout("<8sII16sIIQqQ")
_NAME: Final = re.compile(r"(\d{8})\.seg")


class SegmentInfo(NamedTuple):
    """The content of a segment, for operators and for reclaim."""

    number: int
    first_seq: int
    last_seq: int
    used_bytes: int
    sealed: bool
    """Whether nothing more will be written to it."""


class SegmentHeader(NamedTuple):
    """The header in the first block of a segment."""

    ledger_id: bytes
    number: int
    first_seq: int
    created_at_ms: int
    size_bytes: int


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:08d}.seg"


def segment_number(name: str) -> int | None:
    """The number of the segment that this file name stands for, if it does."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def usable_bytes(size_bytes: int) -> int:
    """How many bytes of frames a segment of this size takes, with a seal kept free."""
    return size_bytes - BLOCK_BYTES - SEAL_BYTES


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first block of a segment."""
    ledger_id, number, first_seq, created_at_ms, size_bytes = header
    fields = _LAYOUT.pack(
        _MAGIC, 0, FORMAT_VERSION, ledger_id, number, 0, first_seq, created_at_ms, size_bytes
    )
    block = fields.ljust(BLOCK_BYTES, b"\0")
    crc: int = value(block[12:])
    return block[:8] + crc.to_bytes(4, "little") + block[12:]


def decode_segment_header(block: bytes, path: str) -> SegmentHeader:
    """Read the first block. Damage if it is not what was written; Unavailable if it is from the future."""
    if len(block) < BLOCK_BYTES or block[:8] != _MAGIC:
        raise Damage(path, 0, "there is no segment header")
    _, crc, version, ledger_id, number, _, first_seq, created_at_ms, size_bytes = _LAYOUT.unpack_from(block)
    if value(block[12:]) != crc:
        raise Damage(path, 0, "the checksum of the segment header does not match")
    if version > FORMAT_VERSION:
        raise Unavailable(
            f"{path} was written by a newer Tarry, in format version {version}; "
            f"this one reads up to version {FORMAT_VERSION}: run the newer program"
        )
    return SegmentHeader(ledger_id, number, first_seq, created_at_ms, size_bytes)


class Scanned(NamedTuple):
    """A frame that was proved in a scan: it is in `data` at `at`, and in the file at `offset`."""

    offset: int
    header: Header
    data: bytes
    at: int


class Points:
    """Some frames of a segment, by their first seq: enough to begin a walk near any other."""

    __slots__ = ("_offsets", "_seqs")

    def __init__(self) -> None:
        self._seqs = array("q")
        self._offsets = array("I")

    def add(self, first_seq: int, offset: int) -> None:
        """Take note of a frame, if it is far enough from the last one noted."""
        if not self._offsets or offset - self._offsets[-1] >= POINT_EVERY_BYTES:
            self._offsets.append(offset)
            self._seqs.append(first_seq)

    def before(self, seq: int) -> tuple[int, int] | None:
        """The last noted frame that begins at or before this seq: its first seq and its offset."""
        i = bisect_right(self._seqs, seq) - 1
        return None if i < 0 else (self._seqs[i], self._offsets[i])

    def size_bytes(self) -> int:
        """How much memory they take."""
        return sum(points.itemsize * len(points) for points in (self._seqs, self._offsets))


class Segment:
    """One segment file and the points into it."""

    __slots__ = (
        "_disk",
        "_file",
        "end",
        "first_seq",
        "frames",
        "last_seq",
        "number",
        "path",
        "points",
        "reclaimed",
        "segment_id",
        "size_bytes",
        "walked",
    )

    def __init__(self, disk: Disk, path: str, header: SegmentHeader, file: File | None = None) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self.number = header.number
        self.first_seq = header.first_seq
        self.size_bytes = header.size_bytes
        self.segment_id = segment_id_of(header.ledger_id, header.number)
        self.last_seq = header.first_seq - 1
        """The last seq that is in it; for one that is not walked yet, from the next one's header."""
        self.end = BLOCK_BYTES
        """Where the next frame goes; known once `walked`."""
        self.frames = 0
        """How many frames are in it: the number of the next one. Known for the newest segment only."""
        self.walked = False
        """Whether the points are complete."""
        self.reclaimed = False
        self.points = Points()

    @property
    def file(self) -> File:
        """The open file; opened at the first use."""
        file = self._file
        if file is None:
            try:
                file = self._file = self._disk.open(self.path)
            except FileNotFoundError:
                raise NotFound(f"segment {self.number} has been reclaimed") from None
        return file

    @property
    def is_open(self) -> bool:
        """Whether it holds a file descriptor."""
        return self._file is not None

    def let_go(self) -> None:
        """Drop the file; it closes when its last reader is done."""
        self._file = None

    def close(self) -> None:
        """Close the file now."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def info(self, sealed: bool) -> SegmentInfo:
        """The content of the segment."""
        used = self.end if self.walked else self.size_bytes
        return SegmentInfo(self.number, self.first_seq, self.last_seq, used, sealed)

    def add(self, first_seq: int, count: int, length: int) -> None:
        """Take note of a frame that is now at the end."""
        self.points.add(first_seq, self.end)
        self.frames += 1
        self.last_seq = first_seq + count - 1
        self.end += length

    def take_over(self, points: Points, end: int) -> None:
        """Take points that were collected while reading the whole segment. It is not written any more."""
        if not self.walked:
            self.points, self.end, self.walked = points, end, True

    def point(self, seq: int) -> tuple[int, int]:
        """A frame at or before the one that holds `seq`: its first seq and its offset."""
        if not self.walked:
            self._walk()
        point = self.points.before(seq)
        if point is None:
            raise Damage(self.path, BLOCK_BYTES, f"seq {seq} should be in this segment, which is empty")
        return point

    def _walk(self) -> None:
        """Find all frames by their headers. Damage where one does not follow the other.

        Two threads may do it at once: each collects points of its own, and either are good.
        """
        points, seq, offset = Points(), self.first_seq, BLOCK_BYTES
        data, base = b"", 0
        while seq <= self.last_seq:
            at = offset - base
            if at + HEADER_BYTES > len(data):
                data, base, at = (
                    self.file.read(min(WINDOW_BYTES, self.size_bytes - offset), offset),
                    offset,
                    0,
                )
            points.add(seq, offset)
            length, records = self.skim(data, at, offset, seq)
            seq += records
            offset += length
        self.take_over(points, offset)

    def skim(self, data: bytes, at: int, offset: int, first_seq: int) -> tuple[int, int]:
        """The length and number of records of a frame that must be there, unproved, to walk past it.

        What is wrong with them shows at the next header, which then does not follow.
        """
        if at + HEADER_BYTES <= len(data):
            length, records, segment_id, seq = SKIM.unpack_from(data, at)
            if segment_id == self.segment_id and seq == first_seq and length >= HEADER_BYTES:
                return length, records
        header = self.header_at(data, at, offset, first_seq)
        return header.length, header.records

    def header_at(self, data: bytes, at: int, offset: int, first_seq: int) -> Header:
        """The header of a frame that must be there: `data` at `at` is the file at `offset`."""
        if len(data) - at < HEADER_BYTES:
            raise Damage(self.path, offset, f"the segment ends before seq {first_seq}")
        try:
            header = decode_header(data, at, self.segment_id, first_seq, self.size_bytes - offset)
        except BadFrame as bad:
            raise Damage(self.path, offset, str(bad)) from None
        if header is None:
            raise Damage(self.path, offset, f"there are zeros where seq {first_seq} should be")
        return header

    def scan(self) -> Iterator[Scanned]:
        """Prove every frame of the newest segment and take note of each; raise `BadFrame`, and `end` says where.

        It ends without an error at a header of zeros or when no header fits any more.
        """
        self.walked = True
        for scanned in self.scan_from(BLOCK_BYTES, self.first_seq, 0):
            header = scanned.header
            self.add(header.first_seq, header.records, header.length)
            yield scanned

    def scan_from(self, offset: int, first_seq: int, number: int | None) -> Iterator[Scanned]:
        """Prove frame after frame from here on; raise `BadFrame` at the first damaged one."""
        data, base = b"", 0
        size_bytes, segment_id = self.size_bytes, self.segment_id
        while offset + HEADER_BYTES <= size_bytes:
            at = offset - base
            if at + HEADER_BYTES > len(data):
                data, base, at = self.file.read(WINDOW_BYTES, offset), offset, 0
                if len(data) < HEADER_BYTES:
                    raise BadFrame("the file ends early")
            header = decode_header(data, at, segment_id, first_seq, size_bytes - offset)
            if header is None:
                return
            if number is not None and header.frame_number != number:
                raise BadFrame(f"the frame has number {header.frame_number}, but {number} is next")
            length = header.length
            if at + length > len(data):
                data, base, at = self.file.read(max(WINDOW_BYTES, length), offset), offset, 0
                if len(data) < length:
                    raise BadFrame("the file ends in the middle of the frame")
            check_frame(data, at, header)
            yield Scanned(offset, header, data, at)
            offset += length
            first_seq += header.records
            number = header.frame_number + 1


def begin_segment(disk: Disk, folder: str, spare_path: str, file: File, header: SegmentHeader) -> Segment:
    """Turn a zero-filled spare into the next segment, durably, before its first frame is written."""
    file.write(encode_segment_header(header), 0)
    file.sync()
    path = f"{folder}/{segment_name(header.number)}"
    disk.rename(spare_path, path)
    disk.sync_folder(folder)
    segment = Segment(disk, path, header, file)
    segment.walked = True
    return segment
