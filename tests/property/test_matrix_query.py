"""The Matrix door reads a plain query by itself: it must read what the standard library would."""

from urllib.parse import parse_qsl

from hypothesis import given
from hypothesis import strategies as st

from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.wire import read_query

Query = list[tuple[str, str]]


def expected(raw: bytes) -> Query | None:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=256)
    except ValueError:
        return None


def found(raw: bytes) -> Query | None:
    try:
        return read_query(raw)
    except MatrixError:
        return None


@given(st.text("ab=&;+%41?\xe4", max_size=30).map(lambda text: text.encode("latin-1")))
def test_a_query_is_read_as_by_the_standard_library(raw: bytes) -> None:
    assert found(raw) == expected(raw)


@given(st.integers(250, 260), st.sampled_from([b"a=1", b"", b"%41"]))
def test_as_many_parameters_are_too_many(count: int, pair: bytes) -> None:
    raw = b"&".join([pair] * count)
    assert found(raw) == expected(raw)
