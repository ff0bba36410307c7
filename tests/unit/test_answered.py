"""Answers by idempotency key: those to lines of one request are kept in pages, and are found as any others."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tarry.core.messages.line_keys import LineKeys, line_key, place_of
from tarry.core.messages.message import Message
from tarry.core.tenants.access import Access
from tarry.core.tenants.holder import Holder
from tarry.doors.http.gate import sender
from tarry.doors.http.messages.arrow import defaults_message
from tarry.doors.http.messages.ndjson import as_columns, as_messages, read_lines
from tarry.doors.http.shapes import BatchDefaults
from tarry.engine.admission.idempotency import fingerprint
from tarry.engine.admission.planner import times_of
from tarry.engine.admission.request_keys import fingerprints, pages_of
from tarry.engine.state.answered import Answered
from tarry.ledger.columns import coded
from tarry.ledger.record import Key
from tarry.registry.registry import Meta, Registry, RepeatRow
from tarry.registry.table import RegistryDamage

ANN = Holder("public/default", "ann")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with closing(Registry(str(tmp_path / "registry.sqlite"))) as registry:
        yield registry


def answer(number: int, due_at_ms: int | None = 7) -> RepeatRow:
    past = due_at_ms is not None and due_at_ms < 9
    return RepeatRow(number.to_bytes(16, "big"), Key(5, number), due_at_ms, past, 9)


def flush(registry: Registry) -> None:
    cut = registry.begin(Meta(bytes(16), 1, Key(5, 0), {}))
    registry.write(cut)
    registry.done(cut)


# Keys of lines


@pytest.mark.parametrize(
    "key", ["", "a", "a:", ":1", "a:0", "a:01", "a:+1", "a: 1", "a:1 ", "a:1234567890", "a:²", "a:٣", "a:1:b"]
)
def test_a_key_that_only_resembles_a_lines_has_no_page(key: str) -> None:
    assert place_of(key) is None


@given(st.text(min_size=1, max_size=6), st.integers(1, 999_999_999))
def test_no_two_lines_have_one_place(request_key: str, number: int) -> None:
    place = place_of(line_key(request_key, number))
    assert place is not None
    assert (place.request, place.page * 64 + place.line + 1) == (request_key, number)
    pages, lines = LineKeys(request_key, np.array([number])).places()
    assert (pages[0], lines[0]) == (place.page, place.line)


# Answers


@pytest.mark.parametrize("flushed", [False, True])
def test_an_answer_is_found_by_its_key_alone_and_whole(registry: Registry, flushed: bool) -> None:
    answered = Answered(registry)
    rows = {
        key: answer(at, None if at == 3 else at + 5)
        for at, key in enumerate(["night", "night:0", "night:1", "night:64", "night:65", "day:1", ":1"])
    }
    rows["day:2"] = RepeatRow(b"", Key(5, 77), 8, True, 9)
    for key, row in rows.items():
        answered.put(ANN, key, row)
    if flushed:
        flush(registry)
    assert {key: answered.get(ANN, key) for key in rows} == rows
    for key in ("night:2", "night:63", "night:66", "day:3", "nigh:1", "day"):
        assert answered.get(ANN, key) is None
    assert answered.get(Holder("public/default", "bob"), "night:1") is None
    assert answered.get(Holder("acme/a", "ann"), "night:1") is None
    assert answered.any_of(ANN, "night", 0, b"\x05\x3f")
    assert not answered.any_of(ANN, "night", 0, b"\x05\x06")
    assert not answered.any_of(ANN, "night", 2, b"\x00")


def test_the_answer_that_came_last_counts(registry: Registry) -> None:
    """As where the first one's retention is over."""
    answered = Answered(registry)
    for number in (1, 2, 3):
        answered.put(ANN, line_key("night", number), answer(number))
    answered.put(ANN, "night:2", answer(9))
    found = [answered.get(ANN, line_key("night", number)) for number in (1, 2, 3)]
    assert found == [answer(1), answer(9), answer(3)]


