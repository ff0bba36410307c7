"""Schedules that repeat: `R5/PT30M`, `@every 90s`, `@daily`, or cron, as Dapr's jobs write it. Pure.

The next occurrence is reckoned and not walked to: what somebody chose decides neither how many steps that takes nor how
long the server's thread is at it, however far back the last occurrence lies.
"""

import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_DELAY_MS
from tarry.core.schedules.cron import Cron
from tarry.core.schedules.rhythm import ByMonths, OnClock, Rhythm, Steady
from tarry.outlets.dapr.times import delay_ms_of, span_of

FIELD: Final = "scheduledRepeat"
_ISO: Final = re.compile(r"R(\d{0,9})/(P[^/]+)", re.ASCII)
MAX_SCHEDULE_CHARACTERS: Final = 200
LEAST_MS: Final = 1_000
"""Nothing repeats faster than this."""


class DaprRepeat(Struct, frozen=True):
    """A schedule that repeats."""

    text: str
    """The schedule without its count."""
    left: int | None
    """How many are still to come; None: for ever."""
    rhythm: Rhythm

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The occurrence after one that was due at an instant. What was missed meanwhile is passed over."""
        return self.rhythm.next_ms(due_at_ms, now_ms)

    def written(self) -> str:
        """The repeat that is left after the next occurrence, as text."""
        return self.text if self.left is None else f"R{self.left - 1}/{self.text}"


def repeat_of(text: str) -> DaprRepeat:
    """Read a schedule; raises `Invalid`."""
    if not 0 < len(text) <= MAX_SCHEDULE_CHARACTERS:
        raise Invalid(
            FIELD, f"is empty, or longer than the {MAX_SCHEDULE_CHARACTERS} characters of a schedule"
        )
    if found := _ISO.fullmatch(text):
        return DaprRepeat(found[2], int(found[1]) if found[1] else None, _every(found[2]))
    if text[0] == "P":
        return DaprRepeat(text, None, _every(text))
    if text.startswith("@every "):
        return DaprRepeat(
            text, None, Steady(_checked(text, lambda: delay_ms_of(text.removeprefix("@every "))))
        )
    if text[0] != "@" and len(text.split()) not in (5, 6):
        raise Invalid(
            FIELD, f"{text!r} is no schedule such as R5/PT30M, @every 90s, @daily or 0 30 8 * * mon-fri"
        )
    return DaprRepeat(text, None, OnClock(Cron(text, FIELD)))


def _every(text: str) -> Rhythm:
    """After an ISO-8601 duration; of one with months and years the length is not always the same."""
    step_ms = _checked(text, lambda: span_of(text).after_ms(0))
    span = span_of(text)
    return ByMonths(span) if span.months else Steady(step_ms)


def _checked(text: str, read: Callable[[], int]) -> int:
    """A step in milliseconds, if anything can be that far apart."""
    try:
        step_ms = read()
    except Invalid as error:
        raise Invalid(FIELD, error.reason) from None
    if not LEAST_MS <= step_ms <= MAX_DELAY_MS:
        raise Invalid(FIELD, f"{text!r} repeats faster than once a second or less than once in a century")
    return step_ms
