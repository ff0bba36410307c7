"""Which records of a partition a group is done with. Pure.

Kafka knows one number: everything below it is done. Where receivers finish in any order, what is done above it is written
into the text that Kafka keeps beside the number, as far as that has room; after a restart the rest comes again.
"""

from collections.abc import Iterator
from typing import Final

MAX_NOTE_CHARS: Final = 4_000
"""Kafka refuses more than 4096 bytes (`offset.metadata.max.bytes`)."""
_MARK: Final = "tarry1"


class Offsets:
    """The offsets of one partition that are done."""

    def __init__(self, below: int, note: str = "") -> None:
        self.below = below
        """The number to commit: the first record that is not done."""
        self._above: set[int] = set(_read(note, below))
        self.changed = False

    def done(self, offset: int) -> bool:
        """Whether a record is done."""
        return offset < self.below or offset in self._above

    def first_seen(self, offset: int) -> None:
        """The group has no number yet: it begins with the first record that comes."""
        if self.below < 0:
            self.below = offset

    def finish(self, offset: int) -> None:
        """Be done with a record."""
        self._above.add(offset)
        while self.below in self._above:
            self._above.remove(self.below)
            self.below += 1
        self.changed = True

    def skip_to(self, offset: int, held: Iterator[int]) -> None:
        """Records between two that came do not exist (compaction, transactions): nothing waits for them."""
        lowest = min(held, default=offset)
        if self.below < lowest:
            self.below = lowest
            self._above = {one for one in self._above if one >= lowest}
            while self.below in self._above:
                self._above.remove(self.below)
                self.below += 1

    def note(self) -> str:
        """The text beside the number: ranges of what is done above it, each as distance and length."""
        parts: list[str] = []
        room = MAX_NOTE_CHARS - len(_MARK)
        for start, length in _ranges(sorted(self._above)):
            part = f" {start - self.below:x}+{length:x}"
            room -= len(part)
            if room < 0:
                break
            parts.append(part)
        return _MARK + "".join(parts) if parts else ""


def _ranges(offsets: list[int]) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(offsets):
        start = at
        while at + 1 < len(offsets) and offsets[at + 1] == offsets[at] + 1:
            at += 1
        at += 1
        yield offsets[start], at - start


def _read(note: str, below: int) -> Iterator[int]:
    mark, *parts = note.split(" ")
    if mark != _MARK:
        return
    for part in parts:
        distance, _, length = part.partition("+")
        try:
            start = below + int(distance, 16)
            yield from range(start, start + int(length, 16))
        except ValueError:
            return
