"""`AsyncClient`: the native API for programs on an asyncio loop."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from tarry.client.batches import LineInput, LineOutcome, cut, schedule_lines
from tarry.client.call import ClientCall, Line, ServerAnswer, Unreachable
from tarry.client.connections import Connections
from tarry.client.consumer import Consumer
from tarry.client.consuming import MAX_UNACKED, Entry
from tarry.client.gathering import UNDER_WAY, Gathered, Queue, SharedRequest
from tarry.client.http1 import BadAnswer, request
from tarry.client.operation import Awaiting, Operations
from tarry.client.server import ServerAddress
from tarry.client.shapes import LineDefaults, ListFilters, MessageView
from tarry.core.errors import TarryError

T = TypeVar("T")

MAX_CONNECTIONS: Final = 100
BROKEN: Final = (OSError, BadAnswer, TimeoutError)


class AsyncClient(Operations, Awaiting):
    """A connection to a Tarry server; what `Client` does, awaited.

    async with AsyncClient() as client:
        await client.schedule("persistent://public/default/hello", "world", delay="5s")
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_for_s: float = 5.0,
        tls: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._server = ServerAddress(url, token, timeout_s, retry_for_s)
        tls = tls if tls is not None else self._server.tls
        if tls is None and self._server.secure:
            tls = ssl.create_default_context()
        self._queues: dict[str, Queue] = {}
        """By path: calls that are gathered."""
        self._sending: set[asyncio.Task[None]] = set()
        self._connections = Connections(
            self._server.host, self._server.port, tls if self._server.secure else None, max_connections
        )

    async def list(self, **filters: Unpack[ListFilters]) -> AsyncIterator[MessageView]:
        """Every message that the filters of `list_page` choose, over as many pages as it takes."""
        page = None
        while True:
            found = await self.list_page(**filters, page=page)
            for message in found.messages:
                yield message
            page = found.next_page
            if page is None:
                return

    async def schedule_many(
        self, messages: Iterable[LineInput], **defaults: Unpack[LineDefaults]
    ) -> AsyncIterator[LineOutcome]:
        """Schedule many messages in few requests: one outcome for each, in order. See `Client`."""
        for count, body in cut(messages):
            for outcome in await self.run(schedule_lines(count, body, **defaults)):
                yield outcome

    async def consume(
        self,
        topic: str,
        subscription: str,
        *,
        consumer: str | None = None,
        max_unacked: int = MAX_UNACKED,
        ack_timeout_ms: int | None = None,
        wait_ms: int = 20_000,
        forever: bool = True,
    ) -> AsyncGenerator[Entry, None]:
        """Entries of a subscription as they come. Acknowledge each: `entry.ack()`, or `with entry:` around its handling.

        At most `max_unacked` are out at a time. An entry that is not acknowledged within `ack_timeout_ms` comes again, and so
        do all such when the loop is left (with `contextlib.aclosing` at once). Without `forever` it ends when nothing has come
        for `wait_ms`.
        """
        stream = Consumer(self, topic, subscription, consumer, max_unacked, ack_timeout_ms)
        async with aclosing(stream.entries(None if forever else wait_ms / 1000)) as entries:
            async for entry in entries:
                yield entry

    async def run(self, call: ClientCall[T]) -> T:
        """Send a call, again if need be and safe, and read its answer. Those that go on at a time may share requests."""
        if call.line is None:
            return await self._alone(call)
        queue = self._queues.setdefault(call.line.path, Queue())
        if not queue.is_idle:
            return await self._gathered(queue, _Awaited(call, call.line))
        queue.under_way += 1
        try:
            return await self._alone(call)
        finally:
            queue.under_way -= 1
            self._send_waiting(queue)

    async def _gathered(self, queue: Queue, awaited: "_Awaited[T]") -> T:
        if not queue.waiting and queue.under_way < UNDER_WAY:
            # Whoever calls in the same turn of the loop comes along.
            asyncio.get_running_loop().call_soon(self._send_waiting, queue)
        queue.add(awaited)
        return await awaited.answer

    def _send_waiting(self, queue: Queue) -> None:
        while (shared := queue.take()) is not None:
            task = asyncio.get_running_loop().create_task(self._send_shared(queue, shared))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_shared(self, queue: Queue, shared: SharedRequest) -> None:
        request = shared.request(keyed=self._server.repeats)
        waits = self._server.waits()
        timeout_s = self._server.timeout_s
        try:
            while True:
                try:
                    shared.begin()
                    async with aclosing(self._pieces(request, timeout_s)) as pieces:
                        async for piece in pieces:
                            shared.feed(piece)
                    shared.finish()
                    return
                except Unreachable as error:
                    wait_s = next(waits, None)
                    if wait_s is None or not (request.repeatable or isinstance(error, _Unsent)):
                        raise
                await asyncio.sleep(wait_s)
        except TarryError as error:
            shared.fail(error)
        except BaseException:
            shared.fail(Unreachable("the client was closed; this call may or may not have been done"))
            raise
        finally:
            queue.under_way -= 1
            self._send_waiting(queue)

    async def _alone(self, call: ClientCall[T]) -> T:
        waits = self._server.waits()
        while True:
            sent = False
            try:
                connection = await self._connections.take(self._server.timeout_s)
                sent = True
                try:
                    timeout_s = self._server.timeout_s + call.wait_ms / 1000
                    answered = await connection.ask(self._request(call), timeout_s)
                finally:
                    self._connections.give_back(connection)
            except BROKEN as error:
                wait_s = next(waits, None)
                if wait_s is None or not (call.repeatable or not sent):
                    raise self._server.unreachable(error) from error
            else:
                return call.read(answered)
            await asyncio.sleep(wait_s)

    async def _pieces(self, call: ClientCall[Any], timeout_s: float) -> AsyncGenerator[ServerAnswer, None]:
        """Send a call once and give its answer in pieces, as they come."""
        try:
            connection = await self._connections.take(self._server.timeout_s)
        except BROKEN as error:
            raise _Unsent(str(self._server.unreachable(error))) from error
        try:
            try:
                async with aclosing(connection.stream(self._request(call), timeout_s)) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                self._connections.give_back(connection)
        except BROKEN as error:
            raise self._server.unreachable(error) from error

    def _request(self, call: ClientCall[Any]) -> bytes:
        return request(
            call.method, self._server.prefix + call.path, self._server.header_lines(call), call.body
        )

    async def close(self) -> None:
        """Close the connections; a client that is used again opens new ones."""
        # The end of a shared answer may still be on its way when all calls have theirs.
        if sending := set(self._sending):
            for task in sending:
                task.cancel()
            await asyncio.wait(sending)
        self._connections.close()
        # They are closed once the loop has had a turn.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Unsent(Unreachable):
    """No connection could be made: nothing was sent, so that it may be tried again."""


class _Awaited(Gathered[T]):
    """A call among others for which a coroutine waits."""

    def __init__(self, call: ClientCall[T], line: Line[T]) -> None:
        super().__init__(call, line)
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def is_wanted(self) -> bool:
        """Whether the coroutine was not cancelled."""
        return not self.answer.done()

    def settle(self, outcome: T | TarryError) -> None:
        """Wake the coroutine."""
        if self.answer.done():
            return
        if isinstance(outcome, TarryError):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)
