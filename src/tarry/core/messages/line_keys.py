"""Idempotency keys of lines: a request of many lines has one key, and each line the request's with its number behind it.

Lines of one request come together and are asked for together, so their answers are kept in pages of neighbours. Whoever keeps
them goes by the text of a key alone: one that somebody chose in this form is kept as if it were a line's.
"""

from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

PAGE_LINES: Final = 64
"""Lines of a page: few enough that one more answer is written with little beside it."""
MAX_DIGITS: Final = 9


class LinePlace(NamedTuple):
    """Where the answer to a line is kept."""

    request: str
    """The key of its request."""
    page: int
    line: int
    """Its place in the page."""


def line_key(request: str, number: int) -> str:
    """The key of a line."""
    return f"{request}:{number}"


def place_of(key: str) -> LinePlace | None:
    """The place of a key that is a line's; None for another one."""
    request, _, digits = key.rpartition(":")
    if not (0 < len(digits) <= MAX_DIGITS and digits.isascii() and digits.isdigit()) or digits[0] == "0":
        # A number in two forms would be two keys of one place.
        return None
    return None if not request else LinePlace(request, *divmod(int(digits) - 1, PAGE_LINES))


class LineKeys(NamedTuple):
    """The keys of lines of one request."""

    request: str
    """Its key."""
    numbers: NDArray[np.int64]
    """The numbers of the lines, from 1 on, with `MAX_DIGITS` digits at the most."""

    def at(self, rows: NDArray[np.int64]) -> Self:
        """The keys of the lines at these positions."""
        return type(self)(self.request, self.numbers[rows])

    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The page of each, and its place in the page."""
        return np.divmod(self.numbers - 1, PAGE_LINES)

    def texts(self) -> list[str]:
        """The keys themselves."""
        return [line_key(self.request, number) for number in self.numbers.tolist()]
