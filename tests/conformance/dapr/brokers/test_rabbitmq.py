"""RabbitMQ: exchanges, queues and messages are what Dapr's own component declares, writes and reads."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed

from tarry.outlets.dapr.component import Feature, Settlement
from tarry.outlets.dapr.errors import Misconfigured, TopicMissing
from tests.conformance.dapr.brokers.kinds import Broker
from tests.unit.broker_kit import Inbox, made
from tests.waiting import until

BARE = {"deliveryMode": "", "requeueInFailure": ""}
"""The contract's settings taken back: Dapr's defaults."""


@pytest.fixture
async def raw(rabbitmq: Broker) -> AsyncIterator[AbstractChannel]:
    """A channel that knows nothing of Dapr."""
    connection = await aio_pika.connect(rabbitmq.properties()["connectionString"])
    yield await connection.channel()
    await connection.close()


async def as_dapr_declares(channel: AbstractChannel, topic: str, group: str) -> aio_pika.abc.AbstractQueue:
    """Dapr's default declarations; the broker refuses a declaration that differs from an existing one."""
    await channel.declare_exchange(topic, "fanout", durable=True, auto_delete=True)
    queue = await channel.declare_queue(
        f"{group}-{topic}", durable=True, auto_delete=True, arguments={"x-queue-type": "classic"}
    )
    await queue.bind(topic, "")
    return queue


async def test_what_is_declared_is_what_dapr_declares(rabbitmq: Broker, raw: AbstractChannel) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(**BARE)
    assert component.features == {Feature.MESSAGE_TTL}
    await component.subscribe(topic, "shop", Inbox(), {})
    queue = await as_dapr_declares(raw, topic, "shop")
    assert queue.declaration_result.consumer_count == 1
    with pytest.raises(ChannelPreconditionFailed):
        await raw.declare_exchange(topic, "topic", durable=True, auto_delete=True)
    await component.close()


async def test_what_dapr_declared_and_published_is_read(rabbitmq: Broker, raw: AbstractChannel) -> None:
    topic = await rabbitmq.topic()
    component, inbox = rabbitmq.component(**BARE), Inbox()
    await as_dapr_declares(raw, topic, "shop")
    exchange = await raw.get_exchange(topic)
    await exchange.publish(
        aio_pika.Message(b"one", content_type="text/plain", message_id="m", headers={"h": "v", "n": 5}), ""
    )
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(1) == [b"one"]
    assert inbox.got[0].metadata == {"messageid": "m", "contenttype": "text/plain", "h": "v", "n": "5"}
    assert inbox.got[0].position == "m"
    await component.close()


@pytest.mark.parametrize(
    ("settings", "metadata", "expected"),
    [
        (BARE, {}, {"content_type": "text/plain", "delivery_mode": 1, "expiration": None}),
        ({"deliveryMode": "2"}, {"ttlInSeconds": "60"}, {"delivery_mode": 2, "expiration": 60.0}),
        ({"ttlInSeconds": "30"}, {}, {"expiration": 30.0}),
        (BARE, {"priority": "7", "contentType": "application/json", "messageID": "m", "correlationId": "c",
                "type": "t"},
         {"priority": 7, "content_type": "application/json", "message_id": "m", "correlation_id": "c",
          "type": "t"}),
        (BARE, {"priority": "urgent", "other": "x"}, {"priority": 0, "headers": {}}),
    ],
)  # fmt: skip
async def test_a_published_message_is_as_dapr_makes_it(
    rabbitmq: Broker,
    raw: AbstractChannel,
    settings: dict[str, str],
    metadata: dict[str, str],
    expected: dict[str, Any],
) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(**settings)
    queue = await as_dapr_declares(raw, topic, "shop")
    await component.publish(topic, b'{"id":"1"}', metadata, "application/cloudevents+json")
    message = await queue.get()
    assert message.body == b'{"id":"1"}'
    assert (message.exchange, message.routing_key) == (topic, "")
    for name, value in expected.items():
        assert getattr(message, name) == value, name
    await message.ack()
    await component.close()


async def test_what_must_last_neither_expires_nor_has_bounds_whatever_the_metadata_say(
    rabbitmq: Broker, raw: AbstractChannel
) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(
        deliveryMode="1", ttlInSeconds="1", maxLen="5", durable="false", deletedWhenUnused="true"
    )
    subscribed = await component.subscribe(topic, "shop", Inbox(), {}, lasting=True)
    await subscribed.close()
    for number in range(10):
        await component.publish(topic, b"%d" % number, {"ttlInSeconds": "1"}, lasting=True)
    queue = await raw.get_queue(f"shop-{topic}")
    messages = [await queue.get() for _ in range(10)]
    assert [message.body for message in messages] == [b"%d" % number for number in range(10)]
    assert {(message.delivery_mode, message.expiration) for message in messages} == {(2, None)}
    for message in messages:
        await message.ack()
    await queue.delete()
    await component.close()


