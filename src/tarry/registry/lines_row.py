"""The row of a page of lines: the answers that neighbouring lines of one request with an idempotency key have got."""

from struct import Struct as Packing
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

FINGERPRINT_BYTES: Final = 16
NO_DUE: Final = -(1 << 63)
"""Stands for no due instant."""
NO_FINGERPRINT: Final = bytes(FINGERPRINT_BYTES)
"""Stands for none: the key alone decides."""

ANSWERS: Final = np.dtype(
    [
        ("fingerprint", f"V{FINGERPRINT_BYTES}"),
        ("fire_at_ms", "<i8"),
        ("seq", "<i8"),
        ("due_at_ms", "<i8"),
        ("accepted_at_ms", "<i8"),
    ]
)
"""An answer as it is packed."""
_PACKED: Final = Packing(f"<{FINGERPRINT_BYTES}s4q")
_SIZE: Final = _PACKED.size


class RequestAnswer(NamedTuple):
    """The answer to one line."""

    fingerprint: bytes
    numbers: tuple[int, int, int | None, int]
    """Fire instant, seq, due instant, and when it was accepted."""


class LinesRow(Struct, array_like=True, frozen=True):
    """The answers of a page, in the order in which the lines were accepted."""

    lines: bytes = b""
    """The place of each line in the page."""
    answers: bytes = b""
    """Packed, one behind the other (`ANSWERS`)."""

    def find(self, line: int) -> RequestAnswer | None:
        """The answer to a line; None if there is none."""
        at = self.lines.find(line)
        if at < 0:
            return None
        fingerprint, fire_at_ms, seq, due_at_ms, accepted_at_ms = _PACKED.unpack_from(
            self.answers, at * _SIZE
        )
        return RequestAnswer(
            b"" if fingerprint == NO_FINGERPRINT else fingerprint,
            (fire_at_ms, seq, None if due_at_ms == NO_DUE else due_at_ms, accepted_at_ms),
        )

    def without(self, line: int) -> "LinesRow":
        """The page without the answer to a line."""
        at = self.lines.find(line)
        if at < 0:
            return self
        return LinesRow(
            self.lines[:at] + self.lines[at + 1 :],
            self.answers[: at * _SIZE] + self.answers[(at + 1) * _SIZE :],
        )

    def with_line(
        self,
        line: int,
        fingerprint: bytes,
        fire_at_ms: int,
        seq: int,
        due_at_ms: int | None,
        accepted_at_ms: int,
    ) -> "LinesRow":
        """The page with the answer to one more line."""
        due = NO_DUE if due_at_ms is None else due_at_ms
        packed = _PACKED.pack(fingerprint, fire_at_ms, seq, due, accepted_at_ms)
        return LinesRow(self.lines + bytes((line,)), self.answers + packed)
