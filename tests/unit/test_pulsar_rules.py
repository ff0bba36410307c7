"""Rules of namespaces and topics that Pulsar's operators set: kept over a restart, and obeyed by this door."""

from typing import Any

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tests.unit.pulsar_admin_kit import DEFAULT, NAMESPACES, ORDERS, PERSISTENT, TOPIC, Admin
from tests.unit.pulsar_kit import Desk, Type

LIMITS_OF_NAMESPACES = [
    "maxTopicsPerNamespace", "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic", "maxUnackedMessagesPerConsumer",
]  # fmt: skip
LIMITS_OF_TOPICS = [
    "maxProducers", "maxConsumers", "maxConsumersPerSubscription", "maxSubscriptionsPerTopic", "maxUnackedMessagesOnConsumer",
]  # fmt: skip


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def desk(admin: Admin) -> Desk:
    """The binary protocol on the administration's engine."""
    desk = Desk(bench=admin.bench)
    desk.broker = admin.broker
    return desk


async def made(admin: Admin, *paths: str) -> Admin:
    for path in paths or (ORDERS,):
        await admin.do("PUT", path)
    return admin


# Kept


@pytest.mark.parametrize(
    "path",
    [f"{DEFAULT}/{name}" for name in LIMITS_OF_NAMESPACES]
    + [f"{ORDERS}/{name}" for name in LIMITS_OF_TOPICS],
)
async def test_limits_are_set_kept_shown_and_removed(admin: Admin, path: str) -> None:
    await made(admin)
    assert await admin.get(path) is None
    await admin.do("POST", path, 7)
    admin.reopen()
    assert await admin.get(path) == 7
    assert (await admin.refused("POST", path, -1))[0] == 412
    assert (await admin.refused("POST", path, "many"))[0] == 400
    assert await admin.get(path) == 7
    await admin.do("DELETE", path)
    assert await admin.get(path) is None


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
async def test_properties(admin: Admin, place: str) -> None:
    await made(admin)
    path = place + "/properties"
    assert await admin.get(path) == {}
    await admin.do("PUT", path, {"team": "shop", "tier": "1"})
    await admin.do("PUT", path, {"tier": "2"})
    admin.reopen()
    assert await admin.get(path) == {"team": "shop", "tier": "2"}
    await admin.do("DELETE", path, key="tier")
    assert await admin.get(path) == {"team": "shop"}
    await admin.do("DELETE", path)
    assert await admin.get(path) == {}
    assert (await admin.refused("PUT", path, {"a": "x" * 2000}))[0] == 412


async def test_one_property_of_a_namespace(admin: Admin) -> None:
    path = DEFAULT + "/property"
    await admin.do("PUT", path + "/team/shop")
    assert await admin.get(path + "/team") == "shop"
    assert (await admin.request("DELETE", path + "/team")).json() == "shop"
    assert await admin.get(path + "/team") is None


async def test_properties_that_come_with_a_new_topic(admin: Admin) -> None:
    await admin.do("PUT", ORDERS, {"a": "b"})
    assert await admin.get(ORDERS + "/properties") == {"a": "b"}
    bills = f"{PERSISTENT}/public/default/bills"
    await admin.do("PUT", bills + "/partitions", {"partitions": 2, "properties": {"c": "d"}})
    assert await admin.get(bills + "/properties") == {"c": "d"}


async def test_rules_go_with_what_they_are_of(admin: Admin) -> None:
    await made(admin)
    await admin.do("PUT", ORDERS + "/properties", {"a": "b"})
    await admin.do("DELETE", ORDERS)
    await made(admin)
    assert await admin.get(ORDERS + "/properties") == {}
    eu = NAMESPACES + "/public/eu"
    for _ in range(2):
        await made(admin, eu, f"{PERSISTENT}/public/eu/t")
        assert (
            await admin.get(eu + "/properties")
            == await admin.get(f"{PERSISTENT}/public/eu/t/properties")
            == {}
        )
        for path in (eu, f"{PERSISTENT}/public/eu/t"):
            await admin.do("PUT", path + "/properties", {"a": "b"})
        await admin.do("DELETE", eu, force="true")


