"""Requests of Tarry's own to the homeserver: kept connections, answers in pieces, and everything that can break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tarry.outlets.matrix.lines import (
    MAX_ANSWER_BYTES,
    MAX_NEW,
    BrokenOff,
    HomeserverUnreachable,
    LineAnswer,
    Lines,
)
from tests.processes import free_port

Speak = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Peer:
    """A server that a test scripts by connection, and what it was sent."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.lines: Lines
        self.server: asyncio.Server


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head, await reader.readexactly(int(length or 0))


@contextlib.asynccontextmanager
async def peer(speak: Speak, timeout_ms: int = 20_000) -> AsyncIterator[Peer]:
    served = Peer()
    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        over = asyncio.Event()
        ended.append(over)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await speak(served.connections, reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        over.set()

    served.server = server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    served.lines = Lines(f"http://127.0.0.1:{port}/base/", 5_000, timeout_ms)
    try:
        yield served
    finally:
        served.lines.close()
        for over in ended:
            await asyncio.wait_for(over.wait(), 20)
        server.close()


def ok(body: bytes, *more: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *more, b"", body])


async def test_one_connection_is_kept_for_requests_after_one_another() -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            served.heads.append(head)
            writer.write(ok(body or b"nothing"))

    async with peer(speak) as served:
        assert await served.lines.ask("PUT", "/a%2Fb?c=d", {"X-Y": "z"}, b"hello") == LineAnswer(
            200, b"hello"
        )
        assert await served.lines.ask("GET", "/", {}, None) == LineAnswer(200, b"nothing")
        assert served.connections == 1
        first, second = served.heads
        assert first.startswith(b"PUT /base/a%2Fb?c=d HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nX-Y: z\r\nContent-Length: 5\r\n\r\n" in first
        assert b"Content-Length" not in second
        many = await asyncio.gather(*(served.lines.ask("PUT", "/", {}, b"%d" % n) for n in range(20)))
        assert [answer.body for answer in many] == [b"%d" % n for n in range(20)]
        assert served.connections == 20


def echo(served: list[Peer]) -> Speak:
    """Answers every request with its body, once the test lets it."""

    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            served[0].heads.append(head)
            await served[0].answering.wait()
            writer.write(ok(body))

    return speak


async def test_a_server_meets_only_so_many_new_connections_at_once() -> None:
    found: list[Peer] = []
    async with peer(echo(found)) as served:
        found.append(served)
        served.answering.clear()
        many = [asyncio.create_task(served.lines.ask("PUT", "/", {}, b"%d" % n)) for n in range(3 * MAX_NEW)]
        await until(lambda: len(served.heads) == MAX_NEW)
        # Nobody else comes, however long it takes.
        for _ in range(50):
            await asyncio.sleep(0)
        assert served.connections == len(served.heads) == MAX_NEW
        served.answering.set()
        answers = await asyncio.wait_for(asyncio.gather(*many), 60)
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(3 * MAX_NEW)]
        assert served.connections < 3 * MAX_NEW


async def test_who_gives_up_while_waiting_takes_nothing_along() -> None:
    found: list[Peer] = []
    async with peer(echo(found)) as served:
        found.append(served)
        served.answering.clear()
        many = [asyncio.create_task(served.lines.ask("PUT", "/", {}, b"%d" % n)) for n in range(2 * MAX_NEW)]
        await until(lambda: len(served.heads) == MAX_NEW)
        for waiting in many[MAX_NEW::2]:
            waiting.cancel()
        served.answering.set()
        done = await asyncio.wait_for(asyncio.gather(*many, return_exceptions=True), 60)
        assert [isinstance(one, LineAnswer) for one in done] == [
            n < MAX_NEW or n % 2 == 1 for n in range(2 * MAX_NEW)
        ]
        again = (served.lines.ask("PUT", "/", {}, b"x") for _ in range(2 * MAX_NEW))
        await asyncio.wait_for(asyncio.gather(*again), 60)


async def test_who_gives_up_just_when_it_is_its_turn_passes_that_on() -> None:
    found: list[Peer] = []
    async with peer(echo(found)) as served:
        found.append(served)
        served.answering.clear()
        many = [asyncio.create_task(served.lines.ask("PUT", "/", {}, b"")) for _ in range(MAX_NEW + 1)]
        await until(lambda: len(served.heads) == MAX_NEW)
        served.lines._heard()
        many[-1].cancel()
        many.append(asyncio.create_task(served.lines.ask("PUT", "/", {}, b"")))
        await until(lambda: len(served.heads) == MAX_NEW + 1)
        served.answering.set()
        done = await asyncio.wait_for(asyncio.gather(*many, return_exceptions=True), 60)
        assert [isinstance(one, LineAnswer) for one in done] == [True] * MAX_NEW + [False, True]


async def test_new_connections_that_end_make_room_for_others() -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        await read_request(reader)

    async with peer(speak) as served:
        asked = (served.lines.ask("PUT", "/", {}, b"") for _ in range(2 * MAX_NEW))
        done = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert {type(one) for one in done} == {BrokenOff}


