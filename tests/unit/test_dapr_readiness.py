"""When the door says that it is ready, and when an application is given messages: its port, its answer, its health."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.processes import free_port
from tests.unit.dapr_kit import App, Doors, app, dapr, ready, resources, to
from tests.unit.test_dapr_grpc import Callback
from tests.waiting import until

MEMORY = {"name": "pubsub", "kind": "pubsub.in-memory"}


async def not_ready(doors: Doors) -> str:
    """The reason why it is not ready; that it takes publishes is another matter."""
    answer = await doors.client.get("/v1.0/healthz")
    assert (answer.status_code, answer.json()["errorCode"]) == (500, "ERR_HEALTH_NOT_READY")
    assert (await doors.client.get("/v1.0/healthz/outbound")).status_code == 204
    return str(answer.json()["message"])


async def test_it_is_ready_once_the_applications_subscriptions_are_made(tmp_path: Path) -> None:
    """Components in memory keep nothing for somebody who is not there yet."""
    folder = resources(tmp_path, MEMORY)
    port = free_port()
    async with dapr(tmp_path / "data", app_port=port, resources_path=[str(folder)]) as doors:
        assert "the application" in await not_ready(doors)
        async with app(to("t"), port=port) as shop:
            shop.held = asyncio.Event()
            await until(lambda: _true(shop.asked))
            assert "the application" in await not_ready(doors)
            shop.held.set()
            await ready(doors)
            await doors.publish("t", "at once")
            await shop.count(1)
            assert shop.data == ["at once"]


async def test_it_is_not_ready_while_a_subscription_cannot_be_made(tmp_path: Path) -> None:
    redis = {"name": "redis", "kind": "pubsub.redis", "redisHost": f"127.0.0.1:{free_port()}"}
    folder = resources(tmp_path, MEMORY, redis)
    wanted = [to("t"), to("t", pubsub="redis"), to("t", pubsub="nope")]
    async with (
        app(*wanted) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):

        async def others_are_there() -> bool:
            await doors.publish("t", "x")
            return bool(shop.got)

        await until(others_are_there)
        assert "subscriptions" in await not_ready(doors)
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
        # In the application's order; a member that is empty is left out, as Dapr writes it.
        assert [one["pubsubname"] for one in shown] == ["pubsub", "redis", "nope"]
        assert "metadata" not in shown[0]


async def _true(event: asyncio.Event) -> bool:
    return event.is_set()


async def test_without_an_application_it_is_ready_at_once(tmp_path: Path) -> None:
    async with dapr(tmp_path) as doors:
        assert (await doors.client.get("/v1.0/healthz")).status_code == 204


HEALTH = {
    "app_health_check": True,
    "app_health_interval_ms": 20,
    "app_health_timeout_ms": 5_000,
    "app_health_threshold": 2,
}


async def test_an_unhealthy_application_is_given_nothing_until_it_is_healthy(tmp_path: Path) -> None:
    async with app(to("t")) as shop:
        shop.healthy = False
        async with dapr(tmp_path, app_port=shop.port, app_health_check_path="/well", **HEALTH) as doors:
            # The sidecar is ready as soon as the application's port is there, as in Dapr.
            await ready(doors)
            await doors.publish("t", 1)
            await _checked(shop, 3)
            assert not shop.got
            assert not shop.asked.is_set()
            shop.healthy = True
            await shop.count(1)
            shop.healthy = False
            await _checked(shop, 5)
            await doors.publish("t", 2)
            await _checked(shop, 3)
            assert shop.data == [1]
            shop.healthy = True
            await shop.count(2)
            assert shop.data == [1, 2]
            assert set(shop.health_paths) == {"/well"}


async def _checked(shop: App, times: int) -> None:
    """Wait until it was asked for its health so many times more."""
    seen = len(shop.health_paths)

    async def enough() -> bool:
        return len(shop.health_paths) >= seen + times

    await until(enough)


async def test_one_bad_answer_below_the_threshold_changes_nothing(tmp_path: Path) -> None:
    async with (
        app(to("t")) as shop,
        dapr(tmp_path, app_port=shop.port, app_health_check_path="/well", **HEALTH) as doors,
    ):
        await doors.publish("t", 1)
        await shop.count(1)
        before = doors.engine.topics.subscription("t", "app").consumers
        for _ in range(5):
            shop.bad_answers = 1
            await _checked(shop, 3)
        assert doors.engine.topics.subscription("t", "app").consumers == before
        assert len(before) == 1


async def test_the_health_of_an_application_over_grpc_is_asked_by_its_own_call(tmp_path: Path) -> None:
    callback = Callback()
    callback.subscriptions = (_topic("t"),)
    callback.healthy = False
    port = free_port()
    application = grpc.aio.server()
    application.add_generic_rpc_handlers((callback,))
    application.add_insecure_port(f"127.0.0.1:{port}")
    await application.start()
    try:
        async with dapr(tmp_path, app_port=port, app_protocol="grpc", **HEALTH) as doors:
            await doors.publish("t", "x")

            async def asked(times: int = 3) -> bool:
                return callback.health_calls >= times

            await until(asked)
            assert callback.got.empty()
            callback.healthy = True
            assert (await asyncio.wait_for(callback.got.get(), 30)).data == b'"x"'
    finally:
        await application.stop(None)


def _topic(name: str) -> Any:
    from dapr.proto.runtime.v1 import appcallback_pb2

    return appcallback_pb2.TopicSubscription(pubsub_name="pubsub", topic=name)


@pytest.mark.parametrize("disabled", [["subscribe"], ["subscribe", "config"], ["config"], []])
async def test_an_application_is_not_asked_if_that_is_switched_off(
    tmp_path: Path, disabled: list[str]
) -> None:
    declared = {
        "apiVersion": "dapr.io/v1alpha1",
        "kind": "Subscription",
        "metadata": {"name": "declared"},
        "spec": {"pubsubname": "pubsub", "topic": "declared", "route": "/declared"},
    }
    folder = resources(tmp_path, MEMORY, declared)
    settings = {"resources_path": [str(folder)], "disable_init_endpoints": disabled}
    async with (
        app(to("asked")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, **settings) as doors,
    ):
        await ready(doors)
        await doors.publish("asked", 1)
        await doors.publish("declared", 2)
        await shop.count(1 if "subscribe" in disabled else 2)
        assert shop.asked.is_set() == ("subscribe" not in disabled)
        assert sorted(shop.data) == ([2] if "subscribe" in disabled else [1, 2])


@pytest.mark.parametrize(
    ("settings", "warned"), [({}, True), ({"disable_init_endpoints": ["config"]}, False)]
)
async def test_an_application_that_hosts_actors_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warned: bool
) -> None:
    async with app() as shop:
        shop.config = {"entities": ["Cart"]}
        async with dapr(tmp_path, app_port=shop.port, **settings) as doors:
            await ready(doors)
    assert ("hosts actors (Cart)" in caplog.text) is warned
