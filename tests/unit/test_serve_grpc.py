"""The gRPC listener with gRPC's own client: TLS, large and compressed messages, deadlines, cancelling, bounds, the end."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tarry.config.dapr import DaprApp
from tarry.grpc import frames
from tarry.grpc.call import Call, Streaming, Unary
from tarry.grpc.connection import CALLS_AT_ONCE
from tarry.grpc.frames import frame
from tarry.grpc.hpack import written
from tarry.serve.transport import grpc_server
from tarry.serve.transport.connection_budget import ConnectionBudget
from tarry.serve.transport.grpc_server import GrpcServer
from tarry.serve.transport.listener import ListenError
from tests.certificates import certificate

WITHIN_S = 30
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Service:
    """An echo service; `/held` waits to be let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    def admit(self, call: Call) -> None:
        """Everybody is let in."""

    def unary(self, path: str) -> Unary | None:
        return {"/echo": lambda call, data: call.answer(data), "/held": self._held}.get(path)

    def streaming(self, path: str) -> Streaming | None:
        return {"/all": self._all, "/deaf": self._deaf}.get(path)

    def _held(self, call: Call, data: bytes) -> None:
        async def wait() -> None:
            self.begun.set()
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            call.answer(data)

        call.run(wait)

    async def _all(self, call: Call) -> None:
        while (data := await call.read()) is not None:
            await call.write(data)
        call.end((("at-the-end", "yes"), ("some-bin", b"\0\1")))

    async def _deaf(self, call: Call) -> None:
        await asyncio.get_running_loop().create_future()


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Service, int]]:
    app = DaprApp(grpc_port=0, **settings)
    server = GrpcServer(
        app, "doors.dapr", ConnectionBudget().share_of("doors.dapr:grpc", app.max_connections)
    )
    service = Service()
    port = server.bind()
    await server.start(service)
    async with asyncio.timeout(WITHIN_S):
        try:
            yield service, port
        finally:
            await server.stop()


def channel(port: int, **more: Any) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=ANY_SIZE, **more)


