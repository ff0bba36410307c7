"""Somebody whom the door must not serve: a token for other namespaces, a message of another door, a page in a browser."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.unit.dapr_kit import app, component, dapr, ready, resources, to
from tests.unit.test_dapr_grpc import Client, opening
from tests.waiting import until

WITHIN_S = 30
TOKENS = [
    {"name": "all", "token": "all-the-namespaces", "roles": ["produce", "consume"]},
    {"name": "shop", "token": "the-shops-own", "roles": ["produce", "consume"], "namespaces": ["shop/orders"]},
    {"name": "reader", "token": "only-for-reading", "roles": ["consume"]},
    {"name": "evil", "token": "somebody-elses", "roles": ["produce", "consume"], "namespaces": ["evil/ns"]},
]  # fmt: skip
SHOP = component("shop", "pubsub.tarry", tenant="shop", namespace="orders", enableDelayedMessaging=True)


async def test_a_stream_reaches_the_namespaces_of_its_token_only(tmp_path: Path) -> None:
    """Security finding 4: somebody else's token read an application's messages, and acknowledged them."""
    folder = resources(tmp_path, SHOP, component("memory", "pubsub.in-memory"))
    cases = [
        ("the-shops-own", opening("t", "shop"), None),
        ("all-the-namespaces", opening("t", "memory", dead_letter_topic="dead"), None),
        ("somebody-elses", opening("t", "shop"), "the token does not reach the namespace shop/orders"),
        # What leaves for a broker falls under the default namespace.
        ("the-shops-own", opening("t", "memory"), "the token does not reach the namespace public/default"),
        ("only-for-reading", opening("t", "memory"), None),
        # Whoever answers DROP publishes there.
        (
            "only-for-reading",
            opening("t", "memory", dead_letter_topic="dead"),
            "the operation needs the role produce or admin",
        ),
    ]
    async with (
        dapr(tmp_path / "data", tokens__=TOKENS, resources_path=[str(folder)]) as doors,
        grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel,
        asyncio.timeout(WITHIN_S),
    ):
        for token, frame, refused in cases:
            stream = Client(channel).stream((("dapr-api-token", token),))
            await stream.write(frame)
            if refused is None:
                assert (await stream.read()).HasField("initial_response")
                stream.cancel()
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stream.read()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == refused
        assert doors.engine.topics.find("persistent://shop/orders/t").subscriptions.keys() == {"app"}


async def test_what_another_door_schedules_for_an_application_is_not_published(tmp_path: Path) -> None:
    """Security finding 3: a token for one namespace wrote into every other one and to every broker."""
    folder = resources(tmp_path, SHOP, component("memory", "pubsub.in-memory"))
    headers = {"authorization": "Bearer somebody-elses"}
    async with (
        app(to("t", pubsub="memory"), to("t", pubsub="shop")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, tokens__=TOKENS, resources_path=[str(folder)]) as doors,
    ):
        await ready(doors)
        native = doors.served.client
        for pubsub in ("memory", "shop"):
            message = {
                "destination": f"dapr://app/{pubsub}/t",
                "namespace": "evil/ns",
                "payload": '{"data": "forged"}',
                "delay_ms": 1,
            }
            scheduled = await native.post("/v1/messages", json=message, headers=headers)
            assert scheduled.status_code == 201, scheduled.text

            async def failed(id_: str = scheduled.json()["id"]) -> bool:
                view = (await native.get(f"/v1/messages/{id_}", headers=headers)).json()
                return bool(view["state"] == "failed" and "only the Dapr door" in view["reason"])

            await until(failed)
        own = await doors.publish(
            "t", "own", pubsub="memory", headers={"dapr-api-token": "all-the-namespaces"}
        )
        assert own.status_code == 204
        await shop.count(1)
        assert shop.data == ["own"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "attacker.example"},
        {"host": "attacker.example:3500"},
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_page_cannot_publish_by_a_browser_on_this_machine(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """Security finding 8: names that are pointed at loopback, and simple requests that browsers send by themselves."""
    async with dapr(tmp_path) as doors:
        simple = headers | {"content-type": "text/plain"}
        answers: list[Any] = [
            await doors.publish("t", "x", headers=simple),
            await doors.publish("t", "x", headers=simple, scheduledSendTime="PT1H"),
            await doors.client.post("/v1.0/publish/bulk/pubsub/t", content=b"[]", headers=simple),
            await doors.client.get("/v1.0/metadata", headers=headers),
            await doors.client.put("/v1.0/metadata/x", content=b"y", headers=simple),
        ]
        assert {(one.status_code, one.json()["errorCode"]) for one in answers} == {(401, "ERR_UNAUTHORIZED")}
        assert doors.engine.stats().pending == 0
        # Probes ask by any name; nothing is told but whether it is ready.
        assert (await doors.client.get("/v1.0/healthz", headers=headers)).status_code == 204


async def test_names_of_this_machine_and_tokens_are_let_in(tmp_path: Path) -> None:
    async with dapr(tmp_path / "open") as doors:
        for host in ("localhost", "localhost:3500", "127.0.0.1:3500", "[::1]:3500"):
            assert (await doors.publish("t", "x", headers={"host": host})).status_code == 204
        same = {"host": f"localhost:{doors.http_port}", "origin": f"http://localhost:{doors.http_port}"}
        assert (await doors.publish("t", "x", headers=same)).status_code == 204
    async with dapr(tmp_path / "tokens", tokens__=TOKENS) as doors:
        named = {"host": "tarry.internal", "origin": "http://else", "dapr-api-token": "all-the-namespaces"}
        assert (await doors.publish("t", "x", headers=named)).status_code == 204


async def test_whoever_publishes_does_not_write_what_lets_a_request_into_the_application(
    tmp_path: Path,
) -> None:
    """Metadata of a message are headers of the request: none of those that the application trusts the sidecar for."""
    forged = {
        "Dapr-Api-Token": "forged", "Content-Type": "text/html", "content-length": "3", "Host": "else",
        "Transfer-Encoding": "chunked", "Connection": "close", "with space": "x", "line": "a\r\nb: c", "é": "x",
        "umlaut": "ü", "pubsubName": "lie", "kept": "yes",
    }  # fmt: skip
    folder = resources(tmp_path, component("pubsub", "pubsub.in-memory"))
    settings = {"app_token": "the-applications-own", "resources_path": [str(folder)]}
    async with (
        app(to("t")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, **settings) as doors,
    ):
        await ready(doors)
        assert (await doors.publish("t", {"n": 1}, **forged)).status_code == 204
        await shop.count(1)
        got = {name.lower(): value for name, value in shop.headers[0].items()}
    assert got["dapr-api-token"] == "the-applications-own"
    assert got["content-type"] == "application/cloudevents+json"
    assert got["host"] == f"127.0.0.1:{shop.port}"
    assert got["pubsubname"] == "pubsub"
    assert got["kept"] == "yes"
    assert not {"with space", "line", "b", "é", "umlaut", "connection", "transfer-encoding"} & got.keys()
    assert shop.data == [{"n": 1}]


async def test_calls_of_one_token_refuse_nobody_elses(tmp_path: Path) -> None:
    """Streams that never end, which a token could have as many of as it liked."""
    async with (
        dapr(tmp_path / "data", tokens__=TOKENS, max_calls=4) as doors,
        grpc.aio.insecure_channel(f"127.0.0.1:{doors.door.grpc_ports[0]}") as channel,
        asyncio.timeout(WITHIN_S),
    ):

        async def stream(token: str) -> Any:
            opened = Client(channel).stream((("dapr-api-token", token),))
            await opened.write(opening("t"))
            assert (await opened.read()).HasField("initial_response")
            return opened

        first, _ = await stream("all-the-namespaces"), await stream("all-the-namespaces")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream("all-the-namespaces")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the token all has 2 calls" in str(caught.value.details())
        other = await stream("only-for-reading")
        # Whoever ends one may have another.
        first.cancel()
        await until(lambda: doors.door.sidecars["app"].grpc_api.calls == 2)
        await stream("all-the-namespaces")
        other.cancel()
