"""`pubsub.in-memory` and `pubsub.tarry`: the components that need no broker."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tarry.doors.dapr.own_topics import EngineTopics
from tarry.outlets.dapr.component import BulkEntry, Component, Feature, Settlement
from tarry.outlets.dapr.errors import BrokerUnreachable, Misconfigured, NeverTaken
from tests.serving import Serving, serving
from tests.unit.broker_kit import Inbox, made
from tests.waiting import until


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as started:
        yield started


@pytest.fixture(params=["pubsub.in-memory", "pubsub.tarry"])
async def component(request: pytest.FixtureRequest, server: Serving) -> AsyncIterator[Component]:
    one = made(request.param, {"redeliveryDelay": "10ms"}, EngineTopics(server.engine))
    await one.start()
    yield one
    await one.close()


async def test_a_message_goes_to_each_group_and_there_to_one(component: Component) -> None:
    first, second, other = Inbox(), Inbox(), Inbox()
    # In memory only those that last are groups.
    await component.subscribe("orders", "shop", first, {}, lasting=True)
    await component.subscribe("orders", "shop", second, {}, lasting=True)
    await component.subscribe("orders", "audit", other, {}, lasting=True)
    for number in range(20):
        await component.publish("orders", b"%d" % number, {"a": "b"}, "text/plain")
    await other.expect(20)
    await until(lambda: len(first.got) + len(second.got) == 20)
    assert sorted(first.data + second.data) == sorted(other.data)
    assert other.got[0].metadata["a"] == "b"
    assert other.got[0].content_type == "text/plain"
    assert other.got[0].topic == "orders"


async def test_a_message_that_is_not_taken_comes_again_after_growing_waits(server: Serving) -> None:
    component = made("pubsub.tarry", {"redeliveryDelay": "10ms"}, EngineTopics(server.engine))
    await component.start()
    inbox = Inbox(*[Settlement.NACK] * 5)
    await component.subscribe("orders", "shop", inbox, {})
    began = time.monotonic()
    await component.publish("orders", b"no", {})
    await inbox.expect(6)
    assert time.monotonic() - began >= 0.310, "10, 20, 40, 80 and 160 ms"
    await component.close()


async def test_in_memory_every_subscription_gets_every_message() -> None:
    """As in Dapr: an application's stream and its programmatic subscription do not share."""
    component = made("pubsub.in-memory")
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        await component.subscribe("orders", "shop", inbox, {})
    for number in range(20):
        await component.publish("orders", b"%d" % number, {})
    for inbox in inboxes:
        assert sorted(await inbox.expect(20)) == sorted(b"%d" % number for number in range(20))
    await component.close()


async def test_other_topics_are_other_topics(component: Component) -> None:
    inbox = Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    await component.publish("invoices", b"no", {})
    await component.publish("orders", b"yes", {})
    assert await inbox.expect(1) == [b"yes"]


async def test_what_is_not_acknowledged_comes_again(component: Component) -> None:
    inbox = Inbox(Settlement.NACK, RuntimeError("the application is down"))
    await component.subscribe("orders", "shop", inbox, {})
    await component.publish("orders", b"one", {})
    assert await inbox.expect(3) == [b"one"] * 3
    assert len({message.position for message in inbox.got}) == 1


async def test_a_bulk(component: Component) -> None:
    inbox = Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    entries = [BulkEntry(entry_id=str(n), data=b"%d" % n, metadata={"n": str(n)}) for n in range(5)]
    assert await component.bulk_publish("orders", entries, {}) == {}
    assert sorted(await inbox.expect(5)) == [b"0", b"1", b"2", b"3", b"4"]
    assert {message.metadata["n"] for message in inbox.got} == set("01234")


async def test_what_a_closed_subscription_held_goes_to_another_of_its_group(component: Component) -> None:
    inbox, heir = Inbox(hold=asyncio.Event()), Inbox()
    leaving = await component.subscribe("orders", "shop", inbox, {}, hold=True, lasting=True)
    for number in range(300):
        await component.publish("orders", b"%d" % number, {})
    await inbox.expect(300)
    await component.subscribe("orders", "shop", heir, {}, lasting=True)
    await leaving.close()
    await leaving.close()
    assert sorted(await heir.expect(300)) == sorted(inbox.data)
    assert inbox.cancelled == 300


async def test_a_closed_subscription_is_forgotten(component: Component) -> None:
    """Streams come and go for as long as a server runs."""
    left: list[weakref.ref[Any]] = []
    for number in range(3):
        inbox = Inbox()
        subscribed = await component.subscribe(f"t{number}", "shop", inbox, {})
        await component.publish(f"t{number}", b"x", {})
        await inbox.expect(1)
        left += [weakref.ref(inbox), weakref.ref(subscribed)]
        await subscribed.close()
        await subscribed.close()
        del inbox, subscribed
    gc.collect()
    assert [one() for one in left] == [None] * 6


