"""Requests of Tarry's own to the homeserver: whole, small, many at one instant.

When two hundred events are due together, what counts is how soon the last request is written. A general client spends a
third of a millisecond on each; here a request is one write on a connection that is kept, and the answer is parsed as
it comes. A connection carries one request at a time. One that was kept and turns out to be closed costs a second try:
whatever is asked through here may be asked twice.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

MAX_ANSWER_BYTES: Final = 256 * 1024
MAX_KEPT: Final = 256
"""Connections that are kept open while nothing is asked: as many as the engine sends at a time."""
KEPT_S: Final = 15.0
"""How long; shorter than the time after which common servers close, so that we seldom write into that."""


class Unreachable(OSError):
    """No connection could be made: nothing was sent."""


class BrokenOff(OSError):
    """The connection ended, or its answer made no sense, before the answer was there."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes


class Lines:
    """Connections to one server."""

    def __init__(self, url: str, connect_timeout_ms: int, timeout_ms: int) -> None:
        parts = urlsplit(url)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._head = f"HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._timeout_s = timeout_ms / 1000
        self._kept: deque[_Line] = deque()
        self._all: set[_Line] = set()
        self._closed = False

    async def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Answer:
        """Send a request and give its answer; raises `OSError`, a time-out too. The path is already encoded."""
        request = self._encode(method, path, headers, body)
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    line = self._take()
                    fresh = line is None
                    if line is None:
                        line = await self._connect()
                    try:
                        answer = await line.ask(request)
                    except BrokenOff:
                        if fresh or line.heard:
                            raise
                        continue
                    self._keep(line)
                    return answer
        except TimeoutError:
            raise BrokenOff("no answer in time") from None

    def close(self) -> None:
        """Close all connections; what is under way breaks off, and nothing can be asked any more."""
        self._closed = True
        self._kept.clear()
        for line in self._all:
            line.close()

    def _encode(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if "\r" in path or "\n" in path or " " in path or lines.count("\r\n") != len(headers):
            raise BrokenOff("this cannot be asked")
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {self._prefix}{path} {self._head}{lines}{length}\r\n"
        return head.encode("latin-1", "replace") + (body or b"")

    def _take(self) -> "_Line | None":
        if self._closed:
            raise Unreachable("closed")
        now = time.monotonic()
        while self._kept:
            line = self._kept.pop()
            if line.is_open and now - line.idle_since < KEPT_S:
                return line
            line.close()
        return None

    def _keep(self, line: "_Line") -> None:
        if self._closed or not line.is_open or len(self._kept) >= MAX_KEPT:
            line.close()
        else:
            line.idle_since = time.monotonic()
            self._kept.append(line)

    async def _connect(self) -> "_Line":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, line = await loop.create_connection(
                    lambda: _Line(self._all.discard), self._host, self._port, ssl=self._tls
                )
        except OSError as error:
            raise Unreachable("no connection") from error
        if line.is_open:
            self._all.add(line)
        return line


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, lost: Callable[["_Line"], None]) -> None:
        self.idle_since = 0.0
        self._lost = lost
        self.heard = False
        """Whether anything of the present answer has come."""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces, self._size, self.heard = [], 0, False
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            # Its answer may still come: nothing else can be asked here.
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    # What the transport and the parser tell

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._lost(self)
        self._fail("the connection ended")

    def data_received(self, data: bytes) -> None:
        self.heard = True
        if self._parser is None or self._answer is None:
            # Nothing was asked.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("the answer is not HTTP")

    def on_body(self, body: bytes) -> None:
        """A piece of the answer."""
        self._size += len(body)
        if self._size > MAX_ANSWER_BYTES:
            self._fail("the answer is too long")
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The answer is there."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._answer.set_result(Answer(status, b"".join(self._pieces)))

    def _fail(self, reason: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenOff(reason))
