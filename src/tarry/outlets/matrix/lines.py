"""Requests of Tarry's own to the homeserver: whole, small, many at one instant.

When two hundred events are due together, what counts is how soon the last request is written. A general client spends a
third of a millisecond on each; here a request is one write on a connection that is kept, and the answer is parsed as
it comes. A connection carries one request at a time. One that was kept and turns out to be closed costs a second try:
whatever is asked through here may be asked twice, and who asks is told.

A busy server leaves new connections in a queue, which is short (fifty at Synapse): who comes when it is full is not heard
for a second. So only so many are new at a time, others wait for one that is free; and what is known to be coming finds
connections that were made ahead (`expect`).
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
MAX_NEW: Final = 32
"""Connections on which something was asked and nothing was ever answered, at a time."""
AHEAD: Final = 16
AHEAD_EVERY_S: Final = 0.05
"""So many are made ahead at a time, and how soon the next."""


class HomeserverUnreachable(OSError):
    """No connection could be made: nothing was sent."""


class BrokenOff(OSError):
    """The connection ended, or its answer made no sense, before the answer was there."""


class LineAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    retry_after: str | None = None
    """The header of this name."""
    asked_before: bool = False
    """Whether the same was asked before on a connection that ended without an answer: it may have been done then."""


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
        self._new = 0
        self._waiting: deque[asyncio.Future[_Line | None]] = deque()
        """Waiters for a connection that is free, or for leave to make one (None)."""
        self._ahead: asyncio.Task[None] | None = None
        self._closed = False

    async def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> LineAnswer:
        """Send a request and give its answer; raises `OSError`, a time-out too. The path is already encoded."""
        request = self._encode(method, path, headers, body)
        line: _Line | None = None
        asked_before = False
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    line, fresh = await self._get()
                    try:
                        answer = await line.ask(request)
                    except BrokenOff:
                        if fresh or line.heard:
                            raise
                        asked_before = True
                        continue
                    self._keep(line)
                    return answer._replace(asked_before=asked_before)
        except HomeserverUnreachable as error:
            if asked_before:
                raise BrokenOff("no connection any more") from error
            raise
        except TimeoutError:
            if line is None:
                raise HomeserverUnreachable("no connection in time") from None
            raise BrokenOff("no answer in time") from None

    def expect(self, requests: int) -> None:
        """So many requests are coming: have connections for them, if they are not there."""
        while self._kept and not self._is_good(self._kept[0]):
            self._kept.popleft().close()
        missing = min(requests, MAX_KEPT) - len(self._kept)
        if missing > 0 and not self._closed and (self._ahead is None or self._ahead.done()):
            self._ahead = asyncio.create_task(self._make_ahead(missing))

    @property
    def idle(self) -> int:
        """Connections that are kept."""
        return len(self._kept)

    async def _make_ahead(self, missing: int) -> None:
        while missing > 0:
            some = (self._connect() for _ in range(min(AHEAD, missing)))
            for line in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(line, BaseException):
                    # Who asks for something finds out by itself.
                    missing = 0
                else:
                    self._keep(line)
            missing -= AHEAD
            await asyncio.sleep(AHEAD_EVERY_S)

    def close(self) -> None:
        """Close all connections; requests under way break off, and no more can be made."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.cancel()
        while self._waiting:
            self._hand(None)
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

    async def _get(self) -> tuple["_Line", bool]:
        """A connection on which nothing is being asked, and whether it was made for this."""
        while True:
            if self._closed:
                raise HomeserverUnreachable("closed")
            line = None
            while self._kept and line is None:
                line = self._kept.pop()
                if not self._is_good(line):
                    line.close()
                    line = None
            if line is None and self._new >= MAX_NEW:
                line = await self._turn()
            elif line is None:
                self._new += 1
            if line is None:
                return await self._make_new(), True
            if line.is_open:
                return line, False

    async def _turn(self) -> "_Line | None":
        """Wait for a connection, or with None for leave to make one."""
        turn: asyncio.Future[_Line | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            raise

    def _hand(self, line: "_Line | None") -> bool:
        """Give a connection, or leave to make one, to the first that waits; gives whether one did."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(line)
                return True
        return False

    def _give_back(self, line: "_Line | None") -> None:
        if line is None:
            self._heard()
        else:
            self._keep(line)

    def _heard(self) -> None:
        """A new connection is new no more: it was answered on, or is gone."""
        if not self._hand(None):
            self._new -= 1

    def _is_good(self, line: "_Line") -> bool:
        return line.is_open and time.monotonic() - line.idle_since < KEPT_S

    def _keep(self, line: "_Line") -> None:
        if self._closed or not line.is_open or len(self._kept) >= MAX_KEPT:
            line.close()
            return
        line.idle_since = time.monotonic()
        if not self._hand(line):
            self._kept.append(line)

    async def _make_new(self) -> "_Line":
        try:
            line = await self._connect()
        except BaseException:
            self._heard()
            raise
        line.when_heard(self._heard)
        return line

    async def _connect(self) -> "_Line":
        if self._closed:
            raise HomeserverUnreachable("closed")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, line = await loop.create_connection(
                    lambda: _Line(self._all.discard), self._host, self._port, ssl=self._tls
                )
        except OSError as error:
            raise HomeserverUnreachable("no connection") from error
        if line.is_open:
            self._all.add(line)
        return line


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, lost: Callable[["_Line"], None]) -> None:
        self.idle_since = 0.0
        self._lost = lost
        self._first_heard: Callable[[], None] | None = None
        self.heard = False
        """Whether anything of the present answer has come."""
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[LineAnswer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._answer is None

    async def ask(self, request: bytes) -> LineAnswer:
        """Send a request and wait for its answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces, self._size, self.heard, self._retry_after = [], 0, False, None
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            # Its answer may still come: nothing else can be asked here.
            self.close()
            raise
        finally:
            self._answer = None

    def when_heard(self, callback: Callable[[], None]) -> None:
        """Call back when anything comes, or nothing ever will."""
        if self.is_open:
            self._first_heard = callback
        else:
            callback()

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
        self._tell_heard()
        self._lost(self)
        self._fail("the connection ended")

    def data_received(self, data: bytes) -> None:
        self.heard = True
        self._tell_heard()
        if self._parser is None or self._answer is None:
            # Nothing was asked.
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("the answer is not HTTP")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

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
        self._answer.set_result(LineAnswer(status, b"".join(self._pieces), self._retry_after))

    def _tell_heard(self) -> None:
        callback, self._first_heard = self._first_heard, None
        if callback is not None:
            callback()

    def _fail(self, reason: str) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(BrokenOff(reason))
