"""One HTTP/1.1 connection: requests in, one after the other, and their responses out.

- Nothing of a request is read before the response to the one before it has been sent and taken: what comes meanwhile waits as
  bytes, and beyond `MAX_HELD_BYTES` in the kernel.
- In one turn of the loop a connection begins one request, so that a thousand in one packet leave turns to others.
- A head is bounded in bytes, a body in bytes and time; the listener's sweep (`check_time`) ends clients that are silent or slow.
- A response is one write.

Bounds on the number of connections and on silence between requests are the listener's (`Seats`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, MutableMapping
from functools import partial
from typing import Any, Final, Protocol

from tarry.core.tenants.access import Caller
from tarry.http.application import Application, Endpoint, Given, Outcome, Settling
from tarry.http.errors import BadChunk, BadHead, BodyTooLarge, BodyTooSlow, Gone
from tarry.http.head import HEAD_END, Heads
from tarry.http.incoming import IncomingBody
from tarry.http.request import MAX_DISCARDED_BYTES, MAX_HELD_BYTES, BodyStream, Request
from tarry.http.response import BODILESS, Response, Streamed, date_field, status_line
from tarry.http.sender import StreamSender

MAX_HEAD_BYTES: Final = 64 * 1024

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"

log = logging.getLogger(__name__)


class Seats(Protocol):
    """The places of a listener's connections."""

    @property
    def waiting(self) -> "MutableMapping[HttpConnection, float]":
        """Connections without a request, and since when."""

    def enter(self, connection: "HttpConnection") -> bool:
        """Let a connection in, if there is a place."""

    def leave(self, connection: "HttpConnection") -> None:
        """A connection is gone."""

    def hold(self, connection: "HttpConnection", caller: Caller) -> None:
        """A connection has a request of this caller from now on; raises `Unavailable` if that has its share of them."""

    def release(self, connection: "HttpConnection") -> None:
        """A connection has no request any more."""


