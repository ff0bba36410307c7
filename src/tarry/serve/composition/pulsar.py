"""The wiring of the Pulsar door: its listener, its connections' transports, and the keep-alive of all of them."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tarry.config.pulsar import Pulsar
from tarry.core.messages.delivery import Outlet
from tarry.core.telemetry.figure import Figure
from tarry.core.tenants.access import Access
from tarry.doors.pulsar.admin.app import PATHS, AdminApp
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.connection import PulsarConnection
from tarry.doors.pulsar.stored_schemas import StoredSchemas
from tarry.engine.engine import Engine
from tarry.http.application import Application
from tarry.serve.transport.accepting import Accepting
from tarry.serve.transport.connection_budget import SWEEP_MS, ConnectionBudget, ListenerShare, Unread
from tarry.serve.transport.listener import begin, renew, shown, taken, tls_context

log = logging.getLogger("tarry.pulsar")

NAME: Final = "doors.pulsar"
CONNECT_WITHIN_S: Final = 10.0
"""So long a client may take to say who it is. Until then it makes way for others, if no place is free."""


class PulsarDoor:
    """See `tarry.serve.composition.doors.Door`."""

    def __init__(self, settings: Pulsar, access: Access, budget: ConnectionBudget) -> None:
        self._settings = settings
        self._access = access
        self._socket: socket.socket | None = None
        self._server: Accepting | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._url = ""
        self.share: ListenerShare[PulsarTransport] = budget.share_of(NAME, settings.max_connections)
        self.broker: Broker | None = None
        self._admin = AdminApp(self._url_under)

    @property
    def outlets(self) -> Mapping[str, Outlet]:
        """None: Pulsar's topics are Tarry's own."""
        return {}

    @property
    def mounts(self) -> Mapping[str, Application]:
        """The administration."""
        return dict.fromkeys(PATHS, self._admin)

    @property
    def figures(self) -> Sequence[Figure]:
        """Figures of the messages and connections that the door refused."""
        return (
            Figure(
                name="tarry_pulsar_delays_refused",
                text="Messages refused because of their delay",
                label="reason",
                counts=True,
                values=lambda: self.broker.delays_refused if self.broker else {},
            ),
            Figure(
                name="tarry_pulsar_connections_failed",
                text="Connections of Pulsar clients that were ended with a reason",
                counts=True,
                values=lambda: {"": self.broker.connections_failed if self.broker else 0},
            ),
        )

    def bind(self) -> list[str]:
        """Take the address."""
        self._socket = taken(self._settings, NAME)
        self._url = self.url_of(self._socket.getsockname())
        return [self._url]

    def url_of(self, address: tuple[str, int]) -> str:
        """An address of this server as clients write it."""
        return f"{'pulsar+ssl' if self._settings.tls_cert else 'pulsar'}://{shown(address)}"

    def _url_under(self, host: str) -> str:
        """The door's address for a client that knows this machine under a name, as in a request's `Host`."""
        if self._settings.advertised_url:
            return self._settings.advertised_url
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        return (
            f"{self._url.partition('://')[0]}://{name}:{self._url.rpartition(':')[2]}" if name else self._url
        )

    async def start(self, engine: Engine) -> None:
        """Begin to accept."""
        assert self._socket is not None, "bind first"
        self.broker = Broker(engine, self._access, self._settings, StoredSchemas(engine), self.share.limit)
        self._admin.broker = self.broker
        loop = asyncio.get_running_loop()
        self._server = Accepting(
            self._socket, lambda: PulsarTransport(self), self.share, tls_context(self._settings)
        )
        begin(self._server, self._settings, NAME)
        self._keeping = loop.create_task(self._keep_alive())
        self._sweeping = loop.create_task(self._sweep())

    def renew(self) -> None:
        """See `Door`."""
        renew(self._server, self._settings)

    def revoke(self) -> None:
        """See `Door`."""
        for client in list(self.share.open):
            client.revoke()

    async def stop(self) -> None:
        """Accept no more, and close the connections: clients come again to whoever is there then."""
        if self.broker is not None:
            self.broker.stopping = True
        if self._keeping is not None:
            self._keeping.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for client in list(self.share.open):
            client.end()

    async def close(self) -> None:
        """Nothing is held open."""

    @property
    def max_unread_bytes(self) -> int:
        """Maximum bytes that a client may leave unread before it gets no more."""
        return self._settings.max_connection_bytes

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.keep_alive_ms / 1000)
            for client in list(self.share.open):
                client.tick()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            now_s = time.monotonic()
            for client, since_s in list(self.share.waiting.items()):
                if client.busy:
                    self.share.waiting.pop(client)
                elif now_s - since_s > CONNECT_WITHIN_S:
                    client.abort()
            self.share.sweep(now_s)


class PulsarTransport(asyncio.Protocol):
    """The transport of one connection: its bytes to and fro, and nothing else."""

    def __init__(self, door: PulsarDoor) -> None:
        self._door = door
        self._transport: asyncio.Transport | None = None
        self._connection: PulsarConnection | None = None
        self.unread: Unread | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        assert self._door.broker is not None
        self._transport = transport
        if not self._door.share.enter(self):
            log.warning("a connection is refused: the maximum number is open")
            transport.abort()
            return
        transport.set_write_buffer_limits(high=self._door.max_unread_bytes)
        self.unread = Unread(transport)
        self._door.share.waiting[self] = time.monotonic()
        peer = transport.get_extra_info("peername")
        here = transport.get_extra_info("sockname")
        self._connection = PulsarConnection(self._door.broker, self, str(peer[0]), self._door.url_of(here))

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._connection is not None and not self._connection.closed:
            self._connection.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._door.share.leave(self)
        if self._connection is not None:
            self._connection.lost()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        if self._connection is not None:
            self._connection.hold()

    def resume_writing(self) -> None:
        """The client reads again."""
        if self._connection is not None:
            self._connection.release()

    @property
    def busy(self) -> bool:
        """Whether the client has said who it is."""
        return self._connection is not None and self._connection.caller is not None

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def tick(self) -> None:
        """See `PulsarConnection.tick`."""
        if self._connection is not None:
            self._connection.tick()

    def revoke(self) -> None:
        """See `PulsarConnection.revoke`."""
        if self._connection is not None:
            self._connection.revoke()

    def end(self) -> None:
        """The server stops."""
        if self._connection is not None:
            self._connection.close()

    # Output

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close once all is sent."""
        if self._transport is not None:
            self._transport.close()

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def after(self, wait_ms: int, work: Callable[[], None]) -> None:
        """Do something later."""
        asyncio.get_running_loop().call_later(wait_ms / 1000, work)
