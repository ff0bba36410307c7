"""Values of `scheduledSendTime`; no other value is ever taken for now."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Invalid
from tarry.outlets.dapr.times import due_at_ms

NOW_MS = 1_700_000_000_123
SEED_MS = 2_393_500_530_000
"""2045-11-05T08:15:30-05:00, the proposal's own example."""


@pytest.mark.parametrize(
    "text",
    [
        "2045-11-05T08:15:30-05:00", "2045-11-05T13:15:30Z", "2045-11-05T13:15:30+00:00", "2045-11-05t13:15:30z",
        "20451105T131530Z", "2045-11-05T14:15:30+01", "2045-11-05T14:15:30+0100", "2045-11-05 13:15:30Z",
        "2045-W44-7T13:15:30Z", "2045-11-05T13:15:30.000Z", "2045-11-05T13:15:30,0Z",
        # A plus that was not encoded in the query comes as a space.
        "2045-11-05T14:15:30 01:00", "2045-11-05T14:15:30 0100", "2045-11-05T14:15:30.0 01",
        "2045-11-05 14:15:30 01:00",
    ],
)  # fmt: skip
def test_an_instant_is_read_with_its_zone(text: str) -> None:
    assert due_at_ms(text, NOW_MS) == SEED_MS


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("PT30M", 1_800_000), ("PT0S", 0), ("P1D", 86_400_000), ("P2W", 14 * 86_400_000), ("P1DT2H3M4S", 93_784_000),
        ("PT1.5S", 1_500), ("PT0.0001S", 1), ("P1W2DT1S", 9 * 86_400_000 + 1_000),
        ("2h30m", 9_000_000), ("1.5s", 1_500), ("500ms", 500), ("1h0m0.5s", 3_600_500), ("+5s", 5_000), (" 5s", 5_000),
        ("0s", 0), ("0", 0), ("1us", 1), ("1ns", 1), (".5s", 500), ("1m1m", 120_000), ("2.s", 2_000),
    ],
)  # fmt: skip
def test_a_duration_counts_from_now(text: str, after_ms: int) -> None:
    assert due_at_ms(text, NOW_MS) == NOW_MS + after_ms


@pytest.mark.parametrize(
    ("start", "text", "end"),
    [
        ("2026-01-15T10:00:00Z", "P1M", "2026-02-15T10:00:00Z"),
        ("2026-01-31T10:00:00Z", "P1M", "2026-03-03T10:00:00Z"),
        ("2024-02-29T10:00:00Z", "P1Y", "2025-03-01T10:00:00Z"),
        ("2026-11-30T10:00:00Z", "P1Y3M", "2028-03-01T10:00:00Z"),
        ("2026-12-31T10:00:00Z", "P1M1DT1H", "2027-02-01T11:00:00Z"),
    ],
)
def test_months_and_years_go_by_the_calendar_as_in_go(start: str, text: str, end: str) -> None:
    assert due_at_ms(text, due_at_ms(start, 0)) == due_at_ms(end, 0)


def test_a_past_instant_is_given_as_it_is() -> None:
    assert due_at_ms("2020-01-01T00:00:00Z", NOW_MS) < NOW_MS


def test_a_fraction_of_a_millisecond_is_rounded_up() -> None:
    assert due_at_ms("2045-11-05T13:15:30.0000001Z", NOW_MS) == SEED_MS + 1
    assert due_at_ms("2016-12-31T23:59:60Z", NOW_MS) == due_at_ms("2017-01-01T00:00:00Z", NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "now", "tomorrow", "true", "null", "1730000000", "1730000000000", "5", "1.5", "-1", "-5s", "-PT5S",
        # Dapr takes this one for now.
        "PT30", "P", "PT", "P30", "PT5", "P1H", "PT1D", "P1DT", "P-1D", "PT1,S", "P1.5D", "pt5s", "P1D ",
        "R5/PT30M", "R/PT1M", "R1/P1D", "1d", "1w", "2 h", "2h 30m", "1h30", "h", "1e3s", "٥s",
        "2045-11-05", "2045-11-05T08:15:30", "2045-11-05 08:15:30", "2045-11-05T08:15", "2045-11-05 08:15",
        "08:15:30Z", "2045-13-05T08:15:30Z", "2045-02-30T08:15:30Z", "2045-11-05T25:15:30Z", "2045-11-05T24:00:00Z",
        "2045-11-05T08:60:30Z", "2045-11-05T08:15:61Z", "2045-11-05T08:15:30+25:00", "2045-11-05T08:15:30+05:60",
        "2045-11-05T08:15:30 EST", "2045-11-05T08:15:30Z ", " 2045-11-05T08:15:30Z", "2045-11-05T08:15:30ZZ",
        "2045-11-05T08:15:30.Z", "12045-11-05T08:15:30Z", "45-11-05T08:15:30Z", "2045/11/05T08:15:30Z",
        "05.11.2045 08:15", "Sun, 05 Nov 2045 08:15:30 GMT", "2045-11-05T08:15:30Z\n", "2045-W54-1T00:00:00Z",
        "٢٠٤٥-11-05T08:15:30Z", "P999999Y", "P99999999999999999W", "9" * 100 + "h",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_reason(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        due_at_ms(text, NOW_MS)
    assert caught.value.field == "scheduledSendTime"
    assert len(caught.value.reason) > 5


def test_a_time_without_a_zone_says_what_to_add() -> None:
    with pytest.raises(Invalid, match=r"no zone: add Z, or an offset such as \+02:00 \(encoded as %2B02:00"):
        due_at_ms("2045-11-05T08:15:30", NOW_MS)


@given(st.text(max_size=70))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert due_at_ms(text, NOW_MS) is not None


@given(st.datetimes(timezones=st.timezones()))
def test_every_instant_that_python_writes_is_read(at: datetime) -> None:
    offset = at.utcoffset()
    if offset is None or offset % timedelta(minutes=1):
        return
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    assert due_at_ms(at.isoformat(), NOW_MS) == -(-since // timedelta(milliseconds=1))
