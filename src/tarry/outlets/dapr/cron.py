"""Cron in UTC: second, minute, hour, day of the month, month, day of the week; with five fields the second is 0. Pure.

Each field is `*`, a number, a name (`jan`, `mon`), a range, a list, any of them with a step (`*/5`). If both days are
restricted, one of them is enough. The next instant is found by arithmetic: days by the calendar's years and months,
the time of the day by bisection, so that a schedule costs the same however seldom it comes round.
"""

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

from tarry.core.errors import Invalid

FIELD: Final = "scheduledRepeat"
_MONTHS: Final = {
    name: at
    for at, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_DAYS: Final = {name: at for at, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("second", 0, 59, {}), ("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day of the month", 1, 31, {}),
    ("month", 1, 12, _MONTHS), ("day of the week", 0, 7, _DAYS),
)  # fmt: skip
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_YEAR: Final = 9998
YEARS: Final = 40
"""Every day that there ever is comes within so many years: the rarest, a 29th of February on one day of the week, can be
forty years away, over a century that has none."""


class Cron:
    """A schedule by the calendar; raises `Invalid` for a text that is none."""

    def __init__(self, text: str) -> None:
        parts = text.lower().split()
        if len(parts) == 5:
            parts = ["0", *parts]
        if len(parts) != 6:
            raise Invalid(
                FIELD, f"{text!r} is no schedule such as R5/PT30M, @every 90s, @daily or 0 30 8 * * mon-fri"
            )
        seconds, minutes, hours, days, months, weekdays = (
            sorted(_numbers(part, *field)) for part, field in zip(parts, _FIELDS, strict=True)
        )
        self._times = (hours, minutes, seconds)
        self._days, self._months = days, months
        self._weekdays = frozenset(day % 7 for day in weekdays)
        self._either = parts[3][0] not in "*?" and parts[5][0] not in "*?"
        if self.after(0) is None:
            raise Invalid(FIELD, f"{text!r} names a day that there never is")

    def after(self, at_ms: int) -> int | None:
        """The first instant after another; None if there is none."""
        at = (_EPOCH + timedelta(milliseconds=at_ms)).replace(microsecond=0) + timedelta(seconds=1)
        for day in self._days_from(at.date()):
            earliest = (at.hour, at.minute, at.second) if day == at.date() else (0, 0, 0)
            time = _time_from(self._times, earliest)
            if time is not None:
                hour, minute, second = time
                found = datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=UTC)
                return (found - _EPOCH) // timedelta(milliseconds=1)
        return None

    def _days_from(self, first: date) -> Iterator[date]:
        """The days that fit, from one on, of as many years as it can take."""
        for year in range(first.year, min(first.year + YEARS, _LAST_YEAR) + 1):
            for month in self._months:
                if (year, month) < (first.year, first.month):
                    continue
                last = monthrange(year, month)[1]
                for number in range(1, last + 1) if self._either else self._days:
                    if number <= last and (day := date(year, month, number)) >= first and self._fits(day):
                        yield day

    def _fits(self, day: date) -> bool:
        of_month, of_week = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return of_month or of_week if self._either else of_month and of_week


def _time_from(fields: tuple[list[int], ...], earliest: tuple[int, ...]) -> tuple[int, ...] | None:
    """The first time of a day that the fields allow and that is not before another; None if there is none."""
    if not fields:
        return ()
    (field, *rest), (least, *later) = fields, earliest
    at = bisect_left(field, least)
    if at < len(field) and field[at] == least:
        within = _time_from(tuple(rest), tuple(later))
        if within is not None:
            return (least, *within)
        at += 1
    return (field[at], *(one[0] for one in rest)) if at < len(field) else None


def _numbers(text: str, what: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    """The numbers that one field of cron names."""
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span in ("*", "?"):
            low, high = least, most
        else:
            low = names.get(first, int(first) if first.isascii() and first.isdigit() else -1)
            high = names.get(last, int(last) if last.isascii() and last.isdigit() else -1) if dash else low
            if slash and not dash:
                high = most
        by = int(step) if step.isascii() and step.isdigit() else 0
        if not least <= low <= high <= most or (slash and not by):
            raise Invalid(FIELD, f"{part!r} is not a {what}, which is between {least} and {most}")
        found.update(range(low, high + 1, by or 1))
    return found
