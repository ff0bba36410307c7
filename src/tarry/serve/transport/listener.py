"""A listening socket that speaks HTTP for one application at a time, inside the server's own loop.

It takes the address, begins, sweeps and ends; what each connection may do is in `tarry.http.connection`. Signals are left to
the composition root. Knows nothing of what the application does.
"""

import asyncio
import socket
import ssl
import time
from collections import OrderedDict
from typing import Any

from tarry.config.listening import Listening
from tarry.core.tenants.access import ANYBODY, Access, Caller
from tarry.core.tenants.shares import Shares
from tarry.http.application import Application
from tarry.http.connection import HttpConnection
from tarry.http.head import Heads
from tarry.serve.transport.accepting import Accepting
from tarry.serve.transport.connection_budget import SWEEP_MS, ConnectionBudget, ListenerShare, Unread


class ListenError(Exception):
    """The address cannot be listened on. The text says what to do."""


class Listener:
    """One HTTP listener: `bind`, `start`, and at the end `stop`. Without a share of a budget it has one for itself."""

    def __init__(self, settings: Listening, share: ListenerShare[Any] | None = None) -> None:
        self._settings = settings
        self._share: ListenerShare[HttpConnection] = share or ConnectionBudget().share_of(
            "http", settings.max_connections
        )
        self._socket: socket.socket | None = None
        self._app: Application | None = None
        self._accepting: Accepting | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._all_gone: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Requests that are served in tasks."""
        self._shares: Shares | None = None
        self._holders: dict[HttpConnection, Caller] = {}
        """Connections with a request, and whose it is."""

    def bind(self) -> str:
        """Take the address, so that a taken one is told before anything is opened; gives the URL."""
        self._socket = taken(self._settings, self._share.name)
        return f"{'https' if self._settings.tls_cert else 'http'}://{shown(self._socket.getsockname())}"

    async def start(self, app: Application, access: Access | None = None) -> None:
        """Begin to accept, for an application, whose callers share the connections that have requests.

        They do while this access has several tokens, or always if the tokens are not known here.
        """
        assert self._socket is not None, "bind first"
        self._shares = Shares(self._share.limit, "requests under way", access)
        self._app = app
        heads = Heads()

        def connection() -> HttpConnection:
            assert self._app is not None
            return HttpConnection(self._app, self, heads, self._tasks)

        self._accepting = Accepting(
            self._socket, connection, self._share, tls_context(self._settings, "http/1.1")
        )
        begin(self._accepting, self._settings, self._share.name)
        self._sweeping = asyncio.create_task(self._sweep_on())

    def change(self, app: Application) -> None:
        """Serve another application from now on: the connections of the one before end, after the response under way."""
        self._app = app
        for client in list(self._share.open):
            client.stop()

    # Seats

    @property
    def waiting(self) -> OrderedDict[HttpConnection, float]:
        """Connections without a request, and since when."""
        return self._share.waiting

    def enter(self, client: HttpConnection) -> bool:
        """Let a connection in, if there is a place."""
        client.unread = Unread(client.transport)
        return self._share.enter(client)

    def leave(self, client: HttpConnection) -> None:
        """A connection is gone."""
        self._share.leave(client)
        self.release(client)
        if not self._share.open and self._all_gone is not None:
            self._all_gone.set()

    def hold(self, client: HttpConnection, caller: Caller) -> None:
        """See `Seats`. Whoever need not say who it is has its answer at once."""
        if self._shares is not None and caller is not ANYBODY:
            self._shares.take(caller)
            self._holders[client] = caller

    def release(self, client: HttpConnection) -> None:
        """See `Seats`."""
        caller = self._holders.pop(client, None)
        if caller is not None and self._shares is not None:
            self._shares.give_back(caller)

    # Time

    def sweep(self, now_s: float) -> None:
        """Close connections that have been silent for too long, and those that do not read."""
        waiting = self._share.waiting
        while waiting:
            client, since_s = next(iter(waiting.items()))
            if (now_s - since_s) * 1000 < self._settings.idle_timeout_ms:
                break
            waiting.popitem(last=False)
            client.transport.close()
        for client in list(self._share.open):
            client.check_time(now_s)
        self._share.sweep(now_s)

    async def _sweep_on(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            self.sweep(time.monotonic())

    def renew(self) -> None:
        """Show the certificate that is in the files now; raises `ListenError`."""
        renew(self._accepting, self._settings, "http/1.1")

    async def stop(self) -> None:
        """Accept no more, let the requests under way end within `drain_ms`, and close the rest."""
        if self._accepting is None or self._sweeping is None:
            if self._socket is not None:
                self._socket.close()
            return
        self._accepting.close()
        self._all_gone = asyncio.Event()
        for client in list(self._share.open):
            client.stop()
        if self._share.open:
            try:
                await asyncio.wait_for(self._all_gone.wait(), self._settings.drain_ms / 1000)
            except TimeoutError:
                for client in list(self._share.open):
                    client.abort()
                await self._all_gone.wait()
        await self._end_tasks()
        self._sweeping.cancel()

    async def _end_tasks(self) -> None:
        """End the tasks of requests whose clients are gone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def taken(settings: Listening, name: str, key: str = "port") -> socket.socket:
    """A socket that has the address; raises `ListenError`. `name` is the table of the settings, `key` that of the port."""
    host, port = settings.host, getattr(settings, key)
    found: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind)
        # Connections of an earlier life need not be gone; but of two sockets that both say so, Linux lets each have the address
        # until one of them listens, which a server that stands by does late.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
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
