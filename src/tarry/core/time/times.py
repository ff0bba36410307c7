"""Times as text: RFC 3339 instants, short durations like `1h30m`, and durations as Go writes them.

Pure: nothing here asks for the present instant. An instant with a finer fraction than a millisecond is rounded up: never early.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from fractions import Fraction
from functools import lru_cache
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,30}))?"
    r"([Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_ISO_8601: Final = re.compile(
    r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-W\d\d-\d|\d{4}W\d{3})[Tt ]"
    r"(\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d{1,64}))?)?)?"
    r"([Zz]|([+\-−])(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)
_DURATION: Final = re.compile(
    r"(?:([0-9]{1,15})w)?(?:([0-9]{1,15})d)?(?:([0-9]{1,15})h)?"
    r"(?:([0-9]{1,15})m)?(?:([0-9]{1,15})s)?(?:([0-9]{1,15})ms)?"
)
_UNITS_MS: Final = (7 * DAY_MS, DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, 1)
_GO_UNIT_MS: Final = {
    "ns": Fraction(1, 1_000_000),
    "us": Fraction(1, 1000),
    "µs": Fraction(1, 1000),
    "μs": Fraction(1, 1000),
    "ms": Fraction(1),
    "s": Fraction(1000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
}
_GO_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_MAX_GO_CHARACTERS: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_S: Final = 253_402_300_799
"""The last second of the year 9999, which is the last that has a text."""


def parse_instant_ms(text: str, field: str = "due_at") -> int:
    """Read an RFC 3339 instant with its zone; raises `Invalid` naming the field."""
    try:
        at_ms = rfc3339_ms(text)
    except ValueError as error:
        raise Invalid(field, f"there is no such instant: {error}") from None
    if at_ms is None:
        raise Invalid(field, "is not an RFC 3339 instant with a zone, like 2031-05-04T09:30:00Z")
    if at_ms < 0:
        raise Invalid(field, "is before 1970")
    return at_ms


def rfc3339_ms(text: str) -> int | None:
    """Read an RFC 3339 instant with its zone; None for any other text. Raises `ValueError` for an instant that there is not."""
    found = _RFC_3339.fullmatch(text)
    return None if found is None else _ms_of(found)


def iso8601_ms(text: str) -> int | None:
    """Read a date and time in any form of ISO 8601; None for any other text.

    Raises `ValueError` for an instant that there is not, and for one without a zone.
    """
    found = _ISO_8601.fullmatch(text)
    return None if found is None else _ms_of(found)


def _ms_of(found: re.Match[str]) -> int:
    day_text, hour, minute, second, fraction, zone, sign, ahead, ahead_minutes = found.groups()
    if zone is None:
        raise ValueError("it has no zone: add Z, or an offset such as +02:00 (encoded as %2B02:00 in a URL)")
    day = date.fromisoformat(day_text)
    # A leap second has no number of its own on this scale: it is the second after :59, so never early.
    leap = second == "60"
    instant = datetime(
        day.year,
        day.month,
        day.day,
        int(hour),
        int(minute or 0),
        59 if leap else int(second or 0),
        tzinfo=UTC,
    )
    at_ms = (instant - _EPOCH) // timedelta(milliseconds=1) + (SECOND_MS if leap else 0)
    if fraction:
        at_ms += -(-int(fraction) * SECOND_MS // 10 ** len(fraction))
    if sign:
        hours, minutes = int(ahead), int(ahead_minutes or 0)
        if hours > 23 or minutes > 59:
            raise ValueError("there is no such zone")
        ahead_ms = hours * HOUR_MS + minutes * MINUTE_MS
        at_ms += -ahead_ms if sign == "+" else ahead_ms
    return at_ms


def parse_duration_ms(text: str, field: str = "delay") -> int:
    """Read a duration like `90s`, `1h30m` or `250ms`, biggest unit first; raises `Invalid`."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise Invalid(
            field, "is not a duration like 250ms, 90s, 1h30m or 2w (units w d h m s ms, in this order)"
        )
    return sum(int(count) * unit for count, unit in zip(match.groups(), _UNITS_MS, strict=True) if count)


def go_duration_ms(text: str) -> int | None:
    """Read a duration as Go writes it (`1m30s`, `-1.5h`), rounded up to milliseconds; None for any other text."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    parts = list(_GO_PART.finditer(rest))
    if not parts or "".join(part.group() for part in parts) != rest or len(rest) > _MAX_GO_CHARACTERS:
        return None
    total = sum((Fraction(part[1].rstrip(".")) * _GO_UNIT_MS[part[2]] for part in parts), Fraction())
    return sign * -(-total.numerator // total.denominator)


def format_instant(at_ms: int) -> str:
    """An instant as RFC 3339 in UTC, to the millisecond."""
    return f"{_second(at_ms // SECOND_MS)}.{at_ms % SECOND_MS:03d}Z"


def format_second(at_s: int) -> str:
    """A second, counted from 1970, as RFC 3339 in UTC."""
    return f"{_second(at_s)}Z"


def format_second_in(at_s: int, zone: tzinfo) -> str:
    """A second, counted from 1970, as clocks in a zone show it, with its offset."""
    return datetime.fromtimestamp(at_s, zone).isoformat()


def format_go_instant(at_ms: int) -> str:
    """An instant as Go writes RFC 3339: in whole seconds, rounded up so that nothing expires early."""
    return format_second(min(-(-at_ms // SECOND_MS), LAST_S))


def format_day(day: int) -> str:
    """A day in UTC, counted from 1970: `2031-05-04`."""
    return _second(day * DAY_MS // SECOND_MS)[:10]


@lru_cache(maxsize=4096)
def _second(at_s: int) -> str:
    # Every schedule is answered with its due instant, and most of those are close to each other.
    return datetime.fromtimestamp(at_s, UTC).isoformat()[:19]
