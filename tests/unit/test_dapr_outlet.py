"""Due messages on their way to a component: together where they can be, scopes asked again, verdicts as they must be."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tarry.core.errors import Invalid, TarryError, Unavailable
from tarry.core.messages.delivery import Delivered, Delivery, Missing, Refused, Retry, Verdict
from tarry.core.messages.message import Message
from tarry.core.names import TopicName
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent
from tarry.outlets.dapr.component import BulkEntry
from tarry.outlets.dapr.delivery import destination, headers_of, metadata_of, next_of, target_of
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied, NeverTaken, TopicMissing
from tarry.outlets.dapr.outlet import DaprOutlet
from tests.serving import Serving, serving
from tests.unit.dapr_kit import app, dapr, in_s, ready, resources, to
from tests.waiting import until


class Broker:
    """A component that keeps what it gets, or fails as it is told to."""

    features: frozenset[Any] = frozenset()

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, bytes, dict[str, str], str | None]]] = []
        self.error: Exception | None = None
        self.failed: dict[bytes, ComponentError] = {}
        self.topics = {"no"}
        self.wait: asyncio.Event | None = None

    @property
    def component(self) -> Any:
        return self

    def may_publish(self, topic: str) -> bool:
        return topic not in self.topics

    def at_broker(self, topic: str) -> str:
        return "ns" + topic

    async def publish(
        self, topic: str, data: bytes, metadata: Mapping[str, str], content_type: str | None = None
    ) -> None:
        if self.wait is not None:
            await self.wait.wait()
        if self.error is not None:
            raise self.error
        self.calls.append([(topic, data, dict(metadata), content_type)])

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        if self.error is not None:
            raise self.error
        self.calls.append([(topic, one.data, one.metadata, one.content_type) for one in entries])
        return {one.entry_id: self.failed[one.data] for one in entries if one.data in self.failed}


def due(data: bytes, topic: str = "t", app_id: str = "app", pubsub: str = "redis") -> Delivery:
    headers = headers_of({"partitionKey": "k"}, "text/plain")
    target = destination(app_id, pubsub, topic)
    return Delivery(data.decode(), target, data, headers, None, app_id, 0, 0, 1, "dapr")


async def nothing(_message: Message) -> None:
    raise AssertionError("nothing repeats here")


def opened(broker: Broker) -> DaprOutlet:
    outlet = DaprOutlet()
    outlet.open(
        lambda app_id, pubsub: broker if (app_id, pubsub) == ("app", "redis") else None, nothing, lambda: 0
    )
    return outlet


async def test_what_is_due_together_for_one_topic_is_one_call() -> None:
    broker = Broker()
    outlet = opened(broker)
    assert await outlet.send_many([due(b"%d" % n) for n in range(3)]) == [Delivered()] * 3
    assert await outlet.send(due(b"alone", "other")) == Delivered()
    together, alone = broker.calls
    assert together[0] == ("nst", b"0", {"partitionKey": "k"}, "text/plain")
    assert [data for _, data, _, _ in together] == [b"0", b"1", b"2"]
    assert alone == [("nsother", b"alone", {"partitionKey": "k"}, "text/plain")]


async def test_what_is_with_the_broker_is_waited_for_before_it_is_closed() -> None:
    broker = Broker()
    outlet = opened(broker)
    broker.wait = asyncio.Event()
    sending = asyncio.create_task(outlet.send(due(b"1")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(outlet.close())
    await asyncio.sleep(0)
    assert not closing.done()
    broker.wait.set()
    await closing
    assert await sending == Delivered()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (BrokerUnreachable("away"), Retry("away")),
        (BrokerUnreachable("cut off", uncertain=True), Retry("cut off", uncertain=True)),
        (Denied("who are you"), Retry("who are you")),
        (TopicMissing("make it"), Retry("make it")),
        (NeverTaken("too large"), Refused("too large")),
        (RuntimeError("a bug"), Retry("the component failed: RuntimeError", uncertain=True)),
    ],
)
async def test_a_brokers_refusal_becomes_a_verdict(error: Exception, verdict: Verdict) -> None:
    broker = Broker()
    outlet = opened(broker)
    broker.error = error
    assert await outlet.send(due(b"1")) == verdict
    assert await outlet.send_many([due(b"1"), due(b"2")]) == [verdict, verdict]


async def test_one_of_many_that_fails_fails_alone() -> None:
    broker = Broker()
    broker.failed = {b"2": NeverTaken("odd")}
    outlet = opened(broker)
    verdicts = await outlet.send_many([due(b"%d" % n) for n in range(4)])
    assert verdicts == [Delivered(), Delivered(), Refused("odd"), Delivered()]


async def test_scopes_are_asked_again_and_a_component_may_come_back() -> None:
    outlet = opened(Broker())
    assert await outlet.send(due(b"1", "no")) == Refused("topic no is not allowed for app id app any more")
    assert isinstance(await outlet.send(due(b"1", pubsub="gone")), Missing)
    assert isinstance(await outlet.send(due(b"1", app_id="gone")), Missing)


async def test_only_messages_of_the_dapr_door_are_published() -> None:
    """Security finding 3: a message of another door names any application, and nobody has checked its caller."""
    broker = Broker()
    outlet = opened(broker)
    strange = msgspec.structs.replace(due(b"strange"), id="strange", door="http")
    repeating = msgspec.structs.replace(
        strange, id="again", headers=strange.headers | {"repeat": "@every 5s"}
    )
    verdicts = await outlet.send_many([strange, due(b"own"), repeating])
    refused = Refused("only the Dapr door may publish for an application")
    assert verdicts == [refused, Delivered(), refused]
    assert broker.calls == [[("nst", b"own", {"partitionKey": "k"}, "text/plain")]]


async def test_what_is_due_before_the_components_are_there_waits_for_them() -> None:
    outlet = DaprOutlet()
    sending = asyncio.create_task(outlet.send(due(b"1")))
    await asyncio.sleep(0)
    broker = Broker()
    outlet.open(lambda _app_id, _pubsub: broker, nothing, lambda: 0)
    assert await sending == Delivered()


async def test_what_follows_is_there_before_an_occurrence_goes_out_and_once_however_often_it_is_tried() -> (
    None
):
    broker = Broker()
    kept: dict[str, Message] = {}

    async def schedule(message: Message) -> None:
        # The key alone decides, as in the engine: the first stays.
        assert message.any_repeat
        assert message.idempotency_key is not None
        kept.setdefault(message.idempotency_key, message)

    now_ms = 10_000
    outlet = DaprOutlet()
    outlet.open(lambda _app_id, _pubsub: broker, schedule, lambda: now_ms)
    headers = headers_of({}, "application/cloudevents+json", "R1/PT5S")
    first = Delivery(
        "id1", destination("app", "redis", "t"), b'{"id":"a","x":1}', headers, "k", "app", 9_000, 0, 1, "dapr"
    )
    broker.error = BrokerUnreachable("away")
    assert await outlet.send(first) == Retry("away")
    broker.error = None
    now_ms = 15_000
    assert await outlet.send(first) == Delivered()
    (following,) = kept.values()
    assert (following.due_at_ms, following.key) == (14_000, "k")
    assert following.headers["repeat"] == "R0/PT5S"
    assert b'"id":"a"' not in following.payload
    assert b'"x":1' in following.payload
    last = Delivery(
        "id2", following.destination, following.payload, following.headers, None, "app", 14_000, 0, 1, "dapr"
    )
    assert await outlet.send(last) == Delivered()
    assert len(kept) == 1


async def test_of_those_that_leave_together_each_that_repeats_is_followed() -> None:
    broker = Broker()
    kept: list[str | None] = []

    async def schedule(message: Message) -> None:
        if message.payload == b"b":
            raise Unavailable("the disk is full")
        kept.append(message.idempotency_key)

    outlet = DaprOutlet()
    outlet.open(lambda _app_id, _pubsub: broker, schedule, lambda: 0)
    headers = headers_of({}, "text/plain", "@every 5s")
    where = destination("app", "redis", "t")
    repeating = [Delivery(one, where, one.encode(), headers, None, "app", 0, 0, 1, "dapr") for one in "abc"]
    verdicts = await outlet.send_many([*repeating, due(b"d")])
    assert [type(verdict) for verdict in verdicts] == [Delivered, Retry, Delivered, Delivered]
    assert [data for _, data, _, _ in broker.calls[0]] == [b"a", b"c", b"d"]
    assert kept == ["repeat:a", "repeat:c"]


def test_what_is_no_event_is_repeated_as_it_is() -> None:
    """Its data may well have an id, which is the application's own."""
    data = b'{"id":"a"}'
    for type_ in ("application/json", ""):
        headers = headers_of({}, type_, "@every 5s")
        following = next_of(Delivery("1", "dapr://app/redis/t", data, headers, None, "app", 0, 0, 1), 0)
        assert following is not None
        assert following.payload == data


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(Unavailable("the disk is full"), Retry), (Invalid("payload", "is too large now"), Refused)],
)
async def test_an_occurrence_waits_while_what_follows_cannot_be_scheduled_and_fails_if_it_never_can(
    error: TarryError, verdict: type[Verdict]
) -> None:
    broker = Broker()

    async def refuse(_message: Message) -> None:
        raise error

    outlet = DaprOutlet()
    outlet.open(lambda _app_id, _pubsub: broker, refuse, lambda: 0)
    headers = headers_of({}, "text/plain", "@every 5s")
    said = await outlet.send(
        Delivery("1", destination("app", "redis", "t"), b"x", headers, None, "app", 0, 0, 1, "dapr")
    )
    assert type(said) is verdict
    assert not broker.calls


