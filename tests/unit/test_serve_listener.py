import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tarry.config.settings import Http
from tarry.http import connection, incoming
from tarry.http.application import Endpoint
from tarry.http.connection import HttpConnection
from tarry.http.request import Request
from tarry.http.response import Response, Sender, Streamed
from tarry.serve.transport import listener as module
from tarry.serve.transport.listener import Listener, ListenError
from tests.certificates import certificate
from tests.unit.listener_kit import Held, Serves, answer_of, connect, echo, echoed, listening, request


async def ask(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes = b"hello") -> bytes:
    reader, writer = stream
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return await reader.readexactly(len(body))


async def test_it_answers_and_keeps_the_connection() -> None:
    async with listening() as port:
        stream = await connect(port)
        assert await ask(stream, b"one") == b"one"
        assert await ask(stream, b"two") == b"two"
        stream[1].close()


async def test_a_head_is_not_held_back_for_a_body_that_comes_later() -> None:
    release = asyncio.Event()

    async def run(sender: Sender) -> None:
        await sender.write(b"")
        await release.wait()
        await sender.write(b"late")

    async with listening(Serves(lambda _: Streamed(200, [(b"content-length", b"4")], run))) as port:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        release.set()
        assert await reader.readexactly(4) == b"late"
        writer.close()


