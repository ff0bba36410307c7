"""Schedules that repeat: `R5/PT30M`, `@every 90s`, `@daily`, or cron with seconds first, as Dapr's jobs write it. Pure.

Cron is read in UTC: second, minute, hour, day of the month, month, day of the week; with five fields the second is 0. Each
is `*`, a number, a name (`jan`, `mon`), a range, a list, any of them with a step (`*/5`). If both days are restricted, one
of them is enough.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.outlets.dapr.times import after_duration_ms, go_duration_ms

FIELD: Final = "scheduledRepeat"
_ISO: Final = re.compile(r"R(\d{0,9})/(P\w+)", re.ASCII)
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST: Final = 8 * 366
"""Days that are looked through for the next match: the 29th of February can be eight years away."""
LEAST_MS: Final = 1_000
"""Nothing repeats faster than this."""


class Repeat(Struct, frozen=True):
    """A schedule that repeats."""

    text: str
    """The schedule without its count."""
    left: int | None
    """How many are still to come; None: for ever."""
    after: Callable[[int], int | None]
    """The next occurrence after an instant, or after one at that instant; None if there is none."""
    step_ms: int | None = None
    """The time between two, where that is always the same."""
    on_clock: bool = False
    """Whether the occurrences are instants of the calendar, whatever came before."""

    def next_ms(self, due_at_ms: int, now_ms: int) -> int | None:
        """The occurrence after one that was due at an instant. What was missed meanwhile is passed over."""
        if self.on_clock:
            return self.after(max(due_at_ms, now_ms))
        if self.step_ms is not None:
            return due_at_ms + self.step_ms * max(1, (now_ms - due_at_ms) // self.step_ms + 1)
        at_ms = self.after(due_at_ms)
        while at_ms is not None and at_ms <= now_ms:
            at_ms = self.after(at_ms)
        return at_ms

    def written(self) -> str:
        """What is still to come after the next occurrence, as text."""
        return self.text if self.left is None else f"R{self.left - 1}/{self.text}"


def repeat_of(text: str) -> Repeat:
    """Read a schedule; raises `Invalid`."""
    if not text or len(text) > 200:
        raise Invalid(FIELD, "is empty or too long for a schedule")
    if found := _ISO.fullmatch(text):
        return _every(found[2], int(found[1]) if found[1] else None)
    if text[0] == "P":
        return _every(text, None)
    if text.startswith("@every "):
        step_ms = _checked(lambda: go_duration_ms(text.removeprefix("@every ")))
        return Repeat(text, None, lambda at_ms: at_ms + step_ms, step_ms)
    return Repeat(text, None, _cron(_NAMED.get(text, text)), on_clock=True)


def _every(text: str, left: int | None) -> Repeat:
    """After an ISO-8601 duration; of one with months and years the length is not always the same."""
    step_ms = _checked(lambda: after_duration_ms(text, 0))
    by_calendar = any(unit in text.partition("T")[0] for unit in "YM")
    return Repeat(text, left, lambda at_ms: after_duration_ms(text, at_ms), None if by_calendar else step_ms)


def _checked(read: Callable[[], int]) -> int:
    try:
        step_ms = read()
    except Invalid as error:
        raise Invalid(FIELD, error.reason) from None
    if step_ms < LEAST_MS:
        raise Invalid(FIELD, "repeats faster than once a second")
    return step_ms


def _cron(text: str) -> Callable[[int], int | None]:
    parts = text.lower().split()
    if len(parts) == 5:
        parts = ["0", *parts]
    if len(parts) != 6:
        raise Invalid(
            FIELD, f"{text!r} is no schedule such as R5/PT30M, @every 90s, @daily or 0 30 8 * * mon-fri"
        )
    seconds, minutes, hours, days, months, weekdays = (
        _numbers(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    weekdays = {day % 7 for day in weekdays}
    either = parts[3][0] not in "*?" and parts[5][0] not in "*?"

    def fits(day: datetime) -> bool:
        if day.month not in months:
            return False
        of_month, of_week = day.day in days, (day.weekday() + 1) % 7 in weekdays
        return of_month or of_week if either else of_month and of_week

    def after(at_ms: int) -> int | None:
        at = (_EPOCH + timedelta(milliseconds=at_ms)).replace(microsecond=0) + timedelta(seconds=1)
        day = at.replace(hour=0, minute=0, second=0)
        for _ in range(_LONGEST):
            if fits(day):
                for hour in sorted(hours):
                    for minute in sorted(minutes):
                        if day.replace(hour=hour, minute=minute, second=59) < at:
                            continue
                        for second in sorted(seconds):
                            if (found := day.replace(hour=hour, minute=minute, second=second)) >= at:
                                return (found - _EPOCH) // timedelta(milliseconds=1)
            day += timedelta(days=1)
        return None

    if after(0) is None:
        raise Invalid(FIELD, f"{text!r} names a day that there never is")
    return after


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
