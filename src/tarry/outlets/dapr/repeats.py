"""Schedules that repeat: `R5/PT30M`, `@every 90s`, `@daily`, or cron, as Dapr's jobs write it. Pure.

The next occurrence is reckoned and not walked to: what somebody chose decides neither how many steps that takes nor how
long the server's thread is at it, however far back the last occurrence lies.
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, MAX_DELAY_MS
from tarry.outlets.dapr.cron import FIELD, Cron
from tarry.outlets.dapr.times import Span, delay_ms_of, span_of

_ISO: Final = re.compile(r"R(\d{0,9})/(P[^/]+)", re.ASCII)
_NAMED: Final = {
    "@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *", "@monthly": "0 0 0 1 * *", "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@hourly": "0 0 * * * *",
}  # fmt: skip
LEAST_MS: Final = 1_000
"""Nothing repeats faster than this."""
STEPS: Final = 48
"""So many occurrences are walked over one by one: four years of months, in which a 31st may become a 3rd."""


class Rhythm(Protocol):
    """When the occurrences are."""

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The first occurrence after now of those that follow one; None if there is none."""


class Repeat(Struct, frozen=True):
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


class Steady(Struct, frozen=True):
    """Occurrences that are always equally far from each other."""

    step_ms: int

    def next_ms(self, due_at_ms: int, now_ms: int) -> int:
        """So many whole steps later that it is after now."""
        return due_at_ms + self.step_ms * max(1, (now_ms - due_at_ms) // self.step_ms + 1)


class ByMonths(Struct, frozen=True):
    """Occurrences that are months apart, and perhaps some days and hours more."""

    span: Span

    def next_ms(self, due_at_ms: int, now_ms: int) -> int:
        """The first one after now, from an occurrence near it.

        A day that a month has not runs over into the next, and the occurrences after it are on that other day. So the
        last steps are taken one by one; of those before them only the months are counted.
        """
        at_ms = due_at_ms
        longest_ms = self.span.months * 31 * DAY_MS + self.span.rest_ms
        while (steps := (now_ms - at_ms) // longest_ms) > STEPS:
            # No step is longer, so that this passes nothing over that is still to come.
            at_ms = Span(steps * self.span.months, steps * self.span.rest_ms).after_ms(at_ms)
        at_ms = self.span.after_ms(at_ms)
        while at_ms <= now_ms:
            at_ms = self.span.after_ms(at_ms)
        return at_ms


class OnClock(Struct, frozen=True):
    """Occurrences at instants of the calendar, whatever came before."""

    cron: Cron

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The first instant after now, and after the one before."""
        return self.cron.after(max(due_at_ms, now_ms))


def repeat_of(text: str) -> Repeat:
    """Read a schedule; raises `Invalid`."""
    if not text or len(text) > 200:
        raise Invalid(FIELD, "is empty or too long for a schedule")
    if found := _ISO.fullmatch(text):
        return Repeat(found[2], int(found[1]) if found[1] else None, _every(found[2]))
    if text[0] == "P":
        return Repeat(text, None, _every(text))
    if text.startswith("@every "):
        return Repeat(text, None, Steady(_checked(text, lambda: delay_ms_of(text.removeprefix("@every ")))))
    return Repeat(text, None, OnClock(Cron(_NAMED.get(text, text))))


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
