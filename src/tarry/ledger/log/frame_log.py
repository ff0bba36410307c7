"""The interface between the writer and the place where its frames become durable, in order, by one owner at a time."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from tarry.ledger.log.fold import LogPosition
from tarry.ledger.segment import Segment, SegmentHeader


class PlacedFrame(Struct, frozen=True, gc=False):
    """A frame on its way to be durable, with its place in the segments."""

    first_seq: int
    records: int
    segment: int
    """The number of its segment."""
    offset: int
    """Its place in the segment."""
    length: int
    pieces: Sequence[bytes]
    """Its bytes, which are megabytes at times and not copied."""


class FrameLog(Protocol):
    """The log behind one ledger: `LocalLog` or `ReplicatedLog`. All is called on the writer's thread.

    An `OSError` from any method but `begin` means that the outcome of the frames in flight is unknown: the writer stops for
    good (R2).
    """

    medium: str
    """The word for what fails if it fails: the disk, or the log."""
    in_flight: int
    """How many frames may be on their way at once."""

    @property
    def active(self) -> Segment:
        """The newest segment here."""

    @property
    def position(self) -> LogPosition:
        """After the last durable frame; what the published head says."""

    def begin(self, header: SegmentHeader) -> None:
        """Let the frames from now on go to a new segment. Nothing is in flight.

        After an `OSError` or `MemoryError` it may be called again, with the same header's number.
        """

    def append(self, frame: PlacedFrame) -> None:
        """Send a frame on its way, after those before it. At most `in_flight` are on their way."""

    def settle(self, wait_s: float) -> int:
        """How many more frames, in the order of sending, are durable and in the segments here; waits up to so long for the first."""

    def finish(self, next_seq: int) -> bool:
        """Mark a clean end: nothing more is appended, and nothing is in flight. Whether the head has to say more by it."""

    def trim(self, upto_seq: int) -> None:
        """Let go of the frames of segments that end at or before a seq: they were reclaimed here."""

    def close(self) -> None:
        """Close files and connections."""
