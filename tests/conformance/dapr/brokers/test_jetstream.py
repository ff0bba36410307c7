"""JetStream: messages and consumers are what Dapr's own component writes and makes."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tarry.outlets.dapr.brokers.jetstream.link import NatsLink
from tarry.outlets.dapr.component import Settlement
from tarry.outlets.dapr.errors import Misconfigured, NeverTaken, TopicMissing
from tarry.outlets.dapr.properties import Properties
from tests.conformance.dapr.brokers.kinds import Broker
from tests.conformance.dapr.brokers.servers import NatsServer
from tests.unit.broker_kit import Inbox, made
from tests.unit.dapr_kit import Doors, dapr, resources
from tests.waiting import until


@pytest.fixture
async def raw(jetstream: Broker) -> AsyncIterator[JetStreamContext]:
    """A client that knows nothing of Dapr."""
    client = await nats.connect(f"nats://127.0.0.1:{jetstream.server.port}", token=NatsServer.TOKEN)
    yield client.jetstream()
    await client.close()


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (b'{"specversion":"1.0","id":"a1","data":{"id":"inner"}}', {"Nats-Msg-Id": "a1"}),
        (b'{"id":""}', None),
        (b'{"id":5}', None),
        (b'{"data":1}', None),
        (b"raw \xff", None),
        (b"[1]", None),
    ],
)
async def test_a_published_message_is_as_dapr_writes_it(
    jetstream: Broker, raw: JetStreamContext, data: bytes, headers: dict[str, str] | None
) -> None:
    topic = await jetstream.topic()
    component = jetstream.component()
    await component.publish(topic, data, {"ttlInSeconds": "5"}, "application/json")
    message = await raw.get_msg(topic, 1)
    assert (message.subject, message.data, message.headers or None) == (topic, data, headers)
    await component.close()


async def test_the_stream_drops_what_is_published_again(jetstream: Broker, raw: JetStreamContext) -> None:
    topic = await jetstream.topic()
    component = jetstream.component()
    for _ in range(3):
        await component.publish(topic, b'{"id":"once"}', {})
    assert (await raw.stream_info(topic)).state.messages == 1
    await component.close()


async def test_the_consumer_is_the_one_that_dapr_makes(jetstream: Broker, raw: JetStreamContext) -> None:
    topic = await jetstream.topic()
    component = jetstream.component(
        durableName="shop", queueGroupName="shops", ackWait="7s", maxDeliver="5", maxAckPending="50"
    )
    await component.subscribe(topic, "ignored", Inbox(), {})
    config = (await raw.consumer_info(topic, "shop")).config
    assert config.deliver_subject is not None
    assert config.deliver_subject.startswith("_INBOX.")
    assert (config.durable_name, config.deliver_group, config.filter_subject) == ("shop", "shops", topic)
    assert (config.deliver_policy, config.ack_policy) == (DeliverPolicy.ALL, AckPolicy.EXPLICIT)
    assert (config.ack_wait, config.max_deliver, config.max_ack_pending) == (7, 5, 50)
    await component.close()


async def test_a_consumer_that_dapr_made_is_shared_in_its_queue_group(
    jetstream: Broker, raw: JetStreamContext
) -> None:
    topic = await jetstream.topic()
    theirs: list[bytes] = []
    inbox = raw._nc.new_inbox()
    await raw.add_consumer(
        topic,
        ConsumerConfig(
            durable_name="shop", deliver_group="shops", deliver_subject=inbox, filter_subject=topic
        ),
    )

    async def take(message: Any) -> None:
        theirs.append(message.data)
        await message.ack()

    await raw._nc.subscribe(inbox, queue="shops", cb=take)
    component, ours = jetstream.component(durableName="shop", queueGroupName="shops"), Inbox()
    await component.subscribe(topic, "shop", ours, {})
    sent = {b"%d" % number for number in range(200)}
    for data in sent:
        await raw.publish(topic, data)
    await until(lambda: len(theirs) + len(ours.data) >= 200)
    assert sorted(theirs + ours.data) == sorted(sent)
    assert theirs
    assert ours.got[0].metadata == {"Topic": topic}
    await component.close()


async def test_a_durable_consumer_goes_on_where_it_was(jetstream: Broker) -> None:
    topic = await jetstream.topic()
    first, second = jetstream.component(durableName="shop"), jetstream.component(durableName="shop")
    one, two = Inbox(), Inbox()
    await first.subscribe(topic, "shop", one, {})
    await first.publish(topic, b"1", {})
    await one.expect(1)
    await first.close()
    await second.publish(topic, b"2", {})
    await second.subscribe(topic, "shop", two, {})
    assert await two.expect(1) == [b"2"]
    await second.close()


async def test_one_at_a_time_keeps_the_order(jetstream: Broker) -> None:
    topic = await jetstream.topic()
    component, inbox = jetstream.component(ackWait="30s"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    for number in range(50):
        await component.publish(topic, b"%d" % number, {})
    assert await inbox.expect(50) == [b"%d" % number for number in range(50)]
    await component.close()


async def test_without_acknowledgements_nothing_comes_again(jetstream: Broker) -> None:
    topic = await jetstream.topic()
    component, inbox = jetstream.component(ackPolicy="none", concurrency="parallel"), Inbox(Settlement.NACK)
    await component.subscribe(topic, "shop", inbox, {})
    await component.publish(topic, b"one", {})
    await component.publish(topic, b"two", {})
    assert sorted(await inbox.expect(2)) == [b"one", b"two"]
    await component.close()


async def test_a_topic_without_a_stream_is_refused(jetstream: Broker) -> None:
    component = jetstream.component()
    with pytest.raises(TopicMissing, match="no stream has the subject nowhere; make one"):
        await component.publish("nowhere", b"one", {})
    with pytest.raises(TopicMissing, match="no stream has the subject nowhere"):
        await component.subscribe("nowhere", "shop", Inbox(), {})
    await component.close()


async def test_what_nats_never_takes(jetstream: Broker) -> None:
    component = jetstream.component()
    with pytest.raises(NeverTaken):
        await component.publish(await jetstream.topic(), b"x" * 1_100_000, {})
    await component.close()


async def test_a_consumer_that_is_gone_is_made_again(
    jetstream: Broker, raw: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.outlets.dapr.brokers.jetstream.member.LOOKED_AFTER_S", 0.1)
    topic = await jetstream.topic()
    component, inbox = jetstream.component(durableName="shop"), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    await raw.delete_consumer(topic, "shop")
    await component.publish(topic, b"one", {})
    assert (await inbox.expect(1))[0] == b"one"
    await component.close()


async def test_a_client_that_was_away_too_long_gives_up_what_it_held(jetstream: Broker) -> None:
    """Others may have it by then."""
    topic = await jetstream.topic()
    component, held = jetstream.component(), Inbox(hold=asyncio.Event())
    await component.subscribe(topic, "shop", held, {}, lasting=True, hold=True)
    await component.publish(topic, b"one", {})
    await held.expect(1)
    await asyncio.to_thread(jetstream.server.kill)
    await until(lambda: held.cancelled == 1)
    await asyncio.to_thread(jetstream.server.start)
    assert await held.expect(2) == [b"one", b"one"]
    await component.close()


async def test_what_comes_again_while_it_is_held_is_still_held_once(jetstream: Broker) -> None:
    """The server gives a message out again whose acknowledgement is late; its receiver is still at work."""
    topic = await jetstream.topic()
    component, inbox = jetstream.component(**jetstream.patience), Inbox(hold=asyncio.Event())
    membership: Any = await component.subscribe(topic, "shop", inbox, {}, lasting=True, hold=True)
    member = membership.subscribed
    await component.publish(topic, b"held", {}, lasting=True)
    await inbox.expect(1)
    # A refusal behind the receiver's back: to the server that is what a lost word comes to.
    (message,) = member._held.values()
    await message.nak()
    await until(lambda: [one for one in member._held.values() if one is not message])
    assert inbox.data == [b"held"]
    await component.close()


async def test_what_a_member_held_when_it_left_comes_at_once(jetstream: Broker) -> None:
    """Long before the server's deadline for it."""
    topic = await jetstream.topic()
    component, heir = jetstream.component(ackWait="1h"), jetstream.component(ackWait="1h")
    held, inbox = Inbox(hold=asyncio.Event()), Inbox()
    await component.subscribe(topic, "shop", held, {}, lasting=True, hold=True)
    await component.publish(topic, b"one", {}, lasting=True)
    await held.expect(1)
    await heir.subscribe(topic, "shop", inbox, {}, lasting=True, hold=True)
    await component.close()
    assert await inbox.expect(1) == [b"one"]
    await heir.close()