@pytest.mark.parametrize(
    "error", [None, Unavailable("the disk is full"), Invalid("ttl_ms", "odd"), OSError("a bug")]
)
async def test_what_is_bound_for_an_own_topic_is_handed_on_once_however_often_it_is_tried(
    error: Exception | None,
) -> None:
    kept: dict[str | None, Message] = {}

    async def schedule(message: Message) -> None:
        if error is not None:
            raise error
        assert kept.setdefault(message.idempotency_key, message) == message

    def find(_app_id: str, _pubsub: str) -> Any:
        return own

    class Own(Broker):
        component: Any = OwnTopicsComponent(
            None,  # type: ignore[arg-type]
            TopicName("public", "default", ""),
            at_once=1,
            again_after_ms=1,
        )

    own = Own()
    outlet = DaprOutlet()
    outlet.open(find, schedule, lambda: 10_000)
    headers = headers_of({"ttlInSeconds": "5", "partitionKey": "k", "x": "1"}, "text/plain")
    one = Delivery("id1", destination("app", "pubsub", "t"), b"x", headers, "k", "app", 9_000, 0, 1, "dapr")
    verdicts = [await outlet.send(one) for _ in range(2)]
    if error is None:
        assert verdicts == [Delivered()] * 2
        (message,) = kept.values()
        assert message.destination == "persistent://public/default/nst"
        assert (message.payload, message.key, message.ttl_ms, message.due_at_ms) == (b"x", "k", 5_000, 9_000)
        assert message.headers == {"x": "1", "content-type": "text/plain"}
    else:
        expected = Refused if isinstance(error, Invalid) else Retry
        assert verdicts == [expected(str(error))] * 2


