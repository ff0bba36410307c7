"""Pulsar: messages and subscriptions are what Dapr's own component writes and makes.

On Tarry's Pulsar door, and with `-m soak` on a Pulsar standalone.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.errors import (
    BrokerUnreachable,
    ComponentError,
    Denied,
    Misconfigured,
    NeverTaken,
    TopicMissing,
)
from tests.conformance.dapr.brokers.apache_pulsar import PulsarServer, token
from tests.conformance.dapr.brokers.kinds import PulsarBroker
from tests.unit.broker_kit import Inbox, made
from tests.waiting import until

library = pytest.importorskip("pulsar")
from pulsar.asyncio import PulsarException  # noqa: E402 - only where the library is there

from tarry.outlets.dapr.brokers.pulsar import component_error  # noqa: E402


@pytest.fixture(params=["pulsar", pytest.param("apache_pulsar", marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest) -> PulsarBroker:
    """Each of the two."""
    found: PulsarBroker = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def raw(broker: PulsarBroker) -> Iterator[Any]:
    """A client that knows nothing of Dapr."""
    client = library.Client(
        f"pulsar://127.0.0.1:{broker.server.port}",
        authentication=library.AuthenticationToken(broker.token),
        logger=library.ConsoleLogger(library.LoggerLevel.Error),
    )
    yield client
    client.close()


async def test_a_published_message_is_as_dapr_writes_it(broker: PulsarBroker, raw: Any) -> None:
    topic = await broker.topic()
    reader = raw.create_reader(f"persistent://public/default/{topic}", library.MessageId.earliest)
    component = broker.component()
    await component.publish(
        topic, b'{"id":"1"}', {"partitionKey": "k", "a": "b", "empty": ""}, "application/json"
    )
    message = await asyncio.to_thread(reader.read_next, 20_000)
    assert message.data() == b'{"id":"1"}'
    assert message.partition_key() == "k"
    assert message.properties() == {"a": "b"}
    await component.close()


async def test_what_dapr_published_is_read(broker: PulsarBroker, raw: Any) -> None:
    topic = await broker.topic()
    producer = raw.create_producer(f"persistent://public/default/{topic}")
    producer.send(b"one", properties={"a": "b"}, partition_key="k")
    component, inbox = broker.component(subscribeInitialPosition="earliest"), Inbox()
    await component.subscribe(topic, "shop", inbox, {"subscribeType": "key_shared"})
    assert await inbox.expect(1) == [b"one"]
    assert inbox.got[0].metadata == {"a": "b", "partitionKey": "k"}
    await component.close()


async def test_pulsars_own_delays(broker: PulsarBroker) -> None:
    topic = await broker.topic()
    component, inbox = broker.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    began_s = time.monotonic()
    await component.publish(topic, b"later", {"deliverAfter": "800ms"})
    await component.publish(topic, b"past", {"deliverAt": "2020-01-01T00:00:00Z"})
    assert await inbox.expect(2) == [b"past", b"later"]
    assert time.monotonic() - began_s >= 0.79
    for wrong in ({"deliverAt": "soon"}, {"deliverAt": "2045-01-01T00:00:00"}, {"deliverAfter": "soon"}):
        with pytest.raises(NeverTaken, match=next(iter(wrong))):
            await component.publish(topic, b"never", wrong)
    await component.close()


async def test_one_at_a_time_keeps_the_order(broker: PulsarBroker) -> None:
    topic = await broker.topic()
    component, inbox = broker.component(processMode="sync", subscribeType="failover"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    for number in range(50):
        await component.publish(topic, b"%d" % number, {})
    assert await inbox.expect(50) == [b"%d" % number for number in range(50)]
    await component.close()


async def test_what_was_done_out_of_order_is_not_done_again(broker: PulsarBroker) -> None:
    """The first of several messages written together is held for ever: the others stay done for the next member."""
    topic = await broker.topic()
    component, heir = broker.component(), broker.component()
    never = asyncio.Event()
    done: list[bytes] = []

    async def receive(message: BrokerMessage) -> Settlement:
        if message.data == b"0":
            await never.wait()
        done.append(message.data)
        return Settlement.ACK

    await component.subscribe(topic, "shop", receive, {}, lasting=True, hold=True)
    data = [b"%d" % number for number in range(50)]
    await asyncio.gather(*(component.publish(topic, one, {}, lasting=True) for one in data))
    await until(lambda: len(done) == 49)
    await component.close()
    inbox = Inbox()
    await heir.publish(topic, b"new", {}, lasting=True)
    await heir.subscribe(topic, "shop", inbox, {}, lasting=True, hold=True)
    await inbox.expect_all({b"0", b"new"})
    await heir.close()
    assert sorted(inbox.data) == [b"0", b"new"]


async def test_what_must_last_is_shared_whatever_the_metadata_say(broker: PulsarBroker) -> None:
    """Instances of one application share its delayed topic."""
    topic = await broker.topic()
    component = broker.component(subscribeType="exclusive", processMode="sync")
    held, inbox = Inbox(hold=asyncio.Event()), Inbox()
    first = await component.subscribe(topic, "shop", held, {}, lasting=True, hold=True)
    await component.publish(topic, b"one", {}, lasting=True)
    await component.publish(topic, b"two", {}, lasting=True)
    await held.expect(2)
    await component.subscribe(topic, "shop", inbox, {}, lasting=True, hold=True)
    await first.close()
    await inbox.expect_all({b"one", b"two"})
    await component.close()


async def test_more_than_the_library_takes_at_a_time_waits_for_room(broker: PulsarBroker) -> None:
    topic = await broker.topic()
    component: Any = broker.component()
    component._settings.producer["max_pending_messages"] = 10
    inbox = Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    sent = {b"%d" % number for number in range(200)}
    await asyncio.gather(*(component.publish(topic, data, {}) for data in sent))
    await inbox.expect_all(sent)
    await component.close()


@pytest.mark.parametrize(
    ("result", "sent", "meant", "uncertain"),
    [
        (library.Result.Timeout, True, BrokerUnreachable, True),
        (library.Result.Timeout, False, Denied, None),
        (library.Result.ConnectError, False, BrokerUnreachable, False),
        (library.Result.AuthorizationError, True, Denied, None),
        (library.Result.TopicNotFound, False, TopicMissing, None),
        (library.Result.MessageTooBig, True, NeverTaken, None),
    ],
)
def test_what_failures_mean(
    result: Any, sent: bool, meant: type[ComponentError], uncertain: bool | None
) -> None:
    found = component_error(PulsarException(result), "t", sent=sent)
    assert type(found) is meant
    assert getattr(found, "uncertain", None) is uncertain


async def test_few_producers_serve_many_topics(broker: PulsarBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.outlets.dapr.brokers.pulsar.PRODUCERS", 2)
    component, inbox = broker.component(), Inbox()
    topics = [await broker.topic() for _ in range(4)]
    for topic in topics:
        await component.subscribe(topic, "shop", inbox, {})
    for topic in (*topics, *topics):
        await component.publish(topic, topic.encode(), {})
    assert sorted(await inbox.expect(8)) == sorted(topic.encode() for topic in topics * 2)
    await component.close()
    with pytest.raises(BrokerUnreachable, match="closed"):
        await component.publish("other", b"", {})


@pytest.fixture
def standalone(apache_pulsar: PulsarBroker) -> tuple[PulsarBroker, PulsarServer]:
    """A real standalone, which alone has an interface for its operators."""
    assert isinstance(apache_pulsar.server, PulsarServer)
    return apache_pulsar, apache_pulsar.server


@pytest.mark.soak
async def test_where_topics_are_not_made_they_must_exist(
    standalone: tuple[PulsarBroker, PulsarServer],
) -> None:
    broker, server = standalone
    await asyncio.to_thread(server.ask, "PUT", "/admin/v2/namespaces/public/closed")
    await asyncio.to_thread(
        server.ask,
        "POST",
        "/admin/v2/namespaces/public/closed/autoTopicCreation",
        {"allowAutoTopicCreation": False},
    )
    component, inbox = broker.component(namespace="closed"), Inbox()
    with pytest.raises(TopicMissing, match="shop-delayed"):
        await component.publish("shop-delayed", b"one", {}, lasting=True)
    with pytest.raises(TopicMissing, match="shop-delayed"):
        await component.subscribe("shop-delayed", "shop", inbox, {}, lasting=True, hold=True)
    await asyncio.to_thread(server.ask, "PUT", "/admin/v2/persistent/public/closed/shop-delayed")
    await component.subscribe("shop-delayed", "shop", inbox, {}, lasting=True, hold=True)
    await component.publish("shop-delayed", b"one", {}, lasting=True)
    assert await inbox.expect(1) == [b"one"]
    await component.close()


@pytest.mark.soak
async def test_a_topic_of_several_partitions(standalone: tuple[PulsarBroker, PulsarServer]) -> None:
    broker, server = standalone
    topic = await broker.topic()
    await asyncio.to_thread(server.ask, "PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", 4)
    component, inbox = broker.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    sent = {b"%d" % number for number in range(40)}
    for data in sent:
        await component.publish(topic, data, {}, lasting=True)
    await inbox.expect_all(sent)
    assert {message.topic for message in inbox.got} == {topic}
    places = {message.position for message in inbox.got}
    assert len(places) == 40
    assert len({str(place).split(":")[2] for place in places}) == 4
    await component.close()


@pytest.mark.soak
async def test_a_role_without_permissions_is_told_so(standalone: tuple[PulsarBroker, PulsarServer]) -> None:
    broker, _ = standalone
    component = broker.component(token=token("stranger"))
    with pytest.raises(Denied):
        await component.publish(await broker.topic(), b"one", {})
    with pytest.raises(Denied):
        await component.subscribe(await broker.topic(), "shop", Inbox(), {})
    await component.close()


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"host": ""}, "host"),
        ({"host": "ftp://a:1"}, "host"),
        ({"host": "a"}, "host"),
        ({"enableTLS": "maybe"}, "enableTLS"),
        ({"persistent": "maybe"}, "persistent"),
        ({"compressionType": "rar"}, "compressionType"),
        ({"subscribeType": "none"}, "subscribeType"),
        ({"subscribeMode": "non_durable"}, "subscribeMode"),
        ({"subscribeInitialPosition": "middle"}, "subscribeInitialPosition"),
        ({"redeliveryDelay": "soon"}, "redeliveryDelay"),
        ({"maxConcurrentHandlers": "0"}, "maxConcurrentHandlers"),
        ({"receiverQueueSize": "x"}, "receiverQueueSize"),
        ({"processMode": "x"}, "processMode"),
        ({"publicKey": "x"}, "publicKey"),
        ({"orders.avroschema": "{}"}, "orders.avroschema"),
        ({"topicsPattern": "x"}, "topicsPattern"),
    ],
)
def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.pulsar", {"host": "a:1"} | properties)
    assert refused.value.field == field