@pytest.mark.parametrize("custody", ["ledger", "broker"])
async def test_where_topics_are_not_made_the_delayed_topic_must_exist_and_that_is_said(
    jetstream: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture, custody: str
) -> None:
    topic = await jetstream.topic()
    place = resources(
        tmp_path,
        {
            "name": "pubsub",
            "kind": "pubsub.jetstream",
            "enableDelayedMessaging": True,
            "delayedMessagingCustody": custody,
            **jetstream.properties(),
        },
    )
    component, inbox = jetstream.component(), Inbox()
    await component.subscribe(topic, "shop", inbox, {})
    async with dapr(tmp_path / "data", app_id="nostream", resources_path=[str(place)]) as door:
        await until(lambda: "no stream has the subject nostream-delayed; make one" in caplog.text)
        answer = await door.publish(topic, {"n": 1}, scheduledSendTime="PT0.2S")
        if custody == "ledger":
            assert answer.status_code == 204, "the ledger needs no topic"
            await inbox.expect(1)
        else:
            assert answer.status_code == 500
            assert "no stream has the subject nostream-delayed; make one" in answer.text
            await jetstream.topic("nostream-delayed")
            await until(lambda: _published(door, topic))
            await inbox.expect(1)
    await component.close()


async def _published(door: Doors, topic: str) -> bool:
    answer = await door.publish(topic, {"n": 1}, scheduledSendTime="PT0.2S")
    return answer.status_code == 204


