"""Pulsar: messages and subscriptions are what Dapr's own component writes and makes, on Tarry's Pulsar door."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tarry.outlets.dapr.errors import Misconfigured, NeverTaken, Unreachable
from tests.conformance.dapr.brokers.kinds import Broker
from tests.conformance.dapr.brokers.servers import TarryServer
from tests.unit.broker_kit import Inbox, made

library = pytest.importorskip("pulsar")


@pytest.fixture
def raw(pulsar: Broker) -> Iterator[Any]:
    """A client that knows nothing of Dapr."""
    client = library.Client(
        f"pulsar://127.0.0.1:{pulsar.server.port}",
        authentication=library.AuthenticationToken(TarryServer.TOKEN),
        logger=library.ConsoleLogger(library.LoggerLevel.Error),
    )
    yield client
    client.close()


async def test_a_published_message_is_as_dapr_writes_it(pulsar: Broker, raw: Any) -> None:
    topic = await pulsar.topic()
    reader = raw.create_reader(f"persistent://public/default/{topic}", library.MessageId.earliest)
    component = pulsar.component()
    await component.publish(
        topic, b'{"id":"1"}', {"partitionKey": "k", "a": "b", "empty": ""}, "application/json"
    )
    message = await asyncio.to_thread(reader.read_next, 20_000)
    assert message.data() == b'{"id":"1"}'
    assert message.partition_key() == "k"
    assert message.properties() == {"a": "b"}
    await component.close()


async def test_what_dapr_published_is_read(pulsar: Broker, raw: Any) -> None:
    topic = await pulsar.topic()
    producer = raw.create_producer(f"persistent://public/default/{topic}")
    producer.send(b"one", properties={"a": "b"}, partition_key="k")
    component, inbox = pulsar.component(subscribeInitialPosition="earliest"), Inbox()
    await component.subscribe(topic, "shop", inbox, {"subscribeType": "key_shared"})
    assert await inbox.expect(1) == [b"one"]
    assert inbox.got[0].metadata == {"a": "b", "partitionKey": "k"}
    await component.close()


async def test_pulsars_own_delays(pulsar: Broker) -> None:
    topic = await pulsar.topic()
    component, inbox = pulsar.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    began_s = time.monotonic()
    await component.publish(topic, b"later", {"deliverAfter": "800ms"})
    await component.publish(topic, b"past", {"deliverAt": "2020-01-01T00:00:00Z"})
    assert await inbox.expect(2) == [b"past", b"later"]
    assert time.monotonic() - began_s >= 0.79
    for wrong in ({"deliverAt": "soon"}, {"deliverAt": "2045-01-01T00:00:00"}, {"deliverAfter": "soon"}):
        with pytest.raises(NeverTaken, match=next(iter(wrong))):
            await component.publish(topic, b"never", wrong)
    await component.close()


async def test_one_at_a_time_keeps_the_order(pulsar: Broker) -> None:
    topic = await pulsar.topic()
    component, inbox = pulsar.component(processMode="sync", subscribeType="failover"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    for number in range(50):
        await component.publish(topic, b"%d" % number, {})
    assert await inbox.expect(50) == [b"%d" % number for number in range(50)]
    await component.close()


async def test_few_producers_serve_many_topics(pulsar: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.outlets.dapr.brokers.pulsar.PRODUCERS", 2)
    component, inbox = pulsar.component(), Inbox()
    topics = [await pulsar.topic() for _ in range(4)]
    for topic in topics:
        await component.subscribe(topic, "shop", inbox, {})
    for topic in (*topics, *topics):
        await component.publish(topic, topic.encode(), {})
    assert sorted(await inbox.expect(8)) == sorted(topic.encode() for topic in topics * 2)
    await component.close()
    with pytest.raises(Unreachable, match="closed"):
        await component.publish("other", b"", {})


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"host": ""}, "host"),
        ({"host": "ftp://a:1"}, "host"),
        ({"host": "a"}, "host"),
        ({"enableTLS": "maybe"}, "enableTLS"),
        ({"persistent": "maybe"}, "persistent"),
        ({"compressionType": "rar"}, "compressionType"),
        ({"subscribeType": "none"}, "subscribeType"),
        ({"subscribeMode": "non_durable"}, "subscribeMode"),
        ({"subscribeInitialPosition": "middle"}, "subscribeInitialPosition"),
        ({"redeliveryDelay": "soon"}, "redeliveryDelay"),
        ({"maxConcurrentHandlers": "0"}, "maxConcurrentHandlers"),
        ({"receiverQueueSize": "x"}, "receiverQueueSize"),
        ({"processMode": "x"}, "processMode"),
        ({"publicKey": "x"}, "publicKey"),
        ({"orders.avroschema": "{}"}, "orders.avroschema"),
        ({"topicsPattern": "x"}, "topicsPattern"),
    ],
)
def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.pulsar", {"host": "a:1"} | properties)
    assert refused.value.field == field
