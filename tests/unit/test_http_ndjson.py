import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.errors import Forbidden, Invalid, RateLimited, TarryError, TooLarge
from tarry.core.message import Message, Scheduled
from tarry.doors.http.access import Access, Caller
from tarry.doors.http.ndjson import Line, LineSplitter, read_messages, write_answers
from tarry.doors.http.problems import HttpRefusal
from tarry.doors.http.shapes import BatchDefaults

ANYBODY = Access.open().caller(None)


def split(pieces: list[bytes], limit: int = 100) -> list[Line]:
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
    *lines: Line, caller: Caller = ANYBODY, key: str | None = None, **defaults: str | int
) -> list[Message | TarryError]:
    return read_messages(list(lines), msgspec.convert(defaults, BatchDefaults), caller, key, 1)


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


@pytest.mark.parametrize(
    "line", [b'{"destination":"\xff"}', b"[" * 10_000, b'{"a":NaN}', b"1", b"\x00", b'{"delay":"x"}']
)
def test_no_line_can_stop_the_others(line: bytes) -> None:
    bad, good = read(line, b'{"destination":"t","delay_ms":1}')
    assert isinstance(bad, TarryError)
    assert isinstance(good, Message)


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
