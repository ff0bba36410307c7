"""Cron: second, minute, hour, day of the month, month, day of the week; with five fields the second is 0.

Each field is `*`, a number, a name (`jan`, `mon`), a range, a list, any of them with a step (`*/5`). If both days are
restricted, one of them is enough. The next time is found by arithmetic: days by the calendar's years and months, the
time of the day by bisection, so that a schedule costs the same however seldom it comes round.

Times here are wall-clock times, as milliseconds since 1970-01-01 00:00 of the same clock; `zones` makes instants of them.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from tarry.core.schedules.civil import LAST_YEAR, date_of, day_of, month_days, split, weekday

_NAMED: Final = {
    "@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *", "@monthly": "0 0 0 1 * *", "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@hourly": "0 0 * * * *",
}  # fmt: skip
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
MAX_CHARACTERS: Final = 200
YEARS: Final = 40
"""Every day that there ever is comes within so many years: the rarest, a 29th of February on one day of the week, can be
forty years away, over a century that has none."""


class Cron:
    """A schedule by the calendar; raises `Invalid` for a text that is none."""

    def __init__(self, text: str, field: str = "cron") -> None:
        if len(text) > MAX_CHARACTERS:
            raise Invalid(field, f"is longer than {MAX_CHARACTERS} characters")
        parts = _NAMED.get(text, text).lower().split()
        if len(parts) == 5:
            parts = ["0", *parts]
        if len(parts) != 6:
            raise Invalid(
                field,
                f"{text!r} is no cron schedule: write minute, hour, day of the month, month and day of the week, as in"
                " 30 8 * * mon-fri, or @daily",
            )
        seconds, minutes, hours, days, months, weekdays = (
            sorted(_numbers(part, field, *of)) for part, of in zip(parts, _FIELDS, strict=True)
        )
        self.every_hour = parts[2] in ("*", "?")
        """Whether the hour is not restricted: then it repeats by the hour, and not at times of the day."""
        self._times = (hours, minutes, seconds)
        self._days, self._months = days, months
        self._weekdays = frozenset(day % 7 for day in weekdays)
        self._either = parts[3][0] not in "*?" and parts[5][0] not in "*?"
        if self.after(0) is None:
            raise Invalid(field, f"{text!r} names a day that there never is")

    def after(self, at_ms: int) -> int | None:
        """The first wall-clock time after another; None if there is none."""
        first, of_day_ms = split((at_ms // SECOND_MS + 1) * SECOND_MS)
        hour, rest_ms = divmod(of_day_ms, HOUR_MS)
        now = (hour, rest_ms // MINUTE_MS, rest_ms % MINUTE_MS // SECOND_MS)
        for day in self._days_from(first):
            time = _time_from(self._times, now if day == first else (0, 0, 0))
            if time is not None:
                hour, minute, second = time
                return day * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS
        return None

    def _days_from(self, first: int) -> Iterator[int]:
        """The days that fit, from one on, of as many years as it can take."""
        first_year, first_month, _ = date_of(first)
        for year in range(first_year, min(first_year + YEARS, LAST_YEAR) + 1):
            for month in self._months:
                if (year, month) < (first_year, first_month):
                    continue
                last, before = month_days(year, month), day_of(year, month, 1) - 1
                for number in range(1, last + 1) if self._either else self._days:
                    if number <= last and before + number >= first and self._fits(number, before + number):
                        yield before + number

    def _fits(self, of_month: int, day: int) -> bool:
        in_month, in_week = of_month in self._days, weekday(day) in self._weekdays
        return in_month or in_week if self._either else in_month and in_week


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


def _numbers(text: str, field: str, what: str, least: int, most: int, names: dict[str, int]) -> set[int]:
    """The numbers that one part of a schedule names."""
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
            raise Invalid(field, f"{part!r} is not a {what}, which is between {least} and {most}")
        found.update(range(low, high + 1, by or 1))
    return found
