"""The Pulsar door as a server: tokens, TLS, partitions, restarts, and what the administration does to clients."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pulsar
import pytest

from tests.certificates import certificate
from tests.conformance.pulsar.kit import (
    Broker,
    broker,
    now_ms,
    payloads,
    received,
    send_delayed,
    silent,
)

Earliest = pulsar.InitialPosition.Earliest
Shared = pulsar.ConsumerType.Shared

TOKENS = """
[[tokens]]
name = "writer"
token = "writer-token"
roles = ["produce"]
namespaces = ["public/default"]
[[tokens]]
name = "reader"
token = "reader-token"
roles = ["consume"]
namespaces = ["public/default"]
"""


DEDUPLICATES = "deduplicate = true"


def admin(server: Broker, method: str, path: str, body: Any = None) -> None:
    request = Request(
        f"{server.server.url}/admin/v2/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method=method,
    )
    with urlopen(request, timeout=20):
        pass


def test_tokens(tmp_path: Path, topic: str) -> None:
    with broker(tmp_path / "data", more=TOKENS) as server:
        writing = server.client(authentication=pulsar.AuthenticationToken("writer-token"))
        reading = server.client(authentication=pulsar.AuthenticationToken("reader-token"))
        consumer = reading.subscribe(topic, "sub", Shared, initial_position=Earliest)
        writing.create_producer(topic).send(b"x")
        assert payloads(received(consumer, 1)) == [b"x"]
        with pytest.raises(pulsar.AuthorizationError):
            reading.create_producer(topic)
        with pytest.raises(pulsar.AuthorizationError):
            writing.subscribe(topic, "sub")
        with pytest.raises(pulsar.AuthorizationError):
            writing.create_producer(topic.replace("public/default", "public/other"))
        stranger = server.client(
            authentication=pulsar.AuthenticationToken("other-token"), operation_timeout_seconds=3
        )
        with pytest.raises(pulsar.PulsarException):
            stranger.create_producer(topic)


def test_tls(tmp_path: Path, topic: str) -> None:
    cert, key = certificate(tmp_path)
    with broker(tmp_path / "data", f'tls_cert = "{cert}"\ntls_key = "{key}"') as server:
        assert server.url.startswith("pulsar+ssl://")
        client = server.client(tls_trust_certs_file_path=str(cert), tls_validate_hostname=True)
        consumer = client.subscribe(topic, "sub", Shared, initial_position=Earliest)
        client.create_producer(topic).send(b"secret", deliver_at=now_ms() + 200)
        assert payloads(received(consumer, 1)) == [b"secret"]


def test_what_survives_a_restart(tmp_path: Path, topic: str) -> None:
    """Delayed messages, acknowledgements, names and sequence ids are what they were."""
    with broker(tmp_path / "data", DEDUPLICATES) as server:
        client = server.client()
        consumer = client.subscribe(topic, "sub", Shared, initial_position=Earliest)
        producer = client.create_producer(topic, producer_name="me", initial_sequence_id=0)
        producer.send(b"seen", sequence_id=1)
        producer.send(b"later", sequence_id=2, deliver_at=now_ms() + 2_000)
        producer.send(b"in an hour", sequence_id=3, deliver_at=now_ms() + 3_600_000)
        assert payloads(received(consumer, 1)) == [b"seen"]
        consumer.close()
        producer.close()
        server.server.kill()
    with broker(tmp_path / "data", DEDUPLICATES) as server:
        client = server.client()
        consumer = client.subscribe(topic, "sub", Shared)
        assert payloads(received(consumer, 1)) == [b"later"]
        producer = client.create_producer(topic, producer_name="me")
        assert producer.last_sequence_id() == 3
        producer.send(b"again", sequence_id=3)
        producer.send(b"new", sequence_id=4)
        assert payloads(received(consumer, 1)) == [b"new"]
        assert silent(consumer)


def test_a_client_goes_on_over_a_crash_by_itself(tmp_path: Path, topic: str) -> None:
    """A client sends unanswered messages again, and none is stored twice."""
    results: list[Any] = []
    with broker(tmp_path / "data", DEDUPLICATES) as server:
        port = int(server.url.rpartition(":")[2])
        client = pulsar.Client(
            server.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
        )
        consumer = client.subscribe(topic, "sub", Shared, initial_position=Earliest)
        producer = client.create_producer(topic, send_timeout_millis=0, batching_enabled=False)
        for n in range(200):
            deliver_at = now_ms() + 500 if n % 2 else None
            producer.send_async(b"%d" % n, lambda result, _: results.append(result), deliver_at=deliver_at)
            if n == 100:
                server.server.kill()
    with broker(tmp_path / "data", DEDUPLICATES, port=port):
        places: dict[bytes, set[int]] = {}
        # One that was given out before the crash comes again, in the same place.
        while len(places) < 200:
            # A client that could not connect for some seconds takes its time before it tries again.
            message = consumer.receive(timeout_millis=120_000)
            consumer.acknowledge(message)
            places.setdefault(message.data(), set()).add(message.message_id().entry_id())
        assert all(len(entry_ids) == 1 for entry_ids in places.values())
        deadline = time.monotonic() + 60
        while len(results) < 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert results == [pulsar.Result.Ok] * 200
        client.close()


def test_partitioned_topics(server: Broker, client: pulsar.Client, topic: str) -> None:
    admin(server, "PUT", f"persistent/{topic.removeprefix('persistent://')}/partitions", 3)
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "sub", Shared, initial_position=Earliest)
    producer = client.create_producer(
        topic,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        batching_enabled=False,
    )
    for n in range(9):
        producer.send(b"%d" % n)
    send_delayed(producer, b"later", 300)
    messages = received(consumer, 10)
    assert sorted(payloads(messages)) == sorted([*(b"%d" % n for n in range(9)), b"later"])
    assert {message.topic_name() for message in messages} == {f"{topic}-partition-{n}" for n in range(3)}


def test_skipping_all_clears_what_is_delayed(server: Broker, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", Shared, initial_position=Earliest)
    producer = client.create_producer(topic)
    for _ in range(5):
        send_delayed(producer, b"x", 3_600_000)
    path = f"persistent/{topic.removeprefix('persistent://')}"

    def left() -> tuple[int, int]:
        with urlopen(f"{server.server.url}/admin/v2/{path}/stats", timeout=20) as answer:
            found = json.load(answer)["subscriptions"]["sub"]
        return found["msgBacklog"], found["msgDelayed"]

    assert left() == (5, 5)
    admin(server, "POST", f"{path}/subscription/sub/skip_all")
    assert left() == (0, 0)
    producer.send(b"next")
    assert payloads(received(consumer, 1)) == [b"next"]


def test_policies_of_pulsars_own_calls(server: Broker, client: pulsar.Client, topic: str) -> None:
    path = f"persistent/{topic.removeprefix('persistent://')}"
    producer = client.create_producer(topic)
    admin(
        server,
        "POST",
        f"{path}/delayedDelivery",
        {"tickTime": 100, "active": True, "maxDeliveryDelayInMillis": 5_000},
    )
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"x", deliver_at=now_ms() + 6_000)
    admin(server, "DELETE", f"{path}/delayedDelivery")
    producer.send(b"x", deliver_at=now_ms() + 6_000)
