"""Publishing through the Dapr door to the letter: what a request says besides its data, and what is said of failures."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from dapr.proto.runtime.v1 import pubsub_pb2
from google.protobuf.empty_pb2 import Empty
from google.rpc import error_details_pb2, status_pb2

from tarry.doors.dapr.delayed_message import WaitingMessage
from tarry.doors.dapr.http_endpoints import MAX_SHOWN_IDS
from tarry.outlets.dapr.errors import BrokerUnreachable
from tests.processes import free_port
from tests.unit.dapr_kit import TEXT, Doors, app, component, dapr, ready, resources, to

LATER = "2090-01-01T00:00:00Z"
BULK = "/v1.0/publish/bulk"
TOPICS = "/v1/topics/public/default"


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    """A server whose application has components of several sorts."""
    folder = resources(
        tmp_path,
        component("pubsub", "pubsub.tarry", enableDelayedMessaging=True),
        component("memory", "pubsub.in-memory", enableDelayedMessaging=True),
        component("held", "pubsub.in-memory", enableDelayedMessaging=True, delayedMessagingCustody="broker"),
        component("spaced", "pubsub.tarry", enableDelayedMessaging=True, consumerID="{namespace}"),
    )
    async with dapr(tmp_path / "data", resources_path=[str(folder)], namespace="prod") as opened:
        yield opened


async def shown(doors: Doors, id_: str) -> dict[str, Any]:
    """A message as the native API shows it."""
    view: dict[str, Any] = (await doors.served.client.get(f"/v1/messages/{id_}")).json()
    return view


async def entries_in(doors: Doors, topic: str) -> int:
    answer = await doors.served.client.get(f"{TOPICS}/{topic}")
    return 0 if answer.status_code == 404 else int(answer.json()["next_entry"])


async def test_what_repeats_needs_the_ledger(doors: Doors) -> None:
    refused = await doors.publish("t", {}, pubsub="held", scheduledRepeat="R3/PT1H")
    assert refused.status_code == 400
    assert "needs the ledger's custody" in refused.json()["message"]
    assert (await doors.publish("t", {}, pubsub="memory", scheduledRepeat="R3/PT1H")).status_code == 204


async def test_a_key_goes_with_a_message_for_a_broker(doors: Doors) -> None:
    answer = await doors.publish("t", {}, pubsub="memory", scheduledSendTime=LATER, partitionKey="k1")
    assert (await shown(doors, answer.headers["tarry-message-id"]))["key"] == "k1"


async def test_only_where_the_broker_does_not_see_to_it_an_event_says_when_it_expires(tmp_path: Path) -> None:
    folder = resources(tmp_path, component("pubsub", "pubsub.tarry"), component("memory", "pubsub.in-memory"))
    wanted = [to("own"), to("foreign", pubsub="memory")]
    async with (
        app(*wanted) as shop,
        dapr(tmp_path / "data", resources_path=[str(folder)], app_port=shop.port) as doors,
    ):
        await doors.publish("own", {}, ttlInSeconds="600")
        await shop.count(1)
        await doors.publish("foreign", {}, pubsub="memory", ttlInSeconds="600")
        await shop.count(2)
    by_topic = {event["topic"]: event for _, event in shop.got}
    assert "expiration" not in by_topic["own"]
    assert "expiration" in by_topic["foreign"]


async def test_raw_entries_of_a_bulk_keep_the_types_of_their_contents(doors: Doors) -> None:
    entries = [
        {"entryId": "1", "event": "a", "contentType": "text/plain"},
        {"entryId": "2", "event": "b", "contentType": "text/csv"},
    ]
    params = {"metadata.scheduledSendTime": LATER, "metadata.rawPayload": "true"}
    answer = await doors.client.post(f"{BULK}/memory/t", params=params, json=entries)
    ids = answer.headers["tarry-message-ids"].split(",")
    assert [(await shown(doors, id_))["headers"]["content-type"] for id_ in ids] == ["text/plain", "text/csv"]


async def test_a_bulk_names_its_messages_unless_they_are_too_many(doors: Doors) -> None:
    for count, named in ((MAX_SHOWN_IDS, True), (MAX_SHOWN_IDS + 1, False)):
        entries = [{"entryId": str(n), **TEXT} for n in range(count)]
        answer = await doors.client.post(
            f"{BULK}/pubsub/t", params={"metadata.scheduledSendTime": LATER}, json=entries
        )
        assert (answer.status_code, "tarry-message-ids" in answer.headers) == (204, named)


async def test_a_bulk_that_the_broker_does_not_take_names_every_entry(doors: Doors, monkeypatch: Any) -> None:
    async def bulk_publish(*_: Any) -> dict[str, Any]:
        raise BrokerUnreachable("the broker is away")

    mounted = doors.door.sidecars["app"].mounts["memory"]
    monkeypatch.setattr(mounted.component, "bulk_publish", bulk_publish)
    entries = [{"entryId": one, **TEXT} for one in ("a", "b")]
    answer = await doors.client.post(f"{BULK}/memory/t", json=entries)
    assert answer.status_code == 500
    assert answer.json()["failedEntries"] == [
        {"entryId": one, "error": "the broker is away"} for one in ("a", "b")
    ]


async def test_a_bulk_that_is_no_text_is_refused(doors: Doors) -> None:
    body = b'[{"entryId": "1", "event": {"name": "\xff"}, "contentType": "application/json"}]'
    answer = await doors.client.post(f"{BULK}/pubsub/t", content=body)
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "ERR_PUBSUB_EVENTS_SER")


async def test_with_namespaced_groups_topics_belong_to_the_namespace(doors: Doors) -> None:
    assert (await doors.publish("one", {}, pubsub="spaced")).status_code == 204
    bulk = await doors.client.post(f"{BULK}/spaced/many", json=[{"entryId": "1", **TEXT}])
    assert bulk.status_code == 204
    soon = await doors.publish("soon", {}, pubsub="spaced", scheduledSendTime=LATER)
    due = await shown(doors, soon.headers["tarry-message-id"])
    assert due["destination"].endswith("/prodsoon")
    found = [await entries_in(doors, topic) for topic in ("prodone", "prodmany", "one", "many")]
    assert found == [1, 1, 0, 0]


async def test_what_the_broker_delivers_twice_to_the_delayed_topic_is_scheduled_once(doors: Doors) -> None:
    sidecar = doors.door.sidecars["app"]
    delayed = WaitingMessage(
        topic="t", message=b"{}", content_type="application/json", metadata={}, time=LATER, bulk=False
    )
    at_ms = 3_786_912_000_000
    for key in ("the key", "the key", "another"):
        await sidecar.publishing.take(sidecar.mounts["memory"], delayed, at_ms, key)
    assert doors.engine.stats().pending == 2


async def test_of_metadata_that_are_given_twice_the_first_counts(doors: Doors) -> None:
    answer = await doors.client.post(
        f"/v1.0/publish/memory/t?metadata.scheduledSendTime={LATER}&metadata.a=first&metadata.a=second",
        content=b"{}",
    )
    view = await shown(doors, answer.headers["tarry-message-id"])
    assert view["headers"]["metadata.a"] == "first"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_origins_are_kept_out(doors: Doors, site: str) -> None:
    for metadata in ({}, {"scheduledSendTime": LATER}):
        answer = await doors.publish("t", {}, headers={"sec-fetch-site": site}, **metadata)
        assert answer.status_code == 401
    assert (await doors.publish("t", {}, headers={"sec-fetch-site": "same-origin"})).status_code == 204


async def test_health_is_told_as_it_is(doors: Doors) -> None:
    sidecar = doors.door.sidecars["app"]
    for path, code in (("", "ERR_HEALTH_NOT_READY"), ("/outbound", "ERR_OUTBOUND_HEALTH_NOT_READY")):
        sidecar.metadata.started = True
        assert (await doors.client.get(f"/v1.0/healthz{path}")).status_code == 204
        sidecar.metadata.started = False
        answer = await doors.client.get(f"/v1.0/healthz{path}")
        assert (answer.status_code, answer.json()["errorCode"]) == (500, code)
    sidecar.metadata.started = True
    # Name resolvers ask whether the application at an address is still the one that they mean.
    assert (await doors.client.get("/v1.0/healthz?appid=app")).status_code == 204
    other = await doors.client.get("/v1.0/healthz?appid=other")
    assert (other.status_code, other.json()["errorCode"]) == (500, "ERR_HEALTH_APPID_NOT_MATCH")


async def test_a_token_reaches_its_namespaces_only_over_grpc_too(tmp_path: Path) -> None:
    tokens = [{"name": "t", "token": "secret-token", "roles": ["produce"], "namespaces": ["shop/orders"]}]
    folder = resources(
        tmp_path,
        component("theirs", "pubsub.tarry", tenant="shop", namespace="orders"),
        component("public", "pubsub.tarry"),
    )
    async with (
        dapr(tmp_path / "data", tokens__=tokens, resources_path=[str(folder)]) as doors,
        grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel,
    ):
        entry = pubsub_pb2.BulkPublishRequestEntry(entry_id="1", event=b"x", content_type="text/plain")
        calls: dict[str, tuple[Any, Any]] = {
            "PublishEvent": (pubsub_pb2.PublishEventRequest(topic="t", data=b"x"), Empty),
            "BulkPublishEvent": (
                pubsub_pb2.BulkPublishRequest(topic="t", entries=[entry]),
                pubsub_pb2.BulkPublishResponse,
            ),
        }
        for name, (request, answer) in calls.items():
            call = channel.unary_unary(
                f"/dapr.proto.runtime.v1.Dapr/{name}",
                lambda given: given.SerializeToString(),
                answer.FromString,
            )
            request.pubsub_name = "theirs"
            await call(request, metadata=(("dapr-api-token", "secret-token"),))
            request.pubsub_name = "public"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, metadata=(("dapr-api-token", "secret-token"),))
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("kind", ["pubsub.tarry", "pubsub.in-memory"])
async def test_what_waits_is_found_moved_and_sent_by_its_id_after_a_restart(
    tmp_path: Path, kind: str
) -> None:
    """Publish, delay, restart of everything, delivery; list, reschedule, send now and cancel by the native API."""
    folder = resources(tmp_path, component("pubsub", kind, enableDelayedMessaging=True))
    async with app(to("t")) as shop:
        settings: dict[str, Any] = {"app_port": shop.port, "resources_path": [str(folder)]}
        async with dapr(tmp_path / "data", **settings) as doors:
            answers = [await doors.publish("t", n, scheduledSendTime=LATER) for n in range(3)]
        sent, moved, cancelled = (answer.headers["tarry-message-id"] for answer in answers)
        async with dapr(tmp_path / "data", **settings) as doors:
            await ready(doors)
            native = doors.served.client
            listed = (await native.get("/v1/messages", params={"owner": "app"})).json()["messages"]
            assert {one["id"] for one in listed} == {sent, moved, cancelled}
            assert (await native.post(f"/v1/messages/{sent}/send")).status_code == 200
            await shop.count(1)
            later = await native.post(
                f"/v1/messages/{moved}/restart", json={"due_at": "2091-01-01T00:00:00Z"}
            )
            assert later.json()["due_at"] == "2091-01-01T00:00:00.000Z"
            assert (
                await native.post(f"/v1/messages/{moved}/restart", json={"delay": "10ms"})
            ).status_code == 200
            await shop.count(2)
            assert (await native.delete(f"/v1/messages/{cancelled}")).json()["state"] == "cancelled"
            assert doors.engine.stats().pending == 0
            assert shop.data == [0, 1]


async def test_over_grpc_too_a_broker_that_is_down_refuses_what_is_at_once(tmp_path: Path) -> None:
    away = f"127.0.0.1:{free_port()}"
    folder = resources(
        tmp_path, component("redis", "pubsub.redis", redisHost=away, enableDelayedMessaging=True)
    )
    async with (
        dapr(tmp_path / "data", resources_path=[str(folder)]) as doors,
        grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel,
    ):
        publish = channel.unary_unary(
            "/dapr.proto.runtime.v1.Dapr/PublishEvent",
            pubsub_pb2.PublishEventRequest.SerializeToString,
            Empty.FromString,
        )
        request = pubsub_pb2.PublishEventRequest(pubsub_name="redis", topic="t", data=b"x")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await publish(request)
        assert refused.value.code() is grpc.StatusCode.INTERNAL
        status = status_pb2.Status.FromString(
            dict(refused.value.trailing_metadata())["grpc-status-details-bin"]
        )
        info = error_details_pb2.ErrorInfo()
        status.details[0].Unpack(info)
        assert info.reason == "DAPR_PUBSUB_PUBLISH_MESSAGE"
        request.metadata["scheduledSendTime"] = LATER
        await publish(request)


async def test_a_trace_context_comes_over_grpc_as_well(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with (
        app(to("t")) as shop,
        dapr(tmp_path, app_port=shop.port) as doors,
        grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel,
    ):
        publish = channel.unary_unary(
            "/dapr.proto.runtime.v1.Dapr/PublishEvent",
            pubsub_pb2.PublishEventRequest.SerializeToString,
            Empty.FromString,
        )
        request = pubsub_pb2.PublishEventRequest(pubsub_name="pubsub", topic="t", data=b"x")
        request.metadata["scheduledSendTime"] = "1ms"
        await publish(request, metadata=(("traceparent", parent), ("tracestate", "a=1")))
        await shop.count(1)
        event = shop.got[0][1]
        assert (event["traceparent"], event["tracestate"]) == (parent, "a=1")
        assert shop.headers[0]["traceparent"] == parent
