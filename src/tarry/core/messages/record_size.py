"""The size of a message's largest later record, which has to fit into a segment of the ledger.

A message is written once more when it is fired, carried, or becomes a dead letter, then a little larger; and as one of a
group, with the ends of all others in the same unit. A unit has half of its room for the one, and half for the others.
"""

from collections.abc import Mapping
from typing import Any, Final

from tarry.core import limits
from tarry.core.errors import TooLarge

BESIDE_BYTES: Final = 32 * 1024
"""Maximum bytes of a message beside its payload: headers, names, and its destination a second time where it is fired."""

GROWTH_BYTES: Final = 512
"""By how much a record is larger than its texts and payload: numbers, keys, and the lengths of fields."""

_HEADER_BYTES: Final = 10
"""Bytes of a header beside its name and value: their lengths."""


def is_large(payload_bytes: Any, unit_max_bytes: int) -> Any:
    """Whether a payload, or each of an array, is so large that its record has to be measured: nearly none is."""
    return payload_bytes > unit_max_bytes - BESIDE_BYTES


def check_record(
    unit_max_bytes: int,
    payload_bytes: int,
    headers: Mapping[str, str],
    destination: str,
    names: tuple[str | None, ...],
    *,
    group: bool = False,
    listed: bool = False,
) -> None:
    """Raise `TooLarge` for a message whose later records may not fit; `names` are its other texts."""
    headers_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    names_bytes = sum(len(name.encode()) for name in names if name is not None)
    record_bytes = (
        payload_bytes
        + headers_bytes
        + len(headers) * _HEADER_BYTES
        + 2 * len(destination.encode())
        + names_bytes
        + GROWTH_BYTES
    )
    limit = unit_max_bytes // 2 if group else unit_max_bytes
    if record_bytes > limit:
        raise TooLarge("a message of a group" if group else "the message", limit)
    # Of a listed message all that it was is in its end.
    limit = unit_max_bytes // 2 // limits.MAX_GROUP_MEMBERS
    if group and listed and payload_bytes + headers_bytes > limit:
        raise TooLarge("a listed message of a group", limit)
