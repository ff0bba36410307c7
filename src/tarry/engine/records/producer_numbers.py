"""The sequence numbers that an entry of a producer states."""

from typing import NamedTuple


class SentNumbers(NamedTuple):
    """The numbers that one message or batch states: its first, its last, and how many messages it is."""

    first: int
    last: int
    messages: int = 1

    @property
    def is_dense(self) -> bool:
        """Whether every number from the first to the last is one of its messages."""
        return self.last - self.first + 1 == self.messages


def sent_by(first: int, last: int, messages: int) -> SentNumbers:
    """The numbers of an entry; one that does not state its first has one number."""
    return SentNumbers(last, last, messages) if first < 0 else SentNumbers(first, last, messages)
