"""A listening socket that speaks HTTP for one ASGI application, inside the server's own loop.

What uvicorn does not do by itself, and a server that must never starve its ledger needs:

- a bound on connections. At the bound the connection that has been idle for longest makes room; where
  every one is busy the new one is refused with 503;
- a bound on silence. A connection that never sends a request, dribbles its headers or stops in the
  middle of a body is closed (uvicorn's own timeout starts only after a first answer);
- a bound on the size of a request's head (httptools has none);
- one write for an answer, and no task for a request that has come whole, if the application can do without (`Quick`): that
  halves what a small request costs;
- signals are left to the composition root.

Knows nothing of what the application does.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tarry.config.listening import Listening
from tarry.serve.room import Part, Room

BODY_SILENCE_MS: Final = 20_000
"""A request whose next bytes do not come within this is given up."""
MAX_HEAD_BYTES: Final = 64 * 1024
SWEEP_MS: Final = 1_000


Quick = Callable[[Any, bytes, Callable[[int, list[tuple[bytes, bytes]], bytes], None]], bool]
"""What an application may have beside ASGI, as `quick`: it gets the scope and the body of a request that has come
whole, and a function that sends a whole answer; it says whether it will. That saves a task and two dozen calls."""


class ListenError(Exception):
    """The address cannot be listened on. The text says what to do."""


class Listener:
    """One HTTP listener: `bind`, `start`, and at the end `stop`. Without a part it has all the room for itself."""

    def __init__(self, settings: Listening, part: Part | None = None) -> None:
        self._settings = settings
        self._part = part or Room().part("http", settings.max_connections)
        self._socket: socket.socket | None = None
        self._server: _Server | None = None
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
        connections = _Connections(self._part)
        self._part.open = lambda: len(connections.all)
        config = uvicorn.Config(
            app,
            http=type("_Protocol", (_Protocol,), {"known": connections, "quick": _quick_of(app)}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=-(-settings.idle_timeout_ms // 1000),
            timeout_graceful_shutdown=-(-settings.drain_ms // 1000),
            backlog=1024,
        )
        config.load()
        if settings.tls_cert is not None:
            config.ssl = tls_context(settings)
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        self._sweeping = asyncio.create_task(_sweep(connections, settings.idle_timeout_ms / 1000))
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise ListenError("the listener ended before it began")
            await asyncio.sleep(0.005)

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
        reason = error.strerror or str(error)
        raise ListenError(
            f"cannot listen on {host}:{port}: {reason}; stop what uses it, "
            f"or set {name}.host and {name}.{key} ({advice(name, key)})"
        ) from None
    return found


def advice(name: str, key: str = "port") -> str:
    """How a port is set without a file."""
    variable = f"TARRY_{name.upper().replace('.', '__')}__{key.upper()}"
    return f"{variable}, --port" if name == "http" else variable


def shown(address: Any) -> str:
    """An address as it stands in a URL."""
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def tls_context(settings: Listening) -> ssl.SSLContext:
    """TLS 1.2 or later with the configured certificate; raises `ListenError` if it cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert or "", settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ListenError(
            f"cannot use the certificate {settings.tls_cert} with the key {settings.tls_key}: {reason}"
        ) from None
    return context


