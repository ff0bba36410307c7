"""Scheduled publishes through real servers and real brokers: kept through crashes of both, and never early."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tarry.doors.dapr.delayed_message import WaitingMessage, encode
from tarry.outlets.dapr.component import BrokerMessage, Component, Settlement
from tarry.outlets.dapr.errors import TopicMissing
from tests.conformance.dapr.brokers.kinds import Broker
from tests.processes import ServerProcess, free_port, running
from tests.unit.broker_kit import Inbox
from tests.waiting import until

COUNT = 40


class Sidecar:
    """A Tarry server with the Dapr door open for one application."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}/v1.0"

    async def publish(self, topic: str, after_s: float = 3) -> tuple[set[int], float]:
        """Schedule as many as there are to be; gives the numbers that are their data, and when they are due."""
        due_at_s = time.time() + after_s
        due = {"metadata.scheduledSendTime": datetime.fromtimestamp(due_at_s, UTC).isoformat()}
        numbers = range(COUNT)
        events = [
            {"entryId": str(number), "event": {"number": number}, "contentType": "application/json"}
            for number in numbers[1:]
        ]
        async with httpx.AsyncClient(base_url=self.url, params=due, trust_env=False, timeout=30) as client:

            async def published(kind: str, body: object) -> bool:
                answer = await client.post(f"{kind}/pubsub/{topic}", json=body)
                assert answer.status_code in (204, 500), answer.text
                return answer.status_code == 204

            # With the broker's custody, the delayed topic may not be subscribed to yet: then it is refused.
            await until(lambda: published("publish", {"number": 0}))
            await until(lambda: published("publish/bulk", events))
        return set(numbers), due_at_s


@contextlib.contextmanager
def sidecar(folder: Path, broker: Broker, app_id: str, **metadata: str) -> Iterator[Sidecar]:
    """A server on a data folder, for a component on this broker."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = broker.properties() | {"enableDelayedMessaging": "true"} | metadata
    component = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Component",
        "metadata": {"name": "pubsub"},
        "spec": {
            "type": broker.kind,
            "version": "v1",
            "metadata": [{"name": name, "value": value} for name, value in properties.items()],
        },
    }
    file = folder / "pubsub.yaml"
    file.write_text(json.dumps(component))
    port = free_port()
    config = (
        f'[doors.dapr]\nenabled = true\nport = {port}\ngrpc_port = 0\napp_id = "{app_id}"\n'
        f'resources_path = ["{file}"]\n[ledger]\nsegment_bytes = 1048576\n'
    )
    with running(folder / "data", config) as process:
        yield Sidecar(process, port)


class Reader:
    """Another application, which reads a topic as the broker gives it."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.first_at_s = 0.0

    @property
    def numbers(self) -> list[int]:
        return [json.loads(data)["data"]["number"] for data in self.inbox.data]

    async def expect_all(self, wanted: set[int]) -> None:
        await until(lambda: wanted <= set(self.numbers), 120)

    async def receive(self, message: BrokerMessage) -> Settlement:
        self.first_at_s = self.first_at_s or time.time()
        return await self.inbox(message)


LATER = [
    pytest.param(name, marks=pytest.mark.soak)
    for name in ("jetstream", "pulsar", "rabbitmq", "kafka", "apache_pulsar")
]


@pytest.fixture(params=["redis", *LATER])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Redis in every run; the others with `-m soak`."""
    found: Broker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def app_id() -> str:
    return f"shop{uuid4().hex[:8]}"


async def test_what_waits_outlives_server_and_broker(broker: Broker, app_id: str, tmp_path: Path) -> None:
    topic = await broker.topic()
    reader, component = Reader(), broker.component()
    await component.subscribe(topic, "reader", reader.receive, {}, lasting=True)
    with sidecar(tmp_path, broker, app_id) as first:
        sent, due_at_s = await first.publish(topic)
        await asyncio.to_thread(first.process.kill)
    if broker.kind != "pubsub.rabbitmq":  # it would take half a minute
        await asyncio.to_thread(broker.server.kill)
        await asyncio.to_thread(broker.server.start)
    with sidecar(tmp_path, broker, app_id):
        await reader.expect_all(sent)
    assert reader.first_at_s >= due_at_s
    assert all("scheduledSendTime" not in message.metadata for message in reader.inbox.got)
    await component.close()


async def test_with_the_brokers_custody_another_instance_finishes_the_work(
    broker: Broker, app_id: str, tmp_path: Path
) -> None:
    topic = await broker.topic()
    await broker.topic(f"{app_id}-delayed")
    reader, component = Reader(), broker.component()
    await component.subscribe(topic, "reader", reader.receive, {}, lasting=True)
    custody = {"delayedMessagingCustody": "broker"}
    with (
        sidecar(tmp_path / "one", broker, app_id, **custody) as one,
        sidecar(tmp_path / "two", broker, app_id, **custody),
    ):
        sent, due_at_s = await one.publish(topic)
        await asyncio.to_thread(one.process.kill)
        await reader.expect_all(sent)
    assert reader.first_at_s >= due_at_s
    await component.close()


async def test_foreign_writers_of_the_delayed_topic_are_served(
    broker: Broker, app_id: str, tmp_path: Path
) -> None:
    topic = await broker.topic()
    delayed = await broker.topic(f"{app_id}-delayed")
    dead = await broker.topic(f"{app_id}-delayed-dead")
    inbox, graves, component = Inbox(), Inbox(), broker.component()
    await component.subscribe(topic, "reader", inbox, {}, lasting=True)
    await component.subscribe(dead, "operator", graves, {}, lasting=True)

    def message(data: bytes) -> bytes:
        return encode(
            WaitingMessage(
                topic=topic, message=data, content_type="", metadata={"k": "v"}, time="PT0.5S", bulk=False
            )
        )

    with sidecar(tmp_path, broker, app_id):
        # Who writes there must wait until somebody keeps it, as with any topic.
        await until(lambda: _written(component, delayed, message(b"raw 1")))
        await component.publish(delayed, b"no DelayedMessage", {}, lasting=True)
        await component.publish(delayed, message(b"raw 2"), {}, lasting=True)
        await inbox.expect_all({b"raw 1", b"raw 2"})
        await graves.expect_all({b"no DelayedMessage"})
    await component.close()


async def test_the_door_tells_that_a_broker_does_not_know_it(
    redis: Broker, app_id: str, tmp_path: Path
) -> None:
    with sidecar(tmp_path, redis, app_id, **redis.wrong_credentials()) as one:
        async with httpx.AsyncClient(base_url=one.url, trust_env=False, timeout=30) as client:
            at_once = await client.post("/publish/pubsub/t", json=1)
            assert (at_once.status_code, at_once.json()["errorCode"]) == (500, "ERR_PUBSUB_PUBLISH_MESSAGE")
            later = await client.post(
                "/publish/pubsub/t", params={"metadata.scheduledSendTime": "PT1H"}, json=1
            )
            assert later.status_code == 204
            shown = (await client.get("/metadata")).json()["extended"]
            assert "tarry.trouble.pubsub" in shown
            assert "guess" not in at_once.text + str(shown)


async def _written(component: Component, topic: str, data: bytes) -> bool:
    try:
        await component.publish(topic, data, {}, lasting=True)
    except TopicMissing:
        return False
    return True