async def test_a_partition_has_the_rules_of_its_topic(admin: Admin) -> None:
    await admin.do("PUT", ORDERS + "/partitions", 2)
    part = ORDERS + "-partition-0"
    assert (await admin.refused("POST", part + "/maxProducers", 1))[0] == 412
    await admin.do("POST", ORDERS + "/maxProducers", 1)
    assert admin.broker.rules.applied(TOPIC + "-partition-0", "max_producers") == 1


# Obeyed


async def test_topics_of_a_namespace_are_limited(admin: Admin, desk: Desk) -> None:
    await admin.do("POST", DEFAULT + "/maxTopicsPerNamespace", 2)
    client = desk.client()
    assert client.produce(topic="one").type == Type.PRODUCER_SUCCESS
    status, reason = await admin.refused("PUT", ORDERS + "/partitions", 2)
    assert (status, "Exceed maximum number of topics" in reason) == (412, True)
    assert client.produce(2, topic="two").type == Type.PRODUCER_SUCCESS
    assert client.produce(3, topic="three").error.error == Code.NotAllowedError
    assert client.subscribe(topic="three", permits=0).error.error == Code.NotAllowedError
    assert (await admin.refused("PUT", ORDERS))[0] == 412
    # Those that are there go on.
    assert client.produce(4, topic="two").type == Type.PRODUCER_SUCCESS


async def test_partitions_count_as_topics(admin: Admin, desk: Desk) -> None:
    await admin.do("PUT", ORDERS + "/partitions", 2)
    await admin.do("POST", DEFAULT + "/maxTopicsPerNamespace", 5)
    assert (await admin.refused("POST", ORDERS + "/partitions", 5))[0] == 412
    await admin.do("POST", ORDERS + "/partitions", 3)
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await admin.do("POST", DEFAULT + "/autoTopicCreation", rule)
    asked = wire.CommandPartitionedTopicMetadata(topic="bills", request_id=1)
    answer = desk.client().ask(type=Type.PARTITIONED_METADATA, partitionMetadata=asked)
    assert answer.partitionMetadataResponse.error == Code.NotAllowedError


async def test_producers_of_a_topic_are_limited_and_the_topics_rule_stands_over_the_namespaces(
    admin: Admin, desk: Desk
) -> None:
    await made(admin)
    await admin.do("POST", DEFAULT + "/maxProducersPerTopic", 1)
    client = desk.client()
    assert client.produce(1, topic=TOPIC, producer_name="a").type == Type.PRODUCER_SUCCESS
    assert client.produce(2, topic=TOPIC, producer_name="b").error.error == Code.ProducerBusy
    await admin.do("POST", ORDERS + "/maxProducers", 2)
    assert client.produce(2, topic=TOPIC, producer_name="b").type == Type.PRODUCER_SUCCESS
    assert client.produce(3, topic=TOPIC, producer_name="c").error.error == Code.ProducerBusy
    assert await admin.get(ORDERS + "/maxProducers", applied="true") == 2
    await admin.do("POST", ORDERS + "/maxProducers", 0)
    assert client.produce(3, topic=TOPIC, producer_name="c").type == Type.PRODUCER_SUCCESS


@pytest.mark.parametrize(
    ("limit", "second", "code"),
    [
        ("maxConsumers", {"subscription": "other"}, Code.ConsumerBusy),
        ("maxConsumersPerSubscription", {}, Code.ConsumerBusy),
        ("maxSubscriptionsPerTopic", {"subscription": "other"}, Code.NotAllowedError),
    ],
)
async def test_consumers_and_subscriptions_of_a_topic_are_limited(
    admin: Admin, desk: Desk, limit: str, second: Any, code: int
) -> None:
    await made(admin)
    await admin.do("POST", f"{ORDERS}/{limit}", 1)
    client = desk.client()
    assert client.subscribe(1, topic=TOPIC, permits=0).type == Type.SUCCESS
    assert client.subscribe(2, topic=TOPIC, permits=0, **second).error.error == code
    await admin.do("DELETE", f"{ORDERS}/{limit}")
    assert client.subscribe(2, topic=TOPIC, permits=0, **second).type == Type.SUCCESS


async def test_unacknowledged_entries_of_a_consumer_are_limited(admin: Admin, desk: Desk) -> None:
    await made(admin)
    await admin.do("POST", ORDERS + "/maxUnackedMessagesOnConsumer", 2)
    client = desk.client()
    client.subscribe(topic=TOPIC)
    for payload in (b"a", b"b", b"c"):
        admin.bench.publish("orders", payload)
    assert [payload for _, payload in client.messages()] == [b"a", b"b"]
    client.ack(0)
    assert [payload for _, payload in client.messages()] == [b"c"]


