"""A consumer of a group's queue, which comes back after every loss of its channel."""

import asyncio
import logging
from functools import partial
from typing import Final

from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tarry.outlets.dapr.broker import Joining
from tarry.outlets.dapr.brokers.rabbitmq.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.rabbitmq.link import RabbitLink
from tarry.outlets.dapr.brokers.rabbitmq.settings import GroupQueue, RabbitSettings
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.receiving import Receivers, ended

log = logging.getLogger("tarry.dapr")

PREFETCH: Final = 1_000
"""Where the metadata set no bound there is one all the same, or a full queue would come at once."""
AGAIN_AFTER_S: Final = 0.5
"""Before a message that must last is put back: the broker gives it out again at once."""


Opened = tuple[AbstractChannel, "asyncio.Queue[AbstractIncomingMessage]"]


class RabbitMember:
    """One subscription.

    The broker closes a channel that keeps a message longer than its `consumer_timeout`, and puts all of the channel's
    messages back. That is as good as any other loss: the receivers are ended, the channel is opened
    again, and the same messages are given out again, to this member or to another.
    """

    def __init__(
        self, link: RabbitLink, settings: RabbitSettings, queue: GroupQueue, joining: Joining
    ) -> None:
        self._link = link
        self._settings = settings
        self._queue = queue
        self._hold = joining.hold
        at_once = None if joining.hold else 1 if settings.one_at_a_time else PREFETCH
        self._receivers = Receivers(joining.receive, at_once)
        self._channel: AbstractChannel | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Declare the exchange and the queue, and begin to consume."""
        self._tasks = [asyncio.create_task(self._stay(await self._open()))]

    async def _open(self) -> Opened:
        connection = await self._link.connection()
        self._channel = channel = await connection.channel(publisher_confirms=False)
        if not self._hold:
            await channel.set_qos(prefetch_count=self._settings.prefetch or PREFETCH)
        await self._settings.declare_exchange(channel, self._queue.topic)
        if self._queue.dead_letter:
            await self._declare_dead_letter(channel)
        queue = await channel.declare_queue(
            self._queue.name,
            durable=self._queue.durable,
            auto_delete=self._queue.auto_delete,
            arguments=self._queue.arguments,
        )
        for key in self._queue.routing_keys:
            await queue.bind(self._queue.topic, key)
        arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(arrived.put, no_ack=self._auto_ack, consumer_tag=self._queue.name)
        return channel, arrived

    @property
    def _auto_ack(self) -> bool:
        return self._settings.auto_ack and not self._queue.lasting

    async def _declare_dead_letter(self, channel: AbstractChannel) -> None:
        auto_delete = self._settings.auto_delete
        exchange = await channel.declare_exchange(
            f"dlx-{self._queue.name}", "fanout", durable=True, auto_delete=auto_delete
        )
        queue = await channel.declare_queue(
            f"dlq-{self._queue.name}",
            durable=True,
            auto_delete=auto_delete,
            arguments=self._settings.lengths() | {"x-queue-mode": "lazy"},
        )
        await queue.bind(exchange, "")

    async def _stay(self, opened: Opened) -> None:
        """Open the channel again whenever it was closed."""
        while True:
            channel, arrived = opened
            reading = asyncio.create_task(self._read(arrived))
            try:
                await channel.closed()
            finally:
                await ended([reading])
            await self._receivers.close()
            log.warning("a RabbitMQ channel was closed; opening it again", extra={"queue": self._queue.name})
            opened = await self._open_again()

    async def _open_again(self) -> Opened:
        while True:
            try:
                return await self._open()
            except FAILURES as error:
                reason = str(component_error(error, self._queue.topic))
                log.warning(
                    "a RabbitMQ queue cannot be consumed",
                    extra={"queue": self._queue.name, "reason": reason},
                )
                await asyncio.sleep(self._settings.reconnect_s)

    async def _read(self, arrived: "asyncio.Queue[AbstractIncomingMessage]") -> None:
        while True:
            message = await arrived.get()
            await self._receivers.start(
                BrokerMessage(
                    topic=self._queue.topic,
                    data=message.body,
                    metadata=_metadata(message),
                    position=message.message_id or None,
                ),
                partial(self._settle, message),
            )

    async def _settle(self, message: AbstractIncomingMessage, reply: Settlement) -> None:
        if self._auto_ack:
            return
        try:
            if reply is Settlement.ACK:
                await message.ack()
            elif self._queue.lasting:
                await asyncio.sleep(AGAIN_AFTER_S)
                await message.nack(requeue=True)
            else:
                await message.nack(requeue=self._settings.requeue)
        except FAILURES as error:
            # The channel is gone, and the broker has put the message back.
            log.debug("a message was not settled: %s", error)

    async def close(self) -> None:
        """Consume no more; messages that receivers hold are put back as the channel closes."""
        await ended(self._tasks)
        await self._receivers.close()
        channel, self._channel = self._channel, None
        if channel is not None and not channel.is_closed:
            try:
                await channel.close()
            except FAILURES:
                pass


def _metadata(message: AbstractIncomingMessage) -> dict[str, str]:
    """The AMQP properties and headers that Dapr shows."""
    named = {
        "messageid": message.message_id,
        "correlationid": message.correlation_id,
        "type": message.type,
        "contenttype": message.content_type,
    }
    headers = {name: _text(value) for name, value in message.headers.items() if value is not None}
    return {name: value for name, value in named.items() if value} | headers


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
