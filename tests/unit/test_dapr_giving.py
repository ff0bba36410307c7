"""Giving messages to applications through the Dapr door: what goes with them, how many at once, and whose word counts."""

import asyncio
from pathlib import Path
from typing import Any

import grpc

from tarry.engine.topics.entries import NewEntry
from tarry.outlets.dapr.errors import BrokerUnreachable
from tests.processes import free_port
from tests.unit.dapr_kit import WITHIN_S, acknowledged, app, component, dapr, ready, resources, to

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_the_applications_token_and_the_trace_go_with_a_message(tmp_path: Path) -> None:
    async with (
        app(to("t")) as shop,
        dapr(tmp_path, app_port=shop.port, app_token="of-the-application") as doors,
    ):
        await doors.publish("t", 1, headers={"traceparent": TRACE, "tracestate": "a=b"})
        await shop.count(1)
    (headers,) = ({name.lower(): value for name, value in one.items()} for one in shop.headers)
    assert headers["dapr-api-token"] == "of-the-application"
    assert (headers["traceparent"], headers["tracestate"]) == (TRACE, "a=b")


async def test_the_applications_token_goes_with_a_call_back(tmp_path: Path) -> None:
    seen: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    class Application(grpc.GenericRpcHandler):  # type: ignore[misc] # the library has no types
        def service(self, handler_call_details: Any) -> Any:
            seen.put_nowait(dict(handler_call_details.invocation_metadata))

    port = free_port()
    application = grpc.aio.server()
    application.add_generic_rpc_handlers((Application(),))
    application.add_insecure_port(f"127.0.0.1:{port}")
    await application.start()
    try:
        async with dapr(tmp_path, app_port=port, app_protocol="grpc", app_token="secret-of-app"):
            async with asyncio.timeout(WITHIN_S):
                assert (await seen.get())["dapr-api-token"] == "secret-of-app"
    finally:
        await application.stop(None)


async def test_no_more_are_with_an_application_than_it_wants(tmp_path: Path) -> None:
    async with (
        app(to("t")) as shop,
        dapr(tmp_path, app_port=shop.port, app_concurrency=2) as doors,
    ):
        shop.pause_s = 0.02
        for number in range(12):
            await doors.publish("t", number)
        await shop.count(12)
    assert shop.most_at_once == 2


async def test_an_answer_that_comes_in_pieces_is_read_whole(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port, retry_min_ms=1) as doors:
        shop.in_pieces = True
        shop.answer = lambda _path, _event: (200, {"status": "RETRY" if len(shop.got) == 1 else "SUCCESS"})
        await doors.publish("t", 1)
        await shop.count(2)
        await acknowledged(doors, "t")
    assert shop.data == [1, 1]


async def test_an_answer_to_a_bulk_that_comes_in_pieces_is_read_whole(tmp_path: Path) -> None:
    many = to("t", bulkSubscribe={"enabled": True, "maxMessagesCount": 2, "maxAwaitDurationMs": 60_000})
    async with app(many) as shop, dapr(tmp_path, app_port=shop.port, retry_min_ms=1) as doors:
        shop.in_pieces = True
        shop.answer = lambda _path, envelope: (
            200,
            {"statuses": [{"entryId": one["entryId"], "status": "SUCCESS"} for one in envelope["entries"]]},
        )
        await doors.publish("t", "a")
        await doors.publish("t", "b")
        await acknowledged(doors, "t")
    assert len(shop.got) == 1


async def test_of_a_bulk_only_what_is_named_is_done(tmp_path: Path) -> None:
    many = to("t", bulkSubscribe={"enabled": True, "maxMessagesCount": 2, "maxAwaitDurationMs": 60_000})
    async with app(many) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        asked: list[list[Any]] = []

        def answer(_path: str, envelope: dict[str, Any]) -> tuple[int, Any]:
            entries = envelope["entries"]
            asked.append([one["event"]["data"] for one in entries])
            if len(asked) == 1:
                # Of the other one it says nothing.
                return 200, {"statuses": [{"entryId": entries[0]["entryId"], "status": "SUCCESS"}]}
            if len(asked) == 2:
                return 404, None
            return 200, {"statuses": [{"entryId": one["entryId"], "status": "SUCCESS"} for one in entries]}

        shop.answer = answer
        await doors.publish("t", "a")
        await doors.publish("t", "b")
        await shop.count(1)
        # Not before this one is there would the other come again.
        await doors.publish("t", "c")
        await shop.count(2)
        # That was dropped: these two are alone.
        await doors.publish("t", "d")
        await doors.publish("t", "e")
        await shop.count(3)
    assert [sorted(one) for one in asked] == [["a", "b"], sorted([asked[0][1], "c"]), ["d", "e"]]


async def test_of_a_topic_that_is_wanted_twice_the_applications_last_word_counts(tmp_path: Path) -> None:
    """And where the application says nothing of it, the first of the files', as in Dapr."""
    declared = [
        {
            "apiVersion": "dapr.io/v1alpha1",
            "kind": "Subscription",
            "metadata": {"name": f"{topic}-{route}"},
            "spec": {"pubsubname": "pubsub", "topic": topic, "route": f"/{route}"},
        }
        for topic in ("t", "u")
        for route in ("file-first", "file-last")
    ]
    folder = resources(tmp_path, component("pubsub", "pubsub.tarry"), *declared)
    async with (
        app(to("t", "/first"), to("v", "/v"), to("t", "/last")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        for topic in "tuv":
            await doors.publish(topic, topic)
        await shop.count(3)
        shown = (await doors.client.get("/v1.0/metadata")).json()["subscriptions"]
    assert {event["topic"]: path for path, event in shop.got} == {"t": "/last", "u": "/file-first", "v": "/v"}
    assert [(one["topic"], one["rules"], one["type"]) for one in shown] == [
        ("t", [{"path": "/last"}], "PROGRAMMATIC"),
        ("u", [{"path": "/file-first"}], "DECLARATIVE"),
        ("v", [{"path": "/v"}], "PROGRAMMATIC"),
    ]


async def test_dead_letters_go_only_where_the_application_may_publish(tmp_path: Path) -> None:
    folder = resources(tmp_path, component("pubsub", "pubsub.tarry", publishingScopes="app=t,dead"))
    wanted = [to("t", deadLetterTopic="forbidden"), to("u", "/good", deadLetterTopic="dead")]
    async with (
        app(*wanted) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        await ready(doors)
        for topic in "tu":
            await doors.served.engine.topics.publish(
                topic, [NewEntry(payload=b'{"data": "for %b"}' % topic.encode())]
            )
        await shop.count(1)
        subscribed = [doors.engine.topics.find(topic).subscriptions for topic in "tu"]
    assert shop.data == ["for u"]
    assert [list(one) for one in subscribed] == [[], ["app"]]


async def test_what_cannot_be_buried_comes_again(tmp_path: Path, monkeypatch: Any) -> None:
    wanted = [to("t", deadLetterTopic="dead"), to("dead", "/dead")]
    async with app(*wanted) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        component_ = doors.door.sidecars["app"].mounts["pubsub"].component
        publish, refusals = component_.publish, ["once"]

        async def away(topic: str, *rest: Any, **more: Any) -> None:
            if topic == "dead" and refusals:
                refusals.pop()
                raise BrokerUnreachable("the broker is away")
            await publish(topic, *rest, **more)

        monkeypatch.setattr(component_, "publish", away)
        shop.answer = lambda path, _event: (500 if path == "/in" else 200, None)
        await doors.publish("t", 1)
        await shop.count(3)
    assert [path for path, _ in shop.got] == ["/in", "/in", "/dead"]