@pytest.mark.parametrize("pieces", [1, 7])
async def test_a_request_that_is_answered_later_needs_no_task(pieces: int) -> None:
    app = Held()
    whole = request(b"hello")
    async with listening(app) as port:
        reader, writer = await connect(port)
        for _ in range(2):
            size = -(-len(whole) // pieces)
            for at in range(0, len(whole), size):
                writer.write(whole[at : at + size])
                await asyncio.sleep(0.01 if pieces > 1 else 0)
            await answer_of(reader, b"hello")
        writer.close()
    assert app.tasks == [None, None]


async def test_a_client_that_waits_for_a_word_gets_it() -> None:
    async with listening(Held()) as port:
        reader, writer = await connect(port)
        whole = request(b"hello", b"expect: 100-continue")
        writer.write(whole[:-5])
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(whole[-5:])
        await answer_of(reader, b"hello")
        writer.write(whole)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await answer_of(reader, b"hello")
        writer.close()


async def test_a_client_that_waits_for_a_word_and_is_refused_is_closed() -> None:
    """Whether it sends the body all the same is not known: nothing behind it could be understood."""

    class Refuses(Serves):
        def open(self, request: Request) -> Endpoint:
            raise RuntimeError("nobody is let in")

    app = Refuses(echoed)
    async with listening(app) as port:
        reader, writer = await connect(port)
        writer.write(request(b"hello", b"expect: 100-continue")[:-5])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500")
        assert b"connection: close" in head
        assert await reader.read() == b""
        writer.close()
    assert [str(error) for error in app.errors] == ["nobody is let in"]


async def test_requests_that_come_together_are_answered_in_order() -> None:
    app = Held(held=True)
    async with listening(app) as port:
        reader, writer = await connect(port)
        writer.write(request(b"one") + request(b"two") + request(b"three"))
        for body in (b"one", b"two", b"three"):
            await app.until(1)
            await asyncio.sleep(0.01)
            assert [one.body for one in app.requests][-1] == body
            app.release()
            await answer_of(reader, body)
        writer.close()
    assert len(app.requests) == 3


async def test_requests_that_come_together_leave_turns_to_others() -> None:
    """Each connection begins one in a turn of the loop."""
    turns, served = 0, []

    def serve(request: Request) -> Response:
        served.append(turns)
        return echoed(request)

    async with listening(Serves(serve)) as port:
        reader, writer = await connect(port)
        writer.write(request(b"x") * 100)
        while len(served) < 100:
            await asyncio.sleep(0)
            turns += 1
        for _ in range(100):
            await answer_of(reader, b"x")
        writer.close()
    assert len(set(served)) == 100


async def test_an_answer_ends_the_connection_when_it_was_asked_to() -> None:
    async with listening(Held()) as port:
        reader, writer = await connect(port)
        writer.write(request(b"bye", b"connection: close"))
        assert b"connection: close\r\n" in await answer_of(reader, b"bye")
        assert await reader.read() == b""
        writer.close()


async def test_an_answer_to_nobody_goes_nowhere() -> None:
    app = Held(held=True)
    async with listening(app) as port:
        _, writer = await connect(port)
        writer.write(request(b"x"))
        await app.until(1)
        writer.transport.abort()
        stream = await connect(port)
        stream[1].write(request(b"y"))
        await app.until(2)
        assert [one.gone for one in app.requests] == [True, False]
        app.release()
        await answer_of(stream[0], b"y")
        stream[1].close()


async def test_stop_waits_for_an_answer() -> None:
    app = Held(held=True)
    listener = Listener(Http(port=0))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(app)
    reader, writer = await connect(port)
    writer.write(request(b"last"))
    await app.until(1)
    stopping = asyncio.create_task(listener.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    app.release()
    assert b"connection: close\r\n" in await answer_of(reader, b"last")
    assert await reader.read() == b""
    await stopping
    writer.close()


async def test_stop_ends_what_takes_too_long() -> None:
    ended = []

    async def forever(_: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")
        raise AssertionError

    listener = Listener(Http(port=0, drain_ms=50))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(Serves(forever))
    reader, writer = await connect(port)
    writer.write(request(b"x"))
    await asyncio.sleep(0.05)
    await listener.stop()
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    assert ended == ["task"]
    writer.close()


async def test_an_answer_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    made = HttpConnection.connection_made

    class Counting:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def write(self, data: bytes) -> None:
            writes.append(data)
            self._transport.write(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def counted(self: HttpConnection, transport: Any) -> None:
        made(self, Counting(transport))  # type: ignore[arg-type]

    monkeypatch.setattr(HttpConnection, "connection_made", counted)
    async with listening(Held()) as port:
        reader, writer = await connect(port)
        writer.write(request(b"hello"))
        await answer_of(reader, b"hello")
        writer.close()
    assert len(writes) == 1
    assert writes[0].endswith(b"\r\n\r\nhello")


async def test_at_the_bound_the_longest_idle_connection_makes_room() -> None:
    async with listening(max_connections=3) as port:
        streams = [await connect(port) for _ in range(3)]
        assert await ask(streams[0]) == b"hello"  # now 1 is the one that has been idle for longest
        newcomer = await connect(port)
        assert await ask(newcomer) == b"hello"
        assert await streams[1][0].read() == b""
        assert await ask(streams[0]) == b"hello"
        assert await ask(streams[2]) == b"hello"
        for _, writer in (*streams, newcomer):
            writer.close()


async def test_when_all_are_busy_a_new_one_is_refused() -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> Response:
        await release.wait()
        return echoed(request)

    async with listening(Serves(slow), max_connections=2) as port:
        busy = [await connect(port) for _ in range(2)]
        asking = [asyncio.create_task(ask(stream)) for stream in busy]
        await asyncio.sleep(0.05)
        refused, writer = await connect(port)
        assert (await refused.read()).startswith(b"HTTP/1.1 503 ")
        release.set()
        assert await asyncio.gather(*asking) == [b"hello", b"hello"]
        for _, other in (*busy, (None, writer)):
            other.close()


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_MS", 20)
    async with listening(idle_timeout_ms=1000) as port:
        silent, dribbling, alive = [await connect(port) for _ in range(3)]
        dribbling[1].write(b"GET / HTTP/1.1\r\nhost: ")
        ends = [asyncio.create_task(stream[0].read()) for stream in (silent, dribbling)]
        async with asyncio.timeout(10):
            while not all(end.done() for end in ends):
                assert await ask(alive) == b"hello"
                if not ends[1].done():
                    dribbling[1].write(b"x")
                await asyncio.sleep(0.1)
        assert ends[0].result() == b""
        assert ends[1].exception() is not None or ends[1].result() == b""
        assert await ask(alive) == b"hello"
        for _, writer in (silent, dribbling, alive):
            writer.close()


async def test_a_body_that_stops_is_given_up_and_a_slow_application_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SWEEP_MS", 20)
    monkeypatch.setattr(incoming, "BODY_SILENCE_MS", 400)

    async def thinks(request: Request) -> Response:
        if request.path == b"/think":
            await asyncio.sleep(1)
        return Response(200, (), b"".join(await request.stream.read_all(1 << 20)))

    async with listening(Serves(thinks, streams=True)) as port:
        reader, writer = await connect(port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        other_reader, other = await connect(port)
        # More than is read ahead: the client is silent because nobody reads what it sends.
        large = b"x" * 600_000 + b"full"
        other.write(b"POST /think HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(large), large))
        with pytest.raises(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 2) == b""
            raise ConnectionResetError
        assert (await asyncio.wait_for(other_reader.readuntil(b"\r\n"), 5)).startswith(b"HTTP/1.1 200")
        writer.close()
        other.close()


async def test_a_head_that_does_not_end_is_refused() -> None:
    async with listening() as port:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * (connection.MAX_HEAD_BYTES + 1))
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        # A body of that size is no head.
        stream = await connect(port)
        assert await ask(stream, b"z" * 300_000) == b"z" * 300_000
        stream[1].close()


async def test_stop_lets_requests_end_and_accepts_no_more() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        begun.set()
        await release.wait()
        return echoed(request)

    listener = Listener(Http(port=0))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(Serves(slow))
    idle, busy = await connect(port), await connect(port)
    asking = asyncio.create_task(ask(busy))
    await begun.wait()
    stopping = asyncio.create_task(listener.stop())
    assert await idle[0].read() == b""
    with pytest.raises(ConnectionRefusedError):
        await connect(port)
    release.set()
    assert await asking == b"hello"
    await stopping
    for _, writer in (idle, busy):
        writer.close()


class EndsWhenSomebodyArrives(Listener):
    """A listener that is stopped by the first connection, before the loop has noted that it is in."""

    stopping: "asyncio.Task[None]"

    def enter(self, client: HttpConnection) -> bool:
        self.stopping = asyncio.create_task(self.stop())
        return super().enter(client)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_stop_ends_although_somebody_is_arriving(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def stopped() -> None:
        listener = EndsWhenSomebodyArrives(Http(port=0, drain_ms=100))
        port = int(listener.bind().rpartition(":")[2])
        await listener.start(echo)
        reader, writer = await connect(port)
        assert await reader.read() == b""
        await asyncio.wait_for(listener.stopping, 5)
        writer.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(stopped())


def test_two_cannot_have_one_address_before_either_listens() -> None:
    first = Listener(Http(port=0))
    port = int(first.bind().rpartition(":")[2])
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        Listener(Http(port=port)).bind()
    asyncio.run(first.stop())


async def test_connections_of_an_earlier_life_do_not_keep_the_address() -> None:
    listener = Listener(Http(port=0))
    port = int(listener.bind().rpartition(":")[2])
    await listener.start(echo)
    stream = await connect(port)
    assert await ask(stream) == b"hello"
    # The side that closes first keeps the connection's address for a minute.
    await listener.stop()
    stream[1].close()
    again = Listener(Http(port=port))
    assert again.bind().endswith(f":{port}")
    await again.start(echo)
    await again.stop()


def test_a_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; stop what"
        ):
            Listener(Http(port=port)).bind()


async def test_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with listening(tls_cert=str(cert), tls_key=str(key)) as port:
        context = ssl.create_default_context(cafile=str(cert))
        stream = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert await ask(stream) == b"hello"
        stream[1].close()
        await stream[1].wait_closed()


def test_a_bad_certificate_is_told(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="cannot use the certificate"):
        module.tls_context(Http(tls_cert=str(tmp_path / "none"), tls_key=str(tmp_path / "none")))


# Offers of another protocol


@pytest.mark.parametrize("pieces", [1, 7])
async def test_an_offer_of_http2_is_ignored_and_the_body_is_read(
    pieces: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As Java's HttpClient and `curl --http2` send it. The body was lost."""
    offer = (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk",
    )
    whole = request(b"hello", *offer)
    async with listening() as port:
        reader, writer = await connect(port)
        for _ in range(2):
            size = -(-len(whole) // pieces)
            for at in range(0, len(whole), size):
                writer.write(whole[at : at + size])
                await asyncio.sleep(0.01 if pieces > 1 else 0)
            await answer_of(reader, b"hello")
        # In chunks, and with another request right behind it.
        chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n" + b"\r\n".join(offer)
        writer.write(chunked + b"\r\n\r\n5\r\nworld\r\n0\r\n\r\n" + request(b"next"))
        await answer_of(reader, b"world")
        await answer_of(reader, b"next")
        writer.close()
    assert "upgrade" not in caplog.text.lower()


async def test_an_offer_of_a_websocket_is_a_request_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as port:
        reader, writer = await connect(port)
        writer.write(request(b"", b"Connection: keep-alive, Upgrade", b"Upgrade: websocket"))
        await answer_of(reader, b"")
        writer.write(request(b"again"))
        await answer_of(reader, b"again")
        writer.close()
    assert "pip install" not in caplog.text


async def test_connect_is_refused() -> None:
    async with listening() as port:
        reader, writer = await connect(port)
        writer.write(b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org:443\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400")
        writer.close()
