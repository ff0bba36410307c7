"""The administration beside the real client: what an operator sets counts for what is published from then on."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, now_ms, payloads, received, send_delayed, silent

Admin = Callable[..., Any]


@pytest.fixture
def admin(server: Broker) -> Admin:
    """Ask the administration; what is refused is raised."""

    def ask(method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(
            server.server.url + path, data=data, headers={"Content-Type": "application/json"}, method=method
        )
        with urlopen(request, timeout=30) as response:
            content = response.read()
        return json.loads(content) if content else None

    return ask


def path_of(topic: str, *rest: str) -> str:
    return "/".join(["/admin/v2/persistent", topic.removeprefix("persistent://"), *rest])


def shared(client: pulsar.Client, topic: str, name: str = "sub") -> Any:
    return client.subscribe(topic, name, consumer_type=pulsar.ConsumerType.Shared)


def test_disabling_counts_for_what_is_published_from_then_on(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    """PIP-26: enable and disable, at any time."""
    consumer, producer = shared(client, topic), client.create_producer(topic)
    due_ms = send_delayed(producer, b"before", 2000)
    admin("POST", path_of(topic, "delayedDelivery"), {"active": False, "tickTime": 1000})
    producer.send(b"off", deliver_at=now_ms() + 3_600_000)
    assert payloads(received(consumer, 1)) == [b"off"]
    admin("POST", path_of(topic, "delayedDelivery"), {"active": True, "tickTime": 1})
    producer.send(b"on", deliver_at=now_ms() + 3_600_000)
    assert payloads(received(consumer, 1)) == [b"before"]
    assert now_ms() >= due_ms
    assert silent(consumer)
    assert admin("GET", path_of(topic, "stats"))["subscriptions"]["sub"]["msgDelayed"] == 1


def test_a_limit_is_set_lifted_and_removed(admin: Admin, client: pulsar.Client, topic: str) -> None:
    """PIP-315: at the namespace, a topic's 0 lifts it (retry topics), and back."""
    namespace = "public/lifted"
    admin("PUT", f"/admin/v2/namespaces/{namespace}")
    topic = topic.replace("public/default", namespace)
    producer = client.create_producer(topic)
    policy = {"active": True, "tickTime": 1, "maxDeliveryDelayInMillis": 5000}
    admin("POST", f"/admin/v2/namespaces/{namespace}/delayedDelivery", policy)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"refused", deliver_at=now_ms() + 60_000)
    admin("POST", path_of(topic, "delayedDelivery"), policy | {"maxDeliveryDelayInMillis": 0})
    producer.send(b"taken", deliver_at=now_ms() + 60_000)
    admin("DELETE", path_of(topic, "delayedDelivery"))
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"refused", deliver_at=now_ms() + 60_000)
    admin("DELETE", f"/admin/v2/namespaces/{namespace}/delayedDelivery")
    producer.send(b"taken", deliver_at=now_ms() + 60_000)


