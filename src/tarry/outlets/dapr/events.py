"""The one thing that brokers want to know of a CloudEvent: which one it is."""

from typing import Any

import msgspec

from tarry.core.unreadable import UNREADABLE


class Identified(msgspec.Struct):
    """The fields of a CloudEvent that are read."""

    id: Any = None


_events = msgspec.json.Decoder(Identified)


def event_id(data: bytes) -> str | None:
    """The id of a CloudEvent; None if the bytes are none or have none."""
    try:
        found = _events.decode(data).id
    except UNREADABLE:
        return None
    return found if isinstance(found, str) and found else None
