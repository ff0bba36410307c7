"""Heads of requests: what llhttp makes of them, and remembered fields, which must make the same of them."""

import pytest

from tarry.core.tricks import TRICKS
from tarry.http import head as module
from tarry.http.errors import BadHead
from tarry.http.head import Head, Heads, read_head
from tests.unit.listener_kit import answer_of, connect, listening, request


def told(head: Head) -> tuple[object, ...]:
    fields = head.fields
    return (
        head.method, head.path, head.query, fields.headers, fields.by_name, fields.keep_alive, fields.length, fields.chunked,
        fields.expects, fields.old,
    )  # fmt: skip


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The heads that llhttp has read."""
    heads: list[bytes] = []

    def counted(head: bytes) -> Head:
        heads.append(head)
        return read_head(head)

    monkeypatch.setattr(module, "read_head", counted)
    return heads


FIELDS = b"host: x\r\ncontent-length: 5\r\nX-Two: 1\r\nx-two: 2\r\n\r\n"
PLAIN = [
    b"POST / HTTP/1.1", b"GET /again HTTP/1.1", b"DELETE /x HTTP/1.1",
    b"PUT /rooms/%21a:b.c/send/m.room.message/t-1?org.matrix.msc4140.delay=5 HTTP/1.1",
    b"POST /a//b/./c?x=%20&y=1+2;z?/:@ HTTP/1.1", b"POST //x/y HTTP/1.1", b"POST /? HTTP/1.1",
    b"PUT /!$&'()*+,;=:@-._~%C3%A4 HTTP/1.1",
]  # fmt: skip


def test_a_line_with_known_fields_is_read_as_llhttp_would(parsed: list[bytes]) -> None:
    heads = Heads()
    heads.read(PLAIN[0] + b"\r\n" + FIELDS)
    read = [told(heads.read(line + b"\r\n" + FIELDS)) for line in PLAIN]
    assert len(parsed) == 1
    assert read == [told(read_head(line + b"\r\n" + FIELDS)) for line in PLAIN]


@pytest.mark.parametrize(
    "line",
    [
        b"OPTIONS / HTTP/1.1", b"FETCH / HTTP/1.1", b"POST / HTTP/1.0", b"POST http://x/ HTTP/1.1", b"OPTIONS * HTTP/1.1",
        b"POST /a#b HTTP/1.1", b"POST /a?b#c HTTP/1.1", b"POST  / HTTP/1.1", b"POST /a b HTTP/1.1", b"POST /\xc3\xa4 HTTP/1.1",
        b'POST /"{}\\^`|<> HTTP/1.1', b"POST /\x7f HTTP/1.1", b"POST / HTTP/1.1 ", b"post / HTTP/1.1", b"POST /\n HTTP/1.1",
    ],
    ids=lambda line: line.decode("latin-1"),
)  # fmt: skip
def test_a_line_that_is_not_of_the_plainest_kind_is_for_llhttp(line: bytes, parsed: list[bytes]) -> None:
    heads = Heads()
    heads.read(b"POST / HTTP/1.1\r\n" + FIELDS)
    try:
        expected: object = told(read_head(line + b"\r\n" + FIELDS))
    except BadHead as error:
        expected = str(error)
    try:
        got: object = told(heads.read(line + b"\r\n" + FIELDS))
    except BadHead as error:
        got = str(error)
    assert got == expected
    assert len(parsed) == 2


def test_only_fields_of_the_present_protocol_are_remembered(parsed: list[bytes]) -> None:
    heads = Heads()
    for version in (b"1.0", b"1.1", b"1.1"):
        head = heads.read(b"GET / HTTP/" + version + b"\r\n" + FIELDS)
        assert head.fields.old is (version == b"1.0")
        assert head.fields.keep_alive is (version != b"1.0")
    assert len(parsed) == 2


KEYS = [
    b"host: x\r\nidempotency-key: %b\r\ncontent-length: 5\r\n\r\n", b"idempotency-key: %b\r\nhost: x\r\n\r\n",
    b"host: x\r\nidempotency-key: %b\r\n\r\n", b"a: b\r\nhost: x\r\na: c\r\nidempotency-key: %b\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("fields", KEYS, ids=range(len(KEYS)))
def test_fields_are_known_whatever_idempotency_key_is_among_them(fields: bytes, parsed: list[bytes]) -> None:
    heads = Heads()
    for key in (b"one", b"!:,~\x22", b"x" * 255, b"one"):
        head = b"POST /x HTTP/1.1\r\n" + fields % key
        found, expected = told(heads.read(head)), told(read_head(head))
        assert sorted(found[3]) == sorted(expected[3])  # type: ignore[call-overload]
        assert found[:3] + found[4:] == expected[:3] + expected[4:]
    assert len(parsed) == len(heads._known) == 1


@pytest.mark.parametrize(
    "fields",
    [
        b"idempotency-key: a\r\nidempotency-key: b\r\n", b"idempotency-key: a\r\nIdempotency-Key: b\r\n",
        b"Idempotency-Key: a\r\nidempotency-key: b\r\n", b"Idempotency-Key: a\r\n", b"idempotency-key:a\r\n",
        b"idempotency-key: a b\r\n", b"idempotency-key: \xc3\xa4\r\n", b"idempotency-key: \r\n", b"x: idempotency-key: a\r\n",
        b"idempotency-key: a \r\n",
    ],
    ids=lambda fields: fields.decode("latin-1"),
)  # fmt: skip
def test_a_key_that_is_not_of_the_plainest_kind_is_for_llhttp(fields: bytes) -> None:
    heads, head = Heads(), b"POST /x HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n"
    for _ in range(2):
        assert told(heads.read(head)) == told(read_head(head))


@pytest.mark.parametrize(
    "fields",
    [
        b"idempotency-key: a\r\n b\r\n", b"idempotency-key: a\nx: y\r\n", b"idempotency-key: a\rx: y\r\n", b"idempotency-key: \x00\r\n",
        b"x\r\nidempotency-key: a\r\n", b"content-length: 1\r\nidempotency-key: a\r\ncontent-length: 1\r\n",
    ],
    ids=lambda fields: fields.decode("latin-1"),
)  # fmt: skip
def test_a_key_hides_nothing_that_is_refused(fields: bytes) -> None:
    heads, head = Heads(), b"POST /x HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n"
    for _ in range(2):
        with pytest.raises(BadHead):
            heads.read(head)


def test_without_the_trick_every_head_is_read(parsed: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRICKS, "known_heads", False)
    heads = Heads()
    for _ in range(3):
        heads.read(b"GET / HTTP/1.1\r\n" + FIELDS)
    assert len(parsed) == 3


def test_remembered_fields_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN_FIELDS", 3)
    heads = Heads()
    for number in range(10):
        heads.read(b"GET / HTTP/1.1\r\nhost: x\r\nx: %d\r\n\r\n" % number)
        assert len(heads._known) <= 3
    before = len(heads._known)
    heads.read(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 3_000 + b"\r\n\r\n")
    assert len(heads._known) == before


@pytest.mark.parametrize(
    "fields",
    [
        b"content-length: 5\r\ncontent-length: 5\r\n", b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n", b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"transfer-encoding: gzip, chunked\r\n", b"transfer-encoding: identity\r\n", b"transfer-encoding: chunked, chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", b"content-length: +5\r\n", b"content-length: -1\r\n",
        b"content-length: 5, 5\r\n", b"content-length: 0x5\r\n", b"content-length:\r\n", b"host: y\r\n",
        b"content-length : 5\r\n", b" folded: x\r\n", b"a: b\n\ncontent-length: 5\r\n", b"a: b\nc: d\r\n", b"no colon\r\n", b"a: \x00\r\n",
    ],
    ids=lambda fields: fields.decode("latin-1"),
)  # fmt: skip
def test_fields_that_could_be_understood_in_two_ways_are_refused(fields: bytes) -> None:
    with pytest.raises(BadHead):
        read_head(b"POST / HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n")


async def test_what_is_remembered_is_good_for_all_connections_of_a_listener(parsed: list[bytes]) -> None:
    async with listening() as port:
        for _ in range(2):
            reader, writer = await connect(port)
            for body in (b"one", b"two"):
                writer.write(request(body))
                await answer_of(reader, body)
            # What the head says of the body is looked at each time.
            whole = request(b"six")
            writer.write(whole[:-2])
            writer.write(whole[-2:] + whole)
            for _ in range(2):
                await answer_of(reader, b"six")
            writer.close()
    assert len(parsed) == 1


async def test_empty_lines_before_a_request_are_skipped() -> None:
    async with listening() as port:
        reader, writer = await connect(port)
        writer.write(b"\r\n\r\n" + request(b"one") + b"\r\n" + request(b"two"))
        await answer_of(reader, b"one")
        await answer_of(reader, b"two")
        writer.close()


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n", b"\x16\x03\x01\r\n\r\n"])
async def test_what_is_no_request_is_refused_and_the_connection_ends(sent: bytes) -> None:
    async with listening() as port:
        reader, writer = await connect(port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