async def test_messages_of_any_size_both_ways() -> None:
    async with serving(max_body_bytes=8 << 20) as (_, port), channel(port) as client:
        echo = client.unary_unary("/echo")
        for size in (0, 1, 65_535, 65_536, 8 << 20):
            data = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await echo(data) == data
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await echo(bytes(9 << 20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await echo(b"and on") == b"and on"


async def test_many_calls_at_once() -> None:
    async with serving() as (_, port), channel(port) as client:
        echo = client.unary_unary("/echo")
        sent = [bytes(50_000) + n.to_bytes(2, "big") for n in range(300)]
        assert await asyncio.gather(*map(echo, sent)) == sent


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read(compression: Any) -> None:
    async with serving() as (_, port), channel(port, compression=compression) as client:
        assert await client.unary_unary("/echo")(b"x" * 100_000) == b"x" * 100_000


async def test_streams_both_ways_with_metadata_at_the_end() -> None:
    async with serving() as (_, port), channel(port) as client:
        call = client.stream_stream("/all")()
        for size in (0, 10, 3 << 20):
            await call.write(bytes(size))
            assert await call.read() == bytes(size)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        last = dict(await call.trailing_metadata())
        assert (last["at-the-end"], last["some-bin"]) == ("yes", b"\0\1")


async def test_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with serving(tls_cert=str(cert), tls_key=str(key)) as (_, port):
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as client:
            assert await client.unary_unary("/echo")(b"x" * 200_000) == b"x" * 200_000


async def test_a_deadline_and_a_cancellation_end_what_was_begun() -> None:
    async with serving() as (service, port), channel(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.unary_unary("/held")(b"", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await service.cancelled.wait()
        service.begun.clear()
        service.cancelled.clear()
        call = client.unary_unary("/held")(b"")
        await service.begun.wait()
        call.cancel()
        await service.cancelled.wait()


async def test_a_stop_waits_for_calls_under_way_and_no_longer_than_it_may() -> None:
    async with serving() as (service, port):
        client = channel(port)
        call = asyncio.ensure_future(client.unary_unary("/held")(b"x"))
        await service.begun.wait()
        asyncio.get_running_loop().call_later(0.2, service.let_go.set)
    assert await call == b"x"
    await client.close()
    async with serving(drain_ms=100) as (service, port):
        client = channel(port)
        call = asyncio.ensure_future(client.unary_unary("/held")(b"x"))
        await service.begun.wait()
    async with asyncio.timeout(WITHIN_S):
        await service.cancelled.wait()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    await client.close()


async def test_an_idle_connection_is_closed_and_its_client_comes_again() -> None:
    async with serving(idle_timeout_ms=1_000) as (_, port), channel(port) as client:
        assert await client.unary_unary("/echo")(b"x") == b"x"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while await reader.read(1024):
            pass
        writer.close()
        await writer.wait_closed()
        assert await client.unary_unary("/echo")(b"y", wait_for_ready=True) == b"y"


async def test_connections_beyond_the_bound_are_refused() -> None:
    async with serving(max_connections=1) as (service, port), channel(port) as client:
        held = asyncio.ensure_future(client.unary_unary("/held")(b"x"))
        await service.begun.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        service.let_go.set()
        assert await held == b"x"


async def test_a_connection_without_calls_makes_room_for_another() -> None:
    async with serving(max_connections=1) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(9)
        async with channel(port) as client:
            assert await client.unary_unary("/echo")(b"x") == b"x"
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


BROKEN = frame(frames.PING, 0, 0, bytes(7))
"""PING must carry 8 bytes: the connection ends."""


async def test_the_reason_of_an_end_is_read_also_where_the_client_has_sent_more() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        more = frame(frames.PING, 0, 0, bytes(8)) * 30_000
        writer.write(frames.PREFACE + frames.settings() + BROKEN + more)
        await writer.drain()
        # A connection that is reset raises here.
        said = await reader.read()
        assert said.endswith("PING carries 8 bytes (RFC 9113 §6.7)".encode())
        writer.close()


@pytest.mark.parametrize("more", [0, 1 << 22], ids=["silent", "flooding"])
async def test_a_client_that_does_not_take_its_leave_is_cut_off(
    more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if more:
        monkeypatch.setattr(grpc_server, "FAREWELL_S", 10 * WITHIN_S)
    async with serving() as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frames.PREFACE + frames.settings() + BROKEN + bytes(more))
        with contextlib.suppress(ConnectionError):
            while True:
                await writer.drain()
                await asyncio.sleep(0.05)
                writer.write(b"\0")


def test_a_taken_address_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=r"doors\.dapr\.grpc_port \(TARRY_DOORS__DAPR__GRPC_PORT\)"):
            GrpcServer(
                DaprApp(grpc_port=port), "doors.dapr", ConnectionBudget().share_of("doors.dapr:grpc")
            ).bind()


async def test_thousands_of_calls_that_come_at_once_leave_turns_to_others() -> None:
    answered = 0
    a_turn: list[int] = []

    def count(call: Call, data: bytes) -> None:
        nonlocal answered
        answered += 1
        call.answer(data)

    def tick() -> None:
        a_turn.append(answered)
        loop.call_soon(tick)

    loop = asyncio.get_running_loop()
    calls = 1_000
    async with serving() as (service, port):
        service.unary = lambda path: count  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = written(
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/echo"),
            (b"content-type", b"application/grpc"),
        )
        writer.write(frames.PREFACE + frames.settings() + b"".join(
            frames.headers(0, 2 * n + 1, head) + frame(frames.DATA, frames.END_STREAM, 2 * n + 1, bytes(5))
            for n in range(calls)
        ))  # fmt: skip
        tick()
        while answered < calls:
            assert await reader.read(1 << 16), "the connection ended"
        writer.close()
    most = max(after - before for before, after in itertools.pairwise(a_turn))
    assert most <= CALLS_AT_ONCE
