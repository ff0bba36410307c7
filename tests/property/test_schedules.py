"""Schedules by the calendar in zones whose clocks are set: the same as a walk over every minute of the wall clock."""

from bisect import bisect_right
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.schedules.civil import Period, date_of, day_of, month_days, weekday
from tarry.core.schedules.cron import Cron
from tarry.core.schedules.rhythm import ByMonths, OnClock, Rhythm, Steady, latest_ms
from tarry.core.schedules.zones import Offset, WallClock

CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    # Half an hour.
    "Australia/Lord_Howe": ("2026-10-03T15:30", "2026-04-04T15:00"),
    # Two hours.
    "Antarctica/Troll": ("2026-03-29T01:00", "2026-10-25T01:00"),
    # At midnight: the day begins at one o'clock.
    "Africa/Cairo": ("2026-04-23T22:00", "2026-10-29T21:00"),
    # A whole day that there never was.
    "Pacific/Apia": ("2011-12-30T10:00",),
    "Asia/Kathmandu": ("2026-03-29T01:00",),
}  # fmt: skip
AROUND_MS = 3 * DAY_MS


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def offset_in(zone: str) -> Offset:
    info = ZoneInfo(zone)

    def offset(at_ms: int) -> int:
        ahead = datetime.fromtimestamp(at_ms / 1000, info).utcoffset()
        assert ahead is not None
        return int(ahead.total_seconds() * 1000)

    return offset


@lru_cache
def shown(zone: str, change: str) -> list[tuple[int, int, datetime]]:
    """Every minute around a change, with what the wall clock shows then, as milliseconds and as a date."""
    info = ZoneInfo(zone)
    start = at(change) - AROUND_MS
    minutes = []
    for at_ms in range(start, start + 2 * AROUND_MS, MINUTE_MS):
        wall = datetime.fromtimestamp(at_ms / 1000, info).replace(tzinfo=None)
        minutes.append((at_ms, int(wall.replace(tzinfo=UTC).timestamp() * 1000), wall))
    return minutes


def fits(text: str, wall: datetime) -> bool:
    minute, hour, day, month, of_week = text.split()
    days = (
        day == "*" or named(day, wall.day, 1, 31),
        of_week == "*" or named(of_week, wall.isoweekday() % 7, 0, 7),
    )
    on_day = any(days) if "*" not in (day[0], of_week[0]) else all(days)
    return (
        on_day
        and named(minute, wall.minute, 0, 59)
        and named(hour, wall.hour, 0, 23)
        and named(month, wall.month, 1, 12)
    )


def named(part: str, value: int, least: int, most: int) -> bool:
    span, _, step = part.partition("/")
    low, high = least, most
    if span != "*":
        first, dash, last = span.partition("-")
        low = int(first)
        high = int(last) if dash else (most if step else low)
    values = range(low, high + 1, int(step or 1))
    return value in values or (most == 7 and value == 0 and 7 in values)


def instants(text: str, zone: str, change: str) -> list[int]:
    """By the rules in words: a minute of the schedule comes as soon as the clock has shown it or passed it, once; and where
    every hour is meant, whenever the clock shows it."""
    found = []
    furthest = None
    for at_ms, wall_ms, wall in shown(zone, change):
        if text.split()[1] == "*":
            if fits(text, wall):
                found.append(at_ms)
            continue
        if furthest is not None and wall_ms > furthest:
            passed = (
                datetime.fromtimestamp(one / 1000, UTC)
                for one in range(furthest + MINUTE_MS, wall_ms + 1, MINUTE_MS)
            )
            if any(fits(text, one) for one in passed):
                found.append(at_ms)
        furthest = wall_ms if furthest is None else max(furthest, wall_ms)
    return found


MINUTES = st.sampled_from(["0", "30", "*/15", "7", "*", "15-45/10", "59"])
HOURS = st.sampled_from(["*", "*", "0", "1", "2", "3", "*/2", "1-3", "23", "12"])
DAYS = st.sampled_from(["*", "*", "*", "29", "1-15", "*/2", "25"])
WEEKDAYS = st.sampled_from(["*", "*", "*", "0", "1-5", "7"])
TEXTS = st.builds(lambda *parts: " ".join(parts), MINUTES, HOURS, DAYS, st.just("*"), WEEKDAYS)
PLACES = st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes])


