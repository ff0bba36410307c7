"""Heads that were seen before: their requests are answered without the parser, and exactly as with it."""

import asyncio
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tarry.config.settings import Http
from tarry.serve.transport import connections, heads
from tarry.serve.transport.listener import Listener
from tests.unit.listener_kit import Quick, answer_of, connect, listening, request


async def exchange(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], *bodies: bytes) -> None:
    for body in bodies:
        stream[1].write(request(body))
        await answer_of(stream[0], body)


async def test_a_head_that_is_the_same_is_read_once_for_all_connections() -> None:
    app = Quick()
    async with listening(app) as port:
        for _ in range(2):
            stream = await connect(port)
            await exchange(stream, b"one", b"two", b"six", b"four", b"five")
            assert app.clients[-5:] == [stream[1].get_extra_info("sockname")] * 5
            stream[1].close()
    assert app.ways == ["quick"] * 10
    assert app.heads == ["/", "/"]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The targets of requests that the parser has read."""
    targets: list[bytes] = []
    complete = connections.HttpConnection.on_headers_complete

    def counted(self: connections.HttpConnection) -> None:
        targets.append(self.url)
        complete(self)

    monkeypatch.setattr(connections.HttpConnection, "on_headers_complete", counted)
    return targets


async def test_a_head_with_another_target_is_told_as_the_parser_would(parsed: list[bytes]) -> None:
    """Each is sent twice: behind one with the same fields, and as the first that ever came."""
    lines = [
        b"PUT /rooms/%21a:b.c/send/m.room.message/t-1?org.matrix.msc4140.delay=5 HTTP/1.1",
        b"POST /a//b/./c?x=%20&y=1+2;z?/:@ HTTP/1.1",
        b"POST //x/y HTTP/1.1",
        b"POST /? HTTP/1.1",
        b"PUT /!$&'()*+,;=:@-._~%C3%A4 HTTP/1.1",
        b"POST /again HTTP/1.1",
    ]
    behind = Quick()
    async with listening(behind) as port:
        stream = await connect(port)
        await exchange(stream, b"one")
        for line in lines:
            stream[1].write(request(b"two", line=line))
            await answer_of(stream[0], b"two")
        stream[1].close()
    assert parsed == [b"/"]
    assert behind.ways == ["quick"] * (1 + len(lines))
    for line, told in zip(lines, behind.scopes[1:], strict=True):
        first = Quick()
        async with listening(first) as port:
            stream = await connect(port)
            stream[1].write(request(b"two", line=line))
            await answer_of(stream[0], b"two")
            stream[1].close()
        assert first.scopes == [told]


async def test_the_application_is_asked_once_for_each_head_but_for_a_put_which_does_not_come_again(
    parsed: list[bytes],
) -> None:
    app = Quick()
    async with listening(app) as port:
        stream = await connect(port)
        await exchange(stream, b"one")
        for line in (b"POST /a HTTP/1.1", b"POST /b HTTP/1.1", b"PUT /c HTTP/1.1") * 3:
            stream[1].write(request(b"two", line=line))
            await answer_of(stream[0], b"two")
        # The same head with a body that is not all there, and then is: it is still the parser's.
        whole = request(b"six", line=b"POST /a HTTP/1.1")
        stream[1].write(whole[:-1])
        while len(parsed) < 2:  # noqa: ASYNC110 - the listener's turn, not an event of ours
            await asyncio.sleep(0.001)
        stream[1].write(whole[-1:])
        await answer_of(stream[0], b"six")
        stream[1].close()
    assert app.heads == ["/", "/a", "/b", "/c", "/c", "/c"]
    assert parsed == [b"/", b"/a"]


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"FETCH / HTTP/1.1",
        b"POST / HTTP/1.0",
        b"POST http://x/ HTTP/1.1",
        b"POST * HTTP/1.1",
        b"POST /a#b HTTP/1.1",
        b"POST /a?b#c HTTP/1.1",
        b"POST  / HTTP/1.1",
        b"POST /a b HTTP/1.1",
        b"POST /\xc3\xa4 HTTP/1.1",
        b'POST /"{}\\^`|<> HTTP/1.1',
        b"POST /\x7f HTTP/1.1",
        b"POST / HTTP/1.1 ",
        b"POST /" + b"a" * 3_000 + b" HTTP/1.1",
    ],
    ids=lambda line: line[:30].decode("latin-1"),
)
async def test_a_line_that_is_not_of_the_plainest_kind_is_for_the_parser(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[bytes] = []
    feed = HttpToolsProtocol.data_received

    def counted(self: HttpToolsProtocol, data: bytes) -> None:
        fed.append(data)
        feed(self, data)

    monkeypatch.setattr(HttpToolsProtocol, "data_received", counted)
    async with listening(Quick()) as port:
        reader, writer = stream = await connect(port)
        await exchange(stream, b"one", b"two")
        assert fed == [request(b"one")]
        writer.write(request(b"six", line=line))
        assert await reader.readuntil(b"\r\n\r\n")
        assert fed == [request(b"one"), request(b"six", line=line)]
        writer.close()


async def test_what_a_known_head_does_not_say_of_a_body_is_looked_at() -> None:
    """A body that is refused, comes in pieces, or brings the next request with it goes the longer way."""
    app = Quick(refuse=b"no")
    async with listening(app) as port:
        stream = reader, writer = await connect(port)
        await exchange(stream, b"yes!", b"no 1", b"yes!")
        whole = request(b"late")
        writer.write(whole[:-2])
        while len(app.ways) < 4:  # noqa: ASYNC110 - the listener's turn, not an event of ours
            await asyncio.sleep(0.001)
        writer.write(whole[-2:])
        await answer_of(reader, b"late")
        writer.write(request(b"here") + request(b"more"))
        await answer_of(reader, b"here")
        await answer_of(reader, b"more")
        await exchange(stream, b"yes!")
        writer.close()
    assert app.ways == ["quick", "task", "quick", "task", "quick", "task", "quick"]


async def test_what_follows_a_known_head_waits_for_its_answer() -> None:
    app = Quick()
    async with listening(app) as port:
        stream = reader, writer = await connect(port)
        await exchange(stream, b"one")
        app.held = True
        writer.write(request(b"two"))
        while not app.replies:  # noqa: ASYNC110 - the listener's turn, not an event of ours
            await asyncio.sleep(0.001)
        app.held = False
        writer.write(request(b"six"))
        await asyncio.sleep(0.02)
        assert app.ways == ["quick", "quick"]
        app.replies.pop()()
        await answer_of(reader, b"two")
        await answer_of(reader, b"six")
        await exchange(stream, b"ten")
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        request(b"one", b"connection: close"),
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n",
        request(b"one", b"x-long: " + b"x" * 4_000),
    ],
    ids=["closing", "chunked", "long"],
)
async def test_some_heads_are_not_kept(sent: bytes) -> None:
    app = Quick()
    async with listening(app) as port:
        for _ in range(2):
            reader, writer = await connect(port)
            writer.write(sent)
            await answer_of(reader, b"one")
            writer.close()
    assert app.heads == ["/", "/"]


async def test_a_head_of_an_application_that_does_not_want_it_is_not_kept() -> None:
    app = Quick(refuse=b"no")
    async with listening(app) as port:
        stream = await connect(port)
        await exchange(stream, b"no", b"no")
        stream[1].close()
    assert app.heads == ["/", "/"]


async def test_heads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_KNOWN_FIELDS", 3)
    monkeypatch.setattr(heads, "MAX_KNOWN_HEADS", 5)
    made: list[heads.Heads] = []

    def make(quick: Any) -> heads.Heads:
        made.append(heads.Heads(quick))
        return made[0]

    monkeypatch.setattr(connections, "Heads", make)
    app = Quick()
    async with listening(app) as port:
        stream = await connect(port)
        for length in range(10):
            await exchange(stream, b"x" * length)
            # With fields that are known now: a line that is new.
            stream[1].write(request(b"x" * length, line=b"POST /%d HTTP/1.1" % length))
            await answer_of(stream[0], b"x" * length)
            assert len(made[0]._fields) <= 3
            assert len(made[0]._whole) <= 5
        stream[1].close()


async def test_a_stop_waits_for_the_answer_to_a_known_head() -> None:
    app = Quick()
    listener = Listener(Http(port=0))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(app)
    stream = reader, writer = await connect(port)
    await exchange(stream, b"1st")
    app.held = True
    writer.write(request(b"2nd"))
    while not app.replies:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(listener.stop())
    with pytest.raises(OSError):  # noqa: PT011 - whichever: it listens no more
        while True:
            (await connect(port))[1].close()
    assert not stopping.done()
    app.replies.pop()()
    assert b"connection: close\r\n" in await answer_of(reader, b"2nd")
    assert await reader.read() == b""
    await stopping
    writer.close()


async def test_an_answer_to_a_known_head_of_somebody_who_left_goes_nowhere() -> None:
    app = Quick()
    async with listening(app) as port:
        stream = await connect(port)
        await exchange(stream, b"1st")
        app.held = True
        stream[1].write(request(b"2nd"))
        while not app.replies:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        stream[1].transport.abort()
        other = await connect(port)
        other[1].write(request(b"3rd"))
        while len(app.replies) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for reply in app.replies:
            reply()
        await answer_of(other[0], b"3rd")
        other[1].close()
