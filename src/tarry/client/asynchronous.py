"""`AsyncClient`: the native API for programs on an asyncio loop. Over aiohttp."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import aiohttp
from yarl import URL

from tarry.client.batches import LineInput, LineOutcome, cut, schedule_lines
from tarry.client.call import ClientCall, ServerAnswer
from tarry.client.consuming import BATCH, HeldEntries, consumer_name
from tarry.client.operation import Awaiting, Operations
from tarry.client.server import ServerAddress
from tarry.client.shapes import LineDefaults, ListFilters, MessageView, Received
from tarry.core.errors import TarryError

T = TypeVar("T")

MAX_CONNECTIONS: Final = 100


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
        self._tls = tls if tls is not None else self._server.tls
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

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
        batch: int = BATCH,
        wait_ms: int = 20_000,
        forever: bool = True,
    ) -> AsyncGenerator[Received, None]:
        """Entries of a subscription as they come; each is acknowledged once the next one is asked for.

        Leave it with `contextlib.aclosing`, so that what was not handled is given back at once.
        """
        name = consumer or consumer_name()
        held = HeldEntries(time.monotonic())
        try:
            while True:
                entries = await self.receive(topic, subscription, max=batch, wait_ms=wait_ms, consumer=name)
                if not entries and not forever:
                    return
                for entry in held.give(entries):
                    yield entry
                    if held.ack_is_due(time.monotonic()):
                        await self._ack(topic, subscription, name, held)
                await self._ack(topic, subscription, name, held)
        finally:
            # Leaving must not hide why it was left; what is not acknowledged comes again.
            with contextlib.suppress(TarryError):
                await self._ack(topic, subscription, name, held)
                if left := held.take_unhandled():
                    await self.nack(topic, subscription, left, consumer=name)

    async def _ack(self, topic: str, subscription: str, name: str, held: HeldEntries) -> None:
        if handled := held.take_handled(time.monotonic()):
            await self.ack(topic, subscription, handled, consumer=name)

    async def run(self, call: ClientCall[T]) -> T:
        """Send a call, again if need be and safe, and read what comes back."""
        for wait_s in self._server.waits():
            try:
                return call.read(await self._once(call))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if not (call.repeatable or isinstance(error, aiohttp.ClientConnectorError)):
                    raise self._server.unreachable(error) from error
            await asyncio.sleep(wait_s)
        try:
            return call.read(await self._once(call))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._server.unreachable(error) from error

    async def _once(self, call: ClientCall[Any]) -> ServerAnswer:
        if self._session is None:
            # Made on first use: a session belongs to the loop that it was made in.
            tls: ssl.SSLContext | bool = self._tls if self._tls is not None else True
            connector = aiohttp.TCPConnector(limit=self._max_connections, ssl=tls)
            self._session = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(total=self._server.timeout_s + call.wait_ms / 1000)
        async with self._session.request(
            call.method,
            URL(self._server.url + call.path, encoded=True),
            data=call.body or None,
            headers=self._server.headers(call),
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            body = await response.read()
            return ServerAnswer(response.status, {k.lower(): v for k, v in response.headers.items()}, body)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