async def test_topics_are_made_by_clients_only_where_they_may(admin: Admin, desk: Desk) -> None:
    await admin.do("POST", DEFAULT + "/autoTopicCreation", {"allowAutoTopicCreation": False})
    client = desk.client()
    asked = wire.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
    metadata = client.ask(type=Type.PARTITIONED_METADATA, partitionMetadata=asked).partitionMetadataResponse
    assert metadata.error == Code.TopicNotFound
    assert client.produce(topic=TOPIC).error.error == Code.TopicNotFound
    assert client.subscribe(topic=TOPIC, permits=0).error.error == Code.TopicNotFound
    await made(admin)
    assert client.produce(topic=TOPIC).type == Type.PRODUCER_SUCCESS
    assert (await admin.get(DEFAULT + "/autoTopicCreation"))["allowAutoTopicCreation"] is False
    await admin.do("DELETE", DEFAULT + "/autoTopicCreation")
    assert client.produce(2, topic="another").type == Type.PRODUCER_SUCCESS


async def test_topics_that_clients_make_have_as_many_partitions_as_the_namespace_says(
    admin: Admin, desk: Desk
) -> None:
    path = DEFAULT + "/autoTopicCreation"
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    assert (await admin.refused("POST", path, {**rule, "defaultNumPartitions": 0}))[0] == 406
    await admin.do("POST", path, rule)
    assert await admin.get(path) == rule
    asked = wire.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
    client = desk.client()
    metadata = client.ask(type=Type.PARTITIONED_METADATA, partitionMetadata=asked).partitionMetadataResponse
    assert metadata.partitions == 3
    admin.reopen()
    assert (await admin.get(ORDERS + "/partitions"))["partitions"] == 3


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
async def test_subscriptions_are_made_by_clients_only_where_they_may(
    admin: Admin, desk: Desk, place: str
) -> None:
    await made(admin)
    path = place + "/autoSubscriptionCreation"
    await admin.do("POST", path, {"allowAutoSubscriptionCreation": False})
    assert await admin.get(path) == {"allowAutoSubscriptionCreation": False}
    client = desk.client()
    assert client.subscribe(topic=TOPIC, permits=0).error.error == Code.SubscriptionNotFound
    # A reader leaves nothing behind, and may come.
    assert client.subscribe(2, topic=TOPIC, subscription="reader", durable=False).type == Type.SUCCESS
    await admin.do("PUT", ORDERS + "/subscription/sub", {})
    assert client.subscribe(topic=TOPIC, permits=0).type == Type.SUCCESS


# Unloading


@pytest.mark.parametrize(
    "path", [ORDERS + "/unload", DEFAULT + "/unload", DEFAULT + "/0x00000000_0xffffffff/unload"]
)
async def test_unloading_disconnects_producers_and_consumers(admin: Admin, desk: Desk, path: str) -> None:
    await made(admin)
    client = desk.client()
    client.produce(topic=TOPIC, producer_name="ann")
    client.subscribe(1, topic=TOPIC)
    client.subscribe(2, topic=TOPIC, subscription="reader", durable=False)
    await admin.do("PUT", path)
    assert len(client.take(Type.CLOSE_PRODUCER)) == 1
    assert {one.close_consumer.consumer_id for one in client.take(Type.CLOSE_CONSUMER)} == {1, 2}
    # They come again under the same names.
    assert client.produce(topic=TOPIC, producer_name="ann").type == Type.PRODUCER_SUCCESS
    assert client.subscribe(1, topic=TOPIC).type == Type.SUCCESS
    admin.bench.publish("orders", b"x")
    assert [payload for _, payload in client.messages()] == [b"x"]


async def test_truncating_ends_the_backlog_of_every_subscription_for_good(admin: Admin) -> None:
    for name in ("one", "two"):
        admin.bench.subscribe("orders", name, "shared")
    admin.bench.publish("orders", b"a", b"b")
    await admin.do("DELETE", ORDERS + "/truncate")
    admin.reopen()
    stats = await admin.get(ORDERS + "/stats")
    assert [stats["subscriptions"][name]["msgBacklog"] for name in ("one", "two")] == [0, 0]
