"""Heads that were seen before: their requests are answered without the parser, and exactly as with it."""

import asyncio
from typing import Any

import pytest

from tarry.config.settings import Http
from tarry.serve import connections
from tarry.serve.listener import Listener
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
    monkeypatch.setattr(connections, "MAX_KNOWN_HEADS", 3)
    kept: list[Any] = []
    make = connections.Heads

    def made() -> Any:
        kept.append(make())
        return kept[0]

    monkeypatch.setattr(connections, "Heads", made)
    app = Quick()
    async with listening(app) as port:
        stream = await connect(port)
        for length in range(10):
            await exchange(stream, b"x" * length)
            assert len(kept[0]._known) <= 3
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
