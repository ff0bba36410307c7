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
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pulsar
from msgspec import Struct
from pulsar.asyncio import Client, Consumer, Producer, PulsarException

from tarry.core.errors import Invalid
from tarry.core.time.times import go_duration_ms, parse_instant_ms
from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send
from tarry.outlets.dapr.component import (
    BrokerMessage,
    Component,
    ComponentSurroundings,
    Settlement,
    Subscribed,
)
from tarry.outlets.dapr.errors import (
    BrokerUnreachable,
    ComponentError,
    Denied,
    Misconfigured,
    NeverTaken,
    TopicMissing,
)
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


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """Read the metadata of a component, with the names and defaults of Dapr's."""
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


class PulsarTopics(BrokerComponent):
    """The component. It has no features of its own, as in Dapr; the library puts the messages of a bulk into batches."""

    failures = (PulsarException,)

    def __init__(self, settings: PulsarSettings) -> None:
        super().__init__()
        self._settings = settings
        self._client: Client | None = None
        self._producers: dict[tuple[str, bool], Producer] = {}
        """By topic, and whether what they write is to last."""
        self._making = asyncio.Lock()

    async def _connected(self) -> Client:
        """The client; raises at once where nobody listens, for the library would try until its time is up."""
        if self.closed:
            raise BrokerUnreachable("the component is closed")
        await reach(self._settings.client["service_url"])
        if self._client is None:
            self._client = Client(**self._settings.client)
        return self._client

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The meaning of a failure."""
        assert isinstance(failure, PulsarException)
        return component_error(failure, topic, sent=sent)

    async def connect(self) -> None:
        """Ask for a topic, which needs not exist: that is how a broker shows that it is there."""
        await (await self._connected()).get_topic_partitions(self._settings.home + "tarry")

    async def sender(self, message: Outgoing) -> Send:
        """Send to the topic."""
        options = message_options(message.metadata)
        producer = await self._producer(message.topic, message.lasting)
        return partial(_send, producer, message.data, options)

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

    async def join(self, joining: Joining) -> Subscribed:
        """Receive as one of the subscription that is named like the group."""
        settings, asked = self._settings, Properties(joining.metadata)
        kind = "shared" if joining.lasting else asked.one_of("subscribeType", _TYPES, settings.type)
        earliest = joining.lasting or settings.position == "earliest"
        mode = asked.one_of("processMode", ("async", "sync"), "sync" if settings.one_at_a_time else "async")
        client = await self._connected()
        consumer = await client.subscribe(
            settings.home + joining.topic,
            joining.group,
            _TYPES[kind],
            receiver_queue_size=settings.queue,
            negative_ack_redelivery_delay_ms=settings.again_after_ms,
            initial_position=pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest,
        )
        if joining.hold:
            at_once = None
        else:
            at_once = 1 if mode == "sync" and not joining.lasting else settings.at_once
        return PulsarMember(consumer, joining.topic, Receivers(joining.receive, at_once))

    async def disconnect(self) -> None:
        """Close the connection."""
        if self._client is not None:
            try:
                await self._client.close()
            except PulsarException:
                pass


async def _send(producer: Producer, data: bytes, options: dict[str, Any]) -> None:
    """Send; the broker has the message when this returns."""
    while True:
        try:
            await producer.send(data, **options)
            return
        except PulsarException as error:
            if error.error() != pulsar.Result.ProducerQueueIsFull:
                raise
            await asyncio.sleep(_ROOM_S)


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
                options["deliver_at"] = parse_instant_ms(value, "deliverAt")
            except Invalid as error:
                raise NeverTaken(str(error)) from None
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
        """Receive no more; messages that receivers hold go to other members of the group."""
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
