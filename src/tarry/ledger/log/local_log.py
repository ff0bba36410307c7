"""The log on this machine's disk: a frame is durable once it is written to its segment and synced (R1, R2).

One frame at a time: so a crash can spoil at most the last one, and recovery can tell that from damage.
"""

from typing import Final

from tarry.ledger.disk import Disk
from tarry.ledger.frame import encode_seal
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.frame_log import PlacedFrame
from tarry.ledger.reader import Reader
from tarry.ledger.segment import SegmentHeader, begin_segment
from tarry.ledger.spares import Spares

_NOWHERE: Final = LogPosition(0, 0, 0)


class LocalLog:
    """The segments of one folder."""

    medium = "disk"
    in_flight = 1
    position = _NOWHERE
    """There is no other log to read on from."""

    def __init__(self, disk: Disk, folder: str, reader: Reader, spares: Spares, *, sealed: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._reader = reader
        self._spares = spares
        self._sealed = sealed
        """Whether it ends with the mark of a clean end."""
        self._synced = 0
        self.active = reader.segments[-1]

    def begin(self, header: SegmentHeader) -> None:
        """Begin the next segment, durably."""
        # The spare stays the next one until it is a segment: each of these steps may be done again.
        spare = self._spares.next
        segment = begin_segment(self._disk, self._folder, spare.path, spare.file, header)
        self._spares.take()
        self._reader.add(segment)
        self.active = segment

    def append(self, frame: PlacedFrame) -> None:
        """Write a frame and sync it."""
        active = self.active
        active.file.write_parts(frame.pieces, frame.offset)
        active.file.sync()
        active.add(frame.first_seq, frame.records, frame.length)
        self._sealed = False
        self._synced += 1

    def settle(self, wait_s: float) -> int:
        """Frames are durable when `append` returns."""
        synced, self._synced = self._synced, 0
        return synced

    def finish(self, next_seq: int) -> bool:
        """Write a seal, unless it ends with one already. There is always space for it."""
        if self._sealed:
            return False
        self._sealed = True
        active = self.active
        frame = encode_seal(active.segment_id, active.frames, next_seq)
        active.file.write(frame, active.end)
        active.file.sync()
        active.add(next_seq, 0, len(frame))
        return True

    def trim(self, upto_seq: int) -> None:
        """Nothing is kept elsewhere."""

    def close(self) -> None:
        """Nothing is held but the segments, which their ledger closes."""
