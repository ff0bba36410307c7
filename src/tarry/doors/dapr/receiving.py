"""The way of a message that a broker delivers for a subscription: read, routed, given to the application.

SUCCESS acknowledges it. DROP gives it to the dead-letter topic if there is one, and acknowledges it. RETRY means again,
with growing waits, for as often as is configured; then the dead-letter topic, or, without one, back to the broker.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from tarry.config.dapr import DaprApp
from tarry.core.telemetry.faults import told
from tarry.core.time.backoff import doubling, spread
from tarry.core.time.clock import Clock
from tarry.core.unreadable import UNREADABLE
from tarry.doors.dapr import cloudevents
from tarry.doors.dapr.channel import AppMessage, Status
from tarry.doors.dapr.mounting import Mounted
from tarry.doors.dapr.subscriptions import AppSubscription, Bulk
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.errors import ComponentError

_log = logging.getLogger(__name__)

Deliver = Callable[[AppMessage], Awaitable[Status]]
DeliverBulk = Callable[[list[AppMessage]], Awaitable[dict[str, Status]]]
_numbers = itertools.count(1)

MAX_TOLD: Final = 1_000
"""Messages that are no CloudEvents, of one subscription, that the log is told of once; of more it may be told again."""


class Receiving:
    """Receives for one subscription; `deliver` is how the application is given a message."""

    def __init__(
        self, subscription: AppSubscription, mounted: Mounted, app: DaprApp, clock: Clock, deliver: Deliver
    ) -> None:
        self._subscription = subscription
        self._mounted = mounted
        self._app = app
        self._clock = clock
        self._deliver = deliver
        self._places = asyncio.Semaphore(app.app_concurrency)
        self._told: dict[str | int, None] = {}
        """Messages that were told to be no CloudEvents: their places at their broker, or, without one, what their data hash to."""
        self._searching = ThreadPoolExecutor(1, "rules") if subscription.searches else None

    async def receive(self, received: BrokerMessage) -> Settlement:
        """Take one message from the broker."""
        try:
            arrival = await self._read(received)
        except UNREADABLE as error:
            self._tell_unreadable(received, error)
            return await self._bury(received) if self._subscription.dead_letter_topic else Settlement.NACK
        if arrival is None:
            return await self._bury(received)
        async with self._places:
            status = await self._until_taken(arrival)
        if status is Status.SUCCESS:
            return Settlement.ACK
        if status is Status.RETRY and not self._subscription.dead_letter_topic:
            return Settlement.NACK
        return await self._bury(received)

    def _tell_unreadable(self, received: BrokerMessage, error: Exception) -> None:
        """Log a message that is no CloudEvent, once: its broker brings it again and again."""
        mark = received.position or hash(received.data)
        if mark in self._told:
            return
        if len(self._told) >= MAX_TOLD:
            del self._told[next(iter(self._told))]
        self._told[mark] = None
        more = "" if self._subscription.dead_letter_topic else "; it comes again, and is not told again"
        _log.error("a message of topic %s is no CloudEvent%s: %s", self._subscription.topic, more, error)

    async def _read(self, received: BrokerMessage) -> AppMessage | None:
        """The message for the application; None for one that is not to be delivered."""
        sub = self._subscription
        if sub.raw:
            event: dict[str, Any] = cloudevents.of_raw(
                received.data, sub.topic, sub.pubsub, received.metadata
            )
            body = msgspec.json.encode(event)
        else:
            event, body = msgspec.json.decode(received.data, type=dict[str, Any]), received.data
        if cloudevents.has_expired(event, self._clock.now_ms()):
            _log.warning("an expired message of topic %s is dropped", sub.topic)
            return None
        path = await self._path_of(event)
        if path is None:
            return None
        entry_id = f"{next(_numbers)}"
        return AppMessage(
            event, body, sub.pubsub, sub.topic, path, entry_id, received.metadata, received.data,
            received.content_type, sub.raw,
        )  # fmt: skip

    async def _path_of(self, event: dict[str, Any]) -> str | None:
        """Where an event goes. A search goes on beside the server, one at a time: a hostile pattern delays only its own."""
        if self._searching is None:
            return self._subscription.path_of(event)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._searching, self._subscription.path_of, event)

    async def _until_taken(self, arrival: AppMessage) -> Status:
        """Give it to the application until it is taken, dropped, or was tried often enough."""
        most = self._app.max_retries
        if most is None and self._subscription.dead_letter_topic:
            # As Dapr does where no resiliency policy says otherwise.
            most = 0
        waits_ms = doubling(self._app.retry_min_ms, self._app.retry_max_ms)
        tried = 0
        while True:
            status = await self._deliver(arrival)
            if status is not Status.RETRY or (most is not None and tried >= most):
                return status
            tried += 1
            await asyncio.sleep(spread(next(waits_ms), random.random) / 1000)

    async def _bury(self, received: BrokerMessage) -> Settlement:
        """Be done with a message: into the dead-letter topic, if there is one."""
        topic = self._subscription.dead_letter_topic
        if topic:
            try:
                await self._mounted.component.publish(
                    self._mounted.at_broker(topic), received.data, received.metadata, received.content_type
                )
            except ComponentError as error:
                _log.warning("a message cannot be put into the dead-letter topic %s: %s", topic, error)
                return Settlement.NACK
        return Settlement.ACK


class Gathering:
    """Gathers messages, by path, so that the application gets several together."""

    def __init__(self, bulk: Bulk, deliver: DeliverBulk) -> None:
        self._bulk = bulk
        self._deliver = deliver
        self._waiting: dict[str, list[tuple[AppMessage, asyncio.Future[Status]]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def deliver(self, arrival: AppMessage) -> Status:
        """Give a message to the application together with others."""
        loop = asyncio.get_running_loop()
        status: asyncio.Future[Status] = loop.create_future()
        waiting = self._waiting.setdefault(arrival.path, [])
        waiting.append((arrival, status))
        if len(waiting) >= self._bulk.max_count:
            self._flush(arrival.path)
        elif len(waiting) == 1:
            self._timers[arrival.path] = loop.call_later(
                self._bulk.max_wait_ms / 1000, self._flush, arrival.path
            )
        return await status

    def _flush(self, path: str) -> None:
        timer = self._timers.pop(path, None)
        if timer is not None:
            timer.cancel()
        call = asyncio.create_task(self._send(self._waiting.pop(path)))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _send(self, waiting: list[tuple[AppMessage, asyncio.Future[Status]]]) -> None:
        # Whoever gave up meanwhile is given up.
        waiting = [one for one in waiting if not one[1].done()]
        if not waiting:
            return
        try:
            statuses = await self._deliver([arrival for arrival, _ in waiting])
        except Exception as error:  # noqa: BLE001 - nobody is left waiting
            _log.error("a bulk delivery failed with %s", told(error))
            statuses = {}
        for arrival, status in waiting:
            if not status.done():
                status.set_result(statuses.get(arrival.entry_id, Status.RETRY))
