"""A listening gRPC server inside the server's own loop: its transports, and the bounds on who connects."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from tarry.config.dapr import DaprApp
from tarry.doors.dapr.http2.call import Service, opening
from tarry.doors.dapr.http2.connection import Connection
from tarry.serve.connections import BODY_SILENCE_MS, SWEEP_MS
from tarry.serve.listener import taken, tls_context
from tarry.serve.room import Part

FRAME_BYTES: Final = 64 * 1024
"""What a request may have beside its body."""
MAX_STREAMS: Final = 1_000
"""Calls at once on one connection."""
HELD_BODIES: Final = 8
"""How many of the largest requests a connection may have in parts."""
MAX_UNREAD_BYTES: Final = 1 << 20
"""What a client may leave unread before nothing more is read from it."""

log = logging.getLogger("tarry.dapr")


class GrpcServer:
    """`bind`, `start`, and at the end `stop`. `name` is the table of its settings."""

    def __init__(self, app: DaprApp, name: str, part: "Part[GrpcTransport]") -> None:
        self.app = app
        self._name = name
        self._part = part
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._all_gone: asyncio.Event | None = None

    def bind(self) -> int:
        """Take the address; gives the port."""
        self._socket = taken(self.app, self._name, key="grpc_port")
        return int(self._socket.getsockname()[1])

    async def start(self, service: Service) -> None:
        """Begin to accept."""
        assert self._socket is not None, "bind first"
        context = tls_context(self.app, "h2")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: GrpcTransport(self, service, loop), sock=self._socket, ssl=context, backlog=1024
        )
        self._sweeping = loop.create_task(self._sweep())

    async def stop(self) -> None:
        """Accept no more, and let the calls under way end within `drain_ms`."""
        if self._server is None or self._sweeping is None:
            if self._socket is not None:
                self._socket.close()
            return
        self._server.close()
        self._sweeping.cancel()
        self._all_gone = asyncio.Event()
        for client in list(self._part.open):
            client.stop()
        if self._part.open:
            try:
                await asyncio.wait_for(self._all_gone.wait(), self.app.drain_ms / 1000)
            except TimeoutError:
                for client in list(self._part.open):
                    client.abort()
                await self._all_gone.wait()

    def enter(self, client: "GrpcTransport") -> bool:
        """Let a connection in, if there is room."""
        return self._part.enter(client)

    def leave(self, client: "GrpcTransport") -> None:
        """A connection is gone."""
        self._part.leave(client)
        if not self._part.open and self._all_gone is not None:
            self._all_gone.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            now = time.monotonic()
            for client in list(self._part.open):
                client.sweep(now)


class GrpcTransport(asyncio.Protocol):
    """The transport of one connection: its bytes to and fro, and how long it may be silent."""

    def __init__(self, server: GrpcServer, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._service = service
        self._loop = loop
        self._transport: asyncio.Transport
        self._connection: Connection | None = None
        self._heard_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._transport = transport
        if not self._server.enter(self):
            log.warning("a gRPC connection is refused: as many as are allowed are open")
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        max_bytes = self._server.app.max_body_bytes + FRAME_BYTES
        self._heard_at = time.monotonic()
        self._connection = Connection(
            self, opening(self._service, max_bytes), MAX_STREAMS, HELD_BODIES * max_bytes
        )

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._connection is not None and not self._connection.closed:
            self._heard_at = time.monotonic()
            self._connection.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._server.leave(self)
        if self._connection is not None:
            self._connection.close()

    def pause_writing(self) -> None:
        """The client reads too slowly: it is not listened to meanwhile."""
        if self._connection is not None:
            self._connection.hold()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._connection is not None:
            self._connection.release()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def sweep(self, now: float) -> None:
        """End it if it has been silent for too long."""
        connection = self._connection
        if connection is None:
            return
        connection.calm.forgive()
        silent_ms = (now - self._heard_at) * 1000
        if not connection.streams and silent_ms > self._server.app.idle_timeout_ms:
            connection.stop()
            connection.close()
        elif silent_ms > BODY_SILENCE_MS and connection.owing:
            self.abort()

    def stop(self) -> None:
        """Begin nothing more; close when the last call has ended."""
        connection = self._connection
        if connection is None or connection.closed:
            self.abort()
        else:
            connection.on_idle = connection.close
            connection.stop()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Output

    def write(self, data: bytes) -> None:
        """Send."""
        self._transport.write(data)

    def close(self) -> None:
        """Close once all is sent."""
        self._transport.close()

    def soon(self, work: Callable[[], None]) -> None:
        """Do something at the end of this turn."""
        self._loop.call_soon(work)
