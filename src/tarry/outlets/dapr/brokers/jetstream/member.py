"""A push consumer of a stream, and the receivers of its messages."""

import asyncio
import logging
import time
from functools import partial
from typing import Final

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from tarry.outlets.dapr.broker import Joining
from tarry.outlets.dapr.brokers.jetstream.failures import FAILURES
from tarry.outlets.dapr.brokers.jetstream.link import NatsLink
from tarry.outlets.dapr.brokers.jetstream.settings import DEFAULT_ACK_WAIT_MS, NatsSettings
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.receiving import Receivers, ended

log = logging.getLogger("tarry.dapr")

PARALLEL: Final = 1_000
AGAIN_AFTER_S: Final = 0.5
LOOKED_AFTER_S: Final = 5.0
"""How often it is looked whether the consumer is still there: one that is not durable goes with its server."""


class NatsMember:
    """One subscription.

    What is with receivers is told to be in progress well before the server's `ackWait` has passed. After a loss of the
    connection that lasted longer, the server may have given it to others: then the receivers are ended.
    """

    def __init__(self, link: NatsLink, settings: NatsSettings, joining: Joining) -> None:
        self._link = link
        self._settings = settings
        self._topic = joining.topic
        self._group = joining.group
        self._lasting = joining.lasting
        self._hold = joining.hold
        self._ack_wait_s = (settings.ack_wait_ms or DEFAULT_ACK_WAIT_MS) / 1000
        at_once = None if joining.hold else 1 if settings.one_at_a_time and not joining.lasting else PARALLEL
        self._receivers = Receivers(joining.receive, at_once)
        self._held: dict[str, Msg] = {}
        self._told_at_s = time.monotonic()
        self._stream = ""
        self._consumer = ""
        self._subscription: JetStreamContext.PushSubscription | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the consumer and begin."""
        await self._open()
        self._tasks = [asyncio.create_task(self._look_after())]
        if self._settings.acknowledges or self._lasting:
            self._tasks.append(asyncio.create_task(self._keep()))

    async def _open(self) -> None:
        client = await self._link.connection()
        js = self._link.stream(client)
        self._stream = self._settings.stream or await js.find_stream_name_by_subject(self._topic)
        inbox = client.new_inbox()
        if self._lasting:
            wanted = self._settings.lasting(self._topic, self._group, inbox, hold=self._hold)
        else:
            wanted = self._settings.config(self._topic, inbox)
        config, self._consumer = await self._find_or_make(js, wanted)
        self._subscription = await js.subscribe_bind(
            self._stream, config, self._consumer, cb=self._arrived, manual_ack=True
        )

    async def _find_or_make(self, js: JetStreamContext, wanted: ConsumerConfig) -> tuple[ConsumerConfig, str]:
        """Members of a queue group listen where the first of them does; a consumer of one is taken over."""
        if wanted.durable_name and wanted.deliver_group:
            try:
                found = await js.consumer_info(self._stream, wanted.durable_name)
            except NotFoundError:
                pass
            else:
                if found.config.deliver_group == wanted.deliver_group:
                    return found.config, found.name
        made = await js.add_consumer(self._stream, wanted)
        return made.config, made.name

    async def _arrived(self, message: Msg) -> None:
        position = f"{self._stream}/{message.metadata.sequence.stream}"
        known = position in self._held
        self._held[position] = message
        if known:
            # The connection was lost for a while; the receiver is still at work.
            return
        await self._receivers.start(
            BrokerMessage(
                topic=self._topic,
                data=message.data,
                metadata={"Topic": message.subject},
                position=position,
            ),
            partial(self._settle, position),
        )

    async def _settle(self, position: str, reply: Settlement) -> None:
        if not self._settings.acknowledges and not self._lasting:
            self._held.pop(position, None)
            return
        for _ in range(int(self._ack_wait_s / AGAIN_AFTER_S) + 1):
            message = self._held.get(position)
            if message is None:
                return
            try:
                await self._link.connection()
                if reply is Settlement.ACK:
                    await message.ack_sync()
                elif self._settings.ack_wait_ms:
                    await message.nak(self._settings.ack_wait_ms / 1000)
                else:
                    await message.nak(AGAIN_AFTER_S if self._lasting else None)
                break
            except FAILURES:
                await asyncio.sleep(AGAIN_AFTER_S)
        self._held.pop(position, None)

    async def _keep(self) -> None:
        """Tell the server of the messages that receivers hold that they are in progress."""
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            try:
                await self._link.connection()
                for message in list(self._held.values()):
                    await message.in_progress()
                self._told_at_s = time.monotonic()
            except FAILURES:
                if time.monotonic() - self._told_at_s > self._ack_wait_s:
                    self._held.clear()
                    await self._receivers.close()

    async def _look_after(self) -> None:
        """Make the consumer again if it is gone."""
        while True:
            await asyncio.sleep(LOOKED_AFTER_S)
            try:
                js = self._link.stream(await self._link.connection())
                try:
                    await js.consumer_info(self._stream, self._consumer)
                except NotFoundError:
                    log.warning("a JetStream consumer is gone; making it again", extra={"topic": self._topic})
                    await self._unsubscribe()
                    await self._open()
            except FAILURES as error:
                log.warning(
                    "a JetStream consumer cannot be reached",
                    extra={"topic": self._topic, "reason": str(error)},
                )

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except FAILURES:
                pass

    async def close(self) -> None:
        """Receive no more; messages that receivers hold come again, at once where the server can be told."""
        await ended(self._tasks)
        await self._unsubscribe()
        await self._receivers.close()
        if self._link.connected and (self._settings.acknowledges or self._lasting):
            for message in self._held.values():
                try:
                    await message.nak()
                except FAILURES:
                    break
        self._held.clear()