class HttpConnection(asyncio.Protocol):
    """See the module. `seats.waiting` has it while it has no request."""

    busy = False
    """Connections that wait may always be closed to make room."""

    def __init__(
        self, app: Application, seats: Seats, heads: Heads, tasks: "set[asyncio.Task[None]]"
    ) -> None:
        self._app = app
        self._seats = seats
        self._heads = heads
        self._tasks = tasks
        self.unread: Any = None
        """The bound on slow readers, which the listener's seats keep."""
        self.transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        """Bytes that came and belong to no request yet."""
        self._scheduled = False
        """Whether the rest is looked at in the loop's next turn."""
        self._request: Request | None = None
        """The request that is being answered."""
        self._endpoint: Endpoint | None = None
        self.keep_alive = True
        self._incoming: IncomingBody | None = None
        """The body of the present request, until it has come to its end."""
        self._body: bytes | bytearray | None = None
        """The body as far as it has come, while it is gathered."""
        self.expects = False
        """Whether the client waits for a word before it sends the body."""
        self._stopping = False
        self._paused = False
        self.write_paused = False
        self.sender: StreamSender | None = None

    # Of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the connection, if the listener has a place for it."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if peer else ""
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        if not self._seats.enter(self):
            self._end_with(503, b"retry-after: 1\r\n")
            return
        self._seats.waiting[self] = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection."""
        self._seats.leave(self)
        request, self._request = self._request, None
        self._rest = b""
        if self.sender is not None:
            self.sender.wake()
        if request is not None:
            request.left()

    def pause_writing(self) -> None:
        """The client does not take its response: nothing more is read from it."""
        self.write_paused = True
        self._look_at_reading()

    def resume_writing(self) -> None:
        """The client has taken what waited for it."""
        self.write_paused = False
        if self.sender is not None:
            self.sender.wake()
        self._go_on_soon()
        self._look_at_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the present body, or of requests to come."""
        if self.transport.is_closing():
            return
        if self._incoming is not None:
            self._take_body(data)
        else:
            self._rest = self._rest + data if self._rest else data
            if self._request is None and not self._scheduled:
                self._begin()
        self._look_at_reading()

    def _look_at_reading(self) -> None:
        """Read on from the client, or not."""
        behind = self._incoming is not None and self._incoming.behind
        stuck = len(self._rest) > MAX_HELD_BYTES and (self._request is not None or self._scheduled)
        full = self._request is not None and self._request.stream.full
        pause = self.write_paused or stuck or full or behind
        if pause is not self._paused and not self.transport.is_closing():
            self._paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # Requests

    def _go_on_soon(self) -> None:
        """Begin the next request in another turn, if it is there."""
        if self._rest and self._request is None and not self._scheduled and not self.write_paused:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if not self.transport.is_closing() and self._request is None and not self.write_paused:
            self._begin()
            self._look_at_reading()

    def _begin(self) -> None:
        """Begin a request, if its head has come."""
        data = self._rest
        while data.startswith(b"\r\n"):
            data = data[2:]
        end = data.find(HEAD_END) + len(HEAD_END)
        if end < len(HEAD_END) or end > MAX_HEAD_BYTES:
            self._rest = data
            if max(end, len(data)) > MAX_HEAD_BYTES:
                self._end_with(431)
            return
        try:
            head = self._heads.read(data[:end])
        except BadHead:
            self._end_with(400)
            return
        self._seats.waiting.pop(self, None)
        fields = head.fields
        request = self._request = Request(head, self._peer, self._scheme)
        self.keep_alive = fields.keep_alive and not self._stopping
        self.expects = fields.expects
        self._rest, data = b"", data[end:]
        has_body = fields.chunked or fields.length
        self._incoming = IncomingBody(fields, time.monotonic()) if has_body else None
        self._body = None
        try:
            endpoint = self._endpoint = self._app.open(request)
            self._seats.hold(self, request.caller)
        except Exception as error:  # noqa: BLE001 - whatever it is, the door's table says it
            self._respond(request, self._app.refuse(request, error))
        else:
            self._serve(request, endpoint)
        if self._incoming is not None and data:
            self._take_body(data)
        else:
            self._rest = data
            self._go_on_soon()

    def _serve(self, request: Request, endpoint: Endpoint) -> None:
        """Run the endpoint: now, or once the body has been gathered."""
        if endpoint.streams:
            request.stream = BodyStream(self._wants_more, request.fields.length)
            if self._incoming is None:
                request.stream.end()
        elif endpoint.max_body_bytes is not None and self._incoming is not None:
            self._body = b""
            if request.fields.length > endpoint.max_body_bytes + MAX_DISCARDED_BYTES:
                self._refuse_body(BodyTooLarge(endpoint.max_body_bytes, cut_short=True))
            else:
                self._say_continue()
            return
        self._run(request, endpoint)

    def _run(self, request: Request, endpoint: Endpoint) -> None:
        try:
            outcome: Outcome = endpoint.run(request)
        except Exception as error:  # noqa: BLE001
            self._respond(request, self._app.refuse(request, error))
            return
        if type(outcome) is Response:
            self._respond(request, outcome)
        elif hasattr(outcome, "then"):
            outcome.then(partial(self._settled, request))
        else:
            task = self._loop.create_task(self._await(request, outcome))  # type: ignore[arg-type]
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _settled(self, request: Request, answer: Settling) -> None:
        try:
            response = answer.value()
        except Exception as error:  # noqa: BLE001
            response = self._app.refuse(request, error)
        self._respond(request, response)

    async def _await(self, request: Request, outcome: Streamed | Awaitable[Given]) -> None:
        """Serve in a task, until the response is sent."""
        try:
            given = outcome if isinstance(outcome, Streamed) else await outcome
            if isinstance(given, Streamed):
                await self._stream(request, given)
            else:
                self._respond(request, given)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Gone:
            if request is self._request:
                self.abort()
        except Exception as error:  # noqa: BLE001
            response = self._app.refuse(request, error)
            if request is self._request and self.sender is not None and self.sender.begun:
                # What has been sent cannot be taken back: a response that ends too soon is seen to be broken.
                self.abort()
            else:
                self._respond(request, response)

    # Bodies

    def _wants_more(self) -> None:
        """The endpoint of a stream waits for the client, or has made room."""
        if self._incoming is not None:
            self._say_continue()
        self._look_at_reading()

    def _say_continue(self) -> None:
        if self.expects and not self.transport.is_closing():
            self.expects = False
            self.transport.write(_CONTINUE)

    def _take_body(self, data: bytes) -> None:
        """Take bytes of the present body, and keep those behind it."""
        incoming = self._incoming
        assert incoming is not None
        self.expects = False
        try:
            piece, rest = incoming.take(data, time.monotonic())
        except BadChunk:
            self._break_off()
            return
        if incoming.behind:
            self._loop.call_soon(self._read_chunks_on)
        if rest is not None:
            self._incoming = None
            self._rest = rest
        self._give_body(incoming, piece)
        if self._request is None:
            self._discard_rest()

    def _read_chunks_on(self) -> None:
        if self._incoming is not None and not self.transport.is_closing():
            self._take_body(b"")
            self._look_at_reading()

    def _give_body(self, incoming: IncomingBody, piece: bytes) -> None:
        """Give a piece of the body to its request; without one it is lost."""
        request, endpoint = self._request, self._endpoint
        if request is None or endpoint is None:
            return
        if endpoint.streams:
            if piece:
                request.stream.feed(piece)
            if self._incoming is None:
                request.stream.end()
        elif self._body is not None:
            self._gather(request, endpoint, incoming, piece)

    def _gather(self, request: Request, endpoint: Endpoint, incoming: IncomingBody, piece: bytes) -> None:
        """Add a piece to the body. One that is too large is read to its end, and lost: then its sender sees the answer."""
        limit = endpoint.max_body_bytes or 0
        if incoming.came_bytes > limit + MAX_DISCARDED_BYTES:
            self._refuse_body(BodyTooLarge(limit, cut_short=True))
            return
        if not self._body:
            self._body = piece
        elif len(self._body) <= limit:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece
        if self._incoming is None:
            body, self._body = bytes(self._body), None
            if len(body) > limit:
                self._respond(request, self._app.refuse(request, BodyTooLarge(limit)))
            else:
                request.body = body
                self._run(request, endpoint)

    def _refuse_body(self, error: Exception) -> None:
        """Refuse a request whose body is not awaited any longer: the connection ends, because the rest may still come."""
        assert self._request is not None
        self._body = None
        self.keep_alive = False
        self._respond(self._request, self._app.refuse(self._request, error))

    def _break_off(self) -> None:
        """End a connection on which nothing that follows can be understood."""
        request = self._request
        if request is None or (self.sender is not None and self.sender.begun):
            self.abort()
            return
        self._request = None
        self._end_with(400)
        request.left()

    def _discard_rest(self) -> None:
        """The response is sent, and the rest of its request's body still comes: it is lost, within a bound."""
        if self._incoming is None:
            self._go_on_soon()
        elif self._incoming.came_bytes > MAX_DISCARDED_BYTES:
            self.transport.close()

    # Responses

    def _respond(self, request: Request, response: Response) -> None:
        """Send a whole response, unless the client has gone."""
        if request is not self._request or self.transport.is_closing():
            return
        if response.close or self.expects:
            # Nobody knows whether a client that was told of no interest in the body will send it.
            self.keep_alive = False
        parts = self.head(response.status, response.headers)
        if response.status not in BODILESS:
            parts.append(b"content-length: %d\r\n" % len(response.body))
        parts.append(b"\r\n")
        if request.method != "HEAD":
            parts.append(response.body)
        self.transport.write(b"".join(parts))
        self._finish()

    def serves(self, request: Request) -> bool:
        """See `Taker`."""
        return request is self._request and not self.transport.is_closing()

    def head(self, status: int, headers: Any) -> list[bytes]:
        """See `Taker`."""
        parts = [status_line(status), date_field()]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive or self._stopping:
            self.keep_alive = False
            parts.append(_CLOSE)
        return parts

    async def _stream(self, request: Request, streamed: Streamed) -> None:
        """Send a streamed response."""
        sender = StreamSender(self, request, streamed)
        if request is self._request:
            self.sender = sender
        await streamed.run(sender)
        sender.end()
        if request is self._request and not self.transport.is_closing():
            self._finish()

    def _finish(self) -> None:
        """The response is sent: wait for the next request, or begin it."""
        self._request = self._endpoint = self.sender = None
        self._seats.release(self)
        if not self.keep_alive:
            self.transport.close()
            return
        self._seats.waiting[self] = time.monotonic()
        self._go_on_soon()
        self._look_at_reading()

    def _end_with(self, status: int, header: bytes = b"") -> None:
        """Refuse bytes that are no request, and close."""
        self._seats.leave(self)
        self._rest = b""
        self.transport.write(status_line(status) + header + b"content-length: 0\r\n" + _CLOSE + b"\r\n")
        self.transport.close()

    # Time

    def check_time(self, now_s: float) -> None:
        """End what takes the client too long. The listener's sweep calls this once a second."""
        request, endpoint = self._request, self._endpoint
        if request is None:
            return
        incoming = self._incoming
        if incoming is not None and not incoming.is_heard(now_s, paused=self._paused):
            self.abort()
            return
        if endpoint is None or endpoint.timeout_ms is None:
            return
        limit_s = endpoint.timeout_ms / 1000
        if endpoint.streams:
            request.stream.check_time(now_s, limit_s)
        elif self._body is not None and incoming is not None and now_s - incoming.since_s > limit_s:
            self._refuse_body(BodyTooSlow())
        sender = self.sender
        if sender is not None and sender.waits_since_s and now_s - sender.waits_since_s > limit_s:
            self.abort()

    def stop(self) -> None:
        """Serve no further request; close now, or with the response under way."""
        self._stopping = True
        if self._request is None:
            self.transport.close()
        else:
            self.keep_alive = False

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()
