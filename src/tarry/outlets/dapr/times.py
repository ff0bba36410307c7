"""Instants as `scheduledSendTime` writes them: what Dapr's reminders accept, without their quirks.

In this order: an ISO-8601 duration (`PT30M`), a duration as Go writes it (`2h30m`), an ISO-8601 date and time with its
zone. Pure; raises `Invalid`, and never takes what it does not understand for "now". A fraction of a millisecond is rounded
up, so that nothing is early.
"""

import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_DELAY_MS

FIELD: Final = "scheduledSendTime"

_DURATION: Final = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII,
)
_GO_DURATION: Final = re.compile(r"\+?(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_GO_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT_MS: Final = {
    "ns": Decimal("0.000001"), "us": Decimal("0.001"), "µs": Decimal("0.001"), "μs": Decimal("0.001"),
    "ms": Decimal(1), "s": Decimal(1_000), "m": Decimal(60_000), "h": Decimal(3_600_000),
}  # fmt: skip
_INSTANT: Final = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d|\d{8}|\d{4}-W\d\d-\d|\d{4}W\d{3})[Tt ]"
    r"(?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"(?P<zone>[Zz]|(?P<sign>[+\-−])(?P<ahead>\d\d)(?::?(?P<ahead_minutes>\d\d))?)?",
    re.ASCII,
)
_LOST_PLUS: Final = re.compile(r"(?<=[T\d]) (?=\d\d(?::?\d\d)?$)", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_DIGITS: Final = 64


def due_at_ms(text: str, now_ms: int) -> int:
    """The instant that is meant, in milliseconds since 1970; raises `Invalid`.

    A `+` that arrived as a space, as it does in a query that was not encoded, is taken for what it was.
    """
    if not text:
        raise Invalid(FIELD, "is empty")
    if len(text) > _MAX_DIGITS:
        raise Invalid(FIELD, "is too long for a time")
    if text[0] == "R":
        raise Invalid(FIELD, "is a repetition; give it as the metadata field scheduledRepeat")
    if text[0] == "P":
        return after_duration_ms(text, now_ms)
    if text[0] == "-":
        raise Invalid(FIELD, "is a negative delay")
    if _GO_DURATION.match(text) or (text[0] == " " and _GO_DURATION.match(text[1:])):
        return now_ms + go_duration_ms(text.removeprefix(" ").removeprefix("+"))
    if text == "0":
        return now_ms
    return _instant_ms(text)


def after_duration_ms(text: str, from_ms: int) -> int:
    """The instant an ISO-8601 duration after another; years and months go by the calendar, in UTC."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise Invalid(FIELD, f"{text} is not an ISO-8601 duration such as PT30M or P1DT12H")
    years, months, weeks, days, _, hours, minutes, seconds = found.groups()
    if any(len(part) > 12 for part in found.groups()[:4] if part):
        raise Invalid(FIELD, "is further away than anything can be")
    at_ms = _add_months_ms(from_ms, int(years or 0) * 12 + int(months or 0))
    at_ms += (int(weeks or 0) * 7 + int(days or 0)) * 86_400_000
    at_ms += int(hours or 0) * 3_600_000 + int(minutes or 0) * 60_000
    return at_ms + _up(Decimal((seconds or "0").replace(",", ".")) * 1_000)


def _add_months_ms(from_ms: int, months: int) -> int:
    """So many months later. A day that the month has not runs over into the next one, as in Go."""
    if not months:
        return from_ms
    at = _EPOCH + timedelta(milliseconds=from_ms)
    years, month = divmod(at.month - 1 + months, 12)
    if at.year + years > 9999 or months * 28 * 86_400_000 > 2 * MAX_DELAY_MS:
        raise Invalid(FIELD, "is further away than anything can be")
    over = max(0, at.day - monthrange(at.year + years, month + 1)[1])
    moved = at.replace(year=at.year + years, month=month + 1, day=at.day - over) + timedelta(days=over)
    return _ms_of(moved)


def go_duration_ms(text: str) -> int:
    """A duration as Go writes it; raises `Invalid`."""
    parts = _GO_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise Invalid(FIELD, f"{text} is not a duration such as 2h30m, 1.5s or 500ms")
    return _up(sum((Decimal(number) * _UNIT_MS[unit] for number, unit in parts), Decimal(0)))


@lru_cache(maxsize=4096)
def _instant_ms(text: str) -> int:
    found = _INSTANT.fullmatch(_LOST_PLUS.sub("+", text))
    if found is None:
        raise Invalid(FIELD, f"{text!r} is not a time such as 2045-11-05T08:15:30-05:00, PT30M or 2h30m")
    if found["zone"] is None:
        raise Invalid(FIELD, "has no zone: add Z, or an offset such as +02:00 (encoded as %2B02:00 in a URL)")
    try:
        day = date.fromisoformat(found["date"])
        hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
        # A leap second is the beginning of the next minute.
        leap = second == 60
        at = datetime(day.year, day.month, day.day, hour, minute, 59 if leap else second, tzinfo=UTC)
        ahead_hours, ahead_minutes = int(found["ahead"] or 0), int(found["ahead_minutes"] or 0)
        if ahead_hours > 23 or ahead_minutes > 59:
            raise ValueError("the offset is no offset")
    except ValueError as error:
        raise Invalid(FIELD, f"{text!r} is no date and time that there is: {error}") from None
    ahead_ms = (ahead_hours * 60 + ahead_minutes) * 60_000
    fraction_ms = 1_000 if leap else _up(Decimal(f"0.{found['fraction'] or 0}") * 1_000)
    return _ms_of(at) + fraction_ms + (ahead_ms if found["sign"] in ("-", "−") else -ahead_ms)


def _ms_of(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _up(milliseconds: Decimal) -> int:
    return int(milliseconds.to_integral_value(ROUND_CEILING))
