"""Replay: every record of a segment in order, proved frame by frame, with the fixed parts as columns.

Neighbouring frames of rows are handed over together, so that replaying single records is nearly as quick as
replaying batches. The segment's points are collected in passing.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.ledger.frame import FIXED, HEADER_BYTES, ROW_BYTES, BadFrame, Encoding
from tarry.ledger.segment import BLOCK_BYTES, Points, Scanned, Segment

ArrowRow = Callable[[bytes, int], bytes]
"""Makes the body of one row of an Arrow IPC stream. It is given the same stream object for the same frame."""

RUN_RECORDS: Final = 8192
"""Frames of rows are put together up to about so many records."""


class Place(NamedTuple):
    """Where a frame is."""

    file: str
    offset: int


class Frame:
    """Records in order: one frame of the file, or several frames of rows that follow each other. Proved."""

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
        until: int,
    ) -> None:
        self.first_seq = first_seq + skip
        self.encoding = encoding
        self.fixed = fixed[skip:until]
        """The fixed parts, an array of dtype FIXED."""
        self.count = len(self.fixed)
        self.first_row = skip
        """The row of `ipc` that is the first record: not 0 if the replay began within the frame."""
        self.place = place
        """Of the first of the frames."""
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
            return row_of(self._arrow_row, self._bodies, self.first_row + i)
        if self._ends is None:
            self._ends = [0, *np.cumsum(self.fixed["size"], dtype=np.int64).tolist()]
        return self._bodies[self._ends[i] : self._ends[i + 1]]


def row_of(arrow_row: ArrowRow | None, ipc: bytes, row: int) -> bytes:
    """The body of a row of an Arrow frame, made by the engine."""
    assert arrow_row is not None, "the engine sets `arrow_row` before it reads Arrow frames"
    return arrow_row(ipc, row)


def replay(
    segment: Segment, offset: int, seq: int, from_seq: int, upto_seq: int, arrow_row: ArrowRow | None
) -> Iterator[Frame]:
    """The records of a segment from `from_seq` to `upto_seq`, beginning at the frame at `offset` with `seq`."""
    for run in _runs(_proved(segment, offset, seq, min(upto_seq, segment.last_seq))):
        tables, bodies = [], []
        for _, header, data, at in run:
            bodies_at = at + HEADER_BYTES + ROW_BYTES * header.records
            tables.append(data[at + HEADER_BYTES : bodies_at])
            bodies.append(data[bodies_at : at + header.length - header.pad])
        header = run[0].header
        yield Frame(
            header.first_seq,
            Encoding(header.encoding),
            np.frombuffer(b"".join(tables), FIXED),
            b"".join(bodies),
            Place(segment.path, run[0].offset),
            arrow_row,
            max(0, from_seq - header.first_seq),
            upto_seq + 1 - header.first_seq,
        )


def _proved(segment: Segment, offset: int, seq: int, upto_seq: int) -> Iterator[Scanned]:
    """Frame after frame, until one holds `upto_seq`; anything else in its place is damage."""
    points = Points() if not segment.walked and offset == BLOCK_BYTES else None
    try:
        for scanned in segment.scan_from(offset, seq, None):
            header = scanned.header
            if points is not None:
                points.add(seq, offset)
            offset += header.length
            seq += header.records
            if header.records:
                yield scanned
            if seq > upto_seq:
                break
        else:
            raise BadFrame(f"the segment ends before seq {seq}")
    except BadFrame as bad:
        raise Damage(segment.path, offset, str(bad)) from None
    if points is not None and seq > segment.last_seq:
        segment.adopt(points, offset)


def _runs(frames: Iterator[Scanned]) -> Iterator[list[Scanned]]:
    """Put neighbouring frames of rows together, up to a bound."""
    run: list[Scanned] = []
    count = 0
    for scanned in frames:
        header = scanned.header
        count += header.records
        if run and (header.encoding == Encoding.ARROW or count > RUN_RECORDS):
            yield run
            run, count = [], header.records
        run.append(scanned)
        if header.encoding == Encoding.ARROW:
            yield run
            run, count = [], 0
    if run:
        yield run
