import ast
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Invalid
from tarry.core.time.times import (
    format_day,
    format_go_instant,
    format_instant,
    format_second,
    iso8601_ms,
    parse_duration_ms,
    parse_instant_ms,
    rfc3339_ms,
)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:00:00-01:00", 0),
        ("2031-05-04T09:30:00.123Z", 1935653400123),
        ("2031-05-04t09:30:00z", 1935653400000),
        ("2031-05-04 09:30:00+00:00", 1935653400000),
        # Finer than a millisecond: up, never down.
        ("1970-01-01T00:00:00.0000000001Z", 1),
        ("1970-01-01T00:00:00.123000001Z", 124),
        ("1970-01-01T00:00:00.123000000Z", 123),
        ("1970-01-01T00:00:59.9999Z", 60_000),
        # A leap second is the second after :59.
        ("2016-12-31T23:59:60Z", 1483228800000),
    ],
)
def test_instants_are_read(text: str, at_ms: int) -> None:
    assert parse_instant_ms(text) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2031-05-04", "2031-05-04T09:30:00", "2031-13-04T09:30:00Z", "2031-02-30T09:30:00Z",
        "2031-05-04T24:00:00Z", "2031-05-04T09:30:61Z", "2031-05-04T09:30:00+24:00", "2031-05-04T09:30:00+01:60",
        "2031-05-04T09:30Z", "12031-05-04T09:30:00Z", "2031-05-04T09:30:00.Z", "٢٠٣١-05-04T09:30:00Z",
        "1969-12-31T23:59:59Z", "1970-01-01T00:00:00+00:01", "2031-05-04T09:30:00Z\n", "1935653400123",
    ],
)  # fmt: skip
def test_what_is_no_instant_is_refused_by_the_name_of_its_field(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_instant_ms(text, "due_at")
    assert refused.value.field == "due_at"


@given(st.integers(0, 253_402_300_799_999))
def test_an_instant_survives_being_written_and_read(at_ms: int) -> None:
    text = format_instant(at_ms)
    assert parse_instant_ms(text) == at_ms
    assert datetime.fromisoformat(text) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("250ms", 250), ("5s", 5_000), ("1m", 60_000), ("1h30m", 5_400_000), ("1d", 86_400_000),
        ("2w", 1_209_600_000), ("1w1d1h1m1s1ms", 694_861_001), ("0s", 0), ("90m", 5_400_000), ("1m1ms", 60_001),
    ],
)  # fmt: skip
def test_durations_are_read(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    ["", "5", "s", "-5s", "1.5h", "5 s", "1s1m", "1m1m", "1y", "NaN", "1e3s", "٥s", "1" * 16 + "s", "5s\n"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_duration_ms(text)
    assert refused.value.field == "delay"


def test_seconds_and_days_are_written() -> None:
    assert format_go_instant(1_935_653_399_001) == format_second(1_935_653_400) == "2031-05-04T09:30:00Z"
    assert [format_day(day) for day in (0, 1, 22_403)] == ["1970-01-01", "1970-01-02", "2031-05-04"]


# One home

WRITERS: Final = {
    "core/time/times.py": {"fromtimestamp", "isoformat"},
    # A datetime that the program gave, or is given.
    "client/shapes.py": {"isoformat"},
    "pytest/server.py": {"fromtimestamp"},
    # The offset of a zone at an instant.
    "engine/repeats/zone_files.py": {"fromtimestamp"},
    # Labels of a chart, shorter than an instant.
    "pipeline/report/page.py": {"fromtimestamp", "strftime"},
    # The library of NATS takes no other.
    "outlets/dapr/brokers/jetstream/settings.py": {"fromtimestamp"},
}
READERS: Final = {
    "core/time/times.py",
    # A column of a file, with the zone beside it.
    "index/incoming.py",
    # An option of a view, as SQL writes an instant.
    "pipeline/views/filters.py",
}


def uses(path: Path, *names: str) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.attr for node in tree if isinstance(node, ast.Attribute) and node.attr in names}


@pytest.mark.parametrize(
    "text", ["2045-11-05T08:15:30.5+01:00", "2016-12-31T23:59:60.25Z", "1960-02-29T00:00:00Z"]
)
def test_both_forms_read_one_instant_alike(text: str) -> None:
    assert rfc3339_ms(text) == iso8601_ms(text) == iso8601_ms(text.replace(":", "")) is not None


def test_each_form_leaves_what_it_does_not_know() -> None:
    assert rfc3339_ms("20451105T081530Z") is None
    assert iso8601_ms("tomorrow") is None
    for text in ("2045-11-05T08:15:30", "2045-02-30T08:15:30Z", "2045-11-05T08:15:30+24:00"):
        with pytest.raises(ValueError, match=r"zone|day"):
            iso8601_ms(text)


def test_instants_are_written_and_read_in_one_place() -> None:
    package = Path(__file__).parent.parent.parent / "src" / "tarry"
    files = {str(path.relative_to(package)): path for path in package.rglob("*.py")}
    writing = {name: uses(path, "strftime", "isoformat", "fromtimestamp") for name, path in files.items()}
    assert {name: used for name, used in writing.items() if used} == WRITERS
    assert {name for name, path in files.items() if uses(path, "fromisoformat", "strptime")} == READERS
