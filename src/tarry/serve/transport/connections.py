"""One HTTP connection, and all of them: uvicorn's protocol with bounds, and a short way for what must be fast.

- A bound on connections (`Part`): at it somebody who is idle or does not read makes room; where every one is busy the new
  one is refused with 503.
- A bound on silence: a connection that never sends a request, dribbles its headers or its body, or does not read its answer
  is closed (uvicorn's own timeout starts only after a first answer).
- No way out of the protocol: an offer to go on in another one (`Upgrade: h2c`) is not taken up, and the request is read as
  what it is.
- A bound on the size of a request's head (httptools has none).
- One write for an answer, and no task for a request that has come whole, if the application can do without (`Quick`):
  that halves what a small request costs. A head whose fields are those of one before it is not even parsed (`Heads`).

Knows nothing of what the application does.
"""

import asyncio
import time
from functools import partial
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tarry.serve.transport.connection_budget import Part
from tarry.serve.transport.heads import Heads, Quick, quick_scope
from tarry.serve.transport.parser import RequestParser
from tarry.serve.transport.unread import Unread

BODY_SILENCE_MS: Final = 20_000
"""A request whose next bytes do not come within this is given up."""
BODY_PACE_BYTES: Final = 1024
"""A body has to come at so many bytes a second on average, beyond the time that it may be silent for."""
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_PIPELINED: Final = 256
"""Requests that a client may send before the answer to the first. Each is a few hundred times as large in memory as its bytes."""
SWEEP_MS: Final = 1_000
_NOBODY_WAITS: Final = asyncio.Event()


def connection_class(app: Any, known: "Part[HttpConnection]") -> type[HttpToolsProtocol]:
    """The class of connections to an application, which may have a way to answer without a task."""
    quick = getattr(app, "quick", None)
    named = {"known": known, "heads": Heads(quick), "quick": None if quick is None else staticmethod(quick)}
    return type("HttpConnection", (HttpConnection,), named)


def sweep(part: "Part[HttpConnection]", now_s: float, idle_s: float) -> None:
    """Close those that have been silent for too long, and those that do not read."""
    while part.waiting:
        connection, since_s = next(iter(part.waiting.items()))
        if now_s - since_s < idle_s:
            break
        part.waiting.popitem(last=False)
        connection.transport.close()
    for connection in [one for one in part.open if one.stalled(now_s)]:
        connection.abort()
    part.sweep(now_s)


async def sweep_on(part: "Part[HttpConnection]", idle_s: float) -> None:
    """Sweep for as long as there is a listener."""
    while True:
        await asyncio.sleep(SWEEP_MS / 1000)
        sweep(part, time.monotonic(), idle_s)


class QuickCycle(RequestResponseCycle):
    """The facts that uvicorn needs of a request that it did not parse."""

    keep_alive = True
    more_body = False
    response_complete = False
    message_event = _NOBODY_WAITS

    def __init__(self, default_headers: list[tuple[bytes, bytes]]) -> None:
        self.default_headers = default_headers


class WholeAnswers(asyncio.Transport):
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
            self._to.writelines((head, data))
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


