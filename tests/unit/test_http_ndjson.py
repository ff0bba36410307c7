from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Forbidden, Invalid, RateLimited, TarryError, TooLarge
from tarry.core.messages.message import Message, Scheduled
from tarry.core.tenants.access import Access, Caller
from tarry.doors.http.gate import sender
from tarry.doors.http.messages.ndjson import (
    LineSplitter,
    Piece,
    as_columns,
    as_messages,
    read_lines,
    write_answers,
    write_columns,
)
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.shapes import BatchDefaults, BatchLine
from tarry.engine.admission.columns import Columns, ColumnsScheduled
from tarry.ledger.columns import Coded, Numbers

ANYBODY = sender(Access.open(), None)


def split(pieces: list[bytes], limit: int = 100) -> list[Piece]:
    splitter = LineSplitter(limit)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    body = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert split(pieces) == lines
    assert split([body]) == lines
    assert split([body[at : at + 1] for at in range(len(body))]) == lines


def test_a_last_line_without_its_newline_counts() -> None:
    assert split([b"a\nb"]) == [b"a", b"b"]
    assert split([b"a\n", b"b"]) == [b"a", b"b"]
    assert split([b""]) == []
    assert split([b"\n"]) == [b""]
    assert split([b"a\n\nb\n"]) == [b"a", b"", b"b"]


def test_a_line_that_is_too_long_is_refused_and_forgotten_and_the_next_one_is_good() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"0123456789\n") == [b"0123456789"]
    for _ in range(1000):
        assert splitter.feed(b"0123456789") == []
    assert sum(map(len, splitter._parts)) <= 10
    too_long, good = splitter.feed(b"\ngood\n")
    assert isinstance(too_long, TooLarge)
    assert good == b"good"
    # The whole of it in one piece, and as the last line.
    assert isinstance(split([b"0123456789x\n"], 10)[0], TooLarge)
    assert isinstance(split([b"0123456789x"], 10)[0], TooLarge)


def read(
    *lines: Piece, caller: Caller = ANYBODY, key: str | None = None, **defaults: str | int
) -> list[Message | TarryError]:
    given = msgspec.convert(defaults, BatchDefaults)
    return as_messages(read_lines(lines, given, caller).lines, given, key, 1)


def test_every_line_has_its_own_fate() -> None:
    good, empty, bad, unknown, long, again = read(
        b'{"destination":"t","delay_ms":1}', b"  ", b"{", b'{"x":1}', TooLarge("line", 10),
        b'{"destination":"t","delay_ms":2}\r',
    )  # fmt: skip
    assert isinstance(good, Message)
    assert good.delay_ms == 1
    assert isinstance(empty, Invalid)
    assert empty.field == "line"
    assert isinstance(bad, HttpRefusal)
    assert isinstance(unknown, Invalid)
    assert unknown.field == "x"
    assert isinstance(long, TooLarge)
    assert isinstance(again, Message)
    assert again.delay_ms == 2


@pytest.mark.parametrize("more", [b"", b',"group":"g"'])
@pytest.mark.parametrize(
    "bad",
    [b'"due_at_ms":1,"delay":"1ms"', b'"payload":"a","payload_base64":"YQ=="', b'"delay":"1s","delay_ms":1'],
)
def test_contradictions_are_refused_by_themselves(bad: bytes, more: bytes) -> None:
    refused, good = read(b'{"destination":"t",' + bad + more + b"}", b'{"destination":"t","delay_ms":1}')
    assert isinstance(refused, Invalid)
    assert isinstance(good, Message)


@pytest.mark.parametrize(
    "line", [b'{"destination":"\xff"}', b"[" * 10_000, b'{"a":NaN}', b"1", b"\x00", b'{"delay":"x"}']
)
def test_no_line_can_stop_the_others(line: bytes) -> None:
    bad, good = read(line, b'{"destination":"t","delay_ms":1}')
    assert isinstance(bad, TarryError)
    assert isinstance(good, Message)


def test_an_object_as_payload_is_told_where_it_belongs() -> None:
    (refused,) = read_lines(
        [b'{"destination": "t", "delay_ms": 1, "payload": {"a": 1}}'], BatchDefaults(), ANYBODY
    ).lines
    assert isinstance(refused, Invalid)
    assert refused.field == "payload"
    assert "payload_json" in refused.reason


