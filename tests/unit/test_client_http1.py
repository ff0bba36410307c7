"""Answers in HTTP/1.1: fed whole, byte by byte and with more after them; and what is no answer."""

import pytest

from tarry.client.http1 import MAX_HEAD_BYTES, AnswerReader, BadAnswer, header_lines, request
from tarry.core.errors import Invalid

COUNTED = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nX-Some:  thing \r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\nhel\r\n\r\n00A;ext=1\r\n0123456789\r\n0\r\nx-trailer: y\r\n\r\n"
)
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + COUNTED
ANSWERS = {COUNTED: b"hello", CHUNKED: b"hel\r\n0123456789", NOTHING: b"", INTERIM: b"hello"}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_an_answer_is_read_however_it_is_cut(answer: bytes, size: int) -> None:
    reader, body = AnswerReader(), b""
    for at in range(0, len(answer), size):
        assert not reader.is_done()
        body += reader.feed(answer[at : at + size])
    assert (reader.is_done(), reader.keep_alive, body) == (True, True, ANSWERS[answer])
    reader.end()


@pytest.mark.parametrize("answer", ANSWERS)
def test_surplus_bytes_end_the_connection(answer: bytes) -> None:
    reader = AnswerReader()
    assert reader.feed(answer + b"HTTP/1.1 200 OK\r\n") == ANSWERS[answer]
    assert reader.is_done()
    assert not reader.keep_alive or answer == NOTHING


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_cut_short_answer_is_noticed(answer: bytes) -> None:
    for length in range(len(answer)):
        reader = AnswerReader()
        reader.feed(answer[:length])
        with pytest.raises(BadAnswer, match="in the middle"):
            reader.end()


def test_headers_and_status() -> None:
    reader = AnswerReader()
    reader.feed(COUNTED)
    assert (reader.status, reader.headers) == (201, {"content-length": "5", "x-some": "thing"})


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.0 200 OK\r\n\r\nabc") == b"abc"
    assert not reader.is_done()
    reader.end()
    assert reader.is_done()
    assert not reader.keep_alive


def test_a_connection_that_closes_is_not_kept() -> None:
    for version, header, kept in (("1.1", "close", False), ("1.0", "keep-alive", True), ("1.0", "x", False)):
        reader = AnswerReader()
        reader.feed(f"HTTP/{version} 200 OK\r\nconnection: {header}\r\ncontent-length: 0\r\n\r\n".encode())
        assert reader.is_done()
        assert reader.keep_alive is kept


@pytest.mark.parametrize(
    "bad",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1" + b"1" * 5000,
    ],
)
def test_what_is_no_answer_is_refused(bad: bytes) -> None:
    with pytest.raises(BadAnswer):
        AnswerReader().feed(bad)


def test_a_request_has_a_length_where_it_may_have_a_body() -> None:
    assert request("GET", "/x", b"host: h\r\n", b"") == b"GET /x HTTP/1.1\r\nhost: h\r\n\r\n"
    assert request("POST", "/x", b"", b"ab") == b"POST /x HTTP/1.1\r\ncontent-length: 2\r\n\r\nab"
    assert b"content-length: 0\r\n" in request("PUT", "/x", b"", b"")


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "ä", "\x00"])
def test_a_header_cannot_end_its_line(value: str) -> None:
    with pytest.raises(Invalid, match="printable ASCII"):
        header_lines({"idempotency-key": value})
