"""A stretch of time by the calendar: months, whose lengths differ, and milliseconds."""

from typing import Final, NamedTuple

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS
from tarry.core.schedules.civil import date_of, day_of, month_days, split

LAST_YEAR: Final = 9998
"""The last year in which anything can be due."""


class Period(NamedTuple):
    """Months by the calendar, in UTC, and the rest, which is always equally long."""

    months: int
    rest_ms: int

    def after_ms(self, from_ms: int, field: str = "every") -> int:
        """The instant so long after another; raises `Invalid`. A day that the month lacks runs over into the next, as in Go."""
        if not self.months:
            return from_ms + self.rest_ms
        number, of_day_ms = split(from_ms)
        year, month, day = date_of(number)
        years, month = divmod(month - 1 + self.months, 12)
        year, month = year + years, month + 1
        if year > LAST_YEAR:
            raise Invalid(field, f"{self.months} months are further away than anything can be")
        over = max(0, day - month_days(year, month))
        return (day_of(year, month, day - over) + over) * DAY_MS + of_day_ms + self.rest_ms
