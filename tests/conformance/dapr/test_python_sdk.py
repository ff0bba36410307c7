"""The unmodified `dapr` package as a client: blocking, asyncio, and both kinds of streaming subscription."""

# The SDK is only partly typed.
# mypy: disable-error-code="no-untyped-call"

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from dapr.aio.clients import DaprClient as AsyncClient
from dapr.clients import DaprClient
from dapr.clients.exceptions import DaprGrpcError
from dapr.clients.grpc._request import BulkPublishEntry
from dapr.clients.grpc._response import TopicEventResponse

from tests.conformance.dapr.kit import WITHIN_S, Sidecar, in_s, now_s, point_sdk_at, sidecar

LATER = "2045-11-05T08:15:30-05:00"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with sidecar(tmp_path_factory.mktemp("sdk") / "data") as one, point_sdk_at(one):
        yield one


def shown(door: Sidecar, id_: str) -> Any:
    return httpx.get(f"{door.url}/v1/messages/{id_}").json()


def test_the_blocking_client_schedules_and_streams(door: Sidecar) -> None:
    with DaprClient(door.address) as client:
        subscription = client.subscribe("pubsub", "blocking")
        due_s = now_s() + 1
        answer = client.publish_event(
            "pubsub",
            "blocking",
            json.dumps({"n": 1}),
            publish_metadata={"scheduledSendTime": in_s(1)},
            data_content_type="application/json",
        )
        (id_,) = answer.headers["tarry-message-id"]
        assert shown(door, str(id_))["state"] == "scheduled"
        message = next(iter(subscription))
        assert now_s() >= due_s - 0.05
        assert message.data() == {"n": 1}
        assert message.topic() == "blocking"
        subscription.respond_success(message)
        subscription.close()


def test_a_subscription_with_a_handler_gets_what_is_due(door: Sidecar) -> None:
    got: queue.Queue[Any] = queue.Queue()
    tried = threading.Event()

    def handle(message: Any) -> TopicEventResponse:
        if not tried.is_set():
            tried.set()
            return TopicEventResponse("retry")
        got.put(message.data())
        return TopicEventResponse("success")

    with DaprClient(door.address) as client:
        close = client.subscribe_with_handler("pubsub", "handled", handle)
        client.publish_event("pubsub", "handled", "text", publish_metadata={"scheduledSendTime": "PT0.2S"})
        assert got.get(timeout=WITHIN_S) == "text"
        close()


def test_bulk_publish_has_a_time_for_each_entry(door: Sidecar) -> None:
    with DaprClient(door.address) as client:
        entries = [
            BulkPublishEntry(b"near", metadata={"scheduledSendTime": in_s(0.5)}, entry_id="near"),
            BulkPublishEntry(b"far", metadata={"scheduledSendTime": LATER}, entry_id="far"),
        ]
        answer = client.publish_events("pubsub", "bulk", entries)
        assert not answer.failed_entries
        subscription = client.subscribe("pubsub", "bulk")
        message = next(iter(subscription))
        assert message.raw_data() == b"near"
        subscription.respond_success(message)
        subscription.close()
        assert client.get_metadata().extended_metadata["tarry.scheduled"] != "0"


def test_errors_are_what_the_sdk_expects_of_dapr(door: Sidecar) -> None:
    with DaprClient(door.address) as client:
        for pubsub, topic, metadata, code in (
            ("nope", "t", {}, "DAPR_PUBSUB_NOT_FOUND"),
            ("pubsub", "t", {"scheduledSendTime": "tomorrow"}, "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ):
            with pytest.raises(DaprGrpcError) as caught:
                client.publish_event(pubsub, topic, "x", publish_metadata=metadata)
            assert caught.value.error_code() == code


async def test_the_asyncio_client_schedules_and_streams(door: Sidecar) -> None:
    async with AsyncClient(door.address) as client, asyncio.timeout(WITHIN_S):
        subscription = await client.subscribe("pubsub", "asyncio")
        answer = await client.publish_event(
            "pubsub", "asyncio", b"\x00raw", publish_metadata={"scheduledSendTime": "200ms"},
            data_content_type="application/octet-stream",
        )  # fmt: skip
        assert len(answer.headers["tarry-message-id"]) == 1
        message = await subscription.next_message()
        assert message is not None
        assert message.raw_data() == b"\x00raw"
        await subscription.respond_drop(message)
        await subscription.close()
        metadata = await client.get_metadata()
        assert metadata.application_id == "app"


async def test_events_that_the_application_made_keep_what_is_theirs(door: Sidecar) -> None:
    own = {"id": "own-1", "source": "shop", "type": "order.v1", "specversion": "1.0", "data": {"a": 1},
           "datacontenttype": "application/json"}  # fmt: skip
    async with AsyncClient(door.address) as client, asyncio.timeout(WITHIN_S):
        subscription = await client.subscribe("pubsub", "own")
        await client.publish_event(
            "pubsub", "own", json.dumps(own), data_content_type="application/cloudevents+json",
            publish_metadata={"scheduledSendTime": "2020-01-01T00:00:00Z"},
        )  # fmt: skip
        message = await subscription.next_message()
        assert (message.id(), message.type(), message.source()) == ("own-1", "order.v1", "shop")
        assert message.data() == {"a": 1}
        await subscription.respond_success(message)
        await subscription.close()
