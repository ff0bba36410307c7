"""Pages of lists: how many messages may be on one, which of them a query means, and the token of the next, which is where the walk is, packed."""

import base64
import struct
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.messages.message import MessageQuery, MessageView

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


def matches(view: MessageView, query: MessageQuery) -> bool:
    """Whether a message is what a query asks for, its state and its due instant apart."""
    if query.key_prefix is not None and not (view.key or "").startswith(query.key_prefix):
        return False
    return all(
        wanted is None or wanted == is_
        for wanted, is_ in (
            (query.owner, view.owner),
            (query.destination, view.destination),
            (query.namespace, view.namespace),
            (query.key, view.key),
            (query.group, view.group),
            (query.door, view.door),
        )
    )


def is_due_within(due_at_ms: int | None, query: MessageQuery) -> bool:
    """Whether a due instant is in the range that a query asks for."""
    low, high = query.due_from_ms, query.due_to_ms
    if low is None and high is None:
        return True
    return due_at_ms is not None and (low or 0) <= due_at_ms and (high is None or due_at_ms < high)