async def test_who_never_got_a_connection_says_that_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Peer] = []
    async with peer(echo(found)) as served:
        found.append(served)
        served.answering.clear()
        many = [asyncio.create_task(served.lines.ask("PUT", "/", {}, b"")) for _ in range(MAX_NEW)]
        await until(lambda: len(served.heads) == MAX_NEW)
        monkeypatch.setattr(served.lines, "_timeout_s", 0.05)
        with pytest.raises(HomeserverUnreachable):
            await served.lines.ask("PUT", "/", {}, b"")
        served.answering.set()
        await asyncio.wait_for(asyncio.gather(*many), 60)


async def test_what_is_expected_finds_its_connections_made() -> None:
    found: list[Peer] = []
    async with peer(echo(found)) as served:
        found.append(served)
        served.answering.clear()
        served.lines.expect(3 * MAX_NEW)
        await until(lambda: served.connections == 3 * MAX_NEW)
        await until(lambda: served.lines.idle == 3 * MAX_NEW)
        served.lines.expect(MAX_NEW)
        many = [asyncio.create_task(served.lines.ask("PUT", "/", {}, b"%d" % n)) for n in range(3 * MAX_NEW)]
        await until(lambda: len(served.heads) == 3 * MAX_NEW)
        served.answering.set()
        await asyncio.wait_for(asyncio.gather(*many), 60)
        assert served.connections == 3 * MAX_NEW


async def test_expecting_something_of_a_server_that_is_away_is_no_error() -> None:
    def expecting() -> bool:
        return len(asyncio.all_tasks()) > 1

    lines = Lines(f"http://127.0.0.1:{free_port()}", 5_000, 5_000)
    for _ in range(2):
        lines.expect(100)
        assert expecting()
        await until(lambda: not expecting())
    lines.expect(100)
    lines.close()
    await until(lambda: not expecting())
    lines.expect(100)
    assert not expecting()


async def test_an_answer_may_come_in_any_pieces() -> None:
    whole = b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"

    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for number in range(len(whole)):
            writer.write(whole[number : number + 1])
            await writer.drain()

    async with peer(speak) as served:
        assert await served.lines.ask("GET", "/", {}, None) == LineAnswer(403, b"hello!")


async def test_a_kept_connection_that_was_closed_costs_a_second_try() -> None:
    async def speak(number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        writer.write(ok(body))
        if number == 1:
            # The second request on it gets no answer.
            await read_request(reader)
        else:
            await reader.read()

    async with peer(speak) as served:
        answers = [await served.lines.ask("PUT", "/", {}, body) for body in (b"a", b"b")]
        assert [answer.body for answer in answers] == [b"a", b"b"]
        # The second was asked twice, and may have been done before.
        assert [answer.asked_before for answer in answers] == [False, True]
        assert served.connections == 2


async def test_what_was_asked_before_and_finds_nobody_is_no_request_that_was_never_sent() -> None:
    closing = asyncio.Event()

    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ok((await read_request(reader))[1]))
        await read_request(reader)
        served.server.close()
        closing.set()

    async with peer(speak) as served:
        await served.lines.ask("PUT", "/", {}, b"a")
        # It is read on a connection that was kept, which ends; and then nobody listens any more.
        with pytest.raises(BrokenOff):
            await served.lines.ask("PUT", "/", {}, b"b")
        assert closing.is_set()
        with pytest.raises(HomeserverUnreachable):
            await served.lines.ask("PUT", "/", {}, b"c")


async def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = (await read_request(reader))[1]
        writer.write(ok(body, b"Connection: close"))

    async with peer(speak) as served:
        for body in (b"a", b"b"):
            assert (await served.lines.ask("PUT", "/", {}, body)).body == body
        assert served.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n" + b"x" * (MAX_ANSWER_BYTES + 1),
    ],
)
async def test_an_answer_that_makes_no_sense_is_none(answer: bytes) -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    async with peer(speak) as served:
        with pytest.raises(BrokenOff):
            await served.lines.ask("GET", "/", {}, None)


async def test_silence_is_given_up_and_the_connection_with_it() -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        while await reader.read(1000):
            pass

    async with peer(speak, timeout_ms=100) as served:
        for _ in range(2):
            with pytest.raises(BrokenOff):
                await served.lines.ask("GET", "/", {}, None)
        assert served.connections == 2


async def test_at_the_end_what_is_under_way_breaks_off() -> None:
    async def speak(_: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del writer
        while await reader.read(1000):
            arrived.set()

    arrived = asyncio.Event()
    async with peer(speak) as served:
        asking = asyncio.create_task(served.lines.ask("GET", "/", {}, None))
        await asyncio.wait_for(arrived.wait(), 20)
        served.lines.close()
        with pytest.raises(BrokenOff):
            await asyncio.wait_for(asking, 20)


async def test_nobody_there_is_told_apart() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    lines = Lines(f"http://127.0.0.1:{port}", 5_000, 5_000)
    with pytest.raises(HomeserverUnreachable):
        await lines.ask("GET", "/", {}, None)
    lines.close()
    with pytest.raises(HomeserverUnreachable):
        await lines.ask("GET", "/", {}, None)


@pytest.mark.parametrize(("path", "headers"), [("/a b", {}), ("/a\r\nX: y", {}), ("/", {"A": "b\r\nX: y"})])
async def test_nothing_can_be_smuggled_into_a_request(path: str, headers: dict[str, str]) -> None:
    lines = Lines("http://127.0.0.1:9", 1_000, 1_000)
    with pytest.raises(BrokenOff):
        await lines.ask("GET", path, headers, None)
