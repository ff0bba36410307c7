"""The tape: what a consumer's socket gave, and when. It is looked into after the clock has stopped.

Every payload ends with its number, `<00000042>~`, whatever the protocol around it, so that one way of reading
serves all servers: a message has arrived when the last byte of its payload has.
"""

import re
import time
from array import array

import numpy as np
from numpy.typing import NDArray

from bench.figures import Lateness

_NUMBER = re.compile(rb"<(\d{8})>~")
_END = b">~"
_OURS = re.compile(rb'"published_at_ms":(\d+),"due_at_ms":(\d+)')


def payload(number: int, size: int) -> bytes:
    """A payload of so many bytes that ends with its number."""
    mark = b"<%08d>~" % number
    return b"x" * (size - len(mark)) + mark


class Tape:
    """Bytes in the order they came, with the instant of each piece."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends = array("q")
        self._at_ns = array("q")
        self._size = 0
        self.count = 0
        """How many payloads have come whole."""
        self._last = b""

    def add(self, piece: bytes) -> None:
        """Take what a socket gave just now."""
        self._at_ns.append(time.time_ns())
        self._size += len(piece)
        self._ends.append(self._size)
        self._pieces.append(piece)
        # An end may lie across two pieces.
        self.count += piece.count(_END) + (self._last + piece[:1] == _END)
        self._last = piece[-1:]

    def read(self) -> bytes:
        """Everything that came."""
        return b"".join(self._pieces)

    def arrivals(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of the messages, and when each one arrived, in milliseconds since 1970."""
        found = [(int(match[1]), match.end()) for match in _NUMBER.finditer(self.read())]
        numbers, ends = np.array(found, np.int64).reshape(-1, 2).T
        pieces = np.searchsorted(np.frombuffer(self._ends, np.int64), ends)
        return numbers, np.frombuffer(self._at_ns, np.int64)[pieces] / 1e6

    def own_lateness(self) -> Lateness:
        """Lateness of Tarry's entries: from the due instant to the one at which the server took them up."""
        found = np.array(_OURS.findall(self.read()), np.int64)
        return Lateness.of((found[:, 0] - found[:, 1]).astype(np.float64))


def late_ms(tape: Tape, due_at_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How late each of the messages 0, 1, … with these due instants arrived; each must have come, once."""
    numbers, at_ms = tape.arrivals()
    distinct = len(np.unique(numbers))
    if len(numbers) != len(due_at_ms) or distinct != len(due_at_ms):
        raise AssertionError(f"of {len(due_at_ms)} messages {distinct} came, {len(numbers)} times together")
    late = np.empty(len(due_at_ms))
    late[numbers] = at_ms
    return late - due_at_ms


def lateness(tape: Tape, due_at_ms: NDArray[np.float64]) -> Lateness:
    """Summary of the lateness of a tape's entries."""
    return Lateness.of(late_ms(tape, due_at_ms))