def test_destinations_and_metadata_come_back_as_they_were() -> None:
    for parts in (("app", "pubsub", "t"), ("a b", "p/q", "x/y?z#%2F"), ("é", "ü", "ß")):
        assert target_of(destination(*parts)) == parts
    for bad in ("dapr://a/b", "dapr://a//c", "dapr://", "dapr://a/b/c/d"):
        with pytest.raises(Invalid):
            DaprOutlet().check(bad)
    metadata = {"ttlInSeconds": "5", "content-type": "mine"}
    headers = headers_of(metadata, "text/plain")
    assert metadata_of(headers) == metadata
    assert headers["content-type"] == "text/plain"
    outlet = DaprOutlet()
    assert outlet.order_key("dapr://a/b/c", "k") == outlet.order_key("dapr://a/b/c", "k") != None  # noqa: E711
    assert outlet.order_key("dapr://a/b/c", None) is None


async def test_a_scheduled_publish_reaches_a_component_that_is_not_ours(tmp_path: Path) -> None:
    folder = resources(tmp_path, {"name": "mem", "kind": "pubsub.in-memory", "enableDelayedMessaging": True})
    async with (
        app(to("t", pubsub="mem")) as shop,
        dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(folder)]) as doors,
    ):
        await ready(doors)
        answer = await doors.publish("t", {"n": 1}, pubsub="mem", scheduledSendTime=in_s(0.5), other="kept")
        shown = (await doors.served.client.get(f"/v1/messages/{answer.headers['tarry-message-id']}")).json()
        assert shown["destination"] == "dapr://app/mem/t"
        assert shown["headers"]["metadata.other"] == "kept"
        await shop.count(1)
        assert shop.data == [{"n": 1}]