def test_lines_have_idempotency_keys_of_their_own() -> None:
    one, two = read(b"{}", b"{}", key="abc", destination="t", delay_ms=5)
    assert isinstance(one, Message)
    assert isinstance(two, Message)
    assert (one.idempotency_key, two.idempotency_key) == ("abc:1", "abc:2")


def test_a_caller_reaches_only_its_namespaces_with_each_line() -> None:
    caller = Caller("shop", frozenset({"produce"}), frozenset({"acme/shop"}))
    inside, outside = read(
        b'{"destination":"persistent://acme/shop/t","delay_ms":1}',
        b'{"destination":"persistent://acme/stock/t","delay_ms":1}',
        caller=caller,
    )
    assert isinstance(inside, Message)
    assert isinstance(outside, Forbidden)


def test_answers_are_lines_in_order_with_their_numbers() -> None:
    written = write_answers(
        [Scheduled("x" * 32, 5), RateLimited(7), Scheduled("y" * 32, None, True, True)], 41
    )
    one, two, three = (msgspec.json.decode(line) for line in written.splitlines())
    assert one == {"id": "x" * 32, "due_at_ms": 5, "past_due": False, "repeated": False}
    assert two["line"] == 42
    assert two["error"]["code"] == "rate-limited"
    assert two["error"]["retry_after_ms"] == 7
    assert three == {"id": "y" * 32, "due_at_ms": None, "past_due": True, "repeated": True}
    assert written.endswith(b"\n")


def asked(columns: Columns) -> dict[str, list[Any]]:
    """The values of columns, row by row; None where a row has none."""

    def few(column: Coded[str]) -> list[str | None]:
        return [None if code < 0 else column.values[code] for code in column.codes.tolist()]

    def numbers(column: Numbers | None) -> list[int | None]:
        if column is None:
            return [None] * columns.contents.count
        pairs = zip(column.values.tolist(), column.given.tolist(), strict=True)
        return [value if given else None for value, given in pairs]

    def values(column: Any) -> list[Any]:
        return [None] * columns.contents.count if column is None else column.to_pylist()

    return {
        "destination": few(columns.destinations),
        "owner": few(columns.contents.owners),
        "due_at_ms": numbers(columns.due_at_ms),
        "delay_ms": numbers(columns.delay_ms),
        "ttl_ms": numbers(columns.contents.ttl_ms),
        "payload": values(columns.contents.payloads),
        "key": values(columns.contents.keys),
        "headers": values(columns.contents.headers),
    }


def test_lines_that_need_nothing_else_go_as_columns() -> None:
    lines = read_lines(
        [
            b'{"destination":"t","delay":"1s","payload":"a"}', b"{", b'{"due_at":"1970-01-01T00:00:01Z","headers":{"a":"b"}}',
            b'{"destination":"u","payload_json":[1],"key":"k","owner":"o","ttl_ms":5}',
            b'{"destination":"t","payload_base64":""}',
        ],
        BatchDefaults(), ANYBODY,
    )  # fmt: skip
    columns = as_columns(lines, BatchDefaults())
    assert columns is not None
    assert asked(columns) == {
        "destination": ["t", None, "u", "t"],
        "owner": ["", "", "o", ""],
        "due_at_ms": [None, 1000, None, None],
        "delay_ms": [1000, None, None, None],
        "ttl_ms": [None, None, 5, None],
        "payload": [b"a", b"", b"[1]", b""],
        "key": [None, None, "k", None],
        "headers": [None, [("a", "b")], [("content-type", "application/json")], None],
    }


def test_lines_that_look_at_others_do_not() -> None:
    for line in (b'{"destination":"t","group":"g"}', b'{"destination":"t","delay_ms":1,"namespace":"a/b"}'):
        read = read_lines([b"{}", line], BatchDefaults(), ANYBODY)
        assert not read.plain
        assert as_columns(read, BatchDefaults()) is None


plain_lines = st.fixed_dictionaries(
    {},
    optional={
        "destination": st.none() | st.sampled_from(["t", "u", "persistent://a/b/c"]),
        "due_at_ms": st.none() | st.integers(0, 1 << 50),
        "delay_ms": st.none() | st.integers(0, 1 << 50),
        "payload": st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
        "key": st.none() | st.text(st.characters(codec="utf-8"), max_size=9),
        "owner": st.none() | st.sampled_from(["", "ann", "é"]),
        "ttl_ms": st.none() | st.integers(1, 1 << 50),
        "headers": st.none() | st.dictionaries(st.sampled_from("ab"), st.text(st.characters(codec="utf-8"))),
    },
)


