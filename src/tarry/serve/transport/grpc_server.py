"""A listening gRPC server inside the server's own loop: its transports, and the bounds on who connects."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from tarry.config.dapr import DaprApp
from tarry.grpc.call import Service, opening
from tarry.grpc.connection import GrpcConnection
from tarry.serve.transport.accepting import Accepting
from tarry.serve.transport.connection_budget import SWEEP_MS, ListenerShare, Unread
from tarry.serve.transport.listener import begin, renew, taken, tls_context

FRAME_BYTES: Final = 64 * 1024
"""Maximum bytes of a request beside its body."""
MAX_STREAMS: Final = 1_000
"""Calls at once on one connection."""
HELD_BODIES: Final = 8
"""How many of the largest requests a connection may have in parts."""
MAX_UNREAD_BYTES: Final = 1 << 20
"""Maximum bytes that a client may leave unread before nothing more is read from it."""
FAREWELL_S: Final = 2.0
FAREWELL_BYTES: Final = 1 << 20
"""After the end of a connection its client has so long to close it too; meanwhile so many of its bytes are discarded."""

log = logging.getLogger("tarry.dapr")


class GrpcServer:
    """`bind`, `start`, and at the end `stop`. `name` is the table of its settings."""

    def __init__(self, app: DaprApp, name: str, share: "ListenerShare[GrpcTransport]") -> None:
        self.app = app
        self._name = name
        self._share = share
        self._socket: socket.socket | None = None
        self._server: Accepting | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._all_gone: asyncio.Event | None = None

    def bind(self) -> int:
        """Take the address; gives the port."""
        self._socket = taken(self.app, self._name, key="grpc_port")
        return int(self._socket.getsockname()[1])

    async def start(self, service: Service) -> None:
        """Begin to accept."""
        assert self._socket is not None, "bind first"
        loop = asyncio.get_running_loop()
        self._server = Accepting(
            self._socket,
            lambda: GrpcTransport(self, service, loop),
            self._share,
            tls_context(self.app, "h2"),
        )
        begin(self._server, self.app, self._name, key="grpc_port")
        self._sweeping = loop.create_task(self._sweep())

    def renew(self) -> None:
        """Show the certificate that is in the files now; raises `ListenError`."""
        renew(self._server, self.app, "h2")

    def revoke(self) -> None:
        """End the calls whose token is not in force any more."""
        for client in list(self._share.open):
            client.revoke()

    async def stop(self) -> None:
        """Accept no more, and let the calls under way end within `drain_ms`."""
        if self._server is None or self._sweeping is None:
            if self._socket is not None:
                self._socket.close()
            return
        self._server.close()
        self._sweeping.cancel()
        self._all_gone = asyncio.Event()
        for client in list(self._share.open):
            client.stop()
        if self._share.open:
            try:
                await asyncio.wait_for(self._all_gone.wait(), self.app.drain_ms / 1000)
            except TimeoutError:
                for client in list(self._share.open):
                    client.abort()
                await self._all_gone.wait()

    def enter(self, client: "GrpcTransport") -> bool:
        """Let a connection in, if a place is free."""
        return self._share.enter(client)

    def look(self, client: "GrpcTransport", idle: bool, now_s: float) -> float:
        """Take note of whether a connection has no call under way; gives for how long it has had none."""
        waiting = self._share.waiting
        if not idle:
            waiting.pop(client, None)
            return 0.0
        return now_s - waiting.setdefault(client, now_s)

    def leave(self, client: "GrpcTransport") -> None:
        """A connection is gone."""
        self._share.leave(client)
        if not self._share.open and self._all_gone is not None:
            self._all_gone.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            now = time.monotonic()
            for client in list(self._share.open):
                client.sweep(now)
            self._share.sweep(now)


class GrpcTransport(asyncio.Protocol):
    """The transport of one connection: its bytes to and fro, and how long it may be silent."""

    def __init__(self, server: GrpcServer, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._service = service
        self._loop = loop
        self._transport: asyncio.Transport
        self._connection: GrpcConnection | None = None
        self._rest: asyncio.Handle | None = None
        """The turn in which bytes that came already are read on."""
        self._farewell: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0
        self.unread: Unread | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._transport = transport
        if not self._server.enter(self):
            log.warning("a gRPC connection is refused: the maximum number is open")
            transport.abort()
            return
        transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self.unread = Unread(transport)
        max_bytes = self._server.app.max_body_bytes + FRAME_BYTES
        self._connection = GrpcConnection(
            self, opening(self._service, max_bytes), MAX_STREAMS, HELD_BODIES * max_bytes
        )
        self._server.look(self, idle=True, now_s=time.monotonic())

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        connection = self._connection
        if self._farewell is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > FAREWELL_BYTES:
                self.abort()
        elif connection is not None and not connection.closed:
            connection.receive(data)
            if connection.behind:
                # Others have their turn before the rest, and nothing more is read meanwhile.
                self._transport.pause_reading()
                self._take_rest_soon()

    def _take_rest_soon(self) -> None:
        if self._rest is None:
            self._rest = self._loop.call_soon(self._take_rest)

    def _take_rest(self) -> None:
        self._rest = None
        connection = self._connection
        assert connection is not None, "only a connection leaves a rest"
        if not connection.paused and not connection.closed and not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._server.leave(self)
        if self._farewell is not None:
            self._farewell.cancel()
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
            if self._connection.behind:
                self._take_rest_soon()
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._connection is not None and bool(self._connection.streams)

    def sweep(self, now: float) -> None:
        """End the calls that take too long to come or to be read, and the connection if it has had none for too long."""
        connection = self._connection
        if connection is None:
            return
        connection.calm.forgive()
        connection.sweep(now)
        # Bytes that begin no call do not count: neither pings, nor a head that never ends.
        idle_s = self._server.look(self, idle=not connection.streams, now_s=now)
        if idle_s * 1000 > self._server.app.idle_timeout_ms:
            connection.stop()
            connection.close()

    def revoke(self) -> None:
        """End the calls whose token is not in force any more."""
        if self._connection is not None:
            self._connection.revoke()

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
        """Close once all is sent and the client has closed too, or has had the time to.

        A socket that is closed with unread bytes of the client resets the connection, and the reason that was sent may
        never be read. TLS takes leave by itself.
        """
        if self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._farewell = self._loop.call_later(FAREWELL_S, self._end_farewell)

    def _end_farewell(self) -> None:
        if self._transport.get_write_buffer_size():
            # It is still being sent; who does not read is ended by the sweep.
            self._farewell = self._loop.call_later(FAREWELL_S, self._end_farewell)
        else:
            self.abort()

    def soon(self, work: Callable[[], None]) -> None:
        """Do something at the end of this turn."""
        self._loop.call_soon(work)