@pytest.mark.parametrize("door_closed", [True, False])
async def test_without_its_door_or_its_component_a_message_waits_for_a_start_that_has_it(
    tmp_path: Path, door_closed: bool
) -> None:
    data = tmp_path / "data"
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    mem = {"name": "mem", "kind": "pubsub.in-memory", "enableDelayedMessaging": True}
    given = resources(tmp_path / "with", mem)
    other = resources(tmp_path / "without", mem | {"name": "other"})
    async with dapr(data, resources_path=[str(given)]) as doors:
        answer = await doors.publish("t", "kept", pubsub="mem", scheduledSendTime=in_s(0.5))
    path = f"/v1/messages/{answer.headers['tarry-message-id']}"

    async def stranded(served: Serving) -> None:
        await until(lambda: served.engine.stats().stranded == {"dapr": 1})
        view = (await served.client.get(path)).json()
        assert (view["state"], view["attempts"]) == ("scheduled", 0)
        ready = await served.client.get("/readyz")
        assert ready.status_code == 200
        assert ": 1" in ready.json()["warnings"][0]
        assert 'tarry_messages_stranded{outlet="dapr"} 1.0' in (await served.client.get("/metrics")).text

    if door_closed:
        async with serving(data) as served:
            await stranded(served)
    else:
        async with dapr(data, resources_path=[str(other)]) as doors:
            await stranded(doors.served)
    async with (
        app(to("t", pubsub="mem")) as shop,
        dapr(data, app_port=shop.port, resources_path=[str(given)]) as doors,
    ):
        await until(lambda: doors.served.engine.stats().stranded == {})
        view = (await doors.served.client.get(path)).json()
        assert view["state"] in ("scheduled", "sending", "sent")
        await until(lambda: doors.served.engine.stats().pending == 0)
        assert (await doors.served.client.get(path)).json()["state"] == "sent"


async def test_scopes_that_changed_while_it_waited_hold_when_it_is_due(tmp_path: Path) -> None:
    tarry = {"name": "pubsub", "kind": "pubsub.tarry", "enableDelayedMessaging": True}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = resources(tmp_path / "a", tarry | {"publishingScopes": "app=t,u"})
    after = resources(tmp_path / "b", tarry | {"publishingScopes": "app=u"})
    async with app(to("t"), to("u")) as shop:
        async with dapr(tmp_path / "data", resources_path=[str(before)]) as doors:
            first = await doors.publish("t", "forbidden", scheduledSendTime=in_s(1))
            await doors.publish("u", "allowed", scheduledSendTime=in_s(1))
        async with dapr(tmp_path / "data", app_port=shop.port, resources_path=[str(after)]) as doors:
            await shop.count(1)

            async def failed() -> bool:
                view = await doors.served.client.get(f"/v1/messages/{first.headers['tarry-message-id']}")
                return view.json()["state"] == "failed" and "not allowed" in view.json()["reason"]

            await until(failed)
            assert shop.data == ["allowed"]
