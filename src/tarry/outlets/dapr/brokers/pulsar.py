"""`pubsub.pulsar`: a topic is `persistent://tenant/namespace/topic`, written and read as Dapr's component does.

A message's payload is the bytes, its key the metadata `partitionKey`, its properties the other metadata; `deliverAt` and
`deliverAfter` are Pulsar's own delays. A consumer group is a subscription, shared unless `subscribeType` says
otherwise, from `latest` unless `subscribeInitialPosition` does.

Pulsar has no deadline for acknowledgements, but a bound on how many may be missing (50,000 for a consumer, by the
broker's default): that many messages can be held. By that default it also knows a batch only as a whole: one message
that is held would bring the others of its batch again. So what is to last is not written in batches.

What is not supported is refused by its name.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pulsar
from msgspec import Struct
from pulsar.asyncio import Client, Consumer, Producer, PulsarException

from tarry.core.times import go_duration_ms
from tarry.outlets.dapr.component import (
    BrokerMessage,
    BulkEntry,
    Component,
    Feature,
    ReceiveMessage,
    Settlement,
    Subscribed,
    Surroundings,
    publish_each,
)
from tarry.outlets.dapr.errors import (
    BrokerUnreachable,
    ComponentError,
    Denied,
    Misconfigured,
    NeverTaken,
    TopicMissing,
)
from tarry.outlets.dapr.members import Members
from tarry.outlets.dapr.properties import Properties
from tarry.outlets.dapr.receiving import Receivers, ended

log = logging.getLogger("tarry.dapr")

ANSWERED_WITHIN_S: Final = 5
SENT_WITHIN_MS: Final = 10_000
PRODUCERS: Final = 100
"""Producers at one time; Dapr's component has ten."""
AGAIN_AFTER_S: Final = 0.5
_ROOM_S: Final = 0.01

_TYPES: Final = {
    "shared": pulsar.ConsumerType.Shared,
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}
_COMPRESSIONS: Final = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
}
_UNSUPPORTED: Final = ("oauth2TokenURL", "oauth2CredentialsFile", "publicKey", "privateKey", "topicsPattern")
_SCHEMAS: Final = (".avroschema", ".jsonschema", ".protoschema")


class PulsarSettings(Struct, frozen=True, kw_only=True):
    """The component's metadata."""

    client: dict[str, Any]
    home: str
    """The prefix of a topic's name."""
    producer: dict[str, Any]
    type: str
    position: str
    again_after_ms: int
    at_once: int
    queue: int
    one_at_a_time: bool


def component(properties: Properties, surroundings: Surroundings) -> Component:
    """Read the metadata; the names and defaults are those of Dapr's component."""
    del surroundings
    for field in properties:
        if properties.text(field) and (field in _UNSUPPORTED or field.endswith(_SCHEMAS)):
            raise Misconfigured(field, "is not supported here")
    if properties.one_of("subscribeMode", ("durable", "non_durable"), "durable") == "non_durable":
        raise Misconfigured("subscribeMode", "non_durable is not supported here")
    persistent = "persistent" if properties.flag("persistent", True) else "non-persistent"
    tenant, namespace = properties.text("tenant", "public"), properties.text("namespace", "default")
    compression = properties.one_of("compressionType", _COMPRESSIONS, "none")
    return PulsarTopics(
        PulsarSettings(
            client=_client(properties),
            home=f"{persistent}://{tenant}/{namespace}/",
            producer={
                "batching_enabled": not properties.flag("disableBatching"),
                "batching_max_publish_delay_ms": max(
                    1, properties.duration_ms("batchingMaxPublishDelay", 10)
                ),
                "batching_max_messages": properties.number("batchingMaxMessages", 1_000, least=1),
                "batching_max_allowed_size_in_bytes": properties.number("batchingMaxSize", 131_072, least=1),
                "compression_type": _COMPRESSIONS[compression],
                "send_timeout_millis": SENT_WITHIN_MS,
                "max_pending_messages": 10_000,
            },
            type=properties.one_of("subscribeType", _TYPES, "shared"),
            position=properties.one_of("subscribeInitialPosition", ("latest", "earliest"), "latest"),
            again_after_ms=properties.duration_ms("redeliveryDelay", 30_000),
            at_once=properties.number("maxConcurrentHandlers", 100, least=1, most=100_000),
            queue=properties.number("receiverQueueSize", 1_000, least=1, most=1_000_000),
            one_at_a_time=properties.one_of("processMode", ("async", "sync"), "async") == "sync",
        )
    )


