"""The engine's topics as `pubsub.tarry` sees them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tarry.core.errors import TarryError
from tarry.core.time.backoff import after_attempts
from tarry.engine.answer import Answer
from tarry.engine.api import Consumer, NewEntry, Subscription
from tarry.engine.api import Received as Entry
from tarry.engine.engine import Engine
from tarry.outlets.dapr.component import BrokerMessage, OwnMessage, ReceiveMessage, Settlement
from tarry.outlets.dapr.receiving import Receivers, ended

CONTENT_TYPE = "content-type"
RETURN_AFTER_S = 1.0
"""Between two attempts to subscribe again."""
LONGEST_AGAIN_AFTER_MS = 60_000
"""A message that is not taken comes again after waits that grow up to this."""
log = logging.getLogger("tarry.dapr")


class EngineTopics:
    """Publishes to and subscribes to Tarry's own topics. Implements `OwnTopics`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, topic: str, messages: Sequence[OwnMessage]) -> None:
        """Append messages to a topic, all or none; they are durable when it returns."""
        await self._engine.topics.publish(
            topic,
            [
                NewEntry(payload=one.data, headers=one.headers, key=one.key, ttl_ms=one.ttl_ms, door="dapr")
                for one in messages
            ],
        )

    async def subscribe(
        self, topic: str, group: str, receive: ReceiveMessage, *, at_once: int, again_after_ms: int
    ) -> "OwnSubscription":
        """Receive as one of a shared subscription from the topic's beginning, so many messages at a time."""

        def find() -> Answer[Subscription]:
            return self._engine.topics.subscribe(topic, group, "shared", start="earliest")

        return OwnSubscription(find, await find(), group, receive, at_once, again_after_ms)


class OwnSubscription:
    """A consumer of one of Tarry's own topics, and the receivers of its entries.

    If the topic or the subscription is deleted, it subscribes again: the application still wants what comes.
    """

    def __init__(
        self,
        find: Callable[[], Answer[Subscription]],
        subscription: Subscription,
        group: str,
        receive: ReceiveMessage,
        at_once: int,
        again_after_ms: int,
    ) -> None:
        self._find = find
        self._group = group
        self._at_once = at_once
        self._topic = subscription.topic.name.rpartition("/")[2].replace("%2F", "/").replace("%25", "%")
        self._again_after_ms = again_after_ms
        self._receivers = Receivers(receive, None)
        self._arrived: asyncio.Queue[tuple[Consumer, Sequence[Entry]]] = asyncio.Queue()
        self._returning: asyncio.Task[None] | None = None
        self._consumer = self._attach(subscription)
        self._reading = asyncio.create_task(self._read())

    def _attach(self, subscription: Subscription) -> Consumer:
        def deliver(entries: Sequence[Entry]) -> None:
            self._arrived.put_nowait((consumer, entries))

        consumer = subscription.attach(self._group, deliver)
        consumer.on_close = self._lost
        # Permits bound what is held; each entry that is settled makes room for one.
        consumer.flow(self._at_once)
        return consumer

    def _lost(self) -> None:
        self._returning = asyncio.create_task(self._return())

    async def _return(self) -> None:
        while True:
            try:
                self._consumer = self._attach(await self._find())
                return
            except TarryError as error:
                log.warning("a subscription that was deleted is not back yet", extra={"reason": str(error)})
                await asyncio.sleep(RETURN_AFTER_S)

    async def _read(self) -> None:
        while True:
            consumer, entries = await self._arrived.get()
            for entry in entries:
                message = BrokerMessage(
                    topic=self._topic,
                    data=entry.payload,
                    metadata=entry.headers | ({"partitionKey": entry.key} if entry.key is not None else {}),
                    content_type=entry.headers.get(CONTENT_TYPE),
                    position=str(entry.entry_id),
                )
                await self._receivers.start(message, partial(self._settle, consumer, entry))

    async def _settle(self, consumer: Consumer, entry: Entry, reply: Settlement) -> None:
        """Settle with the consumer that got the entry: a later one has others under the same ids."""
        if consumer.closed:
            return
        if reply is Settlement.ACK:
            await consumer.ack([entry.entry_id])
        else:
            longest_ms = max(self._again_after_ms, LONGEST_AGAIN_AFTER_MS)
            wait_ms = after_attempts(entry.redelivery_count + 1, self._again_after_ms, longest_ms)
            await asyncio.sleep(wait_ms / 1000)
            consumer.nack([entry.entry_id])
        if not consumer.closed:
            consumer.flow(1)

    async def close(self) -> None:
        """Detach; what the receivers held goes to others."""
        self._consumer.on_close = None
        await ended([self._reading, *([self._returning] if self._returning is not None else [])])
        await self._receivers.close()
        self._consumer.close()
