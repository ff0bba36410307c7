"""Following a ledger that another process writes: read-only, up to its published durable head (R1).

The pipeline reads the ledger this way. `FolderFollower` reads the folder beside the server and without asking it; where the
folder cannot be seen, `tarry.pipeline.remote` asks the server. Nothing here writes, locks or repairs; what was reclaimed
meanwhile is `NotFound`, damage is `Damage` with its place.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.aside import flagged, published
from tarry.ledger.disk import RealDisk
from tarry.ledger.head import HEAD_BYTES, HEAD_NAME, DurableHead, decode_head
from tarry.ledger.reader import Reader
from tarry.ledger.replay import Frame
from tarry.ledger.segment import (
    BLOCK_BYTES,
    Segment,
    decode_segment_header,
    segment_name,
    segment_number,
)


class Follower(Protocol):
    """A reader of somebody else's ledger. `NotFound` is what was reclaimed, `Damage` names its place."""

    def ledger_id(self) -> bytes:
        """Whose records these are."""

    def durable_seq(self) -> int:
        """The durable head as it is now published; `Unavailable` where there is no ledger yet."""

    def first_seq(self) -> int:
        """The first seq that has not been reclaimed."""

    def bounds(self) -> list[int]:
        """The first seq of each segment: good places to divide the work."""

    def set_aside(self) -> frozenset[int]:
        """The seqs of records that the server goes on without."""

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """Every record from one seq up to and with another, at most the durable head, proved and in order.

        Those that are set aside are flagged in their kind.
        """


class FolderFollower:
    """A reader of a ledger's folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._disk = RealDisk()

    def ledger_id(self) -> bytes:
        """Whose folder this is."""
        return self.head().ledger_id

    def durable_seq(self) -> int:
        """The durable head."""
        return self.head().seq

    def first_seq(self) -> int:
        """The first seq that has not been reclaimed."""
        return self._segments()[0].first_seq

    def set_aside(self) -> frozenset[int]:
        """The seqs of records that the server goes on without."""
        return published(self._folder)

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """Every record of a range."""
        upto_seq = min(upto_seq, self.durable_seq())
        segments = self._segments()
        for before, after in pairwise(segments):
            before.last_seq = after.first_seq - 1
        segments[-1].last_seq = max(segments[-1].last_seq, upto_seq)
        aside = self.set_aside()
        for frame in Reader(segments).frames(from_seq, upto_seq):
            yield flagged(frame, aside)

    def bounds(self) -> list[int]:
        """The first seq of each segment."""
        return [segment.first_seq for segment in self._segments()]

    def head(self) -> DurableHead:
        """The durable head as it is now published, with its place."""
        path = os.path.join(self._folder, HEAD_NAME)
        # It is rewritten in place: a read in the middle of that is torn, and another one is not.
        for _ in range(100):
            try:
                with open(path, "rb") as file:
                    head = decode_head(file.read(HEAD_BYTES))
            except FileNotFoundError:
                break
            if head is not None:
                return head
        raise Unavailable(f"{self._folder}: there is no ledger here yet; start the server first")

    def _segments(self) -> list[Segment]:
        numbers = sorted(
            number for name in os.listdir(self._folder) if (number := segment_number(name)) is not None
        )
        segments: list[Segment] = []
        for number in numbers:
            path = os.path.join(self._folder, segment_name(number))
            try:
                with open(path, "rb") as file:
                    header = decode_segment_header(file.read(BLOCK_BYTES), path)
            except FileNotFoundError:
                # Reclaimed while we looked; only the oldest ones can be.
                continue
            segments.append(Segment(self._disk, path, header))
        if not segments:
            raise NotFound(f"{self._folder}: there are no segments")
        return segments
