"""Reading records back by their seq: one or many. Every byte that is returned was proved first (R3).

A record is found by the points of its segment and a walk over a few headers. Then the table of its frame is
proved by `table_crc` and its body by its own CRC; a frame with one record is proved as a whole. Tables
are kept in a small LRU. All methods may be called from any thread.

It reads only what is durable, and knows nothing of writing.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import value
from numpy.typing import NDArray

from tarry.core.errors import Damage, NotFound
from tarry.ledger.disk import File
from tarry.ledger.frame import (
    FIXED,
    HEADER_BYTES,
    ROW,
    ROW_BYTES,
    BadFrame,
    Header,
    check_frame,
    check_table,
)
from tarry.ledger.replay import Frame, replay
from tarry.ledger.segment import BLOCK_BYTES, Segment

TABLES: Final = 64
OPEN_FILES: Final = 64
_WINDOW_BYTES: Final = 8192
"""Read at once when looking for a frame."""
_FEW: Final = 16
"""Up to so many records of a frame are read one by one; more, by columns."""
_NEAR_BYTES: Final = 8192
"""Bodies that are no further apart than this are read together."""
_SPAN_BITS: Final = 22
"""Bodies are read in spans of at most about 4 MiB."""


class StoredRecord(NamedTuple):
    """A record as it was stored; its checksum has been checked."""

    seq: int
    kind: int
    lane: int
    fire_at_ms: int
    body: bytes


class FrameTable(NamedTuple):
    """The proved table of one frame."""

    segment: Segment
    offset: int
    first_seq: int
    last_seq: int
    rows: bytes
    ends: NDArray[np.int64]
    """Where each body ends in the file, after where the first one begins."""


class Stretch(NamedTuple):
    """Whole frames of one segment, one after another, that hold a range of seqs: where they are on disk."""

    file: File
    """Stays readable while it is held, even if the segment is reclaimed."""
    segment: int
    offset: int
    size_bytes: int
    first_seq: int
    last_seq: int


class FrameWalk:
    """Finds the frames of seqs that are asked for in rising order, reading the file in windows."""

    __slots__ = ("_base", "_data", "_offset", "_segment", "_seq", "_window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._segment: Segment | None = None
        self._data = b""
        self._base = 0
        self._offset = 0
        self._seq = 0

    def find(self, segment: Segment, seq: int, point: tuple[int, int]) -> tuple[int, Header]:
        """The offset and header of the frame that holds `seq`, from this point on or from where it is."""
        if segment is not self._segment:
            self._segment, self._data, self._base = segment, b"", 0
            self._seq, self._offset = point
        elif seq < self._seq or point[1] > self._offset:
            self._seq, self._offset = point
        offset, first_seq, data, base = self._offset, self._seq, self._data, self._base
        while True:
            at = offset - base
            if at < 0 or at + HEADER_BYTES > len(data):
                size = min(self._window_bytes, segment.size_bytes - offset)
                data, base, at = segment.file.read(size, offset), offset, 0
                self._data, self._base = data, base
            length, records = segment.skim(data, at, offset, first_seq)
            if seq < first_seq + records:
                self._offset, self._seq = offset, first_seq
                return offset, segment.header_at(data, at, offset, first_seq)
            offset += length
            first_seq += records

    def bytes_at(self, segment: Segment, offset: int, size: int) -> tuple[bytes, int]:
        """Bytes of the file and where in them `offset` is; taken from the window if they are in it."""
        at = offset - self._base
        if segment is self._segment and at >= 0 and at + size <= len(self._data):
            return self._data, at
        return segment.file.read(size, offset), 0


class Reader:
    """Reads the segments of one ledger."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        """Rising; replaced as a whole when it changes, so that readers in other threads keep theirs."""
        self._tables: OrderedDict[tuple[int, int], FrameTable] = OrderedDict()
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._lock = Lock()

    def read(self, seq: int) -> StoredRecord:
        """One record."""
        walk = FrameWalk(_WINDOW_BYTES)
        found = self._find(seq, walk)
        return found if isinstance(found, StoredRecord) else self._one(found, seq, walk)

    def bodies(self, seqs: NDArray[np.int64]) -> list[bytes]:
        """Bodies of records, in the order asked for; each frame is visited once."""
        order = np.argsort(seqs, kind="stable")
        rising_seqs = seqs[order]
        rising: list[int] = rising_seqs.tolist()
        found: list[bytes] = []
        walk = FrameWalk(4 * _WINDOW_BYTES)
        at = 0
        while at < len(rising):
            seq = rising[at]
            frame = self._find(seq, walk)
            if isinstance(frame, StoredRecord):
                until = bisect_right(rising, seq, at)
                found += [frame.body] * (until - at)
            else:
                until = bisect_right(rising, frame.last_seq, at)
                if until - at <= _FEW:
                    found += [self._one(frame, of, walk).body for of in rising[at:until]]
                else:
                    found += self._some(frame, rising[at:until], rising_seqs[at:until])
            at = until
        if bool((order[1:] > order[:-1]).all()):
            return found
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return [found[i] for i in place.tolist()]

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """Replay: every record from `from_seq` up to and with `upto_seq`, in order."""
        segments = self.segments
        if from_seq < segments[0].first_seq and from_seq <= upto_seq:
            raise NotFound(f"seq {from_seq} has been reclaimed; {segments[0].first_seq} is the first")
        for segment in segments:
            if segment.last_seq >= from_seq and segment.first_seq <= upto_seq:
                self.opened(segment)
                offset, seq = BLOCK_BYTES, segment.first_seq
                if from_seq > seq:
                    offset, header = FrameWalk(_WINDOW_BYTES).find(segment, from_seq, segment.point(from_seq))
                    seq = header.first_seq
                yield from replay(segment, offset, seq, from_seq, upto_seq)

    def stretch(self, from_seq: int, upto_seq: int) -> Stretch:
        """The frames from the one that holds `from_seq` to the one with `upto_seq`, or to the end of the segment."""
        segment = self._segment(from_seq)
        walk = FrameWalk(_WINDOW_BYTES)
        offset, first = walk.find(segment, from_seq, segment.point(from_seq))
        upto_seq = min(upto_seq, segment.last_seq)
        end, last = walk.find(segment, upto_seq, segment.point(upto_seq))
        end += last.length
        return Stretch(
            segment.file,
            segment.number,
            offset,
            end - offset,
            first.first_seq,
            last.first_seq + last.records - 1,
        )

    def add(self, segment: Segment) -> None:
        """Take in a segment that was begun."""
        with self._lock:
            before, self.segments = self.segments, [*self.segments, segment]
        if before:
            self.opened(before[-1])

    def forget(self, segment: Segment) -> None:
        """Drop a segment that is being reclaimed, with its cached bytes."""
        self._take_out(segment, ())

    def replace(self, begun: Segment, segment: Segment) -> None:
        """Put a segment in the place of the newest one, which was begun and holds nothing.

        In one step: whoever looks meanwhile finds a newest segment, also where there is no other.
        """
        self._take_out(begun, (segment,))

    def _take_out(self, segment: Segment, instead: tuple[Segment, ...]) -> None:
        with self._lock:
            self.segments = [*(one for one in self.segments if one is not segment), *instead]
            self._open.pop(segment.number, None)
            for key in [key for key in self._tables if key[0] == segment.number]:
                del self._tables[key]
        segment.reclaimed = True
        segment.let_go()

    def opened(self, segment: Segment) -> None:
        """Take note that its file is open; beyond a bound, let go of those opened longest ago."""
        with self._lock:
            self._open[segment.number] = segment
            while len(self._open) > OPEN_FILES:
                _, oldest = self._open.popitem(last=False)
                if oldest is not self.segments[-1]:
                    oldest.let_go()

    def _segment(self, seq: int) -> Segment:
        segments = self.segments
        segment = segments[-1]
        if seq < segment.first_seq:
            i = bisect_right(segments, seq, key=lambda segment: segment.first_seq) - 1
            if i < 0:
                raise NotFound(f"seq {seq} has been reclaimed; {segments[0].first_seq} is the first")
            segment = segments[i]
        if not segment.is_open or segment.number not in self._open:
            self.opened(segment)
        return segment

    def _find(self, seq: int, walk: FrameWalk) -> FrameTable | StoredRecord:
        """The proved table of the frame that holds `seq`; or the record, if it is alone in its frame."""
        segment = self._segment(seq)
        point = segment.point(seq)
        # A large frame always has a point of its own: its table is found without reading anything.
        table = self._kept(segment, point[1])
        if table is not None and table.first_seq <= seq <= table.last_seq:
            return table
        offset, header = walk.find(segment, seq, point)
        try:
            if header.records == 1:
                return _load_single(segment, offset, header, walk)
            table = self._kept(segment, offset)
            if table is None:
                table = _load(segment, offset, header, walk)
                self._keep(table)
            return table
        except BadFrame as bad:
            raise Damage(segment.path, offset, str(bad)) from None

    def _kept(self, segment: Segment, offset: int) -> FrameTable | None:
        key = segment.number, offset
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self._tables.move_to_end(key)
            return table

    def _keep(self, table: FrameTable) -> None:
        with self._lock:
            if not table.segment.reclaimed:
                self._tables[table.segment.number, table.offset] = table
                if len(self._tables) > TABLES:
                    self._tables.popitem(last=False)

    def _one(self, table: FrameTable, seq: int, walk: FrameWalk) -> StoredRecord:
        i = seq - table.first_seq
        kind, _, lane, size, crc, fire_at_ms, _, _ = ROW.unpack_from(table.rows, ROW_BYTES * i)
        begin = int(table.ends[i])
        data, at = walk.bytes_at(table.segment, begin, size)
        body = data[at : at + size]
        if value(body) != crc:
            raise _bad_body(table, seq)
        return StoredRecord(seq, kind, lane, fire_at_ms, body)

    def _some(self, table: FrameTable, seqs: list[int], rising_seqs: NDArray[np.int64]) -> list[bytes]:
        """The bodies of several records of one frame, by columns."""
        rows = rising_seqs - table.first_seq
        bodies = _bodies(table, rows)
        crcs = np.frombuffer(table.rows, FIXED)["crc"][rows].tolist()
        if list(map(value, bodies)) != crcs:
            bad = next(s for s, b, c in zip(seqs, bodies, crcs, strict=True) if value(b) != c)
            raise _bad_body(table, bad)
        return bodies


def _load_single(segment: Segment, offset: int, header: Header, walk: FrameWalk) -> StoredRecord:
    """Read and prove a frame with one record."""
    data, at = walk.bytes_at(segment, offset, header.length)
    check_frame(data, at, header)
    kind, _, lane, size, _, fire_at_ms, _, _ = ROW.unpack_from(data, at + HEADER_BYTES)
    at += HEADER_BYTES + ROW_BYTES
    return StoredRecord(header.first_seq, kind, lane, fire_at_ms, data[at : at + size])


def _load(segment: Segment, offset: int, header: Header, walk: FrameWalk) -> FrameTable:
    """Read and prove the table of a frame."""
    table_bytes = HEADER_BYTES + ROW_BYTES * header.records
    data, at = walk.bytes_at(segment, offset, table_bytes)
    check_table(data, at, header)
    rows = data[at + HEADER_BYTES : at + table_bytes]
    ends = np.empty(header.records + 1, np.int64)
    ends[0] = offset + table_bytes
    np.cumsum(np.frombuffer(rows, FIXED)["size"], out=ends[1:])
    ends[1:] += ends[0]
    return FrameTable(segment, offset, header.first_seq, header.first_seq + header.records - 1, rows, ends)


def _bodies(table: FrameTable, rows: NDArray[np.int64]) -> list[bytes]:
    """The bodies of these rows, reading those that are near each other together."""
    begins, ends = table.ends[rows], table.ends[rows + 1]
    far = (begins[1:] - ends[:-1] > _NEAR_BYTES) | (np.diff(begins >> _SPAN_BITS) > 0)
    cuts = [0, *(np.flatnonzero(far) + 1).tolist(), len(rows)]
    bodies: list[bytes] = []
    for first, until in pairwise(cuts):
        base = int(begins[first])
        data = table.segment.file.read(int(ends[until - 1]) - base, base)
        places = zip((begins[first:until] - base).tolist(), (ends[first:until] - base).tolist(), strict=True)
        bodies += [data[begin:end] for begin, end in places]
    return bodies


def _bad_body(table: FrameTable, seq: int) -> Damage:
    begin = int(table.ends[seq - table.first_seq])
    return Damage(table.segment.path, begin, f"the checksum of the body of seq {seq} does not match")
