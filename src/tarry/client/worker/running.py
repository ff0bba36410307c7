"""One handler at work: entries stream in, as many functions run as it has places, and each entry ends in one of three ways.

It is acknowledged when its function returns; it is scheduled again when that fails, and then acknowledged; it becomes a dead
letter after its last attempt, and is then acknowledged. A worker that dies has acknowledged nothing that was not
handled, and its streams end with it: the server gives its entries to others at once.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from tarry.client.asynchronous import AsyncClient
from tarry.client.call import ClientCall
from tarry.client.consumer import FIRST_WAIT_S, LONGEST_WAIT_S, Consumer
from tarry.client.consuming import Entry
from tarry.client.shapes import Scheduled
from tarry.client.worker.handler import Delivery, Handler, Middleware, Next
from tarry.client.worker.payloads import BadPayload
from tarry.client.worker.retrying import attempt_of
from tarry.core.errors import Conflict, TarryError, Unavailable
from tarry.core.time.backoff import doubling

log = logging.getLogger("tarry.worker")

ACK_TIMEOUT_MS: Final = 12 * 3_600_000
"""The longest that the server allows: entries come back when the stream ends, and not because a function is slow."""
AHEAD: Final = 2
"""Entries that are asked for, for each that can be handled at a time."""


class Running:
    """A handler at work."""

    def __init__(self, handler: Handler, client: AsyncClient, middleware: Sequence[Middleware]) -> None:
        self._handler = handler
        self._client = client
        self._entries: asyncio.Queue[tuple[str, Entry] | None] = asyncio.Queue()
        self._consumers: list[Consumer] = []
        self._stopping = False
        self.subscribed = asyncio.Event()
        """Set once its subscriptions are made."""
        self._threads: ThreadPoolExecutor | None = None
        self._lingering: set[asyncio.Future[Any]] = set()
        self._attempt: Next = self._call
        for one in reversed(middleware):
            self._attempt = _around(one, self._attempt)

    async def run(self) -> None:
        """Work until `stop`, and until the functions that run then have returned."""
        handler, route = self._handler, self._handler.route
        if not handler.call.is_coroutine:
            self._threads = ThreadPoolExecutor(handler.concurrency, thread_name_prefix=handler.name)
        try:
            await self._subscribe(route.topic, handler.start)
            await self._subscribe(route.retries, "earliest")
            self.subscribed.set()
            async with (
                _until_left(
                    asyncio.create_task(self._feed(topic)) for topic in (route.topic, route.retries)
                ) as feeding,
                _until_left({asyncio.create_task(self._places())}) as working,
            ):
                # A stream ends by an error only, such as a subscription that was removed.
                ended, _ = await asyncio.wait(working | feeding, return_when=asyncio.FIRST_COMPLETED)
                for one in ended:
                    one.result()
        finally:
            for consumer in self._consumers:
                with suppress(TarryError):
                    await consumer.settled()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Begin nothing more. Entries that were not begun go to others once the streams end."""
        self._stopping = True
        for _ in range(self._handler.concurrency):
            self._entries.put_nowait(None)

    async def _subscribe(self, topic: str, start: Any) -> None:
        """Make the subscription, as soon as there is a server."""
        for wait_s in doubling(FIRST_WAIT_S, LONGEST_WAIT_S):
            if self._stopping:
                return
            try:
                await self._client.subscribe(topic, self._handler.route.subscription, start=start)
                return
            except Unavailable as error:
                log.warning("%s: %s", topic, error)
                await asyncio.sleep(wait_s)

    async def _feed(self, topic: str) -> None:
        window = max(1, self._handler.concurrency * AHEAD)
        consumer = Consumer(
            self._client, topic, self._handler.route.subscription, None, window, ACK_TIMEOUT_MS
        )  # fmt: skip
        self._consumers.append(consumer)
        async for entry in consumer.entries():
            self._entries.put_nowait((topic, entry))

    async def _places(self) -> None:
        await asyncio.gather(*(self._work() for _ in range(self._handler.concurrency)))

    async def _work(self) -> None:
        """One place: one entry after the other."""
        while not self._stopping:
            taken = await self._entries.get()
            if taken is None or self._stopping:
                return
            try:
                await self._handle(*taken)
            except TarryError as error:
                # It could not be said what is to become of the entry.
                log.warning("%s: an entry is handled again: %s", self._handler.name, error)
                taken[1].nack()
            if self._lingering:
                # A thread cannot be stopped: its place is free when it is done.
                await asyncio.wait(set(self._lingering), return_when=asyncio.FIRST_COMPLETED)

    async def _handle(self, topic: str, entry: Entry) -> None:
        handler = self._handler
        attempt = attempt_of(entry)
        delivery = Delivery(
            handler.route.topic, handler.route.subscription, entry, attempt, handler.retries + 1
        )
        try:
            await self._attempt(delivery)
        except Exception as error:  # noqa: BLE001 - whatever it is, the entry comes again
            await self._failed(delivery, topic, error)
        entry.ack()

    async def _call(self, delivery: Delivery) -> Any:
        call, timeout_s = self._handler.call, self._handler.timeout_s
        arguments = call.arguments(delivery)
        if call.is_coroutine:
            return await _within(timeout_s, call.awaited(arguments))
        running = asyncio.get_running_loop().run_in_executor(self._threads, call.bound(arguments))
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
        if not done:
            self._lingering.add(running)
            running.add_done_callback(self._lingering.discard)
            raise _too_long(timeout_s)
        return running.result()

    async def _failed(self, delivery: Delivery, topic: str, error: Exception) -> None:
        handler, attempt = self._handler, delivery.attempt
        dead_letters = handler.route.dead_letters
        if isinstance(error, BadPayload):
            # No attempt would read it, and no line of the program is to blame.
            log.error(
                "%s: a payload cannot be read (%s); the entry goes to %s", handler.name, error, dead_letters
            )
        elif attempt >= delivery.attempts:
            log.error(
                "%s: attempt %d of %d failed; the entry goes to %s",
                handler.name, attempt, delivery.attempts, dead_letters, exc_info=error,
            )  # fmt: skip
        else:
            wait_ms = handler.wait_ms(attempt, handler.route.name_of(delivery.entry, topic))
            log.warning(
                "%s: attempt %d of %d failed; the next one is in %.1f s",
                handler.name, attempt, delivery.attempts, wait_ms / 1000, exc_info=error,
            )  # fmt: skip
            await self._schedule(handler.route.again(delivery.entry, topic, attempt + 1, wait_ms, error))
            return
        await self._schedule(handler.route.dead_letter(delivery.entry, topic, attempt, error))

    async def _schedule(self, call: ClientCall[Scheduled]) -> None:
        try:
            await self._client.run(call)
        except Conflict as conflict:
            # An attempt before this one scheduled it, and could not acknowledge the entry: it failed differently.
            if conflict.state != "reused":
                raise


async def _within(timeout_s: float | None, running: Coroutine[Any, Any, Any]) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await running
    except TimeoutError:
        # One of the function's own is told in its own words.
        if limit.expired():
            raise _too_long(timeout_s) from None
        raise


def _too_long(timeout_s: float | None) -> TimeoutError:
    return TimeoutError(f"it was not done in {timeout_s:g} s")


def _around(middleware: Middleware, inner: Next) -> Next:
    async def attempt(delivery: Delivery) -> Any:
        return await middleware(delivery, inner)

    return attempt


@asynccontextmanager
async def _until_left(tasks: Iterable[asyncio.Task[None]]) -> AsyncIterator[set[asyncio.Task[None]]]:
    """Tasks that are cancelled at the end of the block, and awaited."""
    running = set(tasks)
    try:
        yield running
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