class HttpConnection(HttpToolsProtocol):
    """One connection. It is `waiting` until a head is complete, and again after its answer."""

    known: "Part[HttpConnection]"
    heads: Heads
    unread: Unread | None = None
    busy = False
    """Whether a request is under way; never so between two requests."""
    quick: Quick | None = None
    _heard_at = 0.0
    _body_since_s = 0.0
    _came_bytes = 0
    """Bytes of the present request that have come."""
    _in_head = False
    _between = True
    """Whether the parser has seen the end of a request and nothing of the next."""
    _offered = False
    """Whether the head that was read offers another protocol: it comes again without that."""
    _feeding = False
    _socket: asyncio.Transport
    _begun: RequestResponseCycle | None = None
    """The request whose head was read just now, and whose task is held back until it is clear whether it needs one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the connection, if the listener has a place for it."""
        fits = self.known.enter(self)
        self._socket = transport
        self.unread = Unread(transport)
        self.parser = RequestParser(self)
        super().connection_made(WholeAnswers(transport, self.loop))
        if not fits:
            self._refuse(b"503 Service Unavailable", b"retry-after: 1\r\n")
            return
        self.known.waiting[self] = self._heard_at = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self.known.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes: answer a known head by the short way, else let the parser see them."""
        if self._socket.is_closing():
            return
        self._heard_at = time.monotonic()
        cycle: RequestResponseCycle | None = self.cycle
        alone = self._between and (cycle is None or cycle.response_complete)
        if alone and self._answer_known(data):
            return
        self._feeding = True
        super().data_received(data)
        self._feeding = False
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._begin(begun, data if alone else None)
        self._came_bytes += len(data)
        if self._in_head and self._came_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large", b"")

    def _answer_known(self, data: bytes) -> bool:
        """Answer a request with a known head, without the parser; False if it has to go the longer way."""
        found = self.heads.find(data)
        if found is None or self.flow.write_paused:
            return False
        answering, body = found
        before = self.cycle
        cycle = self.cycle = QuickCycle(self.server_state.default_headers)
        self.known.waiting.pop(self, None)
        if answering(body, self.client, partial(self._reply, cycle)):
            return True
        self.cycle = before
        return False

    def on_message_begin(self) -> None:
        """A request begins."""
        self._between = False
        self._offered = False
        self._came_bytes = 0
        self._in_head = True
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if not self.cycle.body:
            # What is added to no bytes is not copied, as it would be into uvicorn's array.
            self.cycle.body = b""  # type: ignore[assignment]
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come whole."""
        if self._offered:
            return
        self._between = True
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """A head has come whole: it waits no longer."""
        if self.parser.should_upgrade() and self.parser.offering:  # type: ignore[attr-defined]
            self._offered = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self.abort()
        if self._socket.is_closing():
            return
        self._in_head = False
        self._body_since_s = self._heard_at
        self.known.waiting.pop(self, None)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._feeding and self.quick is not None:
            self._begun = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def _begin(self, cycle: RequestResponseCycle, alone: bytes | None) -> None:
        """Answer at once what has come whole and can be; else begin a task. `alone` is a request that is all that has come."""
        if self._socket.is_closing():
            return
        whole = not cycle.more_body and not cycle.waiting_for_100_continue and not self.flow.write_paused
        if whole and self.quick is not None:
            scope = quick_scope(cycle.scope)
            answering = self.quick(scope)
            body = bytes(cycle.body)
            if answering is not None and answering(body, self.client, partial(self._reply, cycle)):
                if alone is not None and cycle.keep_alive:
                    self.heads.keep(alone, scope, answering, len(body))
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
        """Wait for the next request, or begin the one that has come meanwhile."""
        # As uvicorn's own, but without a timer for every answer: the sweep closes who stays silent.
        self.server_state.total_requests += 1
        if self._socket.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self.cycle.response_complete:
            self.known.waiting[self] = time.monotonic()

    def stalled(self, now: float) -> bool:
        """Whether the client owes the rest of a body, and has been silent for too long or is too slow."""
        # uvicorn types this as always there; before the first request it is None.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return False
        if self.flow.read_paused:
            # It is we who do not listen: its silence counts from when we do again.
            self._heard_at = now
            self._body_since_s += SWEEP_MS / 1000
        took_s = now - self._body_since_s - self._came_bytes / BODY_PACE_BYTES
        return max(now - self._heard_at, took_s) > BODY_SILENCE_MS / 1000

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def _refuse(self, status: bytes, header: bytes) -> None:
        self.known.leave(self)
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\n" + header + b"content-length: 0\r\nconnection: close\r\n\r\n"
        )
        self.transport.close()