def test_figures_while_messages_wait(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer = shared(client, topic)
    ordered = client.subscribe(topic, "ordered", consumer_type=pulsar.ConsumerType.Failover)
    producer = client.create_producer(topic, producer_name="ann")
    producer.send(b"now")
    due_ms = send_delayed(producer, b"later", 3_600_000)
    received(consumer, 1)
    received(ordered, 2)
    stats = admin("GET", path_of(topic, "stats"))
    assert (stats["msgInCounter"], stats["msgDelayed"], stats["nextDeliverAtTime"]) == (2, 1, due_ms)
    assert [publisher["producerName"] for publisher in stats["publishers"]] == ["ann"]
    figures = stats["subscriptions"]
    assert (figures["sub"]["msgDelayed"], figures["sub"]["type"]) == (1, "Shared")
    assert figures["ordered"]["msgDelayed"] == 0


def test_skipping_all_clears_what_is_delayed(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer, producer = shared(client, topic), client.create_producer(topic)
    for _ in range(10):
        producer.send(b"later", deliver_after=timedelta(hours=1))
    admin("POST", path_of(topic, "subscription", "sub", "skip_all"))
    figures = admin("GET", path_of(topic, "stats"))["subscriptions"]["sub"]
    assert (figures["msgBacklog"], figures["msgDelayed"]) == (0, 0)
    producer.send(b"next")
    assert payloads(received(consumer, 1)) == [b"next"]


def test_a_pending_message_is_cancelled_and_another_rescheduled(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    """Beyond Pulsar: by the id that the client's producer was given."""
    consumer, producer = shared(client, topic), client.create_producer(topic)
    cancelled = producer.send(b"cancelled", deliver_at=now_ms() + 3_600_000)
    moved = producer.send(b"moved", deliver_at=now_ms() + 3_600_000)
    base = "/v1/topics/" + topic.removeprefix("persistent://") + "/delayed"
    assert [entry["entry_id"] for entry in admin("GET", base)["entries"]] == [
        cancelled.entry_id(),
        moved.entry_id(),
    ]
    admin("DELETE", f"{base}/{cancelled.entry_id()}")
    admin("POST", f"{base}/{moved.entry_id()}/restart", {"delay": "1s"})
    (message,) = received(consumer, 1)
    assert (message.data(), message.message_id().entry_id()) == (b"moved", moved.entry_id())
    assert silent(consumer)


def test_figures_name_the_clients(admin: Admin, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, properties={"pod": "a-7"})
    consumer = client.subscribe(topic, "sub", properties={"pod": "b-9"})
    stats = admin("GET", path_of(topic, "stats"))
    (publisher,), (reader,) = stats["publishers"], stats["subscriptions"]["sub"]["consumers"]
    assert (publisher["metadata"], reader["metadata"]) == ({"pod": "a-7"}, {"pod": "b-9"})
    assert publisher["clientVersion"].startswith("Pulsar-CPP-v")
    assert reader["clientVersion"] == publisher["clientVersion"]
    assert publisher["producerName"] == producer.producer_name()
    del consumer


def test_partitions_made_by_the_operator(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin("PUT", path_of(topic, "partitions"), 3)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    for number in range(9):
        producer.send(b"%d" % number, partition_key=str(number))
    send_delayed(producer, b"later", 3_600_000)
    assert sorted(payloads(received(consumer, 9))) == [b"%d" % number for number in range(9)]
    stats = admin("GET", path_of(topic, "partitioned-stats"))
    assert (stats["msgInCounter"], stats["msgDelayed"], stats["metadata"]["partitions"]) == (10, 1, 3)


def test_failover_consumers_share_the_partitions(admin: Admin, client: pulsar.Client, topic: str) -> None:
    admin("PUT", path_of(topic, "partitions"), 6)
    consumers = [
        client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name)
        for name in "abc"
    ]
    for number in range(6):
        producer = client.create_producer(f"{topic}-partition-{number}")
        for n in range(10):
            producer.send(b"%d" % n)
    for consumer in consumers:
        assert sorted(payloads(received(consumer, 20))) == sorted([b"%d" % n for n in range(10)] * 2)
        assert silent(consumer)


def test_a_client_that_looks_up_over_http(server: Broker, topic: str) -> None:
    options = {"operation_timeout_seconds": 20, "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)}
    client = pulsar.Client(server.server.url, **options)
    try:
        consumer = shared(client, topic)
        client.create_producer(topic).send(b"found")
        assert payloads(received(consumer, 1)) == [b"found"]
    finally:
        client.close()


def test_a_quota_refuses_producers(admin: Admin, client: pulsar.Client, topic: str) -> None:
    consumer, producer = shared(client, topic), client.create_producer(topic)
    message = producer.send(b"x" * 2000)
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    admin("POST", path_of(topic, "backlogQuota"), quota)
    deadline_ms = now_ms() + 30_000
    with pytest.raises(pulsar.PulsarException):
        while now_ms() < deadline_ms:
            client.create_producer(topic, send_timeout_millis=1000).send(b"more")
    assert message.entry_id() == 0
    del consumer


def test_what_is_not_there_is_said_in_pulsars_words(admin: Admin, topic: str) -> None:
    with pytest.raises(HTTPError) as refused:
        admin("GET", path_of(topic, "stats"))
    assert refused.value.code == 404
    assert json.loads(refused.value.read()) == {"reason": f"Topic {topic} not found"}
