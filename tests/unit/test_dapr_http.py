"""Dapr's HTTP API: what it answers to good and to bad requests, in Dapr's words."""

import asyncio
import base64
import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from tarry.doors.dapr import cloudevents, planning
from tarry.doors.dapr.metadata import MAX_EXTENDED, MAX_EXTENDED_CHARACTERS
from tarry.doors.dapr.resources import BadResource
from tests.processes import free_port
from tests.unit.dapr_kit import TEXT, Doors, app, component, dapr, in_s, ready, resources, to

LATER = "2045-11-05T08:15:30-05:00"


async def pending(doors: Doors) -> int:
    return int(doors.engine.stats().pending)


async def test_the_proposals_own_example(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.client.post(
            f"/v1.0/publish/pubsub/singularity?metadata.scheduledSendTime={LATER}",
            content=b'{"execute-order": "66"}',
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 204
        shown = (await doors.served.client.get(f"/v1/messages/{answer.headers['tarry-message-id']}")).json()
        assert shown["due_at"] == "2045-11-05T13:15:30.000Z"
        assert shown["destination"] == "persistent://public/default/singularity"
        event = json.loads(shown["payload"])
        assert event["data"] == {"execute-order": "66"}
        assert "scheduledSendTime" not in json.dumps(shown)
        # List, cancel, reschedule and send now are the native API's.
        listed = (await doors.served.client.get("/v1/messages", params={"owner": "app"})).json()
        assert [one["id"] for one in listed["messages"]] == [shown["id"]]
        cancelled = await doors.served.client.delete(f"/v1/messages/{shown['id']}")
        assert cancelled.json()["state"] == "cancelled"


async def test_every_refusal_has_daprs_status_code_and_details(tmp_path: Path) -> None:
    folder = resources(
        tmp_path,
        {"name": "plain", "kind": "pubsub.in-memory"},
        {"name": "scoped", "kind": "pubsub.in-memory", "publishingScopes": "app=yes;other=no"},
        {"name": "delayed", "kind": "pubsub.in-memory", "enableDelayedMessaging": True},
    )
    cases: list[tuple[str, dict[str, str], Any, int, str, str]] = [
        ("nope/t", {}, {}, 404, "ERR_PUBSUB_NOT_FOUND", "DAPR_PUBSUB_NOT_FOUND"),
        ("/t", {}, {}, 404, "ERR_PUBSUB_EMPTY", "DAPR_PUBSUB_NAME_EMPTY"),
        ("plain/", {}, {}, 404, "ERR_TOPIC_NAME_EMPTY", "DAPR_PUBSUB_TOPIC_NAME_EMPTY"),
        ("plain", {}, {}, 404, "ERR_TOPIC_NAME_EMPTY", "DAPR_PUBSUB_TOPIC_NAME_EMPTY"),
        ("plain/t", {"rawPayload": "maybe"}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ("scoped/no", {}, {}, 403, "ERR_PUBSUB_FORBIDDEN", "DAPR_PUBSUB_FORBIDDEN"),
        ("plain/t", {"scheduledSendTime": LATER}, {}, 400, "ERR_PUBSUB_DELAYED_MESSAGING_DISABLED", "DAPR_PUBSUB_DELAYED_MESSAGING_DISABLED"),
        ("plain/t", {"scheduledSendTime": ""}, {}, 400, "ERR_PUBSUB_DELAYED_MESSAGING_DISABLED", "DAPR_PUBSUB_DELAYED_MESSAGING_DISABLED"),
        ("delayed/t", {"scheduledSendTime": "soon"}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ("delayed/t", {"scheduledSendTime": ""}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ("delayed/t", {"scheduledSendTime": "PT30"}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ("delayed/t", {"scheduledsendtime": LATER}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
        ("delayed/t", {"scheduledSendTime": "9999-01-01T00:00:00Z"}, {}, 400, "ERR_PUBSUB_REQUEST_METADATA", "DAPR_PUBSUB_METADATA_DESERIALIZATION"),
    ]  # fmt: skip
    async with dapr(tmp_path / "data", resources_path=[str(folder)]) as doors:
        for path, metadata, body, status, code, reason in cases:
            query = {f"metadata.{name}": value for name, value in metadata.items()}
            answer = await doors.client.post(f"/v1.0/publish/{path}", params=query, json=body)
            said = answer.json()
            assert (answer.status_code, said["errorCode"]) == (status, code), path
            assert said["message"]
            assert said["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
            assert said["details"][0]["domain"] == "dapr.io"
            assert said["details"][0]["reason"] == reason
            if code == "ERR_PUBSUB_NOT_FOUND":
                assert len(said["details"]) == 1, "there is no such resource to tell of"
            else:
                assert said["details"][1]["resource_type"] == "pubsub"
                assert said["details"][1]["resource_name"] == path.partition("/")[0]
        bad = await doors.publish(
            "t", b"[]", pubsub="plain", headers={"content-type": "application/cloudevents+json"}
        )
        assert (bad.status_code, bad.json()["errorCode"]) == (500, "ERR_PUBSUB_CLOUD_EVENTS_SER")
        assert bad.json()["message"] == "cannot create cloudevent"
        assert bad.json()["details"][0]["reason"] == "DAPR_PUBSUB_CLOUD_EVENT_CREATION"
        assert "JSON object" in bad.json()["details"][0]["metadata"]["error"]
        raw = await doors.publish("t", 1, pubsub="plain", rawPayload="maybe")
        assert raw.json()["message"] == (
            "failed deserializing metadata. Error: rawPayload value must be a valid boolean: actual is 'maybe'"
        )
        for path in ("/v1.0/publish", "/v1.0/publish/bulk", "/v1.0-alpha1/publish/bulk"):
            nameless = await doors.client.post(path, json={})
            assert (nameless.status_code, nameless.json()["errorCode"]) == (404, "ERR_PUBSUB_EMPTY"), path
        assert await pending(doors) == 0


@pytest.mark.parametrize(
    "key",
    ["scheduledSendTime", "Metadata.scheduledSendTime", "METADATA.SCHEDULEDSENDTIME", "metadata.scheduledsendtime",
     "scheduledRepeat", "metadata.ScheduledRepeat", "metadata.metadata.scheduledSendTime", "scheduled%53endTime"],
)  # fmt: skip
async def test_what_is_nearly_a_time_never_goes_out_at_once(tmp_path: Path, key: str) -> None:
    """Where delays are on; where they are off, the door answers as Dapr does, which does not know such keys."""
    folder = resources(
        tmp_path,
        {"name": "plain", "kind": "pubsub.tarry"},
        {"name": "pubsub", "kind": "pubsub.tarry", "enableDelayedMessaging": True},
    )
    async with dapr(tmp_path / "data", resources_path=[str(folder)]) as doors:
        for path in ("publish", "publish/bulk"):
            answer = await doors.client.post(f"/v1.0/{path}/pubsub/t?{key}=PT1H", json=[])
            said = answer.json()
            assert (answer.status_code, said["errorCode"]) == (400, "ERR_PUBSUB_REQUEST_METADATA")
            assert "is written" in said["message"]
        beside = await doors.client.post(
            f"/v1.0/publish/pubsub/t?metadata.scheduledSendTime=PT1H&{key}=PT2H", json=[]
        )
        assert beside.status_code == 400
        assert "persistent://public/default/t" not in doors.engine.topics.names()
        assert await pending(doors) == 0
        assert (await doors.client.post(f"/v1.0/publish/plain/t?{key}=PT1H", json=1)).status_code == 204


@pytest.mark.parametrize(
    ("key", "value"),
    [("scheduledSendTime", "99999999999999999999h"), ("scheduledSendTime", f"PT{'9' * 30}S"),
     ("scheduledSendTime", "P99999Y"), ("scheduledSendTime", "PT30"), ("scheduledSendTime", "-5s"),
     ("scheduledSendTime", "R5/PT30M"), ("scheduledSendTime", "yesterday"),
     ("scheduledSendTime", "2045-11-05T08:15:30"), ("scheduledRepeat", "P99999Y"),
     ("scheduledRepeat", "PT30"), ("scheduledRepeat", "@every 5"), ("scheduledRepeat", "61 * * * * *")],
)  # fmt: skip
async def test_a_refused_time_is_told_by_its_key_and_its_value(tmp_path: Path, key: str, value: str) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.publish("t", {}, **{key: value})
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "ERR_PUBSUB_REQUEST_METADATA")
        assert key in answer.json()["message"]
        assert value.removeprefix("@every ").split()[0] in answer.json()["message"]
        over = await doors.publish("t", {}, scheduledSendTime="9000-01-01T00:00:00Z")
        assert "scheduledSendTime: the delay exceeds" in over.json()["message"]


async def test_a_plus_that_came_as_a_space_is_what_it_was(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.client.post(
            "/v1.0/publish/pubsub/t?metadata.scheduledSendTime=2045-11-05T18:15:30+05:00", json={}
        )
        shown = await doors.served.client.get(f"/v1/messages/{answer.headers['tarry-message-id']}")
        assert shown.json()["due_at"] == "2045-11-05T13:15:30.000Z"


async def test_the_preview_feature_switches_it_off_everywhere(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: c}\n"
        "spec:\n  features:\n  - {name: DelayedMessaging, enabled: false}\n"
    )
    async with dapr(tmp_path / "data", config=str(config)) as doors:
        answer = await doors.publish("t", {}, scheduledSendTime=LATER)
        assert answer.status_code == 400
        assert answer.json()["errorCode"] == "ERR_PUBSUB_DELAYED_MESSAGING_DISABLED"
        assert (await doors.publish("t", {})).status_code == 204
        assert (await doors.client.get("/v1.0/metadata")).json()["enabledFeatures"] == []


async def test_bulk_publishes_with_a_time_for_each_entry(tmp_path: Path) -> None:
    async with app(to("orders")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        entries = [
            {"entryId": "a", "event": {"n": 1}, "contentType": "application/json"},
            {"entryId": "b", "event": "two", "contentType": "text/plain", "metadata": {"scheduledSendTime": in_s(1)}},
            {"entryId": "c", "event": base64.b64encode(b"\x00\x01").decode(), "contentType": "application/octet-stream",
             "metadata": {"scheduledSendTime": LATER}},
            {"entryID": "d", "event": {"id": "own", "data": 4}, "contentType": "application/cloudevents+json",
             "metadata": {"scheduledSendTime": "PT1H"}},
        ]  # fmt: skip
        answer = await doors.client.post("/v1.0/publish/bulk/pubsub/orders", json=entries)
        assert (answer.status_code, answer.content) == (204, b"")
        ids = answer.headers["tarry-message-ids"].split(",")
        assert len(ids) == 3
        payloads = [(await doors.served.client.get(f"/v1/messages/{id_}")).json() for id_ in ids]
        assert json.loads(payloads[1]["payload"])["data_base64"] == "AAE="
        assert json.loads(payloads[2]["payload"])["id"] == "own"
        await shop.count(2)
        assert shop.data == [{"n": 1}, "two"]
        again = await doors.client.post(
            "/v1.0-alpha1/publish/bulk/pubsub/orders",
            params={"metadata.scheduledSendTime": LATER},
            json=entries[:1],
        )
        assert again.status_code == 204
        assert await pending(doors) == 3


async def test_a_bulk_that_is_wrong_in_one_entry_publishes_none(tmp_path: Path) -> None:
    wrong = [
        (b"{}", "DAPR_PUBSUB_UNMARSHAL_EVENTS"),
        (b"[", "DAPR_PUBSUB_UNMARSHAL_EVENTS"),
        (b'[{"entryId":"1","event":"a\xff","contentType":"text/plain"}]', "DAPR_PUBSUB_UNMARSHAL_EVENTS"),
        (b'[{"entryId":"1","event":1,"contentType":"application/json"},{"entryId":"1","event":2,"contentType":"application/json"}]', "DAPR_PUBSUB_MARSHAL_EVENTS"),
        (b'[{"event":"a","contentType":"text/plain"}]', "DAPR_PUBSUB_MARSHAL_EVENTS"),
        (b'[{"entryId":"1","event":{},"contentType":"text/plain"}]', "DAPR_PUBSUB_MARSHAL_ENVELOPE"),
        (b'[{"entryId":"1","event":"%","contentType":"application/octet-stream"}]', "DAPR_PUBSUB_MARSHAL_ENVELOPE"),
        (b'[{"entryId":"1","event":"a","contentType":"image/png"}]', "DAPR_PUBSUB_MARSHAL_ENVELOPE"),
        (b'[{"entryId":"1","event":"a"}]', "DAPR_PUBSUB_MARSHAL_ENVELOPE"),
        (b'[{"entryId":"1","event":"a","contentType":""}]', "DAPR_PUBSUB_MARSHAL_ENVELOPE"),
        (b'[{"entryId":"1","event":"a","metadata":{"x":1}}]', "DAPR_PUBSUB_UNMARSHAL_EVENTS"),
        (b'[{"entryId":1,"event":"a"}]', "DAPR_PUBSUB_UNMARSHAL_EVENTS"),
    ]  # fmt: skip
    async with dapr(tmp_path) as doors:
        for body, reason in wrong:
            answer = await doors.client.post(
                "/v1.0/publish/bulk/pubsub/t", content=body, params={"metadata.scheduledSendTime": LATER}
            )
            assert (answer.status_code, answer.json()["errorCode"]) == (400, "ERR_PUBSUB_EVENTS_SER"), body
            assert answer.json()["details"][0]["reason"] == reason, body
        assert await pending(doors) == 0


async def test_a_bad_time_of_one_entry_refuses_the_bulk(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        entries = [
            {"entryId": "1", "metadata": {"scheduledSendTime": LATER}, **TEXT},
            {"entryId": "2", "metadata": {"scheduledSendTime": "later"}, **TEXT},
        ]
        answer = await doors.client.post("/v1.0/publish/bulk/pubsub/t", json=entries)
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "ERR_PUBSUB_REQUEST_METADATA")
        assert await pending(doors) == 0
        over = {"entryId": "3", "metadata": {"scheduledSendTime": "9000-01-01T00:00:00Z"}, **TEXT}
        partly = await doors.client.post("/v1.0/publish/bulk/pubsub/t", json=[entries[0], over])
        assert partly.status_code == 500
        assert [one["entryId"] for one in partly.json()["failedEntries"]] == ["3"]
        assert partly.json()["errorCode"] == "ERR_PUBSUB_PUBLISH_MESSAGE"


async def test_a_time_to_live_counts_from_the_due_instant(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.publish("t", {}, scheduledSendTime="2045-11-05T13:15:30Z", ttlInSeconds="60")
        shown = (await doors.served.client.get(f"/v1/messages/{answer.headers['tarry-message-id']}")).json()
        assert json.loads(shown["payload"])["expiration"] == "2045-11-05T13:16:30Z"
        assert shown["ttl_ms"] == 60_000


async def test_trace_context_raw_payloads_and_users_events_go_through(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    subscriptions = [to("made"), to("own"), to("raw", metadata={"rawPayload": "true"})]
    async with app(*subscriptions) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await doors.publish(
            "made", {}, headers={"traceparent": parent, "tracestate": "a=1"}, scheduledSendTime="PT0S"
        )
        await shop.count(1)
        assert shop.got[0][1]["traceparent"] == parent
        assert shop.got[0][1]["tracestate"] == "a=1"
        assert shop.headers[0]["traceparent"] == parent
        own = {"id": "mine", "source": "s", "type": "t", "specversion": "1.0", "data": 5}
        await doors.publish(
            "own", own, headers={"content-type": "application/cloudevents+json"}, scheduledSendTime="PT0S"
        )
        await shop.count(2)
        assert shop.got[1][1]["id"] == "mine"
        assert shop.got[1][1]["type"] == "t"
        await doors.publish("raw", b"\x00\x01", rawPayload="true", scheduledSendTime="PT0S")
        await shop.count(3)
        assert shop.got[2][1]["data_base64"] == "AAE="
        assert shop.got[2][1]["datacontenttype"] == "application/octet-stream"


async def test_a_past_time_is_due_now(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        for text in ("2020-01-01T00:00:00Z", "1960-01-01T00:00:00Z", "0s"):
            answer = await doors.publish("t", text, scheduledSendTime=text)
            assert answer.status_code == 204
        await shop.count(3)


async def test_a_topic_may_hold_slashes_and_put_is_as_good_as_post(tmp_path: Path) -> None:
    async with app(to("a/b/c")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        answer = await doors.client.put(
            "/v1.0/publish/pubsub/a/b/c", json=1, params={"metadata.scheduledSendTime": "1ms"}
        )
        assert answer.status_code == 204
        await shop.count(1)
        assert shop.got[0][1]["topic"] == "a/b/c"


async def test_health_and_metadata_are_as_sdks_expect_them(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port, app_id="shop") as doors:
        await ready(doors)
        assert (await doors.client.get("/v1.0/healthz/outbound")).status_code == 204
        soon = (datetime.now(UTC) + timedelta(minutes=1)).replace(microsecond=0).isoformat()
        await doors.publish("t", {}, scheduledSendTime=LATER)
        await doors.publish("t", {}, scheduledSendTime=soon)
        await doors.publish("t", {})
        await shop.count(1)
        said = (await doors.client.get("/v1.0/metadata")).json()
        assert said["id"] == "shop"
        assert [one["name"] for one in said["components"]] == ["pubsub"]
        assert said["components"][0]["type"] == "pubsub.tarry"
        assert said["enabledFeatures"] == ["DelayedMessaging"]
        assert said["extended"]["tarry.scheduled"] == "2"
        assert said["extended"]["tarry.nextDueAt"] == soon.replace("+00:00", "Z")
        assert said["subscriptions"][0]["topic"] == "t"
        assert said["appConnectionProperties"]["port"] == shop.port
        assert (await doors.client.put("/v1.0/metadata/mine", content=b"yes")).status_code == 204
        assert (await doors.client.get("/v1.0/metadata")).json()["extended"]["mine"] == "yes"


async def test_what_an_application_sets_in_its_metadata_is_bounded(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        too_long = b"x" * MAX_EXTENDED_CHARACTERS
        assert (await doors.client.put("/v1.0/metadata/long", content=too_long)).status_code == 413
        for number in range(MAX_EXTENDED):
            assert (await doors.client.put(f"/v1.0/metadata/{number}", content=b"1")).status_code == 204
        assert (await doors.client.put("/v1.0/metadata/more", content=b"1")).status_code == 413
        # One that is there can be set again.
        assert (await doors.client.put("/v1.0/metadata/0", content=b"2")).status_code == 204
        extended = (await doors.client.get("/v1.0/metadata")).json()["extended"]
        assert (extended["0"], "more" in extended, "long" in extended) == ("2", False, False)


async def test_a_token_is_asked_for_except_of_health_checks(tmp_path: Path) -> None:
    tokens = [
        {"name": "t", "token": "secret-token", "roles": ["produce"]},
        {"name": "c", "token": "consumer-1", "roles": ["consume"]},
    ]
    async with dapr(tmp_path, tokens__=tokens) as doors:
        for headers in ({}, {"dapr-api-token": "wrong"}, {"dapr-api-token": "consumer-1"}):
            answer = await doors.publish("t", {}, headers=headers, scheduledSendTime=LATER)
            assert answer.status_code == 401
            assert answer.json()["message"].startswith("invalid api token")
            assert (await doors.client.get("/v1.0/metadata", headers=headers)).status_code == 401
        assert (await doors.client.get("/v1.0/healthz/outbound")).status_code == 204
        good = await doors.publish(
            "t", {}, headers={"dapr-api-token": "secret-token"}, scheduledSendTime=LATER
        )
        assert good.status_code == 204


async def test_a_page_from_elsewhere_cannot_publish(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.publish(
            "t", {}, headers={"sec-fetch-site": "cross-site"}, scheduledSendTime=LATER
        )
        assert answer.status_code == 401


async def test_what_is_not_pubsub_is_refused_or_passed_on(tmp_path: Path) -> None:
    seen: list[tuple[str, str, bytes, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.method, request.path_qs, await request.read(), request.headers.get("x-mine")))
        return web.json_response({"state": 1}, status=202, headers={"x-theirs": "yes"})

    port = free_port()
    sidecar = web.Application()
    sidecar.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(sidecar)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with dapr(tmp_path / "a") as doors:
            refused = await doors.client.post("/v1.0/state/store", json=[])
            assert (refused.status_code, refused.json()["errorCode"]) == (501, "ERR_NOT_IMPLEMENTED")
            assert (await doors.client.get("/elsewhere")).status_code == 404
        async with dapr(tmp_path / "b", sidecar_http=f"http://127.0.0.1:{port}") as doors:
            passed = await doors.client.post(
                "/v1.0/state/my%20store?a=b", content=b"body", headers={"x-mine": "1"}
            )
            assert (passed.status_code, passed.json(), passed.headers["x-theirs"]) == (
                202,
                {"state": 1},
                "yes",
            )
            assert seen == [("POST", "/v1.0/state/my%20store?a=b", b"body", "1")]
            assert (await doors.publish("t", {})).status_code == 204
    finally:
        await runner.cleanup()
    async with dapr(tmp_path / "c", sidecar_http=f"http://127.0.0.1:{port}") as doors:
        assert (await doors.client.get("/v1.0/state/x/y")).status_code == 502


async def test_what_is_said_to_the_door_alone_is_not_passed_on(tmp_path: Path) -> None:
    """By RFC 9110: `Connection`, what it names, and the fields that are for the next one only; and nothing is added."""
    seen: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(
            body=b"{}",
            headers={"Connection": "X-Hop", "X-Hop": "1", "X-Kept": "2", "Proxy-Authenticate": "Basic"},
        )

    sidecar = web.Application()
    sidecar.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(sidecar)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    request = (
        b"GET /v1.0/state/store/key HTTP/1.1\r\nHost: localhost\r\nConnection: close, X-Secret\r\nx-secret: 1\r\n"
        b"Proxy-Authorization: Basic YTpi\r\nProxy-Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n"
        b"TE: trailers\r\nX-Mine: 2\r\n\r\n"
    )
    try:
        async with dapr(tmp_path, sidecar_http=f"http://127.0.0.1:{port}") as doors:
            reader, writer = await asyncio.open_connection("127.0.0.1", doors.http_port)
            writer.write(request)
            head = (await reader.read()).partition(b"\r\n\r\n")[0].lower()
            writer.close()
    finally:
        await runner.cleanup()
    assert seen == [{"host": f"127.0.0.1:{port}", "x-mine": "2"}]
    assert b"x-kept: 2" in head
    assert b"x-hop" not in head
    assert b"proxy-authenticate" not in head


async def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with dapr(tmp_path, max_body_bytes=2048) as doors:
        for query in ({}, {"metadata.scheduledSendTime": LATER}):
            answer = await doors.client.post("/v1.0/publish/pubsub/t", content=b"x" * 5000, params=query)
            assert answer.status_code == 413
        assert await pending(doors) == 0


async def test_many_publishes_at_once_are_answered_each(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        answers: list[httpx.Response] = await asyncio.gather(
            *(doors.publish("t", {"n": n}, scheduledSendTime=LATER) for n in range(50))
        )
        assert {one.status_code for one in answers} == {204}
        assert len({one.headers["tarry-message-id"] for one in answers}) == 50


async def test_a_token_reaches_its_namespaces_only(tmp_path: Path) -> None:
    tokens = [{"name": "t", "token": "secret-token", "roles": ["produce"], "namespaces": ["shop/orders"]}]
    folder = resources(
        tmp_path,
        {"name": "theirs", "kind": "pubsub.tarry", "tenant": "shop", "namespace": "orders", "enableDelayedMessaging": True},
        {"name": "public", "kind": "pubsub.tarry", "enableDelayedMessaging": True},
    )  # fmt: skip
    async with dapr(tmp_path / "data", tokens__=tokens, resources_path=[str(folder)]) as doors:
        for pubsub, status in (("theirs", 204), ("public", 403)):
            for metadata in ({}, {"scheduledSendTime": LATER}):
                answer = await doors.publish(
                    "t", 1, pubsub=pubsub, headers={"dapr-api-token": "secret-token"}, **metadata
                )
                assert answer.status_code == status
            bulk = await doors.client.post(
                f"/v1.0/publish/bulk/{pubsub}/t",
                json=[{"entryId": "1", **TEXT}],
                headers={"dapr-api-token": "secret-token"},
            )
            assert bulk.status_code == status


async def test_a_broker_that_is_down_refuses_what_is_at_once_and_takes_what_waits(tmp_path: Path) -> None:
    redis = {
        "name": "redis",
        "kind": "pubsub.redis",
        "redisHost": f"127.0.0.1:{free_port()}",
        "enableDelayedMessaging": True,
    }
    folder = resources(tmp_path, redis)
    async with dapr(tmp_path / "data", resources_path=[str(folder)]) as doors:
        at_once = await doors.publish("t", 1, pubsub="redis")
        assert (at_once.status_code, at_once.json()["errorCode"]) == (500, "ERR_PUBSUB_PUBLISH_MESSAGE")
        assert (await doors.publish("t", 1, pubsub="redis", scheduledSendTime=LATER)).status_code == 204
        assert "tarry.trouble.redis" in (await doors.client.get("/v1.0/metadata")).json()["extended"]


async def test_a_component_that_cannot_be_made_stops_the_start_unless_it_says_otherwise(
    tmp_path: Path,
) -> None:
    wrong: dict[str, Any] = {"name": "redis", "kind": "pubsub.redis", "redisHost": "x:1", "redisDB": "many"}
    folder = resources(tmp_path, wrong)
    with pytest.raises(BadResource, match=r"all.yaml: document 1: spec.metadata.redisDB"):
        async with dapr(tmp_path / "data", resources_path=[str(folder)]):
            pass
    document = component(**wrong)
    document["spec"]["ignoreErrors"] = True
    (tmp_path / "b").mkdir()
    folder = resources(tmp_path / "b", document)
    async with dapr(tmp_path / "data", resources_path=[str(folder)]) as doors:
        assert (await doors.publish("t", 1)).json()["errorCode"] == "ERR_PUBSUB_NOT_FOUND"


async def test_a_large_bulk_is_scheduled_as_columns_with_all_that_its_entries_say(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        entries: list[dict[str, Any]] = [
            {"entryId": f"e{n}", "event": {"n": n}, "contentType": "application/json", "metadata": {}}
            for n in range(40)
        ]
        entries[3]["metadata"] = {"partitionKey": "k", "ttlInSeconds": "60", "other": "é"}
        entries[5]["metadata"] = {"scheduledSendTime": "2046-01-01T00:00:00Z"}
        entries[7]["metadata"] = {"scheduledSendTime": "9000-01-01T00:00:00Z"}
        partly = await doors.client.post(
            "/v1.0/publish/bulk/pubsub/t", params={"metadata.scheduledSendTime": LATER}, json=entries
        )
        assert partly.status_code == 500
        assert [one["entryId"] for one in partly.json()["failedEntries"]] == ["e7"]
        del entries[7]
        answer = await doors.client.post(
            "/v1.0/publish/bulk/pubsub/u", params={"metadata.scheduledSendTime": LATER}, json=entries
        )
        ids = answer.headers["tarry-message-ids"].split(",")
        shown = [(await doors.served.client.get(f"/v1/messages/{id_}")).json() for id_ in ids]
        assert [json.loads(one["payload"])["data"]["n"] for one in shown] == [n for n in range(40) if n != 7]
        assert len({json.loads(one["payload"])["id"] for one in shown}) == 39
        assert (shown[3]["key"], shown[3]["ttl_ms"], shown[3]["headers"]["other"]) == ("k", 60_000, "é")
        assert (shown[4]["key"], shown[4]["ttl_ms"]) == (None, None)
        assert shown[5]["due_at"] == "2046-01-01T00:00:00.000Z"
        assert {one["due_at"] for one in shown} == {"2046-01-01T00:00:00.000Z", "2045-11-05T13:15:30.000Z"}
        assert {one["owner"] for one in shown} == {"app"}


async def test_a_bulk_has_a_bound_and_leaves_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = 0
    a_turn: list[int] = []
    make = cloudevents.make

    def counted(*how: Any) -> bytes:
        nonlocal planned
        planned += 1
        return make(*how)

    def tick() -> None:
        a_turn.append(planned)
        loop.call_soon(tick)

    monkeypatch.setattr("tarry.doors.dapr.planning.make", counted)
    loop = asyncio.get_running_loop()
    params = {"metadata.scheduledSendTime": LATER}
    entries = [{"entryId": str(n), **TEXT} for n in range(planning.MAX_ENTRIES + 1)]
    async with dapr(tmp_path, ledger__segment_bytes__=64 << 20) as doors:
        refused = await doors.client.post("/v1.0/publish/bulk/pubsub/t", params=params, json=entries)
        assert (refused.status_code, refused.json()["errorCode"]) == (413, "ERR_PUBSUB_PUBLISH_MESSAGE")
        assert "10000 are the most" in refused.json()["message"]
        assert (planned, doors.engine.stats().pending) == (0, 0)
        tick()
        taken = await doors.client.post("/v1.0/publish/bulk/pubsub/t", params=params, json=entries[:-1])
        assert (taken.status_code, taken.text) == (204, "")
        assert doors.engine.stats().pending == planning.MAX_ENTRIES
    most = max(after - before for before, after in itertools.pairwise(a_turn))
    assert most <= planning.PLANNED_AT_ONCE
