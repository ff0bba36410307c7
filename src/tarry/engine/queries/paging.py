"""Pages of lists: how many there may be on one, and the token of the next, which is where the walk is, packed."""

import base64
import struct
from typing import Final

from tarry.core.errors import Invalid

MAX_LIMIT: Final = 1_000

MAX_NUMBER: Final = (1 << 63) - 1
"""The largest number of the columns that instants and seqs are kept in."""


def check_limit(limit: int) -> int:
    """How many a page may have at the most; raises `Invalid`."""
    if not 1 <= limit <= MAX_LIMIT:
        raise Invalid("limit", f"is not between 1 and {MAX_LIMIT}")
    return limit


def make_token(layout: struct.Struct, *numbers: int) -> str:
    """Numbers as the `next_page` of a page."""
    return base64.urlsafe_b64encode(layout.pack(*numbers)).decode().rstrip("=")


def read_token(layout: struct.Struct, token: str) -> tuple[int, ...]:
    """The numbers of a token; raises `Invalid` for any other text."""
    try:
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        numbers: tuple[int, ...] = layout.unpack(packed)
    except (ValueError, struct.error):
        raise no_page() from None
    if max(numbers) > MAX_NUMBER:
        raise no_page()
    return numbers


def no_page() -> Invalid:
    """The refusal of a token that no page of this list gave."""
    return Invalid("page", "is not the next_page of a page before")
