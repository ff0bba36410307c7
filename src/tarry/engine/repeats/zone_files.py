"""Time zones by their IANA names, from the zone files of the system or of the `tzdata` package."""

from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

from tarry.core.errors import Invalid
from tarry.core.schedules.zones import Offset

MAX_CHARACTERS: Final = 64


@lru_cache
def names() -> frozenset[str]:
    """Every name that can be given. No other leads to a file."""
    return frozenset(files("tzdata").joinpath("zones").read_text("ascii").split())


@lru_cache(maxsize=1024)
def offset_of(name: str) -> Offset:
    """The offset of a zone; raises `Invalid` for a name that is none."""
    if name not in names():
        near = get_close_matches(name[:MAX_CHARACTERS], names(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise Invalid("zone", f"{name[:MAX_CHARACTERS]!r} is no IANA time zone such as Europe/Berlin{hint}")
    zone = ZoneInfo(name)

    def offset(at_ms: int) -> int:
        ahead = datetime.fromtimestamp(at_ms // 1000, zone).utcoffset()
        # Local mean times of earlier centuries have seconds, never less.
        return 0 if ahead is None else (ahead.days * 86_400 + ahead.seconds) * 1000

    return offset
