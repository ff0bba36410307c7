"""Rhythms: when the occurrences of a repeat are, each found from the one before.

The next occurrence is reckoned and not walked to: what somebody chose decides neither how many steps that takes nor how
long the server's thread is at it, however far back the last occurrence lies.
"""

from typing import Final, Protocol

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS
from tarry.core.schedules.civil import Period
from tarry.core.schedules.cron import Cron
from tarry.core.schedules.zones import Offset, WallClock, utc

STEPS: Final = 48
"""So many occurrences are walked over one by one: four years of months, in which a 31st may become a 3rd."""


class Rhythm(Protocol):
    """When the occurrences are."""

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The first occurrence after now of those that follow one; None if there is none."""


class Steady(Struct, frozen=True):
    """Occurrences that are always equally far from each other: in time that passes, whatever clocks show."""

    step_ms: int

    def next_ms(self, due_at_ms: int, now_ms: int) -> int:
        """So many whole steps later that it is after now."""
        return due_at_ms + self.step_ms * max(1, (now_ms - due_at_ms) // self.step_ms + 1)


class ByMonths(Struct, frozen=True):
    """Occurrences that are months apart, and perhaps some days and hours more."""

    period: Period

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The first one after now, from an occurrence near it.

        A day that a month has not runs over into the next, and the occurrences after it are on that other day. So the
        last steps are taken one by one; of those before them only the months are counted.
        """
        at_ms = due_at_ms
        longest_ms = self.period.months * 31 * DAY_MS + self.period.rest_ms
        try:
            while (steps := (now_ms - at_ms) // longest_ms) > STEPS:
                # No step is longer, so that this passes nothing over that is still to come.
                at_ms = Period(steps * self.period.months, steps * self.period.rest_ms).after_ms(at_ms)
            at_ms = self.period.after_ms(at_ms)
            while at_ms <= now_ms:
                at_ms = self.period.after_ms(at_ms)
        except Invalid:
            return None
        return at_ms


class OnClock:
    """Occurrences at times of a wall clock, whatever came before."""

    def __init__(self, cron: Cron, offset: Offset = utc) -> None:
        self._cron = cron
        self._clock = None if offset is utc else WallClock(offset)

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The first instant after now, and after the one before."""
        after_ms = max(due_at_ms, now_ms)
        return (
            self._cron.after(after_ms)
            if self._clock is None
            else self._clock.first_after(self._cron, after_ms)
        )


def latest_ms(rhythm: Rhythm, due_at_ms: int, now_ms: int) -> int:
    """The last occurrence up to now, of one that has passed and of those that follow it: found by halves."""
    low_ms, high_ms = due_at_ms, now_ms
    while low_ms < high_ms:
        middle_ms = (low_ms + high_ms) // 2
        next_ms = rhythm.next_ms(due_at_ms, middle_ms)
        if next_ms is not None and next_ms <= now_ms:
            low_ms = due_at_ms = next_ms
        else:
            high_ms = middle_ms
    return due_at_ms
