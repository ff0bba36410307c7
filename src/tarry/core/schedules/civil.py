"""Dates of the proleptic Gregorian calendar as numbers of days since 1970-01-01, and periods of months.

The algorithms are Howard Hinnant's, "chrono-compatible low-level date algorithms": years begin in March, so that a leap
day is the last of its year.
"""

from typing import Final, NamedTuple

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS

_DAYS_OF_ERA: Final = 146_097
"""Days of 400 years, after which the calendar repeats."""
_EPOCH: Final = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


def day_of(year: int, month: int, day: int) -> int:
    """The number of a date."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * _DAYS_OF_ERA + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH


def date_of(number: int) -> tuple[int, int, int]:
    """Year, month and day of a number."""
    era, day = divmod(number + _EPOCH, _DAYS_OF_ERA)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    of_year = day - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def month_days(year: int, month: int) -> int:
    """How many days a month has."""
    after = (year + 1, 1) if month == 12 else (year, month + 1)
    return day_of(*after, 1) - day_of(year, month, 1)


def weekday(number: int) -> int:
    """The day of the week: 0 is Sunday. The first of January 1970 was a Thursday."""
    return (number + 4) % 7


def split(at_ms: int) -> tuple[int, int]:
    """The number of the day of an instant, and the milliseconds since that day began."""
    return divmod(at_ms, DAY_MS)


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
