"""`Worker`: functions that handle entries of topics, and running them."""

import asyncio
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from tarry.client.asynchronous import AsyncClient
from tarry.client.worker.handler import Function, Handler, Invocation, Middleware
from tarry.client.worker.retrying import Backoff, BackoffLike, Duration, RetryTopics, duration_ms, waits_of
from tarry.client.worker.running import Running
from tarry.core.errors import Invalid

log = logging.getLogger("tarry.worker")

F = TypeVar("F", bound=Function)
M = TypeVar("M", bound=Middleware)


class Worker:
    """Handles the entries of topics with functions; `tarry worker module:worker` runs it.

        worker = Worker()

        @worker.on("reminders", concurrency=10, retries=5)
        async def remind(reminder: Reminder) -> None: ...

    An entry is acknowledged when its function returns. When it raises or takes too long, the entry comes again after a wait,
    and becomes a dead letter after its last attempt.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        name: str = "worker",
        tls: ssl.SSLContext | None = None,
        stop_timeout: Duration = "30s",
        tracing: bool = False,
    ) -> None:
        """`name`: the subscription of functions that name none. `stop_timeout`: how long functions may still take at a stop."""
        self.url = url
        self.token = token
        self.tls = tls
        self._name = name
        self._stop_timeout_s = duration_ms(stop_timeout, "stop_timeout") / 1000
        self._handlers: list[Handler] = []
        self._middleware: list[Middleware] = []
        self._running: list[Running] = []
        self._stopping: asyncio.Event | None = None
        if tracing:
            from tarry.client.worker.telemetry import traced

            self._middleware.append(traced)

    def on(
        self,
        topic: str,
        *,
        subscription: str | None = None,
        concurrency: int = 10,
        retries: int = 5,
        backoff: BackoffLike = Backoff(),  # noqa: B008 - it is frozen
        timeout: Duration | None = None,
        dead_letter_topic: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> Callable[[F], F]:
        """Have a function handle the entries of a topic, at most `concurrency` at a time.

        The function may be a coroutine function; a plain one runs in a thread. Its first parameter is the payload, as the type
        of its annotation; a parameter annotated with `Delivery` gets the attempt. After a failure there are `retries` more
        attempts, with waits as `backoff` says; then the entry goes to `dead_letter_topic` (`{topic}-{subscription}-DLQ`).
        """
        if concurrency < 1:
            raise Invalid("concurrency", "is at least 1")
        if retries < 0:
            raise Invalid("retries", "is at least 0")
        name = subscription or self._name
        full = _full(topic)
        if any(
            (handler.route.topic, handler.route.subscription) == (full, name) for handler in self._handlers
        ):
            raise Invalid(
                "subscription",
                f"another function of this worker handles {topic} as {name}; name another subscription",
            )
        dead_letters = _full(dead_letter_topic) if dead_letter_topic else f"{full}-{name}-DLQ"
        timeout_s = None if timeout is None else duration_ms(timeout, "timeout") / 1000

        def register(function: F) -> F:
            route = RetryTopics(full, name, dead_letters)
            self._handlers.append(
                Handler(function, route, concurrency, retries, waits_of(backoff), timeout_s, start, Invocation(function))
            )  # fmt: skip
            return function

        return register

    def middleware(self, function: M) -> M:
        """Run a coroutine function around each attempt: `async def timed(delivery, call_next): await call_next(delivery)`.

        The first one that is registered is the outermost.
        """
        self._middleware.append(function)
        return function

    def run(self) -> None:
        """Handle entries until SIGTERM or SIGINT; functions that run then may finish. A second signal does not wait for them."""
        asyncio.run(self._run_until_signal())

    async def _run_until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        working = asyncio.ensure_future(self.run_async())

        def signalled(number: signal.Signals) -> None:
            if self._stopping is not None and self._stopping.is_set():
                working.cancel()
            else:
                log.info("%s: no further entries are begun", number.name)
                self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signalled, number)
        try:
            await working
        except asyncio.CancelledError:
            log.warning("stopped without waiting; entries that were being handled come again")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def run_async(self) -> None:
        """Handle entries until `stop`; for programs that have a loop of their own."""
        if not self._handlers:
            raise Invalid("worker", "has no functions; decorate one with @worker.on(TOPIC)")
        self._stopping = asyncio.Event()
        connections = 100 + 2 * len(self._handlers)
        async with AsyncClient(self.url, self.token, tls=self.tls, max_connections=connections) as client:
            self._running = [Running(handler, client, self._middleware) for handler in self._handlers]
            for handler in self._handlers:
                log.info(
                    "%s: handles %s as %s", handler.name, handler.route.topic, handler.route.subscription
                )
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(running.run()) for running in self._running]
                    group.create_task(self._end(tasks))
            except BaseExceptionGroup as group:
                overdue, rest = group.split(_Overdue)
                if rest is not None:
                    # One is what there is to say; the others ended because of it.
                    raise rest.exceptions[0] from None
                if overdue is not None:
                    log.warning(
                        "functions that did not finish in %g s were cancelled; their entries come again",
                        self._stop_timeout_s,
                    )
            finally:
                self._running = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Handle entries while the block runs, which begins when the subscriptions are made; then let functions finish."""
        working = asyncio.create_task(self.run_async())
        subscribed = asyncio.create_task(self._subscribed())
        try:
            await asyncio.wait({working, subscribed}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                yield
        finally:
            subscribed.cancel()
            self.stop()
            await working

    async def _subscribed(self) -> None:
        # `run_async` has not begun yet.
        await asyncio.sleep(0)
        for running in self._running:
            await running.subscribed.wait()

    def stop(self) -> None:
        """Begin no further entries; `run` and `run_async` return when the functions that run have finished."""
        for running in self._running:
            running.stop()
        if self._stopping is not None:
            self._stopping.set()

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        """Once it is stopping, see that it ends in time."""
        assert self._stopping is not None
        await self._stopping.wait()
        _, late = await asyncio.wait(tasks, timeout=self._stop_timeout_s)
        if late:
            raise _Overdue


class _Overdue(Exception):
    """Functions did not finish in time."""


def _full(topic: str) -> str:
    """A topic's full name; a short one is in `public/default`."""
    if topic.startswith("persistent://"):
        return topic
    return f"persistent://{topic}" if "/" in topic else f"persistent://public/default/{topic}"
