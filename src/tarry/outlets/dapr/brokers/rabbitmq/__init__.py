"""`pubsub.rabbitmq`: a topic is an exchange, a group's share of it a queue, declared as Dapr's component does.

The exchange is named like the topic (fanout, durable, deleted when unused, unless the metadata say otherwise); the queue
is `group-topic`, bound to it, and so is the consumer's tag. With `exchangeDeclareMode: passive` exchanges must
be there already. A message is the bytes, with the AMQP properties that a publish's metadata name.

Unlike Dapr's component, a publish always waits for the broker's confirmation, TLS certificates are verified,
and a group does not take more than a thousand messages into memory where `prefetchCount` is 0.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractExchange
from pamqp.commands import Basic

from tarry.outlets.dapr.brokers.rabbitmq.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.rabbitmq.link import RabbitLink
from tarry.outlets.dapr.brokers.rabbitmq.member import RabbitMember
from tarry.outlets.dapr.brokers.rabbitmq.settings import RabbitSettings, read_settings
from tarry.outlets.dapr.component import (
    BulkEntry,
    Component,
    Feature,
    ReceiveMessage,
    Subscribed,
    Surroundings,
    publish_each,
)
from tarry.outlets.dapr.errors import ComponentError, TopicMissing
from tarry.outlets.dapr.members import Members
from tarry.outlets.dapr.properties import Properties, ttl_ms_of

CONFIRMED_WITHIN_S: Final = 10.0
PERSISTENT: Final = 2


def component(properties: Properties, surroundings: Surroundings) -> Component:
    """Read the metadata; the names and defaults are those of Dapr's component."""
    return RabbitMq(RabbitLink(properties, surroundings.name), read_settings(properties))


class RabbitMq:
    """The component."""

    def __init__(self, link: RabbitLink, settings: RabbitSettings) -> None:
        self._link = link
        self._settings = settings
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._exchanges: dict[str, AbstractExchange] = {}
        self._members = Members()

    @property
    def features(self) -> frozenset[Feature]:
        """The broker drops what has expired."""
        return frozenset((Feature.MESSAGE_TTL,))

    async def start(self) -> None:
        """Connect."""
        try:
            _ = await self._open()
        except FAILURES as error:
            raise component_error(error) from error

    async def _open(self) -> AbstractChannel:
        """The channel for publishing; a new one where the old one was closed."""
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                self._exchanges.clear()
                connection = await self._link.connection()
                self._channel = await connection.channel(publisher_confirms=True)
            return self._channel

    async def _exchange(self, topic: str) -> AbstractExchange:
        channel = await self._open()
        exchange = self._exchanges.get(topic)
        if exchange is None:
            exchange = self._exchanges[topic] = await self._settings.declare_exchange(channel, topic)
        return exchange

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Publish to the topic's exchange. What must last must also have a queue to go to."""
        sent = False
        try:
            exchange = await self._exchange(topic)
            sent = True
            answer = await exchange.publish(
                self.message(data, metadata, lasting=lasting),
                metadata.get("routingKey", ""),
                mandatory=lasting,
                timeout=CONFIRMED_WITHIN_S,
            )
        except FAILURES as error:
            raise component_error(error, topic, sent=sent) from error
        if not isinstance(answer, Basic.Ack):
            raise TopicMissing(
                f"RabbitMQ: no queue is bound to the exchange {topic}; nobody has subscribed yet"
            )

    def message(self, data: bytes, metadata: Mapping[str, str], *, lasting: bool) -> Message:
        """The message as Dapr's component makes it."""
        asked = Properties(metadata)
        ttl_ms = None if lasting else ttl_ms_of(metadata) or self._settings.ttl_ms
        priority = asked.text("priority")
        return Message(
            data,
            content_type=asked.text("contentType", "text/plain"),
            delivery_mode=PERSISTENT if lasting else self._settings.delivery_mode or 1,
            priority=int(priority)
            if priority.isascii() and priority.isdigit() and int(priority) < 256
            else None,
            expiration=None if ttl_ms is None else timedelta(milliseconds=ttl_ms),
            message_id=asked.text("messageId") or None,
            correlation_id=asked.text("correlationId") or None,
            type=asked.text("type") or None,
        )

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Publish all at a time; each is confirmed by itself."""
        return await publish_each(self, topic, entries)

    async def subscribe(
        self,
        topic: str,
        group: str,
        receive: ReceiveMessage,
        metadata: Mapping[str, str],
        *,
        lasting: bool = False,
        hold: bool = False,
    ) -> Subscribed:
        """Consume the group's queue."""
        queue = self._settings.queue(topic, group, Properties(metadata), lasting=lasting)
        member = RabbitMember(self._link, self._settings, queue, receive, hold=hold)
        try:
            await member.start()
        except FAILURES as error:
            await member.close()
            raise component_error(error, topic) from error
        return self._members.add(member)

    async def close(self) -> None:
        """End the consumers and disconnect."""
        await self._members.close()
        await self._link.close()