async def test_routing_keys(rabbitmq: Broker) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(exchangeKind="topic")
    some, others = Inbox(), Inbox()
    await component.subscribe(topic, "some", some, {"routingKey": "eu.*,us"})
    await component.subscribe(topic, "others", others, {"routingKey": "#", "queueName": "mine-" + topic})
    for key in ("asia", "eu.de", "us"):
        await component.publish(topic, key.encode(), {"routingKey": key})
    assert await others.expect(3) == [b"asia", b"eu.de", b"us"]
    assert await some.expect(2) == [b"eu.de", b"us"]
    await component.close()


async def test_what_is_not_taken_goes_to_the_dead_letter_queue(
    rabbitmq: Broker, raw: AbstractChannel
) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(enableDeadLetter="true", requeueInFailure="false", maxLen="10")
    await component.subscribe(topic, "shop", Inbox(Settlement.NACK), {})
    await component.publish(topic, b"bad", {})
    dead = await raw.declare_queue(
        f"dlq-shop-{topic}",
        durable=True,
        auto_delete=True,
        arguments={"x-max-length": 10, "x-queue-mode": "lazy"},
    )

    async def arrived() -> bool:
        message = await dead.get(fail=False)
        return message is not None and message.body == b"bad"

    await until(arrived)
    await component.close()


async def test_one_at_a_time_keeps_the_order(rabbitmq: Broker) -> None:
    topic = await rabbitmq.topic()
    component, inbox = rabbitmq.component(concurrency="single", prefetchCount="5"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    for number in range(30):
        await component.publish(topic, b"%d" % number, {})
    assert await inbox.expect(30) == [b"%d" % number for number in range(30)]
    await component.close()


async def test_with_automatic_acknowledgements_nothing_comes_again(
    rabbitmq: Broker, raw: AbstractChannel
) -> None:
    topic = await rabbitmq.topic()
    component, inbox = rabbitmq.component(autoAck="true"), Inbox(Settlement.NACK)
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    await component.publish(topic, b"two", {})
    assert await inbox.expect(2) == [b"one", b"two"]
    await component.close()


async def test_where_exchanges_are_not_declared_they_must_exist(
    rabbitmq: Broker, raw: AbstractChannel
) -> None:
    topic = await rabbitmq.topic()
    component, inbox = rabbitmq.component(exchangeDeclareMode="passive"), Inbox()
    with pytest.raises(TopicMissing, match=f"there is no exchange {topic}.*make it"):
        await component.publish(topic, b"one", {})
    with pytest.raises(TopicMissing):
        await component.subscribe(topic, "shop", inbox, {})
    with pytest.raises(ChannelNotFoundEntity):
        await raw.declare_exchange(topic, passive=True)
    connection = await aio_pika.connect(rabbitmq.properties()["connectionString"])
    await (await connection.channel()).declare_exchange(topic, "headers", durable=False)
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    assert await inbox.expect(1) == [b"one"]
    await component.close()
    await connection.close()


async def test_what_must_last_needs_a_queue_that_stays(rabbitmq: Broker) -> None:
    topic = await rabbitmq.topic()
    component = rabbitmq.component(**BARE)
    await component.publish(topic, b"for nobody", {})
    with pytest.raises(TopicMissing, match="no queue is bound"):
        await component.publish(topic, b"lost", {}, lasting=True)
    subscribed = await component.subscribe(topic, "shop", Inbox(hold=asyncio.Event()), {}, lasting=True)
    await subscribed.close()
    await component.publish(topic, b"kept", {}, lasting=True)
    inbox = Inbox()
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    assert await inbox.expect(1) == [b"kept"]
    await component.close()


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"connectionString": "http://a"}, "connectionString"),
        ({"connectionString": "amqp://"}, "connectionString"),
        ({"protocol": "mqtt"}, "protocol"),
        ({"connectionString": "amqp://a", "protocol": "amqps"}, "protocol"),
        ({"hostname": "a:b"}, "hostname"),
        ({"exchangeKind": "ring"}, "exchangeKind"),
        ({"exchangeDeclareMode": "maybe"}, "exchangeDeclareMode"),
        ({"deliveryMode": "3"}, "deliveryMode"),
        ({"prefetchCount": "x"}, "prefetchCount"),
        ({"durable": "perhaps"}, "durable"),
        ({"reconnectWaitSeconds": "soon"}, "reconnectWaitSeconds"),
        ({"concurrency": "double"}, "concurrency"),
        ({"ttlInSeconds": "-1"}, "ttlInSeconds"),
        ({"saslExternal": "true"}, "caCert"),
        ({"protocol": "amqps", "caCert": "x"}, "caCert"),
        ({"protocol": "amqps", "clientCert": "x"}, "clientKey"),
        ({"protocol": "amqps", "clientCert": "x", "clientKey": "y"}, "clientCert"),
    ],
)
async def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.rabbitmq", properties)
    assert refused.value.field == field


async def test_a_wrong_queue_type_is_refused(rabbitmq: Broker) -> None:
    component = rabbitmq.component()
    with pytest.raises(Misconfigured, match="queueType: 'stream' is not one of classic, quorum"):
        await component.subscribe(await rabbitmq.topic(), "shop", Inbox(), {"queueType": "stream"})
    await component.close()
