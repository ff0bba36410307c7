"""Sends a streamed response: in chunks where its length is not said, and no faster than the client takes it."""

import asyncio
import time
from typing import Any, Protocol

from tarry.http.errors import Gone
from tarry.http.request import Request
from tarry.http.response import BODILESS, Streamed


class Taker(Protocol):
    """The connection that a response goes to."""

    transport: asyncio.Transport
    write_paused: bool
    """Whether the client does not take the bytes that were sent."""
    keep_alive: bool
    """Whether the connection goes on behind the response."""
    expects: bool
    """Whether the client waits for a word before it sends the body."""

    def serves(self, request: Request) -> bool:
        """Whether a request is the one that is being answered, and its client is there."""

    def head(self, status: int, headers: Any) -> list[bytes]:
        """The parts of a response's head but for its end."""


class StreamSender:
    """See the module, and `Sender`. A client of HTTP/1.0 gets no chunks: the end of the connection is the end of the response."""

    def __init__(self, connection: Taker, request: Request, streamed: Streamed) -> None:
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
        while connection.write_paused and not connection.transport.is_closing():
            self.waits_since_s = self.waits_since_s or time.monotonic()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self.waits_since_s = 0.0

    def _send(self, piece: bytes, last: bool = False) -> None:
        connection = self._connection
        if not connection.serves(self._request):
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
                connection.keep_alive = False
        if connection.expects:
            connection.keep_alive = False
        parts = connection.head(streamed.status, streamed.headers)
        parts.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        return parts

    def end(self) -> None:
        """The response is complete."""
        self._send(b"", last=True)
        if self._left and self._request.method != "HEAD" and self._streamed.status not in BODILESS:
            # Shorter than its head said: the client sees that it is not whole.
            self._connection.keep_alive = False

    def wake(self) -> None:
        """The client has taken what waited for it, or has gone."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
