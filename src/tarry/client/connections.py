"""Connections of an `AsyncClient` on its event loop: each has one request under way, and those that are free are kept.

An answer comes as a whole (`Connection.ask`) or in pieces as they arrive (`Connection.stream`). A request whose
caller is cancelled, or whose time is over, takes its connection with it: the rest of its answer must not meet another request.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

from tarry.client.call import ServerAnswer
from tarry.client.http1 import AnswerReader, BadAnswer

PAUSE_BYTES: Final = 1 << 20
"""Bytes of a stream that wait for its reader before no more are read from the connection."""


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._whole = True
        self._lost: BaseException | None = None

    @property
    def is_usable(self) -> bool:
        """Whether a request may be sent."""
        return self._lost is None and self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, timeout_s: float) -> ServerAnswer:
        """Send a request and wait for the whole answer."""
        try:
            reader = await self._begin(request, timeout_s, whole=True)
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        except BaseException:
            self.close()
            raise
        if not reader.keep_alive:
            self.close()
        return ServerAnswer(reader.status, reader.headers, body)

    async def stream(self, request: bytes, timeout_s: float) -> AsyncGenerator[ServerAnswer, None]:
        """Send a request; gives its answer in pieces, each with the head, with at most `timeout_s` between two pieces."""
        kept = False
        try:
            reader = await self._begin(request, timeout_s, whole=False)
            while True:
                body = b"".join(self._pieces)
                self._pieces.clear()
                self._size = 0
                if body:
                    assert self._transport is not None
                    self._transport.resume_reading()
                    yield ServerAnswer(reader.status, reader.headers, body)
                elif reader.is_done():
                    kept = reader.keep_alive
                    return
                else:
                    await self._wait(timeout_s)
        finally:
            if not kept:
                self.close()

    async def _begin(self, request: bytes, timeout_s: float, *, whole: bool) -> AnswerReader:
        if self._transport is None or self._lost is not None:
            raise ConnectionResetError("the connection has ended")
        reader = self._reader = AnswerReader()
        self._whole = whole
        self._pieces.clear()
        self._size = 0
        self._transport.write(request)
        await self._wait(timeout_s)
        return reader

    async def _wait(self, timeout_s: float) -> None:
        if self._lost is not None:
            raise self._lost
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._fail, TimeoutError(f"nothing for {timeout_s:g} s"))
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # No assertion: the transports of other event loops, such as uvloop's, are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read bytes of the answer."""
        reader = self._reader
        if reader is None or reader.is_done():
            # Nobody has asked for anything.
            self.close()
            return
        try:
            body = reader.feed(data)
        except BadAnswer as error:
            self._fail(error)
            return
        if body:
            self._pieces.append(body)
            self._size += len(body)
            if not self._whole and self._size > PAUSE_BYTES and self._transport is not None:
                self._transport.pause_reading()
        if reader.is_done() or (not self._whole and reader.status):
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """End; an answer without a length ends with its connection."""
        reader = self._reader
        if reader is not None and not reader.is_done() and error is None:
            try:
                reader.end()
            except BadAnswer as cut:
                error = cut
        self._lost = ConnectionResetError("the connection has ended") if error is None else error
        if reader is not None and reader.is_done():
            self._wake()
        else:
            self._fail(self._lost)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


class Connections:
    """The connections to one server, at most `limit` in use at a time."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, limit: int) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._free = limit
        self._idle: list[Connection] = []
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def take(self, timeout_s: float) -> Connection:
        """A connection for one request; raises `OSError` if the server cannot be reached."""
        while not self._free:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on()
                raise
        self._free -= 1
        while self._idle:
            kept = self._idle.pop()
            if kept.is_usable:
                return kept
        try:
            return await self._connect(timeout_s)
        except BaseException:
            self._free += 1
            self._pass_on()
            raise

    async def _connect(self, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(loop), self._host, self._port, ssl=self._tls
            )
        return connection

    def give_back(self, connection: Connection) -> None:
        """The request is over."""
        if connection.is_usable:
            self._idle.append(connection)
        self._free += 1
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """End the connections that are kept."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
