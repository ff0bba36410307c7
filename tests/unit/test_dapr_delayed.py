"""The delayed topic: what lies in it, who keeps it, and what becomes of what cannot be sent."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tarry.core.errors import DelayTooLong, Unavailable
from tarry.core.time.clock import SystemClock
from tarry.core.time.times import format_instant
from tarry.doors.dapr.components import ComponentDefinition
from tarry.doors.dapr.delayed import DelayedTopic, DueTimes
from tarry.doors.dapr.delayed_message import (
    Undecodable,
    WaitingMessage,
    decode,
    decode_entry,
    delayed_topic,
    encode,
    encode_entry,
)
from tarry.doors.dapr.mounting import Mounted
from tarry.outlets.dapr.component import BrokerMessage, BulkEntry, Component, Settlement
from tarry.outlets.dapr.errors import BrokerUnreachable, NeverTaken
from tests.unit.broker_kit import Inbox, made
from tests.unit.dapr_kit import dapr, in_s, resources
from tests.waiting import until

TIME = "2045-11-05T08:15:30-05:00"

# Names


def test_the_topic_belongs_to_the_application_or_to_it_and_its_namespace() -> None:
    assert delayed_topic("shop", None) == "shop-delayed"
    assert delayed_topic("shop", "eu") == "shopeu-delayed"


# The format

GOLDEN = bytes.fromhex(
    "0a0b73696e67756c6172697479"  # topic: singularity
    "12177b22657865637574652d6f72646572223a20223636227d"  # message
    "1a106170706c69636174696f6e2f6a736f6e"  # contentType
    "222e0a117363686564756c656453656e6454696d651219323034352d31312d30355430383a31353a33302d30353a3030"
)
"""The proposal's example, as any protobuf compiler encodes it."""

EXAMPLE = WaitingMessage(
    topic="singularity",
    message=b'{"execute-order": "66"}',
    content_type="application/json",
    metadata={},
    time=TIME,
    bulk=False,
)


def test_the_bytes_are_those_of_the_proposals_message() -> None:
    assert encode(EXAMPLE) == GOLDEN
    assert decode(GOLDEN) == EXAMPLE


def test_the_time_is_in_the_metadata_and_not_among_those_that_are_published() -> None:
    found = decode(
        encode(
            WaitingMessage(
                topic="t", message=b"", content_type="", metadata={"a": "b"}, time=TIME, bulk=False
            )
        )
    )
    assert found.metadata == {"a": "b"}
    assert found.time == TIME


def test_an_entry_of_a_bulk_is_the_json_that_go_writes() -> None:
    entry = BulkEntry(entry_id="1", data=b"\x00hi", content_type="text/plain", metadata={"k": "v"})
    assert json.loads(encode_entry(entry)) == {
        "entryId": "1", "event": "AGhp", "contentType": "text/plain", "metadata": {"k": "v"},
    }  # fmt: skip
    assert decode_entry(encode_entry(entry), {}) == entry
    loose = b'{"EntryID":"1","Event":"AGhp","metadata":null,"scheduledSendTime":"x"}'
    assert decode_entry(loose, {"of": "request"}) == BulkEntry(
        entry_id="1", data=b"\x00hi", metadata={"of": "request"}
    )


def test_the_time_of_an_entry_does_not_come_out_again() -> None:
    entry = BulkEntry(entry_id="1", data=b"", metadata={"scheduledSendTime": "PT1S", "k": "v"})
    assert decode_entry(encode_entry(entry), {}).metadata == {"k": "v"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}", "is no DelayedMessage"),
        (b"", "has no topic"),
        (GOLDEN[2:], "is no DelayedMessage"),
        (GOLDEN[:13], "has no metadata scheduledSendTime"),
        (GOLDEN + b"\x28\x01", "is no BulkMessageEntry"),
        (encode(WaitingMessage(topic="t", message=b'{"entryId":"","event":""}', content_type="", metadata={}, time=TIME,
                        bulk=True)), "without an entryId"),
        (encode(WaitingMessage(topic="t", message=b'{"entryId":"1","event":"!"}', content_type="", metadata={}, time=TIME,
                        bulk=True)), "is no BulkMessageEntry"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason):
        decode(data)