@given(
    st.lists(plain_lines, max_size=8),
    st.fixed_dictionaries(
        {}, optional={"destination": st.just("d"), "owner": st.just("bob"), "ttl_ms": st.just(7)}
    ),
)
def test_plain_lines_are_columns_with_what_they_say_and_the_defaults(
    lines: list[dict[str, Any]], defaults: dict[str, Any]
) -> None:
    given_defaults = BatchDefaults(**defaults)
    read = read_lines([msgspec.json.encode(line) for line in lines], given_defaults, ANYBODY)
    assert read.plain
    # Beside a line that is refused they are looked at one by one, and are the same.
    beside = read_lines([*map(msgspec.json.encode, lines), b""], given_defaults, ANYBODY)
    assert not beside.plain
    columns, others = as_columns(read, given_defaults), as_columns(beside, given_defaults)
    assert columns is not None
    assert others is not None
    said = asked(columns)
    assert said == asked(others)
    assert said["owner"] == [
        given_defaults.owner or "" if line.get("owner") is None else line["owner"] for line in lines
    ]
    assert said["destination"] == [
        given_defaults.destination if line.get("destination") is None else line["destination"]
        for line in lines
    ]
    assert said["payload"] == [(line.get("payload") or "").encode() for line in lines]


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"{}{}", b'{"x":1}', b'{"destination":"\xff"}', b'{"due_at_ms":-1}', b'{"due_at_ms":1.5}',
        b'{"delay":"1s"}', b'{"payload_base64":""}', b'{"payload_json":1}', TooLarge("line", 10), b"[" * 10_000,
        b'{"due_at":"1970-01-01T00:00:01Z"}', b'{"group":"g"}', b'{"namespace":"a/b"}', b'{"name":"n"}',
        b'{"on_conflict":"keep"}',
    ],
)  # fmt: skip
def test_a_chunk_with_any_other_line_is_not_plain(line: Piece) -> None:
    assert not read_lines([b"{}", line, b"{}"], BatchDefaults(), ANYBODY).plain
    assert read_lines([b"{}", b"{}"], BatchDefaults(), ANYBODY).plain


def test_a_callers_reach_is_asked_of_every_line() -> None:
    caller = Caller("shop", frozenset({"produce"}), frozenset({"acme/shop"}))
    inside, outside = (
        b'{"destination":"persistent://acme/shop/t"}',
        b'{"destination":"persistent://acme/stock/t"}',
    )
    none, theirs = BatchDefaults(), BatchDefaults(destination="persistent://acme/stock/t")
    one, two = read_lines([inside, outside], none, caller).lines
    assert isinstance(one, BatchLine)
    assert isinstance(two, Forbidden)
    assert isinstance(read_lines([b"{}"], theirs, caller).lines[0], Forbidden)
    assert isinstance(read_lines([b"{}"], none, caller).lines[0], Invalid)


def test_columns_are_answered_as_lines_in_their_places() -> None:
    scheduled = ColumnsScheduled(
        np.array([b"x" * 32, b"", b"z" * 32]), np.array([999, 0, 1000], np.int64), {1: RateLimited(7)}
    )
    written = write_columns(scheduled, 1000, 11, {1: Invalid("line", "is empty")})
    one, two, three, four = (msgspec.json.decode(line) for line in written.splitlines())
    assert one == {"id": "x" * 32, "due_at_ms": 999, "past_due": True, "repeated": False}
    assert (two["error"]["code"], two["line"]) == ("invalid", 12)
    assert (three["error"]["code"], three["line"]) == ("rate-limited", 13)
    assert four == {"id": "z" * 32, "due_at_ms": 1000, "past_due": False, "repeated": False}


@given(
    st.lists(st.integers(0, 10**14) | st.integers(10**12, 10**13 - 1), min_size=1, max_size=9),
    st.integers(0, 10**14),
)
def test_answers_of_columns_are_the_answers_of_messages(due_at_ms: list[int], now_ms: int) -> None:
    ids = [f"{n:032x}" for n in range(len(due_at_ms))]
    scheduled = ColumnsScheduled(np.array(ids, "S32"), np.array(due_at_ms, np.int64), {})
    singles = [Scheduled(id_, due, due < now_ms) for id_, due in zip(ids, due_at_ms, strict=True)]
    assert write_columns(scheduled, now_ms, 1, {}) == write_answers(singles, 1)
