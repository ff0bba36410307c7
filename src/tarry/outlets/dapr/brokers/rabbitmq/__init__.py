"""`pubsub.rabbitmq`: a topic is an exchange, a group's share of it a queue, declared as Dapr's component does.

The exchange is named like the topic (fanout, durable, deleted when unused, unless the metadata say otherwise); the queue
is `group-topic`, bound to it, and so is the consumer's tag. With `exchangeDeclareMode: passive` exchanges must
be there already. A message is the bytes, with the AMQP properties that a publish's metadata name.

Unlike Dapr's component, a publish always waits for the broker's confirmation, TLS certificates are verified,
and a group does not take more than a thousand messages into memory where `prefetchCount` is 0.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractExchange
from pamqp.commands import Basic

from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send, started
from tarry.outlets.dapr.brokers.rabbitmq.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.rabbitmq.link import RabbitLink
from tarry.outlets.dapr.brokers.rabbitmq.member import RabbitMember
from tarry.outlets.dapr.brokers.rabbitmq.settings import RabbitSettings, read_settings
from tarry.outlets.dapr.component import Component, ComponentSurroundings, Feature, Subscribed
from tarry.outlets.dapr.errors import ComponentError, TopicMissing
from tarry.outlets.dapr.properties import Properties, ttl_ms_of

CONFIRMED_WITHIN_S: Final = 10.0
PERSISTENT: Final = 2


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """Read the metadata of a component, with the names and defaults of Dapr's."""
    return RabbitMq(RabbitLink(properties, surroundings.name), read_settings(properties))


class RabbitMq(BrokerComponent):
    """The component. The broker drops messages that have expired."""

    features = frozenset((Feature.MESSAGE_TTL,))
    failures = FAILURES

    def __init__(self, link: RabbitLink, settings: RabbitSettings) -> None:
        super().__init__()
        self._link = link
        self._settings = settings
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._exchanges: dict[str, AbstractExchange] = {}

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The meaning of a failure."""
        return component_error(failure, topic, sent=sent)

    async def connect(self) -> None:
        """Connect."""
        _ = await self._open()

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

    async def sender(self, message: Outgoing) -> Send:
        """Publish to the topic's exchange."""
        return partial(self._publish, message, await self._exchange(message.topic))

    async def _publish(self, message: Outgoing, exchange: AbstractExchange) -> None:
        """Publish; a message that must last must also have a queue to go to."""
        answer = await exchange.publish(
            self.message(message.data, message.metadata, lasting=message.lasting),
            message.metadata.get("routingKey", ""),
            mandatory=message.lasting,
            timeout=CONFIRMED_WITHIN_S,
        )
        if not isinstance(answer, Basic.Ack):
            raise TopicMissing(
                f"RabbitMQ: no queue is bound to the exchange {message.topic}; nobody has subscribed yet"
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

    async def join(self, joining: Joining) -> Subscribed:
        """Consume the group's queue."""
        asked = Properties(joining.metadata)
        queue = self._settings.queue(joining.topic, joining.group, asked, lasting=joining.lasting)
        return await started(RabbitMember(self._link, self._settings, queue, joining))

    async def disconnect(self) -> None:
        """Close the connection."""
        await self._link.close()
