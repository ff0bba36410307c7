"""Deliveries to an application: subscriptions of every kind, and SUCCESS, RETRY, DROP as Dapr treats them."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tarry.engine.api import NewEntry
from tests.unit.dapr_kit import acknowledged, app, component, dapr, in_s, ready, resources, to
from tests.waiting import until

DECLARED: dict[str, Any] = {
    "apiVersion": "dapr.io/v1alpha1",
    "kind": "Subscription",
    "metadata": {"name": "s"},
}
BUILT_IN = {"name": "pubsub", "kind": "pubsub.tarry", "enableDelayedMessaging": True}


async def test_success_in_all_its_forms_is_the_end(tmp_path: Path) -> None:
    forms: list[Any] = [
        (200, None), (204, None), (200, {"status": "SUCCESS"}), (200, {"status": ""}), (200, {}), (201, ["odd"]),
    ]  # fmt: skip
    # One that is wrong costs an application none of its others.
    async with app(to("wrong", ""), to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        shop.answer = lambda _path, event: forms[event["data"]]
        for form in range(len(forms)):
            await doors.publish("t", form)
        await shop.count(len(forms))
        await acknowledged(doors, "t")
        assert sorted(shop.data) == list(range(len(forms)))


async def test_retry_in_all_its_forms_comes_again_until_it_is_taken(tmp_path: Path) -> None:
    forms: list[Any] = [
        (200, {"status": "RETRY"}), (200, {"status": "EH"}), (500, None), (400, None), (301, None), (307, None),
    ]  # fmt: skip
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        shop.answer = lambda _path, event: (
            (200, None) if shop.data.count(event["data"]) == 3 else forms[event["data"]]
        )
        for form in range(len(forms)):
            await doors.publish("t", form)
        await shop.count(3 * len(forms))
        await acknowledged(doors, "t")
        assert sorted(shop.data) == sorted(list(range(len(forms))) * 3)
        assert len({event["id"] for _, event in shop.got}) == len(forms)
        assert {path for path, _ in shop.got} == {"/in"}, "nobody is sent elsewhere"


async def test_a_message_that_is_no_cloud_event_is_logged_once_however_often_it_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(resources(tmp_path, component("own", "pubsub.tarry", redeliveryDelay="1ms")))
    async with (
        app(to("t", pubsub="own")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[place]) as doors,
    ):
        await ready(doors)
        for payload in (b"no JSON", b"[1]", b"no JSON"):
            await doors.engine.topics.publish("t", [NewEntry(payload=payload)])
        sub = doors.engine.topics.subscription("t", "app")
        await until(lambda: len(sub.redeliveries) == 3 and min(sub.redeliveries.values()) >= 4)
        lines = [
            record.getMessage() for record in caplog.records if "is no CloudEvent" in record.getMessage()
        ]
        assert len(lines) == 3
        assert not any("no JSON" in line for line in lines), "no content is in the log"
        assert (shop.got, sub.backlog) == ([], 3)


async def test_one_that_is_no_cloud_event_goes_to_the_dead_letter_topic(tmp_path: Path) -> None:
    async with app(to("t", deadLetterTopic="dead")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await ready(doors)
        await doors.engine.topics.publish("t", [NewEntry(payload=b"no JSON")])
        await acknowledged(doors, "t")
        letters = await doors.engine.topics.subscribe("dead", "letters", "exclusive", start="earliest")
        got: list[Any] = []
        letters.attach("reader", got.extend).flow(10)
        await until(lambda: bool(got))
        assert [letter.payload for letter in got] == [b"no JSON"]
        assert shop.got == []


async def test_drop_is_the_end_and_goes_to_the_dead_letter_topic(tmp_path: Path) -> None:
    subscriptions = [to("t", deadLetterTopic="dead"), to("plain"), to("dead", "/dead")]
    async with app(*subscriptions) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        drops: list[Any] = [(200, {"status": "DROP"}), (404, None)]
        shop.answer = lambda path, event: drops[event["data"]] if path == "/in" else (200, None)
        for form in range(2):
            await doors.publish("t", form)
            await shop.count(2 * form + 2)
            assert [path for path, _ in shop.got[-2:]] == ["/in", "/dead"]
            assert shop.got[-1][1]["id"] == shop.got[-2][1]["id"]
        for form in range(2):
            await doors.publish("plain", form)
        await shop.count(6)
        await acknowledged(doors, "plain")
        await acknowledged(doors, "t")
        assert len(shop.got) == 6


async def test_retry_with_a_dead_letter_topic_goes_there_as_in_dapr_unless_retries_are_configured(
    tmp_path: Path,
) -> None:
    subscriptions = [to("t", deadLetterTopic="dead"), to("dead", "/dead")]
    for retries in (None, 2):
        async with (
            app(*subscriptions) as shop,
            dapr(tmp_path / f"{retries}", app_port=shop.port, max_retries=retries) as doors,
        ):
            shop.answer = lambda path, _event: (500 if path == "/in" else 200, None)
            await doors.publish("t", 1)
            await shop.count(2 + (retries or 0))
            assert [path for path, _ in shop.got] == ["/in"] * (1 + (retries or 0)) + ["/dead"]


async def test_what_is_no_event_goes_to_the_dead_letter_topic(tmp_path: Path) -> None:
    subscriptions = [to("t", deadLetterTopic="dead"), to("dead", "/dead", metadata={"rawPayload": "true"})]
    async with app(*subscriptions) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await doors.publish("t", b"no json", rawPayload="true")
        await shop.count(1)
        assert shop.got[0][0] == "/dead"
        assert shop.got[0][1]["data_base64"] == "bm8ganNvbg=="


async def test_an_expired_message_is_not_delivered(tmp_path: Path) -> None:
    async with (
        app(to("t", deadLetterTopic="dead"), to("dead", "/dead")) as shop,
        dapr(tmp_path, app_port=shop.port) as doors,
    ):
        late = {"id": "1", "expiration": "2020-01-01T00:00:00Z"}
        await doors.publish("t", late, headers={"content-type": "application/cloudevents+json"})
        await acknowledged(doors, "t")
        await doors.publish("t", "good")
        await shop.count(1)
        assert shop.data == ["good"]


async def test_a_hostile_pattern_does_not_stall_the_server(tmp_path: Path) -> None:
    """Backtracking would take longer than anybody lives; a large pattern takes a while, beside everything else."""
    bombs = ["(a+)+$", "(a|aa)+$", "(?:.?){1000}x", r"(?:\pL?){150}!"]
    routes = {
        "rules": [{"match": f"event.data.matches(r'{bomb}')", "path": "/bomb"} for bomb in bombs],
        "default": "/fine",
    }
    async with app(to("t", routes=routes), to("u")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await doors.publish("u", 0)
        await shop.count(1)
        turns = asyncio.create_task(_longest_turn_s())
        await doors.publish("t", "a" * 10_000 + "b")
        await shop.count(2)
        turns.cancel()
        assert shop.got[1][0] == "/fine"
        longest_s = await turns
        # Each search alone takes longer than this, on any machine; turns of the loop beside it do not.
        assert longest_s < 0.2


async def _longest_turn_s() -> float:
    """How long the loop was away, at the most, until this is cancelled; of its own time, whatever else the machine does."""
    longest_s, began = 0.0, time.thread_time()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0)
            longest_s, began = max(longest_s, time.thread_time() - began), time.thread_time()
    return longest_s


async def test_rules_route_and_the_first_that_fits_wins(tmp_path: Path) -> None:
    routes = {
        "rules": [
            {"match": 'event.type == "big"', "path": "/big"},
            {"match": "event.data.n > 5", "path": "/many"},
        ],
        "default": "/rest",
    }
    without = {"rules": [{"match": 'event.type == "big"', "path": "/only-big"}]}
    subscriptions = [to("t", routes=routes), to("u", routes=without)]
    async with app(*subscriptions) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        await ready(doors)
        for n, type_ in ((9, "big"), (9, "x"), (1, "x")):
            await doors.publish("t", {"n": n}, **{"cloudevent.type": type_})
            await shop.count(len(shop.got))
            await acknowledged(doors, "t")
        await doors.publish("u", {"n": 1})
        await acknowledged(doors, "u")
        await doors.publish("u", {"n": 2}, **{"cloudevent.type": "big"})
        await shop.count(4)
        assert [path for path, _ in shop.got] == ["/big", "/many", "/rest", "/only-big"]


async def test_declared_subscriptions_count_beside_what_the_application_says(tmp_path: Path) -> None:
    v1 = DECLARED | {
        "spec": {"pubsubname": "pubsub", "topic": "one", "route": "/one"},
        "scopes": ["shop", "b"],
    }
    v2 = DECLARED | {
        "apiVersion": "dapr.io/v2alpha1",
        "spec": {
            "pubsubname": "pubsub",
            "topic": "two",
            "routes": {"rules": [{"match": "event.data == 1", "path": "/first"}], "default": "/second"},
            "deadLetterTopic": "dead",
        },
    }
    others = DECLARED | {
        "spec": {"pubsubname": "pubsub", "topic": "three", "route": "/three"},
        "scopes": ["b"],
    }
    folder = resources(tmp_path, BUILT_IN, v1, v2, others)
    async with (
        app(to("zero", "/zero")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, app_id="shop", resources_path=[str(folder)]) as doors,
    ):
        for topic, data in (("zero", 0), ("one", 1), ("two", 1), ("two", 2), ("three", 3)):
            await doors.publish(topic, data)
        await shop.count(4)
        assert sorted(path for path, _ in shop.got) == ["/first", "/one", "/second", "/zero"]
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
        assert {(one["topic"], one["type"]) for one in shown} == {
            ("zero", "PROGRAMMATIC"), ("one", "DECLARATIVE"), ("two", "DECLARATIVE"),
        }  # fmt: skip


async def test_bulk_subscriptions_get_several_together_and_answer_for_each(tmp_path: Path) -> None:
    bulk = {"enabled": True, "maxMessagesCount": 3, "maxAwaitDurationMs": 200}
    async with app(to("t", bulkSubscribe=bulk)) as shop, dapr(tmp_path, app_port=shop.port) as doors:

        def answer(_path: str, envelope: dict[str, Any]) -> tuple[int, Any]:
            statuses = []
            for entry in envelope["entries"]:
                data = entry["event"]["data"]
                first = (
                    sum(data == one["event"]["data"] for _, got in shop.got for one in got["entries"]) == 1
                )
                said = {0: "SUCCESS", 1: "RETRY" if first else "SUCCESS", 2: "DROP"}[data]
                statuses.append({"entryId": entry["entryId"], "status": said})
            return 200, {"statuses": statuses}

        shop.answer = answer
        await asyncio.gather(*(doors.publish("t", n) for n in range(3)))
        await shop.count(2)
        await acknowledged(doors, "t")
        first = shop.got[0][1]
        assert len(first["entries"]) == 3
        assert first["topic"] == "t"
        assert first["pubsubname"] == "pubsub"
        assert first["type"] == "com.dapr.event.sent.bulk"
        assert {entry["contentType"] for entry in first["entries"]} == {"application/cloudevents+json"}
        assert [entry["event"]["data"] for entry in shop.got[1][1]["entries"]] == [1]


async def test_scopes_forbid_a_subscription(tmp_path: Path) -> None:
    scoped = {
        "name": "pubsub",
        "kind": "pubsub.tarry",
        "subscriptionScopes": "app=yes",
        "enableDelayedMessaging": True,
    }
    folder = resources(tmp_path, scoped)
    async with (
        app(to("yes"), to("no")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        await doors.publish("no", 1)
        await doors.publish("yes", 2)
        await shop.count(1)
        assert shop.data == [2]
        # Those that cannot be are shown all the same, so that somebody who looks for them sees that they were declared.
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
        assert [one["topic"] for one in shown] == ["yes", "no"]


async def test_a_dead_letter_topic_that_the_application_may_not_write_forbids_its_subscription(
    tmp_path: Path,
) -> None:
    folder = resources(tmp_path, BUILT_IN | {"publishingScopes": "app=t,u,grave"})
    subscriptions = [to("t", deadLetterTopic="elsewhere"), to("u", deadLetterTopic="grave")]
    async with (
        app(*subscriptions) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        await doors.publish("t", 1)
        await doors.publish("u", 2)
        await shop.count(1)
        assert shop.data == [2]
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
        assert [one["topic"] for one in shown] == ["t", "u"]


async def test_the_application_may_come_later_than_the_sidecar(tmp_path: Path) -> None:
    async with app(to("t")) as shop:
        port = shop.port
    async with dapr(tmp_path, app_port=port) as doors:
        answer = await doors.publish("t", 1, scheduledSendTime=in_s(0.1))
        assert answer.status_code == 204
        async with app(to("t")) as shop:
            # The application's own port is taken over: the door waits there.
            from aiohttp import web

            again = web.Application()
            again.router.add_route("*", "/{path:.*}", shop.serve)
            runner = web.AppRunner(again)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            try:
                await shop.count(1)
            finally:
                await runner.cleanup()


async def test_messages_that_waited_for_a_restart_arrive(tmp_path: Path) -> None:
    async with app(to("t")) as shop:
        async with dapr(tmp_path, app_port=shop.port) as doors:
            for n in range(20):
                await doors.publish("t", n, scheduledSendTime=in_s(1.0))
        async with dapr(tmp_path, app_port=shop.port) as doors:
            await shop.count(20)
            await acknowledged(doors, "t")
            assert sorted(shop.data) == list(range(20))


async def test_several_applications_have_their_own_ports_components_and_groups(tmp_path: Path) -> None:
    async with app(to("t")) as shop, app(to("t")) as bank:
        more = [{"app_id": "bank", "app_port": bank.port, "port": 0, "grpc_port": 0}]
        async with dapr(tmp_path, app_port=shop.port, app_id="shop", apps=more) as doors:
            assert len(set(doors.door.urls)) == 2
            await doors.publish("t", 1, scheduledSendTime=in_s(0.2))
            # Each application is a consumer group of its own.
            await shop.count(1)
            await bank.count(1)
            assert shop.got[0][1]["source"] == "shop"
            assert json.dumps(bank.got[0][1]) == json.dumps(shop.got[0][1])
            from httpx import AsyncClient

            async with AsyncClient(base_url=doors.door.urls[1]) as client:
                assert (await client.get("/v1.0/metadata")).json()["id"] == "bank"