@settings(max_examples=400, deadline=None)
@given(TEXTS, PLACES, st.integers(-2 * DAY_MS, 2 * DAY_MS))
def test_the_next_instant_is_that_of_a_walk_over_every_minute(
    text: str, place: tuple[str, str], from_ms: int
) -> None:
    zone, change = place
    rhythm = OnClock(Cron(text), offset_in(zone))
    expected = instants(text, zone, change)
    now_ms = at(change) + from_ms
    wanted = expected[bisect_right(expected, now_ms) :][:200]
    found: list[int] = []
    while len(found) < len(wanted):
        next_ms = rhythm.next_ms(0, found[-1] if found else now_ms)
        assert next_ms is not None
        found.append(next_ms)
    assert found == wanted
    if not wanted:
        next_ms = rhythm.next_ms(0, now_ms)
        assert next_ms is not None
        assert next_ms >= at(change) + AROUND_MS


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        # The gap of Berlin, 02:00 to 03:00: the daily one comes at its end, and once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("*/20 2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        # Every hour: none is added and none is missed.
        ("30 * * * *", "Europe/Berlin", "2026-03-28T23:45", ["2026-03-29T00:30", "2026-03-29T01:30"]),
        # The overlap of Berlin, 02:00 to 03:00 twice: the daily one comes the first time.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:15", ["2026-10-25T00:30", "2026-10-25T01:30", "2026-10-25T02:30"]),
        # A day without its first hour, and no day at all.
        ("@daily", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-23T22:00", "2026-04-24T21:00"]),
        ("@daily", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-30T10:00", "2011-12-31T10:00"]),
        ("0 9 29 2 *", "Europe/Berlin", "2026-01-01T00:00", ["2028-02-29T08:00", "2032-02-29T08:00"]),
    ],
)  # fmt: skip
def test_days_on_which_the_clock_is_set(text: str, zone: str, after: str, expected: list[str]) -> None:
    rhythm = OnClock(Cron(text), offset_in(zone))
    now_ms = at(after)
    for instant in expected:
        next_ms = rhythm.next_ms(0, now_ms)
        assert next_ms == at(instant)
        now_ms = next_ms


RHYTHMS = st.one_of(
    st.builds(Steady, st.integers(1, 40 * DAY_MS)),
    st.builds(lambda months, rest: ByMonths(Period(months, rest)), st.integers(1, 30), st.integers(0, 40 * DAY_MS)),
    st.builds(lambda text: OnClock(Cron(text)), TEXTS),
    st.builds(lambda text: OnClock(Cron(text), offset_in("Europe/Berlin")), TEXTS),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(RHYTHMS, st.integers(0, 60), st.integers(0, 10**10))
def test_the_latest_one_is_the_last_of_a_walk(rhythm: Rhythm, steps: int, more_ms: int) -> None:
    first = rhythm.next_ms(at("2026-01-31T07:00"), at("2026-01-31T07:00"))
    assert first is not None
    walked = [first]
    for _ in range(steps):
        next_ms = rhythm.next_ms(walked[-1], walked[-1])
        assert next_ms is not None
        walked.append(next_ms)
    after = rhythm.next_ms(walked[-1], walked[-1])
    assert after is not None
    now_ms = walked[-1] + more_ms % (after - walked[-1])
    assert latest_ms(rhythm, first, now_ms) == walked[-1]


@given(st.integers(-(10**6), 3 * 10**6))
def test_dates_are_those_of_the_calendar(number: int) -> None:
    year, month, day = date_of(number)
    assert day_of(year, month, day) == number
    if 1 <= year <= 9999:
        there = datetime(year, month, day, tzinfo=UTC)
        assert (there - datetime(1970, 1, 1, tzinfo=UTC)).days == number
        assert weekday(number) == there.isoweekday() % 7
        assert 1 <= day <= month_days(year, month)


def test_a_clock_that_is_never_set_costs_no_search() -> None:
    calls = []

    def offset(at_ms: int) -> int:
        calls.append(at_ms)
        return HOUR_MS

    assert WallClock(offset).first_after(Cron("30 8 * * *"), 0) == 7 * HOUR_MS + 30 * MINUTE_MS
    assert len(calls) < 10
