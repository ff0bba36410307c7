"""`pubsub.redis`: a topic is a Redis stream, laid out as Dapr's component does.

An entry has the field `data` with the bytes and the field `metadata` with the publish's metadata as a JSON object.
A consumer group is a group of the stream, made at its beginning (`XGROUP CREATE … 0 MKSTREAM`), and every
member calls itself by the group's name. What is not acknowledged within `processingTimeout` is claimed by
whoever looks first, every `redeliverInterval`.

Unlike Dapr's component, TLS certificates are verified, and what a member still works on is claimed by it again and
again, so that nobody takes it for forgotten. Needs Redis 6.2 or later.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tarry.core.time.clock import Clock
from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send, started
from tarry.outlets.dapr.brokers.redis.appending import Appender, StreamEntry, encode_metadata
from tarry.outlets.dapr.brokers.redis.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.redis.member import (
    DEFAULT_PROCESSING_MS,
    DEFAULT_REDELIVER_MS,
    RedisMember,
    RedisSettings,
)
from tarry.outlets.dapr.brokers.redis.where import Where
from tarry.outlets.dapr.component import BulkEntry, Component, ComponentSurroundings, Subscribed
from tarry.outlets.dapr.errors import ComponentError
from tarry.outlets.dapr.properties import Properties

ANSWER_WITHIN_S = 5.0


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """Read the metadata of a component, with the names and defaults of Dapr's."""
    settings = RedisSettings(
        processing_ms=properties.duration_ms("processingTimeout", DEFAULT_PROCESSING_MS, bare_ms=1),
        redeliver_ms=properties.duration_ms("redeliverInterval", DEFAULT_REDELIVER_MS, bare_ms=1),
        queue_depth=properties.number("queueDepth", 100, least=1, most=100_000),
        concurrency=properties.number("concurrency", 10, least=1, most=100_000),
        block_ms=properties.duration_ms("readTimeout", 3_000, bare_ms=1_000) or 3_000,
        max_length=properties.number("maxLenApprox", 0),
        stream_ttl_ms=properties.duration_ms("streamTTL", 0),
        ack_on_error=properties.flag("ackOnError"),
    )
    return RedisStreams(Where(properties), settings, surroundings.clock)


class RedisStreams(BrokerComponent):
    """The component. It has no features of its own: streams know no expiry of single entries."""

    failures = FAILURES

    def __init__(self, where: Where, settings: RedisSettings, clock: Clock) -> None:
        super().__init__()
        self._where = where
        self._settings = settings
        self._clock = clock
        self._client: Any = where.client(ANSWER_WITHIN_S)
        self._appender = Appender(self._client)

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The meaning of a failure."""
        return component_error(failure, sent=sent)

    async def connect(self) -> None:
        """Ask whether Redis is there and knows us."""
        await self._client.ping()

    async def sender(self, message: Outgoing) -> Send:
        """Append to the stream."""
        entry = self._entry(message.topic, message.data, message.metadata, lasting=message.lasting)
        return partial(self._append, entry)

    async def _append(self, entry: StreamEntry) -> None:
        failed = await self._appender.add([entry])
        if failed:
            raise failed[0]

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Append all; they travel together."""
        failed = await self._appender.add(
            [self._entry(topic, one.data, one.metadata, lasting=False) for one in entries]
        )
        return {entries[at].entry_id: error for at, error in failed.items()}

    def _entry(self, topic: str, data: bytes, metadata: Mapping[str, str], *, lasting: bool) -> StreamEntry:
        settings = self._settings
        trim: tuple[str, str, int] | None = None
        if not lasting and settings.max_length:
            trim = ("MAXLEN", "~", settings.max_length)
        elif not lasting and settings.stream_ttl_ms:
            # In whole seconds, so that entries of one moment can travel together.
            trim = ("MINID", "~", (self._clock.now_ms() - settings.stream_ttl_ms) // 1000 * 1000)
        return StreamEntry(topic, data, encode_metadata(metadata), trim)

    async def join(self, joining: Joining) -> Subscribed:
        """Join the stream's group."""
        reading = self._where.client(self._settings.block_ms / 1000 + ANSWER_WITHIN_S)
        return await started(RedisMember(reading, joining, self._settings))

    async def disconnect(self) -> None:
        """Close the connections."""
        await self._appender.close()
        await self._client.aclose()
        await self._where.close()