async def test_nothing_is_published_by_a_closed_in_memory_component() -> None:
    component = made("pubsub.in-memory")
    await component.close()
    with pytest.raises(BrokerUnreachable):
        await component.publish("orders", b"one", {})


async def test_in_memory_gives_up_after_ten_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.outlets.dapr.brokers.in_memory.RETRY_S", 0.001)
    component = made("pubsub.in-memory")
    inbox = Inbox(*[Settlement.NACK] * 10)
    await component.subscribe("orders", "shop", inbox, {})
    await component.publish("orders", b"bad", {})
    await inbox.expect(10)
    await component.publish("orders", b"good", {})
    assert await inbox.expect(11) == [b"bad"] * 10 + [b"good"]
    await component.close()


async def test_own_topics_keep_messages_for_a_group_that_comes_later_and_through_a_restart(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "data") as server:
        component = made("pubsub.tarry", {}, EngineTopics(server.engine))
        held = Inbox(hold=asyncio.Event())
        await component.publish("orders", b"one", {})
        await component.subscribe("orders", "shop", held, {})
        await held.expect(1)
        await component.publish("orders", b"two", {"partitionKey": "k", "ttlInSeconds": "600"})
        await component.close()
    async with serving(tmp_path / "data") as server:
        component = made("pubsub.tarry", {}, EngineTopics(server.engine))
        inbox = Inbox()
        await component.subscribe("orders", "shop", inbox, {})
        assert sorted(await inbox.expect(2)) == [b"one", b"two"]
        assert [message.metadata for message in inbox.got if message.data == b"two"] == [
            {"partitionKey": "k"}
        ]
        await component.close()


async def test_where_own_topics_are(server: Serving) -> None:
    component = made("pubsub.tarry", {"tenant": "acme", "namespace": "eu"}, EngineTopics(server.engine))
    await component.publish("a/b 100%", b"one", {})
    assert server.engine.topics.names() == ["persistent://acme/eu/a%2Fb 100%25"]
    inbox = Inbox()
    await component.subscribe("a/b 100%", "shop", inbox, {})
    await inbox.expect(1)
    assert inbox.got[0].topic == "a/b 100%"
    await component.close()


async def test_what_own_topics_never_take(server: Serving) -> None:
    component = made("pubsub.tarry", {}, EngineTopics(server.engine))
    with pytest.raises(NeverTaken, match="larger than"):
        await component.publish("orders", b"x" * (5 * 1024 * 1024 + 1), {})
    with pytest.raises(NeverTaken):
        await component.publish("bad\x00name", b"x", {})
    with pytest.raises(NeverTaken):
        await component.subscribe("orders", "a/b", Inbox(), {})
    failed = await component.bulk_publish(
        "orders", [BulkEntry(entry_id="a", data=b"", metadata={"k": "v" * 20_000})], {}
    )
    assert list(failed) == ["a"]
    assert all(server.engine.topics.stats(name).next_entry == 0 for name in server.engine.topics.names())


async def test_own_topics_expire_messages_by_themselves(server: Serving) -> None:
    component = made("pubsub.tarry", {}, EngineTopics(server.engine))
    assert component.features == {Feature.MESSAGE_TTL, Feature.BULK_PUBSUB}


def test_own_topics_need_a_server_and_proper_names(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"type: pubsub\.tarry works only inside a Tarry server"):
        made("pubsub.tarry")


async def test_names_of_tenant_and_namespace_are_checked(server: Serving) -> None:
    topics = EngineTopics(server.engine)
    for field in ("tenant", "namespace"):
        with pytest.raises(Misconfigured, match=f"{field}: a tenant or namespace holds"):
            made("pubsub.tarry", {field: "a/b"}, topics)


async def test_a_subscription_whose_topic_is_deleted_gets_what_comes_to_the_next_of_its_name(
    server: Serving,
) -> None:
    component = made("pubsub.tarry", {}, EngineTopics(server.engine))
    release = asyncio.Event()
    inbox = Inbox(hold=release)
    await component.subscribe("orders", "shop", inbox, {})
    await component.publish("orders", b"old", {})
    await inbox.expect(1)
    await server.engine.topics.delete("orders")
    # What the receiver says of the old message is not said of the new one, which has its entry id.
    await component.publish("orders", b"new", {})
    release.set()
    assert await inbox.expect(2) == [b"old", b"new"]
    sub = server.engine.topics.subscription("orders", "shop")
    await until(lambda: sub.backlog == 0)
    await component.publish("orders", b"newer", {})
    assert (await inbox.expect(3))[-1] == b"newer"
    await component.close()
    assert not sub.consumers
