"""Dapr's gRPC API, with a bare client: publish, bulk publish, refusals with details, streams, passing on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dapr.proto.runtime.v1 import appcallback_pb2, metadata_pb2, pubsub_pb2, state_pb2
from google.protobuf.empty_pb2 import Empty
from google.rpc import error_details_pb2, status_pb2

from tarry.doors.dapr.planning import MAX_ENTRIES
from tests.processes import free_port
from tests.unit.dapr_kit import Doors, acknowledged, app, dapr, in_s, resources, to

LATER = "2045-11-05T08:15:30-05:00"
WITHIN_S = 30
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Client:
    """Calls of the service."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def method(self, name: str, answer: Any = Empty, service: str = "Dapr") -> Any:
        return self._channel.unary_unary(
            f"/dapr.proto.runtime.v1.{service}/{name}",
            lambda request: request.SerializeToString(),
            answer.FromString,
        )

    async def publish(
        self, topic: str, data: bytes = b"x", pubsub: str = "pubsub", type_: str = "", **metadata: str
    ) -> Any:
        request = pubsub_pb2.PublishEventRequest(
            pubsub_name=pubsub, topic=topic, data=data, data_content_type=type_, metadata=metadata
        )
        call = self.method("PublishEvent")(request)
        await call
        return call

    async def refused(self, topic: str, **how: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.publish(topic, **how)
        return caught.value

    def stream(self, metadata: Any = ()) -> Any:
        return self._channel.stream_stream(
            "/dapr.proto.runtime.v1.Dapr/SubscribeTopicEventsAlpha1",
            pubsub_pb2.SubscribeTopicEventsRequestAlpha1.SerializeToString,
            pubsub_pb2.SubscribeTopicEventsResponseAlpha1.FromString,
        )(metadata=metadata)


@contextlib.asynccontextmanager
async def client(doors: Doors) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel:
        yield Client(channel)


def details(
    error: grpc.aio.AioRpcError,
) -> tuple[error_details_pb2.ErrorInfo, error_details_pb2.ResourceInfo]:
    packed = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(packed)
    info, resource = error_details_pb2.ErrorInfo(), error_details_pb2.ResourceInfo()
    status.details[0].Unpack(info)
    if len(status.details) > 1:
        status.details[1].Unpack(resource)
    assert status.message == error.details()
    return info, resource


async def test_a_scheduled_publish_answers_with_its_id_and_arrives(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors, client(doors) as calls:
        call = await calls.publish("t", b'{"n": 1}', type_="application/json", scheduledSendTime=in_s(1))
        first, last = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
        assert first["tarry-message-id"] == last["tarry-message-id"]
        shown = await doors.served.client.get(f"/v1/messages/{first['tarry-message-id']}")
        assert shown.json()["state"] == "scheduled"
        at_once = await calls.publish("t", b"now", type_="text/plain")
        assert "tarry-message-id" not in dict(await at_once.initial_metadata())
        await shop.count(2)
        assert shop.data == ["now", {"n": 1}]


async def test_every_refusal_has_its_status_and_details(tmp_path: Path) -> None:
    folder = resources(
        tmp_path,
        {"name": "plain", "kind": "pubsub.in-memory"},
        {"name": "scoped", "kind": "pubsub.in-memory", "publishingScopes": "app="},
        {"name": "delayed", "kind": "pubsub.in-memory", "enableDelayedMessaging": True},
    )
    code = grpc.StatusCode
    cases: list[tuple[dict[str, Any], Any, str]] = [
        ({"pubsub": "nope"}, code.INVALID_ARGUMENT, "DAPR_PUBSUB_NOT_FOUND"),
        ({"pubsub": ""}, code.INVALID_ARGUMENT, "DAPR_PUBSUB_NAME_EMPTY"),
        ({"pubsub": "plain", "rawPayload": "x"}, code.INVALID_ARGUMENT, "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ({"pubsub": "scoped"}, code.PERMISSION_DENIED, "DAPR_PUBSUB_FORBIDDEN"),
        ({"pubsub": "plain", "type_": "application/cloudevents+json"}, code.INVALID_ARGUMENT, "DAPR_PUBSUB_CLOUD_EVENT_CREATION"),
        ({"pubsub": "plain", "scheduledSendTime": LATER}, code.FAILED_PRECONDITION, "DAPR_PUBSUB_DELAYED_MESSAGING_DISABLED"),
        ({"pubsub": "delayed", "scheduledSendTime": "x"}, code.INVALID_ARGUMENT, "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
    ]  # fmt: skip
    async with dapr(tmp_path / "data", resources_path=[str(folder)]) as doors, client(doors) as calls:
        for how, status, reason in cases:
            error = await calls.refused("t", **how)
            assert error.code() is status, how
            info, resource = details(error)
            assert (info.reason, info.domain) == (reason, "dapr.io")
            if how["pubsub"] != "nope":
                assert (resource.resource_type, resource.resource_name) == ("pubsub", how["pubsub"])
            else:
                assert not resource.resource_type, "there is no such resource to tell of"
        empty = await calls.refused("", pubsub="plain")
        assert details(empty)[0].reason == "DAPR_PUBSUB_TOPIC_NAME_EMPTY"
        assert doors.engine.stats().pending == 0


async def test_bulk_publish_and_its_older_name(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors, client(doors) as calls:
        entry = pubsub_pb2.BulkPublishRequestEntry
        request = pubsub_pb2.BulkPublishRequest(
            pubsub_name="pubsub",
            topic="t",
            metadata={"scheduledSendTime": LATER},
            entries=[
                entry(
                    entry_id="1",
                    event=b"1",
                    content_type="text/plain",
                    metadata={"scheduledSendTime": "PT0S"},
                ),
                entry(entry_id="2", event=b"2", content_type="text/plain"),
            ],
        )
        for name in ("BulkPublishEvent", "BulkPublishEventAlpha1"):
            call = calls.method(name, pubsub_pb2.BulkPublishResponse)(request)
            assert not (await call).failedEntries
            assert len(dict(await call.initial_metadata())["tarry-message-ids"].split(",")) == 2
        await shop.count(2)
        assert shop.data == ["1", "1"]
        assert doors.engine.stats().pending == 2
        request.entries[1].entry_id = "1"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.method("BulkPublishEvent", pubsub_pb2.BulkPublishResponse)(request)
        assert details(caught.value)[0].reason == "DAPR_PUBSUB_MARSHAL_EVENTS"
        request.entries[1].entry_id = "2"
        request.entries[0].metadata["scheduledSendTime"] = "9000-01-01T00:00:00Z"
        answer = await calls.method("BulkPublishEvent", pubsub_pb2.BulkPublishResponse)(request)
        assert [one.entry_id for one in answer.failedEntries] == ["1"]


async def test_a_bulk_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    entry = pubsub_pb2.BulkPublishRequestEntry(event=b"x", content_type="text/plain")
    request = pubsub_pb2.BulkPublishRequest(
        pubsub_name="pubsub", topic="t", entries=[entry] * (MAX_ENTRIES + 1)
    )
    async with dapr(tmp_path) as doors, client(doors) as calls:
        with pytest.raises(grpc.aio.AioRpcError, match="10000 are the most") as caught:
            await calls.method("BulkPublishEvent", pubsub_pb2.BulkPublishResponse)(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_metadata_and_what_is_not_served(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors, client(doors) as calls:
        await calls.method("SetMetadata")(metadata_pb2.SetMetadataRequest(key="mine", value="yes"))
        answer = await calls.method("GetMetadata", metadata_pb2.GetMetadataResponse)(
            metadata_pb2.GetMetadataRequest()
        )
        assert answer.id == "app"
        assert answer.registered_components[0].type == "pubsub.tarry"
        assert answer.extended_metadata["mine"] == "yes"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls.method("GetState")(state_pb2.GetStateRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_other_calls_are_passed_on_to_a_sidecar(tmp_path: Path) -> None:
    async def get_state(request: state_pb2.GetStateRequest, context: Any) -> state_pb2.GetStateResponse:
        if request.key == "bad":
            await context.abort(grpc.StatusCode.ABORTED, "no", (("why", "because"),))
        assert dict(context.invocation_metadata())["mine"] == "1"
        await context.send_initial_metadata((("first", "1"),))
        context.set_trailing_metadata((("last", "2"),))
        return state_pb2.GetStateResponse(data=request.key.encode())

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc] # the library has no types
        def service(self, handler_call_details: Any) -> Any:
            assert handler_call_details.method == "/dapr.proto.runtime.v1.Dapr/GetState"
            return grpc.unary_unary_rpc_method_handler(
                get_state, state_pb2.GetStateRequest.FromString, state_pb2.GetStateResponse.SerializeToString
            )

    sidecar = grpc.aio.server()
    sidecar.add_generic_rpc_handlers((Handler(),))
    port = sidecar.add_insecure_port("127.0.0.1:0")
    await sidecar.start()
    try:
        async with dapr(tmp_path, sidecar_grpc=f"127.0.0.1:{port}") as doors, client(doors) as calls:
            call = calls.method("GetState", state_pb2.GetStateResponse)
            passed = call(state_pb2.GetStateRequest(key="k"), metadata=(("mine", "1"),))
            assert (await passed).data == b"k"
            assert dict(await passed.initial_metadata())["first"] == "1"
            assert dict(await passed.trailing_metadata())["last"] == "2"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(state_pb2.GetStateRequest(key="bad"))
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.ABORTED, "no")
            assert dict(caught.value.trailing_metadata())["why"] == "because"
            await calls.publish("t", scheduledSendTime=LATER)
        tokens = [{"name": "t", "token": "secret-token", "roles": ["produce"]}]
        guarded = dapr(tmp_path / "guarded", sidecar_grpc=f"127.0.0.1:{port}", tokens__=tokens)
        async with guarded as doors, client(doors) as calls:
            call = calls.method("GetState", state_pb2.GetStateResponse)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(state_pb2.GetStateRequest(key="k"), metadata=(("mine", "1"),))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            given = (("mine", "1"), ("dapr-api-token", "secret-token"))
            assert (await call(state_pb2.GetStateRequest(key="k"), metadata=given)).data == b"k"
    finally:
        await sidecar.stop(None)


async def test_a_token_is_asked_for(tmp_path: Path) -> None:
    tokens = [{"name": "t", "token": "secret-token", "roles": ["produce"]}]
    async with dapr(tmp_path, tokens__=tokens) as doors, client(doors) as calls, asyncio.timeout(WITHIN_S):
        error = await calls.refused("t", scheduledSendTime=LATER)
        assert (error.code(), error.details()) == (grpc.StatusCode.UNAUTHENTICATED, "invalid api token")
        request = pubsub_pb2.PublishEventRequest(pubsub_name="pubsub", topic="t")
        await calls.method("PublishEvent")(request, metadata=(("dapr-api-token", "secret-token"),))
        for given in ((), (("dapr-api-token", "secret-token"),)):
            # A token that may publish may not receive.
            stream = calls.stream(given)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def opening(topic: str, pubsub: str = "pubsub", **more: Any) -> pubsub_pb2.SubscribeTopicEventsRequestAlpha1:
    return pubsub_pb2.SubscribeTopicEventsRequestAlpha1(
        initial_request=pubsub_pb2.SubscribeTopicEventsRequestInitialAlpha1(
            pubsub_name=pubsub, topic=topic, **more
        )
    )


def processed(id_: str, status: str) -> pubsub_pb2.SubscribeTopicEventsRequestAlpha1:
    answer = appcallback_pb2.TopicEventResponse(
        status=appcallback_pb2.TopicEventResponse.TopicEventResponseStatus.Value(status)
    )
    return pubsub_pb2.SubscribeTopicEventsRequestAlpha1(
        event_processed=pubsub_pb2.SubscribeTopicEventsRequestProcessedAlpha1(id=id_, status=answer)
    )


async def test_a_stream_receives_answers_and_gives_back_what_it_did_not(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors, client(doors) as calls, asyncio.timeout(WITHIN_S):
        stream = calls.stream()
        await stream.write(opening("t", dead_letter_topic="dead"))
        assert (await stream.read()).HasField("initial_response")
        await calls.publish("t", b'{"n": 1}', type_="application/json", scheduledSendTime="10ms")
        event = (await stream.read()).event_message
        assert (event.data, event.topic, event.pubsub_name, event.path) == (b'{"n":1}', "t", "pubsub", "/")
        assert event.data_content_type == "application/json"
        assert event.extensions["topic"] == "t"
        assert "id" not in event.extensions
        await stream.write(processed(event.id, "SUCCESS"))
        # Without an answer it comes again to the next stream.
        await calls.publish("t", b"2", type_="text/plain", **{"cloudevent.id": "second"})
        assert (await stream.read()).event_message.data == b"2"
        stream.cancel()
        again = calls.stream()
        await again.write(opening("t", dead_letter_topic="dead"))
        assert (await again.read()).HasField("initial_response")
        event = (await again.read()).event_message
        assert event.id == "second"
        await again.write(processed("unknown", "SUCCESS"))
        await again.write(processed(event.id, "DROP"))
        dead = calls.stream()
        await dead.write(opening("dead"))
        await dead.read()
        assert (await dead.read()).event_message.id == "second"
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
        assert {one["type"] for one in shown} == {"STREAMING"}
        await again.done_writing()
        dead.cancel()


async def test_of_two_messages_with_one_id_the_second_waits_until_the_first_is_answered(
    tmp_path: Path,
) -> None:
    """Answers go by the event's id. Nor does the second go to the dead-letter topic: nobody has refused it."""
    async with dapr(tmp_path) as doors, client(doors) as calls, asyncio.timeout(WITHIN_S):
        stream = calls.stream()
        await stream.write(opening("t", dead_letter_topic="dead"))
        await stream.read()
        for data, id_ in ((b"1", "same"), (b"2", "same"), (b"3", "other")):
            await calls.publish("t", data, type_="text/plain", **{"cloudevent.id": id_})
        assert [(await stream.read()).event_message.data for _ in range(2)] == [b"1", b"3"]
        await stream.write(processed("same", "SUCCESS"))
        assert (await stream.read()).event_message.data == b"2"
        await stream.write(processed("same", "SUCCESS"))
        await stream.write(processed("other", "SUCCESS"))
        await acknowledged(doors, "t")
        stream.cancel()


async def test_a_stream_that_is_wrong_is_refused(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors, client(doors) as calls, asyncio.timeout(WITHIN_S):
        for frame, said in (
            (processed("1", "SUCCESS"), "initial request is required"),
            (opening("t", pubsub=""), "pubsubName is required"),
            (opening(""), "topic is required"),
            (opening("t", pubsub="no"), "pubsub no is not found"),
        ):
            stream = calls.stream()
            await stream.write(frame)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, said)


async def test_a_second_initial_request_ends_a_stream(tmp_path: Path) -> None:
    """The second request was taken for an answer to the event without an id."""
    async with dapr(tmp_path) as doors, client(doors) as calls, asyncio.timeout(WITHIN_S):
        stream = calls.stream()
        await stream.write(opening("t"))
        assert (await stream.read()).HasField("initial_response")
        await stream.write(opening("t"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.details() == "duplicate initial request received"


class Callback(grpc.GenericRpcHandler):  # type: ignore[misc] # the library has no types
    """An application over gRPC, as Dapr's AppCallback service."""

    def __init__(self, *subscriptions: appcallback_pb2.TopicSubscription) -> None:
        self.subscriptions = subscriptions
        self.got: asyncio.Queue[Any] = asyncio.Queue()
        self.answers: list[int] = []
        self.refuse: Any = None
        self.metadata: dict[str, Any] = {}
        self.healthy = True
        self.health_calls = 0

    async def health(self, _request: Any, context: Any) -> Any:
        self.health_calls += 1
        if not self.healthy:
            await context.abort(grpc.StatusCode.INTERNAL, "not well")
        return Empty()

    async def list(self, _request: Any, _context: Any) -> Any:
        return appcallback_pb2.ListTopicSubscriptionsResponse(subscriptions=self.subscriptions)

    async def event(self, request: Any, context: Any) -> Any:
        self.metadata = dict(context.invocation_metadata())
        await self.got.put(request)
        if self.refuse is not None:
            refuse, self.refuse = self.refuse, None
            await context.abort(refuse, "not now")
        return appcallback_pb2.TopicEventResponse(status=self.answers.pop(0) if self.answers else 0)  # type: ignore[arg-type]

    async def bulk(self, request: Any, _context: Any) -> Any:
        await self.got.put(request)
        return appcallback_pb2.TopicEventBulkResponse(
            statuses=[
                appcallback_pb2.TopicEventBulkResponseEntry(entry_id=one.entry_id) for one in request.entries
            ]
        )

    def service(self, handler_call_details: Any) -> Any:
        methods: dict[str, tuple[Any, Any]] = {
            "AppCallback/ListTopicSubscriptions": (self.list, Empty),
            "AppCallbackHealthCheck/HealthCheck": (self.health, Empty),
            "AppCallback/OnTopicEvent": (self.event, appcallback_pb2.TopicEventRequest),
            # Only the older name: the newer one is UNIMPLEMENTED.
            "AppCallbackAlpha/OnBulkTopicEventAlpha1": (self.bulk, appcallback_pb2.TopicEventBulkRequest),
        }
        found = methods.get(handler_call_details.method.removeprefix("/dapr.proto.runtime.v1."))
        if found is None:
            return None
        method, request = found
        return grpc.unary_unary_rpc_method_handler(
            method, request.FromString, lambda answer: answer.SerializeToString()
        )


async def test_an_application_over_grpc_is_called_back(tmp_path: Path) -> None:
    subscription = appcallback_pb2.TopicSubscription
    callback = Callback(
        subscription(pubsub_name="pubsub", topic="t"),
        subscription(
            pubsub_name="pubsub",
            topic="many",
            bulk_subscribe=appcallback_pb2.BulkSubscribeConfig(enabled=True, max_messages_count=2),
        ),
    )
    port = free_port()
    application = grpc.aio.server()
    application.add_generic_rpc_handlers((callback,))
    application.add_insecure_port(f"127.0.0.1:{port}")
    await application.start()
    status = appcallback_pb2.TopicEventResponse.TopicEventResponseStatus
    try:
        async with dapr(tmp_path, app_port=port, app_protocol="grpc") as doors, asyncio.timeout(WITHIN_S):
            callback.answers = [status.Value("RETRY"), status.Value("SUCCESS")]
            callback.refuse = grpc.StatusCode.UNAVAILABLE
            await doors.publish("t", {"n": 1}, headers={"traceparent": PARENT}, scheduledSendTime="PT0S")
            events = [await callback.got.get() for _ in range(3)]
            assert callback.metadata["traceparent"] == PARENT
            assert {one.id for one in events} == {events[0].id}
            assert (events[0].data, events[0].path) == (b'{"n":1}', "")
            callback.refuse = grpc.StatusCode.UNIMPLEMENTED
            await doors.publish("t", {"n": 2})
            assert (await callback.got.get()).data == b'{"n":2}'
            # That it cannot do so at all is the end of it: it owes no answer, and is not asked again.
            await acknowledged(doors, "t")
            assert callback.got.empty()
            await doors.publish("many", "a")
            await doors.publish("many", "b")
            bulk = await callback.got.get()
            assert sorted(one.cloud_event.data for one in bulk.entries) == [b'"a"', b'"b"']
            assert bulk.topic == "many"
            assert callback.got.empty()
    finally:
        await application.stop(None)


async def test_a_stop_ends_streams_at_once_and_says_so(tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN_S):
        async with dapr(tmp_path, drain_ms=3_600_000) as doors:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}")
            calls = Client(channel)
            stream = calls.stream()
            await stream.write(opening("t"))
            await stream.read()
            await calls.publish("t", b"held", type_="text/plain")
            assert (await stream.read()).event_message.data == b"held"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close()
