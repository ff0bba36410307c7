"""Metadata beside an event for an application: the message's metadata and its trace context, over HTTP and gRPC."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dapr.proto.runtime.v1 import appcallback_pb2, pubsub_pb2

from tarry.doors.dapr.cloudevents import binary_of_parent, parent_in_binary
from tests.processes import free_port
from tests.unit.dapr_kit import Doors, app, component, dapr, ready, resources, to
from tests.unit.test_dapr_grpc import PARENT, Callback, Client

WITHIN_S = 30
RULES = appcallback_pb2.TopicRoutes(
    rules=[appcallback_pb2.TopicRule(match='event.type == "wanted"', path="/wanted")]
)


@contextlib.asynccontextmanager
async def grpc_app(*subscriptions: appcallback_pb2.TopicSubscription) -> AsyncIterator[tuple[Callback, int]]:
    callback = Callback(*subscriptions)
    port = free_port()
    application = grpc.aio.server()
    application.add_generic_rpc_handlers((callback,))
    application.add_insecure_port(f"127.0.0.1:{port}")
    await application.start()
    try:
        yield callback, port
    finally:
        await application.stop(None)


async def publish_over_grpc(doors: Doors, topic: str, *, parent: str | None = None, **metadata: str) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel:
        request = pubsub_pb2.PublishEventRequest(
            pubsub_name="pubsub", topic=topic, data=b"x", data_content_type="text/plain", metadata=metadata
        )
        given = () if parent is None else (("traceparent", parent),)
        await Client(channel).method("PublishEvent")(request, metadata=given)


@pytest.mark.parametrize("kind", ["pubsub.in-memory", "pubsub.tarry"])
@pytest.mark.parametrize("time", [None, "PT0S"])
async def test_a_messages_metadata_are_headers_for_an_application(
    tmp_path: Path, kind: str, time: str | None
) -> None:
    folder = resources(tmp_path, component("pubsub", kind, enableDelayedMessaging=True))
    later = {} if time is None else {"scheduledSendTime": time}
    async with (
        app(to("t")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        await ready(doors)
        await doors.publish("t", 1, customer="42", **later)
        await shop.count(1)
        got = {name.lower(): value for name, value in shop.headers[0].items()}
    assert (got["customer"], got["pubsubname"]) == ("42", "pubsub")
    assert "scheduledsendtime" not in got


async def test_they_are_metadata_of_the_call_for_an_application_over_grpc(tmp_path: Path) -> None:
    subscription = appcallback_pb2.TopicSubscription(pubsub_name="pubsub", topic="t")
    async with (
        grpc_app(subscription) as (callback, port),
        dapr(tmp_path, app_port=port, app_protocol="grpc") as doors,
        asyncio.timeout(WITHIN_S),
    ):
        odd = {"grpc-timeout": "1n", "mine-bin": "no base64", "Upper": "low", "a b": "x"}
        await doors.publish("t", 1, customer="42", **odd)
        await callback.got.get()
        got = callback.metadata
    assert (got["customer"], got["pubsubname"], got["upper"]) == ("42", "pubsub", "low")
    assert not {"grpc-timeout", "mine-bin", "a b"} & got.keys()


@pytest.mark.parametrize("raw", [False, True])
async def test_a_trace_context_reaches_an_application_over_grpc(tmp_path: Path, raw: bool) -> None:
    metadata = {"rawPayload": "true"} if raw else {}
    subscription = appcallback_pb2.TopicSubscription(pubsub_name="pubsub", topic="t", metadata=metadata)
    async with (
        grpc_app(subscription) as (callback, port),
        dapr(tmp_path, app_port=port, app_protocol="grpc") as doors,
        asyncio.timeout(WITHIN_S),
    ):
        await publish_over_grpc(doors, "t", parent=PARENT, **metadata)
        assert (await callback.got.get()).data == b"x"
        assert callback.metadata["traceparent"] == PARENT


async def test_a_trace_context_is_not_made_up(tmp_path: Path) -> None:
    """One that is marked as not sampled would keep the application's own spans from being sampled."""
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await doors.publish("t", 1)
        await shop.count(1)
        event = shop.got[0][1]
        assert (event["traceparent"], event["traceid"], event["tracestate"]) == ("", "", "")
        # What Dapr tells in that case; receivers take it for none (W3C Trace Context, 3.2.2.3).
        got = {name.lower(): value for name, value in shop.headers[0].items()}
        assert got["traceparent"] == f"00-{'0' * 32}-{'0' * 16}-00"
        assert "tracestate" not in got


async def test_its_binary_form_is_on_the_wire_too(tmp_path: Path) -> None:
    """Applications in Go read it; the Python library sends it and shows it to nobody."""
    assert parent_in_binary(binary_of_parent(PARENT)) == PARENT
    subscription = appcallback_pb2.TopicSubscription(pubsub_name="pubsub", topic="t")
    async with (
        grpc_app(subscription) as (callback, port),
        tap(port) as (tapped, seen),
        dapr(tmp_path, app_port=tapped, app_protocol="grpc") as doors,
        asyncio.timeout(WITHIN_S),
    ):
        await publish_over_grpc(doors, "t", parent=PARENT)
        await callback.got.get()
        assert b"grpc-trace-bin" in bytes(seen)


@contextlib.asynccontextmanager
async def tap(port: int) -> AsyncIterator[tuple[int, bytearray]]:
    """A port in front of another, and the bytes that went there."""
    seen = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                kept += data
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, to_behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, to_behind, seen), copy(behind, writer, bytearray()))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


async def test_of_rules_without_a_default_none_but_what_they_take_is_given(tmp_path: Path) -> None:
    """Over gRPC an event that no rule took was given without a path."""
    subscription: Any = appcallback_pb2.TopicSubscription
    async with (
        grpc_app(subscription(pubsub_name="pubsub", topic="t", routes=RULES)) as (callback, port),
        dapr(tmp_path, app_port=port, app_protocol="grpc") as doors,
        asyncio.timeout(WITHIN_S),
    ):
        await publish_over_grpc(doors, "t", **{"cloudevent.type": "other"})
        await publish_over_grpc(doors, "t", **{"cloudevent.type": "wanted"})
        event = await callback.got.get()
        assert (event.type, event.path) == ("wanted", "/wanted")
        assert callback.got.empty()