def _client(properties: Properties) -> dict[str, Any]:
    host = properties.needed("host")
    if "://" not in host:
        host = f"pulsar+ssl://{host}" if properties.flag("enableTLS") else f"pulsar://{host}"
    scheme, _, rest = host.partition("://")
    if not all(one.rpartition(":")[2].isdigit() for one in rest.partition("/")[0].split(",")):
        raise Misconfigured("host", "is not written host:port")
    if scheme not in ("pulsar", "pulsar+ssl", "http", "https"):
        raise Misconfigured("host", f"{scheme}:// is not how Pulsar is reached")
    options: dict[str, Any] = {
        "service_url": host,
        "operation_timeout_seconds": ANSWERED_WITHIN_S,
        "connection_timeout_ms": ANSWERED_WITHIN_S * 1000,
        # It would write to standard output.
        "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    }
    if token := properties.text("token"):
        options["authentication"] = pulsar.AuthenticationToken(token)
    if listener := properties.text("listenerName"):
        options["listener_name"] = listener
    return options


class PulsarTopics:
    """The component."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._producers: dict[tuple[str, bool], Producer] = {}
        """By topic, and whether what they write is to last."""
        self._making = asyncio.Lock()
        self._members = Members()
        self._closed = False

    @property
    def features(self) -> frozenset[Feature]:
        """None, as in Dapr."""
        return frozenset()

    async def _connected(self) -> Client:
        """The client; raises at once where nobody listens, for the library would try until its time is up."""
        if self._closed:
            raise BrokerUnreachable("the component is closed")
        await reach(self._settings.client["service_url"])
        if self._client is None:
            self._client = Client(**self._settings.client)
        return self._client

    async def start(self) -> None:
        """Ask for a topic, which needs not exist: that is how a broker shows that it is there."""
        try:
            await (await self._connected()).get_topic_partitions(self._settings.home + "tarry")
        except PulsarException as error:
            raise component_error(error) from error

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Send to the topic; the broker has it when this returns."""
        options = message_options(metadata)
        sent = False
        try:
            producer = await self._producer(topic, lasting)
            sent = True
            while True:
                try:
                    await producer.send(data, **options)
                    return
                except PulsarException as error:
                    if error.error() != pulsar.Result.ProducerQueueIsFull:
                        raise
                    await asyncio.sleep(_ROOM_S)
        except PulsarException as error:
            raise component_error(error, topic, sent=sent) from error

    async def _producer(self, topic: str, lasting: bool) -> Producer:
        async with self._making:
            found = self._producers.pop((topic, lasting), None)
            if found is None:
                client = await self._connected()
                options = self._settings.producer | ({"batching_enabled": False} if lasting else {})
                found = await client.create_producer(self._settings.home + topic, **options)
            # The one that was used last is the last to go.
            self._producers[topic, lasting] = found
            if len(self._producers) > PRODUCERS:
                await self._producers.pop(next(iter(self._producers))).close()
            return found

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Send all; the library puts them into batches."""
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
        """Receive as one of the subscription that is named like the group."""
        settings, asked = self._settings, Properties(metadata)
        kind = "shared" if lasting else asked.one_of("subscribeType", _TYPES, settings.type)
        earliest = lasting or settings.position == "earliest"
        mode = asked.one_of("processMode", ("async", "sync"), "sync" if settings.one_at_a_time else "async")
        try:
            client = await self._connected()
            consumer = await client.subscribe(
                settings.home + topic,
                group,
                _TYPES[kind],
                receiver_queue_size=settings.queue,
                negative_ack_redelivery_delay_ms=settings.again_after_ms,
                initial_position=pulsar.InitialPosition.Earliest
                if earliest
                else pulsar.InitialPosition.Latest,
            )
        except PulsarException as error:
            raise component_error(error, topic) from error
        at_once = None if hold else 1 if mode == "sync" and not lasting else settings.at_once
        member = PulsarMember(consumer, topic, Receivers(receive, at_once))
        return self._members.add(member)

    async def close(self) -> None:
        """End the subscriptions and disconnect."""
        self._closed = True
        await self._members.close()
        if self._client is not None:
            try:
                await self._client.close()
            except PulsarException:
                pass


def message_options(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The message's properties from a publish's metadata; raises `NeverTaken` for an invalid time."""
    options: dict[str, Any] = {}
    properties: dict[str, str] = {}
    for name, value in metadata.items():
        if not value:
            continue
        if name == "partitionKey":
            options["partition_key"] = value
        elif name == "deliverAt":
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                raise NeverTaken(f"deliverAt: {value!r} is not a time as RFC 3339 writes it") from None
            if at.tzinfo is None:
                raise NeverTaken("deliverAt: has no zone")
            options["deliver_at"] = int((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))
        elif name == "deliverAfter":
            delay_ms = go_duration_ms(value)
            if delay_ms is None or delay_ms < 0:
                raise NeverTaken(f"deliverAfter: {value!r} is not a duration such as 30s")
            options["deliver_after"] = timedelta(milliseconds=delay_ms)
        else:
            properties[name] = value
    if properties:
        options["properties"] = properties
    return options


class PulsarMember:
    """One subscription; the library connects it again by itself."""

    def __init__(self, consumer: Consumer, topic: str, receivers: Receivers) -> None:
        self._consumer = consumer
        self._topic = topic
        self._receivers = receivers
        self._reading = asyncio.create_task(self._read())
        self._closed = False

    async def _read(self) -> None:
        while True:
            try:
                message = await self._consumer.receive()
            except PulsarException as error:
                log.warning(
                    "a Pulsar topic cannot be read", extra={"topic": self._topic, "reason": str(error)}
                )
                await asyncio.sleep(AGAIN_AFTER_S)
                continue
            id_ = message.message_id()
            metadata = dict(message.properties())
            if key := message.partition_key():
                metadata["partitionKey"] = key
            received = BrokerMessage(
                topic=self._topic,
                data=message.data(),
                metadata=metadata,
                position=f"{id_.ledger_id()}:{id_.entry_id()}:{id_.partition()}:{id_.batch_index()}",
            )
            await self._receivers.start(received, partial(self._settle, message))

    async def _settle(self, message: "pulsar.Message", reply: Settlement) -> None:
        try:
            if reply is Settlement.ACK:
                await self._consumer.acknowledge(message)
            else:
                await self._consumer.negative_acknowledge(message)
        except PulsarException as error:
            # It comes again with the next connection.
            log.debug("a message was not settled: %s", error)

    async def close(self) -> None:
        """Receive no more; what was with receivers goes to others of the group."""
        if self._closed:
            return
        self._closed = True
        await ended([self._reading])
        await self._receivers.close()
        try:
            await self._consumer.close()
        except PulsarException:
            pass


async def reach(url: str) -> None:
    """Raise `BrokerUnreachable` unless somebody listens at one of the addresses."""
    hosts = url.partition("://")[2].partition("/")[0].split(",")
    reason = ""
    for one in hosts:
        host, _, port = one.rpartition(":")
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
            return
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
    raise BrokerUnreachable(f"Pulsar: {reason}")


_DENIED: Final = (pulsar.Result.AuthenticationError, pulsar.Result.AuthorizationError)
_NEVER: Final = (pulsar.Result.MessageTooBig, pulsar.Result.InvalidTopicName, pulsar.Result.InvalidMessage)


def component_error(error: PulsarException, topic: str = "", *, sent: bool = False) -> ComponentError:
    """The error for a failure; `sent` if a message may have arrived."""
    result = error.error()
    text = f"Pulsar: {error}"
    if result in _DENIED:
        return Denied(text)
    if result == pulsar.Result.Timeout and not sent:
        # The library does not tell a refused token from silence; that somebody listens was found out before.
        return Denied("Pulsar: the broker is there and does not answer; it may not know the token")
    if result == pulsar.Result.TopicNotFound:
        return TopicMissing(
            f"Pulsar: there is no topic {topic}, and the broker makes none by itself: make it"
        )
    if result in _NEVER:
        return NeverTaken(text)
    return BrokerUnreachable(text, uncertain=sent)
