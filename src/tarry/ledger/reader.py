"""Reading records back: one, many, or all of them in order. Every byte that is returned was proved first.

One record is read by its seq: the points of its segment, a walk over a few headers, then the table of
its frame (proved by `table_crc`) and its body (proved by its own CRC, R3). Parsed tables are kept in
a small LRU. All methods may be called from any thread.

It reads only up to the seq that it is given as durable, and knows nothing of writing.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
from google_crc32c import value
from numpy.typing import NDArray

from tarry.core.errors import Damage, NotFound
from tarry.ledger.frame import (
    FIXED,
    HEADER_BYTES,
    ROW,
    ROW_BYTES,
    BadFrame,
    Encoding,
    Header,
    check_frame,
    check_table,
)
from tarry.ledger.segment import BLOCK_BYTES, POINT_EVERY_BYTES, Scanned, Segment

ArrowRow = Callable[[bytes, int], bytes]

_TABLES: Final = 64
_ARROW_FRAMES: Final = 4
_OPEN_FILES: Final = 64
_RUN_RECORDS: Final = 8192
_SPAN_BYTES: Final = 4 << 20
"""Bodies that are asked for together are read in pieces of at most about this size."""


class Stored(NamedTuple):
    """A record as it was stored; its checksum has been checked."""

    seq: int
    kind: int
    lane: int
    fire_at_ms: int
    body: bytes


class Place(NamedTuple):
    """Where a frame is."""

    file: str
    offset: int


class Frame:
    """Records in order, with their fixed parts as columns. Proved.

    A frame of rows may be several frames of the file, one after another: replaying single records is
    then as quick as replaying batches.
    """

    __slots__ = (
        "_arrow_row",
        "_bodies",
        "_ends",
        "count",
        "encoding",
        "first_row",
        "first_seq",
        "fixed",
        "place",
    )

    def __init__(
        self,
        first_seq: int,
        encoding: Encoding,
        fixed: NDArray[np.void],
        bodies: bytes,
        place: Place,
        arrow_row: ArrowRow | None,
        skip: int,
    ) -> None:
        self.first_seq = first_seq + skip
        self.count = len(fixed) - skip
        self.encoding = encoding
        self.fixed = fixed[skip:]
        """The fixed parts, an array of dtype FIXED."""
        self.first_row = skip
        """The row of `ipc` that is the first record: not 0 if the replay began within the frame."""
        self.place = place
        self._bodies = bodies
        self._ends: list[int] | None = None
        self._arrow_row = arrow_row
        if skip and encoding is Encoding.ROWS:
            self._bodies = bodies[int(fixed["size"][:skip].sum(dtype=np.int64)) :]

    @property
    def ipc(self) -> bytes:
        """The Arrow IPC stream of an ARROW frame."""
        return self._bodies

    def body(self, i: int) -> bytes:
        """The body of the i-th record."""
        if self.encoding is Encoding.ARROW:
            return _row_of(self._arrow_row, self._bodies, self.first_row + i)
        if self._ends is None:
            self._ends = [0, *np.cumsum(self.fixed["size"], dtype=np.int64).tolist()]
        return self._bodies[self._ends[i] : self._ends[i + 1]]


class Table(NamedTuple):
    """The proved table of one frame."""

    segment: Segment
    offset: int
    header: Header
    last_seq: int
    rows: bytes
    ends: list[int]
    """Where each body ends, counted from the beginning of the file; with where the first begins, in front."""
    bodies: bytes | None
    """The bodies, if they were proved with the table: those of a frame with one record, or of Arrow."""


class Walk:
    """Finds the frames of seqs that are asked for in rising order, reading the file in windows."""

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._segment: Segment | None = None
        self._data = b""
        self._base = 0
        self._offset = 0
        self._seq = 0

    def find(self, segment: Segment, seq: int) -> tuple[int, Header]:
        """The offset and header of the frame that holds `seq`."""
        point_seq, point_offset = segment.point(seq)
        if segment is not self._segment or not point_offset <= self._offset or seq < self._seq:
            if segment is not self._segment:
                self._segment, self._data, self._base = segment, b"", 0
            self._offset, self._seq = point_offset, point_seq
        while True:
            offset = self._offset
            at = offset - self._base
            if at < 0 or at + HEADER_BYTES > len(self._data):
                size = min(self._window_bytes, segment.size_bytes - offset)
                self._data, self._base, at = segment.file.read(size, offset), offset, 0
            header = segment.header_at(self._data, at, offset, self._seq)
            if seq < header.first_seq + header.records:
                return offset, header
            self._offset += header.length
            self._seq += header.records

    def bytes_at(self, offset: int, size: int) -> tuple[bytes, int]:
        """Bytes of the file and where in them `offset` is; taken from the window if they are in it."""
        at = offset - self._base
        if at >= 0 and at + size <= len(self._data):
            return self._data, at
        assert self._segment is not None
        return self._segment.file.read(size, offset), 0


def _row_of(arrow_row: ArrowRow | None, ipc: bytes, row: int) -> bytes:
    assert arrow_row is not None, "the engine sets `arrow_row` before it reads Arrow frames"
    return arrow_row(ipc, row)


class Reader:
    """Reads the segments of one ledger."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        """Rising; replaced as a whole when it changes, so that readers in other threads keep theirs."""
        self.arrow_row: ArrowRow | None = None
        self._tables: OrderedDict[tuple[int, int], Table] = OrderedDict()
        self._arrow: OrderedDict[tuple[int, int], Table] = OrderedDict()
        self._open: OrderedDict[int, Segment] = OrderedDict()
        self._lock = Lock()

    def read(self, seq: int) -> Stored:
        """One record."""
        table = self._table(seq, Walk(POINT_EVERY_BYTES))
        return self._rows(table, [seq])[0]

    def read_many(self, seqs: NDArray[np.int64]) -> list[Stored]:
        """Records, in the order asked for; each frame is visited once."""
        order = np.argsort(seqs, kind="stable")
        rising: list[int] = seqs[order].tolist()
        found: list[Stored] = []
        walk = Walk(4 * POINT_EVERY_BYTES)
        at = 0
        while at < len(rising):
            table = self._table(rising[at], walk)
            until = bisect_right(rising, table.last_seq, at)
            found += self._rows(table, rising[at:until])
            at = until
        if len(rising) < 2 or bool((order[1:] > order[:-1]).all()):
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
                for run in _runs(self._proved(segment, from_seq, upto_seq)):
                    yield self._frame(segment, run, from_seq)

    def forget(self, segment: Segment) -> None:
        """Drop all that is kept of a segment that is being reclaimed."""
        with self._lock:
            self._open.pop(segment.number, None)
            for kept in (self._tables, self._arrow):
                for key in [key for key in kept if key[0] == segment.number]:
                    del kept[key]
        segment.reclaimed = True
        segment.let_go()

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

    def opened(self, segment: Segment) -> None:
        """Take note that its file is open; beyond a bound, let go of those opened longest ago."""
        with self._lock:
            self._open[segment.number] = segment
            self._open.move_to_end(segment.number)
            while len(self._open) > _OPEN_FILES:
                _, oldest = self._open.popitem(last=False)
                if oldest is not self.segments[-1]:
                    oldest.let_go()

    def _table(self, seq: int, walk: Walk) -> Table:
        segment = self._segment(seq)
        offset = segment.point(seq)[1]
        table = self._kept(segment.number, offset)
        if table is not None and table.header.first_seq <= seq <= table.last_seq:
            return table
        offset, header = walk.find(segment, seq)
        table = self._kept(segment.number, offset)
        if table is None:
            try:
                table = _load(segment, offset, header, walk)
            except BadFrame as bad:
                raise Damage(segment.path, offset, str(bad)) from None
            if header.records > 1 or header.encoding == Encoding.ARROW:
                self._keep(table)
        return table

    def _kept(self, number: int, offset: int) -> Table | None:
        return self._tables.get((number, offset)) or self._arrow.get((number, offset))

    def _keep(self, table: Table) -> None:
        kept, most = (self._arrow, _ARROW_FRAMES) if table.bodies is not None else (self._tables, _TABLES)
        with self._lock:
            kept[table.segment.number, table.offset] = table
            if len(kept) > most:
                kept.popitem(last=False)

    def _rows(self, table: Table, seqs: list[int]) -> list[Stored]:
        """The records of one frame; `seqs` are rising."""
        first, rows, unpack = table.header.first_seq, table.rows, ROW.unpack_from
        found = []
        if table.header.encoding == Encoding.ARROW:
            assert table.bodies is not None
            for seq in seqs:
                kind, _, lane, _, _, fire_at_ms, _, _ = unpack(rows, ROW_BYTES * (seq - first))
                body = _row_of(self.arrow_row, table.bodies, seq - first)
                found.append(Stored(seq, kind, lane, fire_at_ms, body))
            return found
        ends, bodies, base, upto = table.ends, table.bodies or b"", 0, 0
        if table.bodies is not None:
            base, upto = ends[0], ends[-1]
        for n, seq in enumerate(seqs):
            i = seq - first
            begin, end = ends[i], ends[i + 1]
            if end > upto:
                base, upto = begin, _span(ends, seqs, n, first)
                bodies = table.segment.file.read(upto - base, base)
            body = bodies[begin - base : end - base]
            kind, _, lane, _, crc, fire_at_ms, _, _ = unpack(rows, ROW_BYTES * i)
            if value(body) != crc:
                raise Damage(
                    table.segment.path, begin, f"the checksum of the body of seq {seq} does not match"
                )
            found.append(Stored(seq, kind, lane, fire_at_ms, body))
        return found

    def _proved(self, segment: Segment, from_seq: int, upto_seq: int) -> Iterator[Scanned]:
        """The frames of a segment that hold any of these seqs, each proved whole."""
        upto_seq = min(upto_seq, segment.last_seq)
        seq, offset = segment.first_seq, BLOCK_BYTES
        if from_seq > seq:
            offset, header = Walk(POINT_EVERY_BYTES).find(segment, from_seq)
            seq = header.first_seq
        try:
            for scanned in segment.scan_from(offset, seq, None):
                offset, seq = scanned.offset + scanned.header.length, seq + scanned.header.records
                if scanned.header.records:
                    yield scanned
                if seq > upto_seq:
                    return
        except BadFrame as bad:
            raise Damage(segment.path, offset, str(bad)) from None
        raise Damage(segment.path, offset, f"the segment ends before seq {seq}")

    def _frame(self, segment: Segment, run: list[Scanned], from_seq: int) -> Frame:
        tables, bodies = [], []
        for _, header, data, at in run:
            bodies_at = at + HEADER_BYTES + ROW_BYTES * header.records
            tables.append(data[at + HEADER_BYTES : bodies_at])
            bodies.append(data[bodies_at : at + header.length - header.pad])
        fixed = np.frombuffer(b"".join(tables), FIXED)
        header = run[0].header
        return Frame(
            header.first_seq,
            Encoding(header.encoding),
            fixed,
            b"".join(bodies),
            Place(segment.path, run[0].offset),
            self.arrow_row,
            max(0, from_seq - header.first_seq),
        )


def _runs(frames: Iterator[Scanned]) -> Iterator[list[Scanned]]:
    """Put neighbouring frames of rows together, up to a bound."""
    run: list[Scanned] = []
    count = 0
    for scanned in frames:
        rows = scanned.header.encoding == Encoding.ROWS
        if run and (not rows or count + scanned.header.records > _RUN_RECORDS):
            yield run
            run, count = [], 0
        run.append(scanned)
        count += scanned.header.records
        if not rows:
            yield run
            run, count = [], 0
    if run:
        yield run


def _load(segment: Segment, offset: int, header: Header, walk: Walk) -> Table:
    """Read and prove the table of a frame, and the bodies where they are proved with it."""
    table_bytes = HEADER_BYTES + ROW_BYTES * header.records
    whole = header.records == 1 or header.encoding == Encoding.ARROW
    data, at = walk.bytes_at(offset, header.length if whole else table_bytes)
    if whole:
        check_frame(data, at, header)
    else:
        check_table(data, at, header)
    rows = data[at + HEADER_BYTES : at + table_bytes]
    bodies = data[at + table_bytes : at + header.length - header.pad] if whole else None
    begin = offset + table_bytes
    ends = [begin]
    if header.encoding == Encoding.ROWS:
        sizes = np.frombuffer(rows, FIXED)["size"]
        ends += (np.cumsum(sizes, dtype=np.int64) + begin).tolist()
    return Table(segment, offset, header, header.first_seq + header.records - 1, rows, ends, bodies)


def _span(ends: list[int], seqs: list[int], n: int, first: int) -> int:
    """Up to where to read at once: over the bodies asked for next, as long as they are close together."""
    begin = ends[seqs[n] - first]
    upto = ends[seqs[n] - first + 1]
    for seq in seqs[n + 1 :]:
        i = seq - first
        if ends[i] - upto > POINT_EVERY_BYTES or ends[i + 1] - begin > _SPAN_BYTES:
            break
        upto = ends[i + 1]
    return upto