def test_a_nonce_is_signed_with_the_seed() -> None:
    key = Ed25519PrivateKey.generate()
    seed = base64.b32encode(b"\x95\x00" + key.private_bytes_raw() + b"\x00\x00").decode().rstrip("=")
    link = NatsLink(Properties({"natsURL": "nats://a", "jwt": "token", "seedKey": seed}))
    signature = base64.b64decode(link._options["signature_cb"]("nonce"))
    key.public_key().verify(signature, b"nonce")
    assert link._options["user_jwt_cb"]() == b"token"


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"natsURL": ""}, "natsURL"),
        ({"jwt": "x"}, "seedKey"),
        ({"seedKey": "x"}, "jwt"),
        ({"jwt": "x", "seedKey": "!"}, "seedKey"),
        ({"tls_client_cert": "x"}, "tls_client_key"),
        ({"tls_client_key": "x"}, "tls_client_cert"),
        ({"deliverPolicy": "some"}, "deliverPolicy"),
        ({"ackPolicy": "some"}, "ackPolicy"),
        ({"ackWait": "soon"}, "ackWait"),
        ({"maxDeliver": "x"}, "maxDeliver"),
        ({"backOff": "1s, soon"}, "backOff"),
        ({"concurrency": "double"}, "concurrency"),
        ({"flowControl": "maybe"}, "flowControl"),
    ],
)
def test_wrong_metadata(properties: dict[str, str], field: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        made("pubsub.jetstream", {"natsURL": "nats://a"} | properties)
    assert refused.value.field == field
