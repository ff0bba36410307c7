"""Sequence numbers of one producer whose messages are stored: the proof that a message sent again is there already.

A producer that sends in order is one range, however long it has sent. A message that was overtaken leaves a gap, and is
stored when it comes. A batch that does not name all of its numbers is known only as a whole: a batch that was cut
differently holds other messages, whatever its first number is.

Both are bounded, and the lowest numbers and the oldest batches are forgotten first. A message that cannot be proved to
be stored is stored, so that forgetting may store a message twice and never loses one.
"""

from bisect import bisect_right
from typing import Final

from tarry.engine.records.changes import SentNumbers
from tarry.registry.registry import SequencesRow

MAX_RANGES: Final = 1_024
"""Ranges of one producer: each gap that stays open adds one."""

MAX_BATCHES: Final = 1_024
"""Batches of one producer that are known as a whole: at least the messages that a client keeps unanswered by default."""


class Sequences:
    """The stored sequence numbers of one producer."""

    __slots__ = ("_batches", "_starts", "_stops", "last")

    def __init__(self, *numbers: int) -> None:
        self.last = max(numbers, default=-1)
        """The highest number that is stored; -1 if there is none."""
        self._starts = list(numbers)
        self._stops = [number + 1 for number in numbers]
        self._batches: dict[SentNumbers, None] = {}

    def __contains__(self, sent: SentNumbers) -> bool:
        """Whether a message or batch is proved to be stored."""
        if not sent.is_dense:
            return sent in self._batches
        at = bisect_right(self._starts, sent.first) - 1
        return at >= 0 and sent.last < self._stops[at]

    def add(self, sent: SentNumbers) -> None:
        """Know a message or batch as stored."""
        self.last = max(self.last, sent.last)
        if sent.is_dense:
            self._add_range(sent.first, sent.last + 1)
        else:
            self._batches.pop(sent, None)
            self._batches[sent] = None
            if len(self._batches) > MAX_BATCHES:
                del self._batches[next(iter(self._batches))]

    def _add_range(self, start: int, stop: int) -> None:
        starts, stops = self._starts, self._stops
        # The ranges that it touches become one with it.
        low = bisect_right(stops, start - 1)
        high = bisect_right(starts, stop)
        if low < high:
            start, stop = min(start, starts[low]), max(stop, stops[high - 1])
        starts[low:high], stops[low:high] = [start], [stop]
        if len(starts) > MAX_RANGES:
            del starts[0], stops[0]

    def row(self) -> SequencesRow:
        """The numbers for the registry."""
        ranges = [edge for pair in zip(self._starts, self._stops, strict=True) for edge in pair]
        return SequencesRow(ranges, [(one.first, one.last, one.messages) for one in self._batches], self.last)

    @classmethod
    def of_row(cls, row: SequencesRow) -> "Sequences":
        """The numbers that a row of the registry has."""
        known = cls()
        known._starts, known._stops = row.ranges[::2], row.ranges[1::2]
        known._batches = {SentNumbers(*batch): None for batch in row.batches}
        known.last = row.last
        return known
