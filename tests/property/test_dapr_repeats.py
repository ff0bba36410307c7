"""The next occurrence of a schedule that repeats: the same as a walk from one to the next, and never a long one."""

import sys
import time
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, MAX_DELAY_MS
from tarry.outlets.dapr.repeats import DaprRepeat, repeat_of
from tarry.outlets.dapr.times import due_at_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW_MS = 1_795_000_000_000
"""In November 2026."""
MOST_CALLS = 1_500
"""Calls of functions that one look may take; the walk from 1970 in steps of a second took more than a thousand million."""

PARTS = st.sampled_from([0, 0, 0, 1, 2, 5, 13, 40])


@st.composite
def durations(draw: st.DrawFn) -> str:
    years, months, weeks, days, hours, minutes, seconds = (draw(PARTS) for _ in range(7))
    named = [(years, "Y"), (months, "M"), (weeks, "W"), (days, "D")]
    timed = [(hours, "H"), (minutes, "M"), (seconds, "S")]
    # A part that is 0 may be written or left out: both must mean the same.
    written = "".join(f"{n}{unit}" for n, unit in named if n or draw(st.booleans()))
    clock = "".join(f"{n}{unit}" for n, unit in timed if n or draw(st.booleans()))
    return f"P{written}{'T' + clock if clock else ''}"


@st.composite
def cron_fields(draw: st.DrawFn, least: int, most: int) -> str:
    low = draw(st.integers(least, most))
    high = draw(st.integers(low, most))
    step = draw(st.integers(1, most))
    return draw(
        st.sampled_from(["*", "*", f"{low}", f"{low}-{high}", f"*/{step}", f"{low}/{step}", f"{low},{high}"])
    )


CRONS = st.builds(
    lambda *parts: " ".join(parts),
    cron_fields(0, 59), cron_fields(0, 59), cron_fields(0, 23), cron_fields(1, 31), cron_fields(1, 12),
    cron_fields(0, 7),
)  # fmt: skip
SCHEDULES = (
    durations()
    | st.builds("R{}/{}".format, st.sampled_from(["", "1", "999999999"]), durations())
    | st.builds("@every {}{}".format, st.integers(1, 10**6), st.sampled_from(["s", "m", "h", "ms"]))
    | CRONS
)


def accepted(text: str) -> DaprRepeat:
    try:
        return repeat_of(text)
    except Invalid:
        assume(False)
        raise


def counted(repeat: DaprRepeat, due_ms: int, now_ms: int) -> tuple[int | None, int]:
    """The next occurrence, and how many calls it took to find it."""
    calls = 0

    def count(_frame: FrameType, _event: str, _arg: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 10 * MOST_CALLS:
            raise AssertionError(f"{repeat.text} is walked")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = repeat.next_ms(due_ms, now_ms)
    finally:
        sys.setprofile(before)
    return found, calls


@pytest.mark.parametrize("text", ["P0MT1S", "P0YT1S", "P0Y0M0DT1S", "R5/P0MT1S", "P0M1D"])
@pytest.mark.parametrize("back_ms", [0, 8 * DAY_MS, NOW_MS])
def test_a_month_of_none_is_not_walked(text: str, back_ms: int) -> None:
    """The server was held for hours by `P0MT1S` from 1970, and again at each start."""
    repeat = repeat_of(text)
    step_ms = DAY_MS if text == "P0M1D" else 1_000
    began = time.process_time()
    found, calls = counted(repeat, NOW_MS - back_ms, NOW_MS)
    assert found is not None
    assert NOW_MS < found <= NOW_MS + step_ms
    assert (found - (NOW_MS - back_ms)) % step_ms == 0
    assert calls < 50
    assert time.process_time() - began < 1


@settings(max_examples=300, deadline=None)
@given(SCHEDULES, st.integers(0, NOW_MS), st.integers(0, MAX_DELAY_MS))
def test_however_far_back_it_takes_few_steps(text: str, due_ms: int, passed_ms: int) -> None:
    repeat = accepted(text)
    now_ms = due_ms + passed_ms
    try:
        found, calls = counted(repeat, due_ms, now_ms)
    except Invalid:
        pytest.fail(f"{text} was accepted and has no next occurrence after {due_ms}")
    assert calls < MOST_CALLS
    assert found is not None
    assert found > now_ms


@settings(max_examples=300, deadline=None)
@given(durations(), st.integers(0, NOW_MS), st.integers(0, 40), st.integers(0, 10**9))
def test_the_next_one_is_that_of_a_walk(text: str, due_ms: int, steps: int, more_ms: int) -> None:
    repeat = accepted(text)
    walked = due_ms
    for _ in range(steps):
        walked = due_at_ms(text, walked)
    now_ms = walked + more_ms % (due_at_ms(text, walked) - walked)
    # The instant of an occurrence itself is past when the next one is asked for.
    assert repeat.next_ms(due_ms, now_ms) == due_at_ms(text, walked)


@settings(max_examples=100, deadline=None)
@given(CRONS, st.integers(0, 2 * NOW_MS))
def test_cron_finds_the_first_second_that_fits(text: str, at_ms: int) -> None:
    """By days and then by seconds of one day, each looked at as the fields say."""
    repeat = accepted(text)
    found = repeat.next_ms(at_ms, at_ms)
    assert found is not None
    instant = EPOCH + timedelta(milliseconds=found)
    assert fits(text, instant)
    start = (EPOCH + timedelta(milliseconds=at_ms)).replace(microsecond=0) + timedelta(seconds=1)
    # Of the seconds between none fits: those near it, and one in each of the days before.
    for back_s in range(1, 200):
        earlier = instant - timedelta(seconds=back_s)
        assert earlier < start or not fits(text, earlier)
    for back_days in range(1, 400):
        earlier = instant - timedelta(days=back_days)
        assert earlier < start or not fits(text, earlier)


def fits(text: str, at: datetime) -> bool:
    """Whether an instant fits the fields, read one by one."""
    second, minute, hour, day, month, weekday = text.split()
    whole = (
        (second, at.second, 0, 59),
        (minute, at.minute, 0, 59),
        (hour, at.hour, 0, 23),
        (month, at.month, 1, 12),
    )
    if not all(named(field, value, low, high) for field, value, low, high in whole):
        return False
    of_month = named(day, at.day, 1, 31)
    of_week = named(weekday, at.isoweekday() % 7, 0, 7) or (at.isoweekday() == 7 and named(weekday, 7, 0, 7))
    both = day[0] != "*" and weekday[0] != "*"
    return of_month or of_week if both else of_month and of_week


def named(field: str, value: int, least: int, most: int) -> bool:
    """Whether a field names a value."""
    span, _, step = field.partition("/")
    if "," in span:
        return str(value) in span.split(",")
    low, dash, high = span.partition("-")
    first, last = (
        (least, most) if span == "*" else (int(low), int(high) if dash else most if step else int(low))
    )
    return first <= value <= last and (value - first) % int(step or 1) == 0


def test_a_leap_day_on_one_day_of_the_week_is_found_over_a_century_without() -> None:
    repeat = repeat_of("0 0 0 29 2 */6")
    at_ms = (datetime(2072, 3, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
    found = repeat.next_ms(at_ms, at_ms)
    assert found is not None
    assert (EPOCH + timedelta(milliseconds=found)).strftime("%m-%d") == "02-29"
