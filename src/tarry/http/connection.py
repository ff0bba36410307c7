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
from email.utils import formatdate
from functools import partial
from typing import Any, Final, Protocol

from tarry.http.application import Application, Endpoint, Given, Outcome, Settling
from tarry.http.chunks import ChunkReader
from tarry.http.errors import BadChunk, BadHead, BodyTooLarge, BodyTooSlow, Gone
from tarry.http.head import HEAD_END, Heads
from tarry.http.request import MAX_DISCARDED_BYTES, MAX_HELD_BYTES, BodyStream, Request
from tarry.http.response import BODILESS, Response, Streamed, status_line

BODY_SILENCE_MS: Final = 20_000
"""A request whose next bytes do not come within this is given up."""
BODY_PACE_BYTES: Final = 1024
"""A body has to come at so many bytes a second on average, beyond the time that it may be silent for."""
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


class Dates:
    """The `date` field of responses, written once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._field = b""

    def field(self) -> bytes:
        """The field for a response that is sent now."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._field = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._field


_date: Final = Dates().field


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
        self._keep_alive = True
        self._left = 0
        """Bytes of the present body that have not come; of a chunked one, whether it has not ended."""
        self._chunks: ChunkReader | None = None
        self._body: bytes | bytearray | None = None
        """The body as far as it has come, while it is gathered."""
        self._came_bytes = 0
        self._expects = False
        """Whether the client waits for a word before it sends the body."""
        self._heard_at_s = 0.0
        self._body_since_s = 0.0
        self._stopping = False
        self._paused = False
        self._write_paused = False
        self.sender: _Sender | None = None

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
        self._heard_at_s = self._seats.waiting[self] = time.monotonic()

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
        self._write_paused = True
        self._look_at_reading()

    def resume_writing(self) -> None:
        """The client has taken what waited for it."""
        self._write_paused = False
        if self.sender is not None:
            self.sender.wake()
        self._go_on_soon()
        self._look_at_reading()

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the present body, or of requests to come."""
        if self.transport.is_closing():
            return
        self._heard_at_s = time.monotonic()
        if self._left:
            self._take_body(data)
        else:
            self._rest = self._rest + data if self._rest else data
            if self._request is None and not self._scheduled:
                self._begin()
        self._look_at_reading()

    def _look_at_reading(self) -> None:
        """Read on from the client, or not."""
        behind = self._chunks is not None and self._chunks.behind
        stuck = len(self._rest) > MAX_HELD_BYTES and (self._request is not None or self._scheduled)
        full = self._request is not None and self._request.stream.full
        pause = self._write_paused or stuck or full or behind
        if pause is not self._paused and not self.transport.is_closing():
            self._paused = pause
            if pause:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # Requests

    def _go_on_soon(self) -> None:
        """Begin the next request in another turn, if it is there."""
        if self._rest and self._request is None and not self._scheduled and not self._write_paused:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if not self.transport.is_closing() and self._request is None and not self._write_paused:
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
        self._keep_alive = fields.keep_alive and not self._stopping
        self._expects = fields.expects
        self._rest, data = b"", data[end:]
        self._came_bytes = 0
        self._body_since_s = self._heard_at_s
        self._chunks = ChunkReader() if fields.chunked else None
        self._left = 1 if fields.chunked else fields.length
        self._body = None
        try:
            endpoint = self._endpoint = self._app.open(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the door's table says it
            self._respond(request, self._app.refuse(request, error))
        else:
            self._serve(request, endpoint)
        if self._left and data:
            self._take_body(data)
        else:
            self._rest = data
            self._go_on_soon()

    def _serve(self, request: Request, endpoint: Endpoint) -> None:
        """Run the endpoint: now, or once the body has been gathered."""
        if endpoint.streams:
            request.stream = BodyStream(self._wants_more, request.fields.length)
            if not self._left:
                request.stream.end()
        elif endpoint.max_body_bytes is not None and self._left:
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
        if self._left:
            self._say_continue()
        self._look_at_reading()

    def _say_continue(self) -> None:
        if self._expects and not self.transport.is_closing():
            self._expects = False
            self.transport.write(_CONTINUE)

    def _take_body(self, data: bytes) -> None:
        """Take bytes of the present body, and keep those behind it."""
        self._expects = False
        self._came_bytes += len(data)
        rest: bytes | None = None
        if self._chunks is None:
            piece = data[: self._left]
            self._left -= len(piece)
            if not self._left:
                rest = data[len(piece) :]
        else:
            try:
                piece, rest = self._chunks.feed(data)
            except BadChunk:
                self._break_off()
                return
            if self._chunks.behind:
                self._loop.call_soon(self._read_chunks_on)
            if rest is not None:
                self._left = 0
                self._chunks = None
        if rest is not None:
            self._rest = rest
        self._give_body(piece)
        if self._request is None:
            self._discard_rest()

    def _read_chunks_on(self) -> None:
        if self._chunks is not None and not self.transport.is_closing():
            self._take_body(b"")
            self._look_at_reading()

    def _give_body(self, piece: bytes) -> None:
        """Give a piece of the body to whoever it is for; where that is nobody, it is lost."""
        request, endpoint = self._request, self._endpoint
        if request is None or endpoint is None:
            return
        if endpoint.streams:
            if piece:
                request.stream.feed(piece)
            if not self._left:
                request.stream.end()
        elif self._body is not None:
            self._gather(request, endpoint, piece)

    def _gather(self, request: Request, endpoint: Endpoint, piece: bytes) -> None:
        """Add a piece to the body. One that is too large is read to its end, and lost: then its sender sees the answer."""
        limit = endpoint.max_body_bytes or 0
        if self._came_bytes > limit + MAX_DISCARDED_BYTES:
            self._refuse_body(BodyTooLarge(limit, cut_short=True))
            return
        if not self._body:
            self._body = piece
        elif len(self._body) <= limit:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece
        if not self._left:
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
        self._keep_alive = False
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
        if self._left:
            if self._came_bytes > MAX_DISCARDED_BYTES:
                self.transport.close()
        else:
            self._go_on_soon()

    # Responses

    def _respond(self, request: Request, response: Response) -> None:
        """Send a whole response, unless the client has gone."""
        if request is not self._request or self.transport.is_closing():
            return
        if response.close or self._expects:
            # Nobody knows whether a client that was told of no interest in the body will send it.
            self._keep_alive = False
        parts = self._head(response.status, response.headers)
        if response.status not in BODILESS:
            parts.append(b"content-length: %d\r\n" % len(response.body))
        parts.append(b"\r\n")
        if request.method != "HEAD":
            parts.append(response.body)
        self.transport.write(b"".join(parts))
        self._finish()

    def _head(self, status: int, headers: Any) -> list[bytes]:
        parts = [status_line(status), _date()]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if not self._keep_alive or self._stopping:
            self._keep_alive = False
            parts.append(_CLOSE)
        return parts

    async def _stream(self, request: Request, streamed: Streamed) -> None:
        """Send a streamed response."""
        sender = _Sender(self, request, streamed)
        if request is self._request:
            self.sender = sender
        await streamed.run(sender)
        sender.end()
        if request is self._request and not self.transport.is_closing():
            self._finish()

    def _finish(self) -> None:
        """The response is sent: wait for the next request, or begin it."""
        self._request = self._endpoint = self.sender = None
        if not self._keep_alive:
            self.transport.close()
            return
        self._seats.waiting[self] = time.monotonic()
        self._go_on_soon()
        self._look_at_reading()

    def _end_with(self, status: int, header: bytes = b"") -> None:
        """Refuse what is no request, and close."""
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
        if self._left and not self._is_heard(now_s):
            self.abort()
            return
        if endpoint is None or endpoint.timeout_ms is None:
            return
        limit_s = endpoint.timeout_ms / 1000
        if endpoint.streams:
            request.stream.check_time(now_s, limit_s)
        elif self._body is not None and now_s - self._body_since_s > limit_s:
            self._refuse_body(BodyTooSlow())
        sender = self.sender
        if sender is not None and sender.waits_since_s and now_s - sender.waits_since_s > limit_s:
            self.abort()

    def _is_heard(self, now_s: float) -> bool:
        """Whether the client sends its body, and fast enough."""
        if self._paused:
            # It is we who do not listen: its silence counts from when we do again.
            self._body_since_s += now_s - self._heard_at_s
            self._heard_at_s = now_s
        took_s = now_s - self._body_since_s - self._came_bytes / BODY_PACE_BYTES
        return max(now_s - self._heard_at_s, took_s) <= BODY_SILENCE_MS / 1000

    def stop(self) -> None:
        """Serve no further request; close now, or with the response under way."""
        self._stopping = True
        if self._request is None:
            self.transport.close()
        else:
            self._keep_alive = False

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()


class _Sender:
    """Sends a streamed response, in chunks where its length is not said."""

    def __init__(self, connection: HttpConnection, request: Request, streamed: Streamed) -> None:
        self._connection = connection
        self._request = request
        self._streamed = streamed
        self._chunked = False
        self._left: int | None = None
        """Bytes that the head has promised and that are not sent."""
        self._waiter: asyncio.Future[None] | None = None
        self.begun = False
        self.waits_since_s = 0.0
        """Since when the response waits for the client to take some of it; 0 if it does not."""

    async def write(self, piece: bytes) -> None:
        """See `Sender`."""
        self._send(piece)
        connection = self._connection
        while connection._write_paused and not connection.transport.is_closing():
            self.waits_since_s = self.waits_since_s or time.monotonic()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.waits_since_s = 0.0

    def _send(self, piece: bytes, last: bool = False) -> None:
        connection = self._connection
        if self._request is not connection._request or connection.transport.is_closing():
            raise Gone
        parts = [] if self.begun else self._begin()
        if self._request.method != "HEAD" and self._streamed.status not in BODILESS:
            if self._left is not None:
                self._left -= len(piece)
                if self._left < 0:
                    raise RuntimeError("a response is longer than its head says")
            if piece:
                parts += (b"%x\r\n" % len(piece), piece, b"\r\n") if self._chunked else (piece,)
            if last and self._chunked:
                parts.append(b"0\r\n\r\n")
        if parts:
            connection.transport.write(b"".join(parts))

    def _begin(self) -> list[bytes]:
        self.begun = True
        connection, streamed = self._connection, self._streamed
        length = next((value for name, value in streamed.headers if name == b"content-length"), None)
        if length is not None:
            self._left = int(length)
        elif streamed.status not in BODILESS and self._request.method != "HEAD":
            self._chunked = not self._request.fields.old
            if not self._chunked:
                connection._keep_alive = False
        if connection._expects:
            connection._keep_alive = False
        parts = connection._head(streamed.status, streamed.headers)
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        return parts

    def end(self) -> None:
        """The response is complete."""
        self._send(b"", last=True)
        if self._left and self._request.method != "HEAD":
            # Shorter than its head said: the client sees that it is not whole.
            self._connection._keep_alive = False

    def wake(self) -> None:
        """The client has taken what waited for it, or has gone."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