def _quick_of(app: Any) -> Any:
    """The application's way to answer without a task, if it has one."""
    quick = getattr(app, "quick", None)
    return None if quick is None else staticmethod(quick)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Connections:
    """Who is connected, and since when each one has been waiting for a request."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._limit = part.limit
        self.all: set[_Protocol] = set()
        self.waiting: OrderedDict[_Protocol, float] = OrderedDict()

    def make_room(self) -> bool:
        """Whether one more fits, after closing the one that was idle for longest if need be."""
        if len(self.all) < self._limit:
            return True
        if not self.waiting:
            self._part.refused += 1
            return False
        oldest, _ = self.waiting.popitem(last=False)
        # Gone at once: the transport tells of its end only in the loop's next turn.
        self.all.discard(oldest)
        oldest.transport.abort()
        return True

    def sweep(self, now: float, idle_s: float) -> None:
        """Close those that have been silent for too long."""
        while self.waiting:
            connection, since = next(iter(self.waiting.items()))
            if now - since < idle_s:
                break
            self.waiting.popitem(last=False)
            connection.transport.close()
        for connection in [one for one in self.all if one.stalled(now)]:
            connection.transport.abort()


async def _sweep(connections: _Connections, idle_s: float) -> None:
    while True:
        await asyncio.sleep(SWEEP_MS / 1000)
        connections.sweep(time.monotonic(), idle_s)


class _WholeAnswers(asyncio.Transport):
    """A transport that sends the head of an answer together with what follows it.

    The server writes the two one after the other, and a write to a socket is dear: a tenth of what scheduling a message
    costs. A head that nothing follows in the same turn of the loop goes by itself.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._to = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: Any) -> None:
        """Send, or hold for the rest of this turn."""
        head = self._head
        if head is not None:
            self._head = None
            self._to.write(head + data)
        elif data[:5] == b"HTTP/":
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._to.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._to.is_closing():
            self._to.write(head)

    def close(self) -> None:
        """Close once all is sent."""
        self._flush()
        self._to.close()

    def abort(self) -> None:
        """Close at once."""
        self._head = None
        self._to.abort()

    def is_closing(self) -> bool:
        """As the transport says."""
        return self._to.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the transport says."""
        return self._to.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the transport does."""
        self._to.pause_reading()

    def resume_reading(self) -> None:
        """As the transport does."""
        self._to.resume_reading()


class _Protocol(HttpToolsProtocol):
    """One connection. It is `waiting` until a head is complete, and again after its answer."""

    known: _Connections
    quick: Quick | None = None
    _heard_at = 0.0
    _head_bytes = 0
    _in_head = False
    _feeding = False
    _socket: asyncio.Transport
    _begun: RequestResponseCycle | None = None
    """The request whose head was read just now, and whose task is held back until it is clear whether it needs one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        fits = self.known.make_room()
        self._socket = transport
        super().connection_made(_WholeAnswers(transport, self.loop))
        if not fits:
            self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self.known.all.add(self)
        self.known.waiting[self] = self._heard_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        self.known.all.discard(self)
        self.known.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._heard_at = time.monotonic()
        self._feeding = True
        super().data_received(data)
        self._feeding = False
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._begin(begun)
        self._head_bytes += len(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", b"")

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.known.waiting.pop(self, None)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._feeding and self.quick is not None:
            self._begun = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self, cycle: RequestResponseCycle) -> None:
        """Answer at once what has come whole and can be; else begin a task."""
        if self.transport.is_closing():
            return
        whole = not cycle.more_body and not cycle.waiting_for_100_continue and not self.flow.write_paused
        if whole and self.quick is not None:
            scope: Any = cycle.scope
            if self.quick(scope, bytes(cycle.body), partial(self._reply, cycle)):
                return
        super()._start_asgi_task(cycle, self.app)

    def _reply(
        self, cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send a whole answer, as the cycle would."""
        if self._socket.is_closing():
            return
        head = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            head += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        head.append(body)
        self._socket.write(b"".join(head))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        # As uvicorn's own, but without a timer for every answer: the sweep closes who stays silent.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.cycle.response_complete:
            self.known.waiting[self] = time.monotonic()

    def stalled(self, now: float) -> bool:
        """Whether the client owes the rest of a body and has been silent for too long."""
        # uvicorn types this as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return False
        if self.flow.read_paused:
            # It is we who do not listen: its silence counts from when we do again.
            self._heard_at = now
        return now - self._heard_at > BODY_SILENCE_MS / 1000

    def _refuse(self, status: bytes, header: bytes) -> None:
        self.known.all.discard(self)
        self.known.waiting.pop(self, None)
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\n" + header + b"content-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()
