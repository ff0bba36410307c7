"""Delayed messages of the real client as messages of Tarry's: listed, counted and commanded by id, with everything that users have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pulsar
import pytest

from tarry import Client
from tarry.client.shapes import MessageView
from tarry.core.errors import Conflict
from tests.conformance.pulsar.kit import Broker, broker, now_ms, payloads, received, silent
from tests.processes import free_port, tarry

HOUR_MS = 3_600_000


@pytest.fixture
def native(server: Broker) -> Iterator[Client]:
    with Client(server.server.url) as client:
        yield client


def shared(client: pulsar.Client, topic: str) -> Any:
    return client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)


def later(client: pulsar.Client, native: Client, topic: str, *contents: bytes) -> list[MessageView]:
    """Send messages that are due in an hour; gives them as the native API shows them."""
    producer = client.create_producer(topic)
    for content in contents:
        producer.send(content, deliver_at=now_ms() + HOUR_MS, partition_key="k")
    found = list(native.list(destination=topic))
    for content, message in zip(contents, found, strict=True):
        assert message.payload.endswith(content)
    return found


def overview(server: Broker) -> dict[str, Any]:
    with urlopen(f"{server.server.url}/v1/overview", timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_it_is_listed_shown_and_counted(
    server: Broker, client: pulsar.Client, native: Client, topic: str
) -> None:
    before = overview(server)
    (message,) = later(client, native, topic, b"hello")
    assert (message.state, message.door, message.namespace) == ("scheduled", "pulsar", "public/default")
    assert (message.destination, message.key, message.due_at_ms) == (
        topic,
        "k",
        native.get(message.id).due_at_ms,
    )
    assert message.id in [one.id for one in native.list(door="pulsar", namespace="public/default")]
    after = overview(server)
    assert after["pending"] == before["pending"] + 1
    assert after["counters"]["accepted"] == before["counters"].get("accepted", 0) + 1
    listed = tarry("list", "--destination", topic, "--json", "--url", server.server.url)
    assert json.loads(listed.stdout)["id"] == message.id, listed.stderr
    shown = tarry("show", message.id, "--url", server.server.url)
    assert topic in shown.stdout, shown.stderr
    assert [entry.id for entry in native.delayed_page(topic).entries] == [message.id]


def test_cancelled_by_id_it_never_arrives(client: pulsar.Client, native: Client, topic: str) -> None:
    consumer = shared(client, topic)
    gone, moved = later(client, native, topic, b"gone", b"moved")
    assert native.cancel(gone.id).state == "cancelled"
    native.restart(moved.id, delay_ms=500)
    (message,) = received(consumer, 1)
    assert message.data() == b"moved"
    assert silent(consumer)
    assert (native.get(gone.id).state, native.get(moved.id).state) == ("cancelled", "sent")
    with pytest.raises(Conflict):
        native.restart(gone.id, delay_ms=1)
    assert {one.id for one in native.list(state="finalised", destination=topic)} == {gone.id, moved.id}


def test_sent_by_id_it_arrives_now(server: Broker, client: pulsar.Client, native: Client, topic: str) -> None:
    consumer = shared(client, topic)
    first, second = later(client, native, topic, b"first", b"second")
    done = tarry("send", second.id, "--url", server.server.url)
    assert done.returncode == 0, done.stderr
    assert payloads(received(consumer, 1)) == [b"second"]
    assert [one.id for one in native.list(destination=topic)] == [first.id]
    with pytest.raises(Conflict):
        native.cancel(second.id)
    tarry("cancel", first.id, "--url", server.server.url)
    assert list(native.list(destination=topic)) == []


def test_restarted_by_id_it_arrives_then(
    server: Broker, client: pulsar.Client, native: Client, topic: str
) -> None:
    consumer = shared(client, topic)
    (message,) = later(client, native, topic, b"hello")
    began_ms = now_ms()
    assert tarry("restart", message.id, "--in", "1s", "--url", server.server.url).returncode == 0
    assert silent(consumer)
    assert payloads(received(consumer, 1)) == [b"hello"]
    assert now_ms() >= began_ms + 1_000


def test_its_id_and_what_was_done_to_it_survive_a_sigkill(tmp_path: Path) -> None:
    with broker(tmp_path / "data", port=free_port()) as server:
        client, topic = server.client(), "persistent://public/default/orders"
        shared(client, topic)
        with Client(server.server.url) as native:
            gone, moved, untouched = later(client, native, topic, b"gone", b"moved", b"untouched")
            native.cancel(gone.id)
            due_at_ms = native.restart(moved.id, delay_ms=2 * HOUR_MS).due_at_ms
        client.close()
        server.server.kill()
        server.server.start()
        with Client(server.server.url) as native:
            assert [one.id for one in native.list(destination=topic)] == [untouched.id, moved.id]
            assert native.get(gone.id).state == "cancelled"
            assert native.get(moved.id).due_at_ms == due_at_ms
            native.send(moved.id)
            native.send(untouched.id)
        consumer = shared(server.client(), topic)
        assert sorted(payloads(received(consumer, 2))) == [b"moved", b"untouched"]
        assert silent(consumer)
