"""Replay: every record of a segment in order, proved frame by frame, with the fixed parts as columns.

Neighbouring frames are handed over together, so that replaying single records is nearly as quick as
replaying batches. The segment's points are collected in passing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage
from tarry.ledger.frame import FIXED, HEADER_BYTES, ROW_BYTES, BadFrame
from tarry.ledger.segment import BLOCK_BYTES, Points, Scanned, Segment

RUN_RECORDS: Final = 8192
"""Frames are put together up to about so many records."""


class FramePosition(NamedTuple):
    """Where a frame is."""

    file: str
    offset: int


class Frame:
    """Records in order: one frame of the file, or several that follow each other. Proved."""

    __slots__ = ("_ends", "bodies", "count", "first_seq", "fixed", "place")

    def __init__(
        self,
        first_seq: int,
        fixed: NDArray[np.void],
        bodies: bytes,
        place: FramePosition,
        skip: int,
        until: int,
    ) -> None:
        """Rows of the records that begin with `first_seq`: those from row `skip` up to but without row `until`."""
        self.first_seq = first_seq + skip
        self.fixed = fixed[skip:until]
        """The fixed parts, an array of dtype FIXED."""
        self.count = len(self.fixed)
        self.bodies = bodies
        """The bodies of these records, one after another."""
        self.place = place
        """The place of the first of the frames."""
        self._ends: list[int] | None = None
        if self.count < len(fixed):
            begin = int(fixed["size"][:skip].sum(dtype=np.int64))
            self.bodies = bodies[begin : begin + int(self.fixed["size"].sum(dtype=np.int64))]

    def body(self, i: int) -> bytes:
        """The body of the i-th record."""
        if self._ends is None:
            self._ends = [0, *np.cumsum(self.fixed["size"], dtype=np.int64).tolist()]
        return self.bodies[self._ends[i] : self._ends[i + 1]]


def replay(segment: Segment, offset: int, seq: int, from_seq: int, upto_seq: int) -> Iterator[Frame]:
    """The records of a segment from `from_seq` to `upto_seq`, beginning at the frame at `offset` with `seq`."""
    proved = _proved(segment, offset, seq, min(upto_seq, segment.last_seq))
    return frames_of(proved, segment.path, from_seq, upto_seq)


def frames_of(proved: Iterator[Scanned], path: str, from_seq: int, upto_seq: int) -> Iterator[Frame]:
    """The records from `from_seq` to `upto_seq` of frames that were proved, and hold some each; `path` is where they are."""
    for run in _runs(proved):
        tables, bodies = [], []
        for _, header, data, at in run:
            bodies_at = at + HEADER_BYTES + ROW_BYTES * header.records
            tables.append(data[at + HEADER_BYTES : bodies_at])
            bodies.append(data[bodies_at : at + header.length - header.pad])
        header = run[0].header
        yield Frame(
            header.first_seq,
            np.frombuffer(b"".join(tables), FIXED),
            b"".join(bodies),
            FramePosition(path, run[0].offset),
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
        segment.take_over(points, offset)


def _runs(frames: Iterator[Scanned]) -> Iterator[list[Scanned]]:
    """Put neighbouring frames together, up to a bound."""
    run: list[Scanned] = []
    count = 0
    for scanned in frames:
        count += scanned.header.records
        if run and count > RUN_RECORDS:
            yield run
            run, count = [], scanned.header.records
        run.append(scanned)
    if run:
        yield run
