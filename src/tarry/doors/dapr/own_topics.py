"""The engine's topics as `pubsub.tarry` sees them."""

import asyncio
from collections.abc import Sequence
from functools import partial

from tarry.engine.consumer import Consumer
from tarry.engine.consumer import Received as Entry
from tarry.engine.engine import Engine
from tarry.engine.entries import NewEntry
from tarry.engine.subscription import Subscription
from tarry.outlets.dapr.component import OwnMessage, Receive, Received, Reply
from tarry.outlets.dapr.receiving import Receivers, ended

CONTENT_TYPE = "content-type"


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
        self, topic: str, group: str, receive: Receive, *, at_once: int, again_after_ms: int
    ) -> "OwnSubscription":
        """Receive as one of a shared subscription from the topic's beginning, so many messages at a time."""
        found = await self._engine.topics.subscribe(topic, group, "shared", start="earliest")
        return OwnSubscription(found, group, receive, at_once, again_after_ms)


class OwnSubscription:
    """A consumer of one of Tarry's own topics, and the receivers of what it gets."""

    def __init__(
        self, subscription: Subscription, group: str, receive: Receive, at_once: int, again_after_ms: int
    ) -> None:
        self._topic = subscription.topic.name.rpartition("/")[2].replace("%2F", "/").replace("%25", "%")
        self._again_after_s = again_after_ms / 1000
        self._receivers = Receivers(receive, None)
        self._arrived: asyncio.Queue[Sequence[Entry]] = asyncio.Queue()
        self._consumer: Consumer = subscription.attach(group, self._arrived.put_nowait)
        self._reading = asyncio.create_task(self._read())
        # Permits bound what is held; each entry that is settled makes room for one.
        self._consumer.flow(at_once)

    async def _read(self) -> None:
        while True:
            for entry in await self._arrived.get():
                message = Received(
                    topic=self._topic,
                    data=entry.payload,
                    metadata=entry.headers | ({"partitionKey": entry.key} if entry.key is not None else {}),
                    content_type=entry.headers.get(CONTENT_TYPE),
                    position=str(entry.entry_id),
                )
                await self._receivers.start(message, partial(self._settle, entry.entry_id))

    async def _settle(self, entry_id: int, reply: Reply) -> None:
        if reply is Reply.ACK:
            await self._consumer.ack([entry_id])
        else:
            await asyncio.sleep(self._again_after_s)
            self._consumer.nack([entry_id])
        if not self._consumer.closed:
            self._consumer.flow(1)

    async def close(self) -> None:
        """Detach; what the receivers held goes to others."""
        await ended([self._reading])
        await self._receivers.close()
        self._consumer.close()
