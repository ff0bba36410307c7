"""Parts: items in pieces whose records each fit one unit of the ledger."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def parts_of(
    items: Iterable[T], bytes_of: Callable[[T], int], max_bytes: int, most: int = 1 << 30
) -> list[list[T]]:
    """Items in pieces of so many bytes and so many items at the most, in their order: nearly always one piece.

    One that is larger by itself is a piece of its own.
    """
    parts: list[list[T]] = []
    room = 0
    for item in items:
        size_bytes = bytes_of(item)
        if not parts or size_bytes > room or len(parts[-1]) >= most:
            parts.append([])
            room = max_bytes
        parts[-1].append(item)
        room -= size_bytes
    return parts
