"""A whole server with every door and with tokens, and raw sockets to its five listeners, for strangers who show none."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tarry.config import load
from tarry.serve.composition import server as composition
from tarry.serve.datafolder import DataFolder
from tarry.serve.transport.connection_budget import ListenerShare
from tests.certificates import certificate
from tests.processes import free_port

LISTENERS = ("http", "doors.matrix", "doors.dapr", "doors.dapr:grpc", "doors.pulsar")
HTTP = LISTENERS[:3]
"""Listeners that speak HTTP/1.1."""
GRPC = "doors.dapr:grpc"
PULSAR = "doors.pulsar"
TOKEN = "a-long-enough-token"
BUSY_S = 30
"""How long a loaded machine may take for what has no bound of its own here."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Strangers:
    """A server, and connections to it that show no token."""

    def __init__(
        self, server: composition.Server, ports: dict[str, int], client: ssl.SSLContext | None
    ) -> None:
        self.server = server
        self.ports = ports
        self.client = client
        """The TLS context of clients, if the server speaks TLS."""
        self._stack = contextlib.AsyncExitStack()

    def part(self, listener: str) -> ListenerShare[Any]:
        """The connections of a listener, as the server counts them."""
        return next(share for share in self.server._budget.shares if share.name == listener)

    async def connect(self, listener: str, *, tls: bool = True, receive_bytes: int = 0) -> Stream:
        """Connect; with `tls=False` in clear text also where the listener speaks TLS. `receive_bytes` bounds the kernel's buffer."""
        context = self.client if tls else None
        own = socket.socket()
        if receive_bytes:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.ports[listener]))
        reader, writer = await asyncio.open_connection(
            sock=own, ssl=context, server_hostname="" if context else None
        )
        self._stack.push_async_callback(_let_go, writer)
        return reader, writer

    async def works(self) -> None:
        """The server still answers, on the native API."""
        async with asyncio.timeout(BUSY_S):
            reader, writer = await self.connect("http")
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.transport.abort()

    async def leave(self) -> None:
        """Close all connections."""
        await self._stack.aclose()


async def _let_go(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def closed(stream: Stream) -> None:
    """Wait until the server has closed a connection, whatever it sends before."""
    with contextlib.suppress(OSError):
        while await stream[0].read(65_536):
            pass


@contextlib.asynccontextmanager
async def strangers(folder: Path, *, tls: bool, settings: str = "") -> AsyncIterator[Strangers]:
    """A whole server in this loop with every door. `settings` are lines for each listener's table."""
    ports = {name: free_port() for name in LISTENERS}
    lines = settings
    client = None
    if tls:
        cert, key = certificate(folder)
        lines += f'\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
        client = ssl.create_default_context(cafile=str(cert))
        client.check_hostname = False
    registration = folder / "registration.yaml"
    registration.write_text("as_token: as-secret-token\nhs_token: hs-secret-token\n")
    file = folder / "tarry.toml"
    file.write_text(
        f'data = "{folder / "data"}"\n'
        f"[http]\nport = {ports['http']}\n{lines}\n"
        f"[ledger]\nsegment_bytes = 1048576\n"
        f"[doors.matrix]\nenabled = true\nport = {ports['doors.matrix']}\n{lines}\n"
        f'homeserver = "http://127.0.0.1:{free_port()}"\nregistration = "{registration}"\n'
        f"[doors.dapr]\nenabled = true\nport = {ports['doors.dapr']}\ngrpc_port = {ports[GRPC]}\n{lines}\n"
        f"[doors.pulsar]\nenabled = true\nport = {ports[PULSAR]}\n{lines}\n"
        f'[[tokens]]\nname = "somebody"\ntoken = "{TOKEN}"\nroles = ["admin"]\n'
    )
    config = load(str(file), environment={}).config
    with DataFolder.open(folder / "data") as owned:
        server = composition.Server(config, owned)
        try:
            await server.start()
            served = Strangers(server, ports, client)
            try:
                yield served
            finally:
                await served.leave()
        finally:
            await server.stop()
        assert server.fault is None, server.fault