def test_instants_are_written_with_their_milliseconds() -> None:
    assert format_instant(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


# Taking and holding


class Taken:
    """Stands for the ledger."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.got: list[tuple[WaitingMessage, int, str | None]] = []

    async def __call__(self, delayed: WaitingMessage, at_ms: int, key: str | None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.got.append((delayed, at_ms, key))


def topic_on(component: Component, taken: Any = None, **properties: Any) -> DelayedTopic:
    definition = ComponentDefinition(name="pubsub", kind="pubsub.in-memory", delayed=True, **properties)
    mounted = Mounted(definition, component, "shop", "eu")
    return DelayedTopic(mounted, "shop", "eu", SystemClock(), taken or Taken())


def waiting(time: str, message: bytes = b'{"id":"1"}', *, topic: str = "orders", bulk: bool = False) -> bytes:
    return encode(
        WaitingMessage(
            topic=topic,
            message=message,
            content_type="application/json",
            metadata={"k": "v"},
            time=time,
            bulk=bulk,
        )
    )


async def test_a_foreign_message_is_taken_into_the_ledger_and_acknowledged() -> None:
    taken = Taken()
    topic = topic_on(made("pubsub.in-memory"), taken)
    reply = await topic.receive(BrokerMessage(topic=topic.name, data=waiting(TIME), position="7"))
    assert reply is Settlement.ACK
    ((delayed, at_ms, key),) = taken.got
    assert (delayed.topic, delayed.message, at_ms) == ("orders", b'{"id":"1"}', 2_393_500_530_000)
    assert key is not None


async def test_a_message_that_is_delivered_again_has_the_same_key_and_another_one_has_not() -> None:
    taken = Taken()
    topic = topic_on(made("pubsub.in-memory"), taken)
    raw = waiting(TIME, b"raw")
    cases: list[tuple[bytes, str | None]] = [
        (raw, "7"), (raw, "7"), (raw, "8"), (waiting(TIME), None), (waiting(TIME), None), (raw, None),
        (waiting(TIME, b'{"id":"1","data":2}'), None),
    ]  # fmt: skip
    for data, position in cases:
        await topic.receive(BrokerMessage(topic=topic.name, data=data, position=position))
    first, again, other, event, event_again, unknown, namesake = (key for _, _, key in taken.got)
    assert first == again != other
    assert event == event_again != first
    assert unknown is None, "two equal publishes without an id are two messages"
    assert namesake not in (None, event), "an id that was used for something else does not swallow it"


async def test_what_the_ledger_cannot_take_now_stays_in_the_topic_and_what_it_never_takes_is_buried() -> None:
    component = made("pubsub.in-memory")
    topic = topic_on(component, Taken(Unavailable("the disk is full"), DelayTooLong(5)))
    dead = Inbox()
    await component.subscribe("shop-delayed-dead", "operator", dead, {})
    received = BrokerMessage(topic=topic.name, data=waiting(TIME), position="7")
    assert await topic.receive(received) is Settlement.NACK
    assert await topic.receive(received) is Settlement.ACK
    assert await dead.expect(1) == [received.data]
    assert "exceeds the maximum" in dead.got[0].metadata["reason"]
    await component.close()


@pytest.mark.parametrize("data", [b"garbage", waiting("yesterday"), waiting("R5/PT30M"), waiting("PT30")])
async def test_what_cannot_be_read_goes_to_the_dead_letter_topic(data: bytes) -> None:
    component = made("pubsub.in-memory")
    topic = topic_on(component, dead_letter_topic="graves")
    dead = Inbox()
    await component.subscribe("graves", "operator", dead, {})
    await topic.start()
    await component.publish("shop-delayed", data, {})
    assert await dead.expect(1) == [data]
    assert dead.got[0].metadata["reason"]
    await topic.close()
    await component.close()


async def test_a_dead_letter_that_cannot_be_written_stays_where_it_is() -> None:
    component = made("pubsub.in-memory")
    topic = topic_on(component)
    await component.close()
    assert await topic.receive(BrokerMessage(topic=topic.name, data=b"garbage")) is Settlement.NACK


async def test_the_brokers_custody_holds_and_then_publishes() -> None:
    component = made("pubsub.in-memory")
    topic = topic_on(component, custody="broker")
    with pytest.raises(BrokerUnreachable, match="is not subscribed to yet"):
        await topic.publish("orders", b"one", "text/plain", {}, 0)
    inbox, watcher = Inbox(), Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    await component.subscribe("shop-delayed", "operator", watcher, {})
    await topic.start()
    clock = SystemClock()
    due_ms = clock.now_ms() + 300
    await topic.publish("orders", b"one", "text/plain", {"k": "v"}, due_ms)
    assert decode((await watcher.expect(1))[0]).time == format_instant(due_ms)
    assert await inbox.expect(1) == [b"one"]
    assert clock.now_ms() >= due_ms
    assert inbox.got[0].metadata == {"k": "v"}
    assert inbox.got[0].content_type == "text/plain"
    await topic.close()
    await component.close()


async def test_an_entry_of_a_bulk_is_fired_by_bulk_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    component: Any = made("pubsub.in-memory")
    topic = topic_on(component, custody="broker")
    bulks: list[Any] = []
    original = component.bulk_publish

    async def bulk_publish(at: str, entries: Any, metadata: Any) -> Any:
        bulks.append((at, entries, metadata))
        return await original(at, entries, metadata)

    monkeypatch.setattr(component, "bulk_publish", bulk_publish)
    await topic.start()
    entry = BulkEntry(entry_id="1", data=b"one", content_type="text/plain", metadata={"k": "v"})
    await topic.publish_entry("orders", entry, 0)
    await until(lambda: bulks)
    assert bulks == [("orders", [entry], {})]
    await topic.close()
    await component.close()


async def test_a_delay_becomes_an_instant_so_that_it_does_not_begin_anew() -> None:
    component = made("pubsub.in-memory")
    topic = topic_on(component, custody="broker")
    watcher = Inbox()
    await component.subscribe("shop-delayed", "operator", watcher, {})
    await topic.start()
    before_ms = SystemClock().now_ms()
    await component.publish("shop-delayed", waiting("PT1H"), {})
    rewritten = decode((await watcher.expect(2))[1])
    assert rewritten.time >= format_instant(before_ms + 3_600_000)
    assert rewritten.message == b'{"id":"1"}'
    await topic.close()
    await component.close()


async def test_held_messages_wait_for_a_broker_and_are_buried_if_it_never_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    component: Any = made("pubsub.in-memory")
    topic = topic_on(component, custody="broker")
    errors: list[Exception] = [BrokerUnreachable("away"), NeverTaken("too large")]
    dead = Inbox()
    await component.subscribe("shop-delayed-dead", "operator", dead, {})
    original = component.publish

    async def publish(at: str, *rest: Any, **how: Any) -> None:
        if at == "orders":
            raise errors.pop(0)
        await original(at, *rest, **how)

    monkeypatch.setattr(component, "publish", publish)
    await topic.start()
    await topic.publish("orders", b"one", "", {}, 0)
    await dead.expect(1)
    assert dead.got[0].metadata == {"reason": "too large"}
    assert errors == []
    await topic.close()
    await component.close()


@pytest.mark.parametrize("custody", ["ledger", "broker"])
async def test_a_topic_that_is_not_allowed_any_more(custody: str) -> None:
    component, taken = made("pubsub.in-memory"), Taken()
    topic = topic_on(component, taken, custody=custody, properties={"publishingScopes": "shop=invoices"})
    inbox, dead = Inbox(), Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    await component.subscribe("shop-delayed-dead", "operator", dead, {})
    assert await topic.receive(BrokerMessage(topic=topic.name, data=waiting("PT0S"))) is Settlement.ACK
    await dead.expect(1)
    assert inbox.got == []
    assert taken.got == []
    await component.close()


# Instants


class Clock:
    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def now_ms(self) -> int:
        return self.at_ms


async def test_nobody_is_woken_early_and_a_jump_of_the_clock_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.doors.dapr.delayed.LOOKED_AGAIN_S", 0.01)
    clock = Clock()
    times = DueTimes(clock)
    order: list[int] = []

    async def wait(at_ms: int) -> None:
        await times.reached(at_ms)
        assert clock.now_ms() >= at_ms
        order.append(at_ms)

    await times.reached(clock.at_ms)
    tasks = [asyncio.create_task(wait(clock.at_ms + after_ms)) for after_ms in (10_000, 5_000, 7_000)]
    await asyncio.sleep(0.05)
    assert order == []
    clock.at_ms += 7_000
    await asyncio.gather(*tasks[1:])
    assert order == [1_005_000, 1_007_000]
    clock.at_ms += 3_000
    await tasks[0]
    await times.close()


async def test_those_who_gave_up_leave_no_trace() -> None:
    times = DueTimes(Clock())
    tasks = [asyncio.create_task(times.reached(2_000_000 + number)) for number in range(100)]
    await asyncio.sleep(0)
    assert len(times._waiting) == 100
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert times._waiting == []
    await times.close()


# Through the door


async def test_foreign_messages_of_the_topic_go_through_the_ledger(tmp_path: Path) -> None:
    place = resources(
        tmp_path, {"name": "pubsub", "kind": "pubsub.in-memory", "enableDelayedMessaging": True}
    )
    async with dapr(tmp_path / "data", app_id="shop", resources_path=[str(place)]) as door:
        sidecar = door.door.sidecars["shop"]
        component = sidecar.mounts["pubsub"].component
        # A topic in memory keeps nothing for a subscription that comes later.
        await until(lambda: sidecar.publishing.delayed["pubsub"]._subscribed is not None)
        inbox = Inbox()
        await component.subscribe("orders", "reader", inbox, {})
        await component.publish("shop-delayed", waiting("PT0.2S", b"soon"), {})
        await component.publish("shop-delayed", waiting(TIME, b"later"), {})
        entry = encode_entry(BulkEntry(entry_id="1", data=b"of a bulk", metadata={"n": "1"}))
        await component.publish("shop-delayed", waiting("PT0S", entry, bulk=True), {})
        assert sorted(await inbox.expect(2)) == [b"of a bulk", b"soon"]
        assert {one.data: one.metadata for one in inbox.got} == {
            b"soon": {"k": "v"}, b"of a bulk": {"k": "v", "n": "1"},
        }  # fmt: skip
        await until(lambda: door.engine.stats().pending == 1)


async def test_the_brokers_custody_through_the_door(tmp_path: Path) -> None:
    place = resources(
        tmp_path,
        {
            "name": "pubsub", "kind": "pubsub.in-memory", "enableDelayedMessaging": True,
            "delayedMessagingCustody": "broker",
        },
    )  # fmt: skip
    async with dapr(tmp_path / "data", app_id="shop", resources_path=[str(place)]) as door:
        component = door.door.sidecars["shop"].mounts["pubsub"].component
        inbox, watcher = Inbox(), Inbox()
        await component.subscribe("orders", "reader", inbox, {})
        await component.subscribe("shop-delayed", "operator", watcher, {})
        answer = await door.publish("orders", {"n": 1}, scheduledSendTime=in_s(0.3))
        assert answer.status_code == 204
        bulk = await door.client.post(
            "/v1.0/publish/bulk/pubsub/orders",
            json=[
                {"entryId": "a", "event": "x", "contentType": "text/plain",
                 "metadata": {"scheduledSendTime": "PT0.3S"}},
                {"entryId": "b", "event": "y", "contentType": "text/plain"},
            ],
        )  # fmt: skip
        assert bulk.status_code == 204, bulk.text
        assert door.engine.stats().pending == 0, "the ledger has nothing to do with it"
        written = [decode(data) for data in await watcher.expect(2)]
        assert [one.bulk for one in written] == [False, True]
        assert [one.topic for one in written] == ["orders", "orders"]
        published = [json.loads(data)["data"] for data in await inbox.expect(3)]
        assert sorted(map(str, published)) == sorted(map(str, ("y", {"n": 1}, "x")))
        assert all("scheduledSendTime" not in one.metadata for one in inbox.got)


@pytest.mark.parametrize("where", ["component", "configuration"])
async def test_with_the_feature_off_there_is_no_delayed_topic(tmp_path: Path, where: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: c}\n"
        "spec: {features: [{name: DelayedMessaging, enabled: false}]}\n"
    )
    enabled = where == "configuration"
    place = resources(tmp_path, {"name": "pubsub", "kind": "pubsub.tarry", "enableDelayedMessaging": enabled})
    settings = {"config": str(config)} if enabled else {}
    async with dapr(tmp_path / "data", app_id="shop", resources_path=[str(place)], **settings) as door:
        assert (await door.publish("orders", {"n": 1})).status_code == 204
        assert (await door.publish("orders", {"n": 1}, scheduledSendTime=TIME)).status_code == 400
        assert door.engine.topics.names() == ["persistent://public/default/orders"]


async def test_with_the_feature_on_operators_find_the_topic(tmp_path: Path) -> None:
    place = resources(
        tmp_path,
        {
            "name": "pubsub",
            "kind": "pubsub.tarry",
            "enableDelayedMessaging": True,
            "consumerID": "{namespace}",
        },
    )
    async with dapr(tmp_path / "data", app_id="shop", namespace="eu", resources_path=[str(place)]) as door:
        await until(lambda: door.engine.topics.names() == ["persistent://public/default/shopeu-delayed"])
        sub = door.engine.topics.subscription("shopeu-delayed", "eu.shop")
        assert sub.durable
