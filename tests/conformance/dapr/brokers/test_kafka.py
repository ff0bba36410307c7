"""Kafka: records are what Dapr's own component writes and reads. Minutes go by: `-m soak`."""

import asyncio
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tarry.outlets.dapr.brokers.kafka.settings import read_settings
from tarry.outlets.dapr.component import Feature, Settlement
from tarry.outlets.dapr.errors import Misconfigured, NeverTaken, TopicMissing
from tarry.outlets.dapr.properties import Properties
from tests.conformance.dapr.brokers.kinds import Broker
from tests.conformance.dapr.brokers.servers import KafkaServer
from tests.unit.broker_kit import Inbox, made
from tests.waiting import until

real = pytest.mark.soak


@pytest.fixture
def raw(kafka: Broker) -> dict[str, Any]:
    """How to reach Kafka without Dapr."""
    return {
        "bootstrap.servers": f"127.0.0.1:{kafka.server.port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": KafkaServer.USER,
        "sasl.password": KafkaServer.PASSWORD,
    }


def read_all(raw: dict[str, Any], topic: str, count: int) -> list[Any]:
    consumer = Consumer(raw | {"group.id": "raw", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []
    for _ in range(300):
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            found.append(record)
        if len(found) == count:
            break
    consumer.close()
    return found


@real
async def test_a_published_record_is_as_dapr_writes_it(kafka: Broker, raw: dict[str, Any]) -> None:
    topic = await kafka.topic()
    component = kafka.component()
    assert component.features == {Feature.BULK_PUBSUB}
    await component.publish(
        topic, b'{"id":"1"}', {"partitionKey": "k", "ttlInSeconds": "5"}, "application/json"
    )
    await component.publish(topic, b"\x00raw", {})
    first, second = sorted(
        await asyncio.to_thread(read_all, raw, topic, 2), key=lambda one: one.value(), reverse=True
    )
    assert (first.key(), first.value()) == (b"k", b'{"id":"1"}')
    assert sorted(first.headers()) == [("partitionKey", b"k"), ("ttlInSeconds", b"5")]
    assert (second.key(), second.value(), second.headers()) == (None, b"\x00raw", None)
    await component.close()


@real
async def test_keys_go_where_daprs_library_sends_them(kafka: Broker, raw: dict[str, Any]) -> None:
    """Sarama: FNV-1a of 32 bits as a signed number, its remainder without its sign."""
    topic = await kafka.topic()
    admin = AdminClient(raw)
    await asyncio.to_thread(
        lambda: [one.result() for one in admin.create_topics([NewTopic(topic, 5, 1)]).values()]
    )
    component = kafka.component()
    keys = [f"key-{number}" for number in range(40)]
    for key in keys:
        await component.publish(topic, key.encode(), {"partitionKey": key})

    def sarama(key: str) -> int:
        hashed = 0x811C9DC5
        for one in key.encode():
            hashed = ((hashed ^ one) * 0x01000193) & 0xFFFFFFFF
        signed = hashed - (1 << 32) if hashed >= 1 << 31 else hashed
        return abs(signed) % 5

    records = await asyncio.to_thread(read_all, raw, topic, 40)
    assert {one.value().decode(): one.partition() for one in records} == {key: sarama(key) for key in keys}
    await component.close()


@real
async def test_what_dapr_published_is_read_with_its_metadata(kafka: Broker, raw: dict[str, Any]) -> None:
    topic = await kafka.topic()
    producer = Producer(raw)
    producer.produce(
        topic, b"one", key=b"k y", headers={"a": "b c", "secret": "x"}, timestamp=1_700_000_000_000
    )
    await asyncio.to_thread(producer.flush)
    component, inbox = kafka.component(initialOffset="oldest", excludeHeaderMetaRegex="^sec"), Inbox()
    escaping, escaped = (
        kafka.component(initialOffset="oldest", escapeHeaders="true", consumerGroup="other"),
        Inbox(),
    )
    await component.subscribe(topic, "shop", inbox, {})
    await escaping.subscribe(topic, "shop", escaped, {})
    assert await inbox.expect(1) == [b"one"]
    partition = inbox.got[0].metadata["__partition"]
    assert inbox.got[0].metadata == {
        "__key": "k y", "__offset": "0", "__topic": topic, "__timestamp": "1700000000000",
        "__partition": partition, "a": "b c",
    }  # fmt: skip
    await escaped.expect(1)
    assert escaped.got[0].metadata["a"] == "b+c"
    await component.close()
    await escaping.close()


@real
async def test_a_partition_waits_for_a_receiver_that_refuses(kafka: Broker) -> None:
    topic = await kafka.topic()
    component, inbox = kafka.component(initialOffset="oldest"), Inbox(Settlement.NACK, RuntimeError("again"))
    for number in range(5):
        await component.publish(topic, b"%d" % number, {"partitionKey": "same"})
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(7) == [b"0", b"0", b"0", b"1", b"2", b"3", b"4"]
    await component.close()


@real
async def test_without_retries_a_refused_record_is_passed_over(kafka: Broker) -> None:
    topic = await kafka.topic()
    component = kafka.component(initialOffset="oldest", consumeRetryEnabled="false")
    inbox = Inbox(Settlement.NACK)
    for data in (b"0", b"1"):
        await component.publish(topic, data, {"partitionKey": "same"})
    await component.subscribe(topic, "shop", inbox, {})
    assert await inbox.expect(2) == [b"0", b"1"]
    await component.close()


@real
async def test_what_was_done_out_of_order_is_not_done_again(kafka: Broker, raw: dict[str, Any]) -> None:
    """The first record is held for ever; those after it are done, and stay so for the next member."""
    topic = await kafka.topic()
    component, heir = kafka.component(), kafka.component()
    never = asyncio.Event()
    done: list[bytes] = []

    async def receive(message: Any) -> Settlement:
        if message.data == b"0":
            await never.wait()
        done.append(message.data)
        return Settlement.ACK

    for number in range(50):
        await component.publish(topic, b"%d" % number, {"partitionKey": "same"})
    await component.subscribe(topic, "shop", receive, {}, lasting=True, hold=True)
    await until(lambda: len(done) == 49)
    await component.close()
    inbox = Inbox()
    await heir.publish(topic, b"new", {"partitionKey": "same"})
    await heir.subscribe(topic, "shop", inbox, {}, lasting=True, hold=True)
    await inbox.expect_all({b"0", b"new"})
    assert sorted(inbox.data) == [b"0", b"new"]
    await heir.close()
    consumer = Consumer(raw | {"group.id": "shop"})
    marks = await asyncio.to_thread(
        consumer.committed, [TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=10
    )
    consumer.close()
    assert max(mark.offset for mark in marks) == 51


@real
async def test_what_kafka_never_takes(kafka: Broker) -> None:
    component = kafka.component()
    with pytest.raises(NeverTaken):
        await component.publish(await kafka.topic(), b"x" * 2_000_000, {})
    with pytest.raises((NeverTaken, TopicMissing)):
        await component.publish("no such/name", b"x", {})
    await component.close()


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"brokers": ""}, "brokers"),
        ({"brokers": " , "}, "brokers"),
        ({"authType": ""}, "authType"),
        ({"authType": "magic"}, "authType"),
        ({"authType": "password"}, "saslUsername"),
        ({"authType": "password", "saslUsername": "a"}, "saslPassword"),
        (
            {"authType": "password", "saslUsername": "a", "saslPassword": "b", "saslMechanism": "MD5"},
            "saslMechanism",
        ),
        ({"authType": "oidc"}, "oidcTokenEndpoint"),
        ({"authType": "certificate"}, "caCert"),
        ({"authType": "mtls", "disableTls": "true"}, "disableTls"),
        ({"authType": "mtls", "clientCert": "x"}, "clientCert"),
        ({"authType": "mtls", "clientCert": "-----BEGIN"}, "clientKey"),
        ({"initialOffset": "middle"}, "initialOffset"),
        ({"consumeRetryInterval": "soon"}, "consumeRetryInterval"),
        ({"maxMessageBytes": "few"}, "maxMessageBytes"),
        ({"excludeHeaderMetaRegex": "("}, "excludeHeaderMetaRegex"),
    ],
)
async def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.kafka", {"brokers": "a:1", "authType": "none"} | properties)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("given", "newer"),
    [
        ({"authRequired": "false"}, {"authType": "none"}),
        ({"authRequired": "false", "saslPassword": "b"}, {"authType": "none"}),
        (
            {"authRequired": "true", "saslUsername": "a", "saslPassword": "b"},
            {"authType": "password", "saslUsername": "a", "saslPassword": "b"},
        ),
        ({"authRequired": "true"}, {"authType": "mtls"}),
        # Who says both means the newer one.
        ({"authRequired": "true", "authType": "none"}, {"authType": "none"}),
    ],
)
def test_the_older_way_to_say_who_one_is(given: dict[str, str], newer: dict[str, str]) -> None:
    meant = read_settings(Properties({"brokers": "a:1"} | newer))
    assert read_settings(Properties({"brokers": "a:1"} | given)) == meant
    sasl, tls = "saslPassword" in newer, newer["authType"] != "none"
    assert meant.client["security.protocol"] == ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")


@real
async def test_a_group_gets_what_is_published_as_soon_as_it_has_joined(kafka: Broker) -> None:
    """A new group begins at the end, and where that is Kafka is asked before the subscription is said to be there."""
    topic = await kafka.topic()
    component = kafka.component()
    await component.publish(topic, b"before", {})
    for number in range(30):
        inbox = Inbox()
        subscribed = await component.subscribe(topic, f"group-{number}", inbox, {})
        await component.publish(topic, b"%d" % number, {"partitionKey": f"{number}"})
        assert (await inbox.expect(1))[0] == b"%d" % number
        await subscribed.close()
    await component.close()
