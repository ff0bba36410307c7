"""Where a delayed event goes, as one line: `matrix://room/type` for a message, `matrix://room/type/state key` for state.

The parts are percent-encoded, so that whatever Matrix allows in them fits: slashes, emoji, nothing at all.
"""

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from tarry.core.errors import Invalid

SCHEME: Final = "matrix"
_PREFIX: Final = f"{SCHEME}://"


class Destination(NamedTuple):
    """A room, the type of an event, and its state key if it is a state event."""

    room_id: str
    type: str
    state_key: str | None = None

    def __str__(self) -> str:
        start = f"{_PREFIX}{_quoted(self.room_id)}/{_quoted(self.type)}"
        return start if self.state_key is None else f"{start}/{_quoted(self.state_key)}"


@lru_cache(maxsize=8_192)
def _quoted(part: str) -> str:
    return quote(part, safe="!:$@.")


@lru_cache(maxsize=8_192)
def parse(destination: str) -> Destination:
    """Read a destination; raises `Invalid`."""
    parts = destination.removeprefix(_PREFIX).split("/")
    if not destination.startswith(_PREFIX) or len(parts) not in (2, 3):
        raise Invalid("destination", "is not matrix://room/type or matrix://room/type/state-key")
    try:
        room_id, type_, *rest = (unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        raise Invalid("destination", "is not UTF-8") from None
    if not room_id.startswith("!") or not type_:
        raise Invalid("destination", "names no room or no type of event")
    return Destination(room_id, type_, rest[0] if rest else None)
