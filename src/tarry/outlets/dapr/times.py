"""Instants as `scheduledSendTime` writes them: what Dapr's reminders accept, without their quirks.

In this order: an ISO-8601 duration (`PT30M`), a duration as Go writes it (`2h30m`), an ISO-8601 date and time with its
zone. Pure; raises `Invalid`, and never takes what it does not understand for "now". A fraction of a millisecond is rounded
up, so that nothing is early.
"""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, HOUR_MS, MAX_DELAY_MS, MINUTE_MS
from tarry.core.schedules.civil import Period
from tarry.core.time.times import go_duration_ms, iso8601_ms

FIELD: Final = "scheduledSendTime"

_DURATION: Final = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?"
    r"(T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:[.,]\d+)?)S)?)?",
    re.ASCII,
)
_GO_DURATION: Final = re.compile(r"\+?(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LOST_PLUS: Final = re.compile(r"(?<=[T\d]) (?=\d\d(?::?\d\d)?$)", re.ASCII)
_MAX_DIGITS: Final = 64
FURTHEST_MS: Final = MAX_DELAY_MS
"""A longer duration is refused as it is read; how far away a message may really be is the engine's to say."""


def due_at_ms(text: str, now_ms: int) -> int:
    """The instant that is meant, in milliseconds since 1970; raises `Invalid`.

    A `+` that arrived as a space, as it does in a query that was not encoded, is taken for what it was.
    """
    if not text:
        raise Invalid(FIELD, "is empty; give a time such as PT30M")
    if len(text) > _MAX_DIGITS:
        raise Invalid(FIELD, f"{text[:_MAX_DIGITS]!r}… is too long for a time")
    if text[0] == "R":
        raise Invalid(FIELD, f"{text!r} is a repetition; give it as the metadata field scheduledRepeat")
    if text[0] == "P":
        return span_of(text).after_ms(now_ms, FIELD)
    if text[0] == "-":
        raise Invalid(FIELD, f"{text!r} is a negative delay")
    if _GO_DURATION.match(text) or (text[0] == " " and _GO_DURATION.match(text[1:])):
        return now_ms + delay_ms_of(text.removeprefix(" ").removeprefix("+"))
    if text == "0":
        return now_ms
    return _instant_ms(text)


def span_of(text: str) -> Period:
    """Read an ISO-8601 duration; raises `Invalid`."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise Invalid(FIELD, f"{text!r} is not an ISO-8601 duration such as PT30M or P1DT12H")
    years, months, weeks, days, _, hours, minutes, seconds = found.groups()
    rest_ms = (int(weeks or 0) * 7 + int(days or 0)) * DAY_MS + int(hours or 0) * HOUR_MS
    rest_ms += int(minutes or 0) * MINUTE_MS + _up(Decimal((seconds or "0").replace(",", ".")) * 1_000)
    span = Period(int(years or 0) * 12 + int(months or 0), rest_ms)
    if span.months * 28 * DAY_MS + span.rest_ms > FURTHEST_MS:
        raise _too_far(text)
    return span


def _too_far(text: str) -> Invalid:
    return Invalid(FIELD, f"{text!r} is further away than anything can be, which is a hundred years")


def delay_ms_of(text: str) -> int:
    """Read a delay as Go writes a duration; raises `Invalid`."""
    after_ms = go_duration_ms(text)
    if after_ms is None or after_ms < 0:
        raise Invalid(FIELD, f"{text!r} is not a duration such as 2h30m, 1.5s or 500ms")
    if after_ms > FURTHEST_MS:
        raise _too_far(text)
    return after_ms


@lru_cache(maxsize=4096)
def _instant_ms(text: str) -> int:
    try:
        at_ms = iso8601_ms(_LOST_PLUS.sub("+", text))
    except ValueError as error:
        raise Invalid(FIELD, f"{text!r} is no instant: {error}") from None
    if at_ms is None:
        raise Invalid(FIELD, f"{text!r} is not a time such as 2045-11-05T08:15:30-05:00, PT30M or 2h30m")
    return at_ms


def _up(milliseconds: Decimal) -> int:
    return int(milliseconds.to_integral_value(ROUND_CEILING))
