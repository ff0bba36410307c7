"""A listening socket that speaks HTTP for one ASGI application, inside the server's own loop.

It takes the address, begins and ends; what each connection may do is in `connections`. Signals are left to the
composition root. Knows nothing of what the application does.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Any

import uvicorn

from tarry.config.listening import Listening
from tarry.serve.transport.accepting import BACKLOG, Accepting
from tarry.serve.transport.connection_budget import ConnectionBudget, Part
from tarry.serve.transport.connections import connection_class, sweep_on


class ListenError(Exception):
    """The address cannot be listened on. The text says what to do."""


class Listener:
    """One HTTP listener: `bind`, `start`, and at the end `stop`. Without a part it has all the room for itself."""

    def __init__(self, settings: Listening, part: Part[Any] | None = None) -> None:
        self._settings = settings
        self._part = part or ConnectionBudget().part("http", settings.max_connections)
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
        self._accepting: Accepting | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def bind(self) -> str:
        """Take the address, so that a taken one is told before anything is opened; gives the URL."""
        self._socket = taken(self._settings, self._part.name)
        return f"{'https' if self._settings.tls_cert else 'http'}://{shown(self._socket.getsockname())}"

    async def start(self, app: Any) -> None:
        """Begin to accept, for an ASGI application."""
        assert self._socket is not None, "bind first"
        settings = self._settings
        config = uvicorn.Config(
            app,
            http=connection_class(app, self._part),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=-(-settings.idle_timeout_ms // 1000),
            timeout_graceful_shutdown=-(-settings.drain_ms // 1000),
            backlog=BACKLOG,
        )
        config.load()
        self._server = _Server(config)
        make: Any = config.http_protocol_class
        make = partial(make, config, self._server.server_state, {})
        accepting = Accepting(self._socket, make, self._part, tls_context(settings, "http/1.1"))
        begin(accepting, settings, self._part.name)
        self._accepting = accepting
        self._server.servers = [accepting]  # type: ignore[list-item]
        self._serving = asyncio.create_task(self._server.serve())
        self._sweeping = asyncio.create_task(sweep_on(self._part, settings.idle_timeout_ms / 1000))

    def renew(self) -> None:
        """Show the certificate that is in the files now; raises `ListenError`."""
        renew(self._accepting, self._settings, "http/1.1")

    async def stop(self) -> None:
        """Accept no more, let the requests under way end within `drain_ms`, close what is left."""
        if self._server is None or self._serving is None or self._sweeping is None:
            if self._socket is not None:
                self._socket.close()
            return
        self._server.should_exit = True
        await self._serving
        self._sweeping.cancel()


def taken(settings: Listening, name: str, key: str = "port") -> socket.socket:
    """A socket that has the address; raises `ListenError`. `name` is the table of the settings, `key` that of the port."""
    host, port = settings.host, getattr(settings, key)
    found: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        if found is not None:
            found.close()
        raise _unusable(settings, name, key, error) from None
    return found


def begin(accepting: Accepting, settings: Listening, name: str, key: str = "port") -> None:
    """Begin to accept; raises `ListenError` where another process has come to listen on the address meanwhile."""
    try:
        accepting.start()
    except OSError as error:
        raise _unusable(settings, name, key, error) from None


def _unusable(settings: Listening, name: str, key: str, error: OSError) -> ListenError:
    reason = error.strerror or str(error)
    return ListenError(
        f"cannot listen on {settings.host}:{getattr(settings, key)}: {reason}; stop what uses it, "
        f"or set {name}.host and {name}.{key} ({advice(name, key)})"
    )


def advice(name: str, key: str = "port") -> str:
    """How a port is set without a file."""
    variable = f"TARRY_{name.upper().replace('.', '__')}__{key.upper()}"
    return f"{variable}, --port" if name == "http" else variable


def shown(address: Any) -> str:
    """An address as it stands in a URL."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def tls_context(settings: Listening, *protocols: str) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the certificate in the files, if one is configured; raises `ListenError` if it cannot be used.

    The protocols are what clients are told that is spoken here (ALPN).
    """
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ListenError(
            f"cannot use the certificate {settings.tls_cert} with the key {settings.tls_key}: {reason}"
        ) from None
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or str(error)
            raise ListenError(
                f"cannot use {settings.tls_client_ca} to verify clients' certificates: {reason}"
            ) from None
    return context


def renew(accepting: Accepting | None, settings: Listening, *protocols: str) -> None:
    """Show new connections the certificate that is in the files now; raises `ListenError`, and shows them the old one."""
    if accepting is not None and accepting.context is not None:
        accepting.context = tls_context(settings, *protocols)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and without its way of accepting: `servers` is given."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