def test_rows_of_lines_are_found_by_holder_and_page() -> None:
    bob = Holder("public/default", "bob")
    keys = LineKeys("night", np.array([64, 65, 2, 66, 3]))
    found = [
        (page.holder, page.page, page.lines, page.rows.tolist())
        for page in pages_of(keys, coded([ANN, ANN, bob, bob, ANN]))
    ]
    assert found == [
        (ANN, 0, b"\x3f\x02", [0, 4]),
        (ANN, 1, b"\x00", [1]),
        (bob, 0, b"\x01", [2]),
        (bob, 1, b"\x01", [3]),
    ]


def test_answers_of_a_registry_of_format_3_are_found_in_pages(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    rows = {
        key: answer(at) for at, key in enumerate(["night", "night:1", "night:64", "night:65", "night:01"])
    }
    with closing(Registry(str(path))) as registry:
        for key, row in rows.items():
            registry.idempotency.put((*ANN, key), row, (9,))
        flush(registry)
    with closing(sqlite3.connect(path)) as old:
        old.executescript("DROP TABLE lines; PRAGMA user_version = 3;")
    with closing(Registry(str(path))) as registry:
        answered = Answered(registry)
        assert {key: answered.get(ANN, key) for key in rows} == rows
        assert sorted(key for (*_, key), _ in registry.idempotency.rows()) == ["night", "night:01"]
        assert sorted(page for (*_, page), _ in registry.lines.rows()) == [0, 1]
        registry.lines.prove(registry._reader)


def test_a_damaged_answer_of_format_3_stops_the_migration(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    with closing(Registry(str(path))) as registry:
        registry.idempotency.put((*ANN, "night:1"), answer(1), (9,))
        flush(registry)
    with closing(sqlite3.connect(path)) as old:
        old.executescript("DROP TABLE lines; UPDATE idempotency SET crc = crc + 1; PRAGMA user_version = 3;")
    with pytest.raises(RegistryDamage):
        Registry(str(path))
    with closing(sqlite3.connect(path)) as left:
        assert left.execute("PRAGMA user_version").fetchone() == (3,)
        assert left.execute("SELECT count(*) FROM idempotency").fetchone() == (1,)


# Fingerprints

numbers = st.sampled_from([0, 1, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 53) - 1])
lines = st.fixed_dictionaries(
    {},
    optional={
        "destination": st.sampled_from(["orders", "bills", "é" * 40]),
        "payload": st.sampled_from(["", "x", "é" * 127, "x" * 255, "x" * 256, "x" * 65_536]),
        "key": st.sampled_from(["", "k", "é" * 20]),
        "owner": st.sampled_from(["", "ann", "é" * 40]),
        "ttl_ms": numbers.filter(bool),
        "headers": st.dictionaries(st.sampled_from("ab"), st.sampled_from(["", "é"])),
    },
)
times: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}), st.fixed_dictionaries({"due_at_ms": numbers}), st.fixed_dictionaries({"delay_ms": numbers})
)
defaults = st.builds(
    BatchDefaults,
    destination=st.just("rest"),
    namespace=st.sampled_from([None, "acme/a"]),
    owner=st.sampled_from([None, "bob"]),
    due_at_ms=st.none() | numbers,
    ttl_ms=st.none() | numbers.filter(bool),
)


@given(st.lists(st.builds(dict.__or__, lines, times), min_size=1, max_size=5), defaults)
@example([{}], BatchDefaults(destination="rest"))
def test_a_line_has_one_fingerprint_as_a_row_and_as_a_message(
    asked: list[dict[str, object]], defaults: BatchDefaults
) -> None:
    """A repeated line comes as a message, also where it came in columns first."""
    read = read_lines([msgspec.json.encode(one) for one in asked], defaults, sender(Access.open(), None))
    columns = as_columns(read, defaults)
    assert columns is not None
    given = defaults_message(defaults)
    found = fingerprints(columns.contents, columns.destinations, times_of(columns, given), given)
    messages = as_messages(read.lines, defaults, "night", 1)
    assert found.to_pylist() == [fingerprint(one) for one in messages if isinstance(one, Message)]
