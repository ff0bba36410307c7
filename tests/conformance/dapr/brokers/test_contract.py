"""The contract of every broker's component, on the real broker."""

import asyncio
import gc
import weakref

import pytest

from tarry.outlets.dapr.component import BulkEntry, Component, Settlement
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied
from tests.conformance.dapr.brokers.kinds import Broker
from tests.unit.broker_kit import Inbox
from tests.waiting import until


async def test_each_group_gets_each_message_and_in_a_group_one_member(broker: Broker) -> None:
    topic = await broker.topic()
    first, second = broker.component(**broker.patience), broker.component(**broker.patience)
    inboxes = Inbox(), Inbox(), Inbox()
    await first.start()
    await first.subscribe(topic, "shop", inboxes[0], {}, lasting=True)
    await second.subscribe(topic, "shop", inboxes[1], {}, lasting=True)
    await second.subscribe(topic, "audit", inboxes[2], {}, lasting=True)
    sent = {b"%d" % number for number in range(50)}
    for data in sent:
        await first.publish(topic, data, {})
    await inboxes[2].expect_all(sent)
    await until(lambda: {*inboxes[0].data, *inboxes[1].data} == sent)
    assert sorted(inboxes[0].data + inboxes[1].data) == sorted(sent)
    assert {message.topic for message in inboxes[2].got} == {topic}
    if broker.numbered:
        assert len({message.position for message in inboxes[2].got}) == len(sent)
    await first.close()
    await second.close()


async def test_bytes_come_out_as_they_went_in(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component()
    inbox = Inbox()
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    payloads = [b"", b"\x00\xff\r\n\x01", "größe ☃".encode(), b"x" * 900_000]
    for data in payloads:
        await component.publish(topic, data, {"ünïcode": "wért", "quote": '"\\<&>'})
    assert sorted(await inbox.expect(4)) == sorted(payloads)
    await component.close()


async def test_what_is_not_acknowledged_comes_again(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component()
    inbox = Inbox(Settlement.NACK, RuntimeError("the application is down"))
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    await component.publish(topic, b"one", {})
    assert await inbox.expect(3) == [b"one"] * 3
    assert len({message.position for message in inbox.got}) == 1
    await component.close()


async def test_a_bulk(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component()
    inbox = Inbox()
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    entries = [BulkEntry(entry_id=str(n), data=b"%d" % n) for n in range(600)]
    assert await component.bulk_publish(topic, entries, {}) == {}
    await inbox.expect_all({entry.data for entry in entries})
    await component.close()


async def test_what_was_with_a_receiver_at_the_end_comes_again(broker: Broker) -> None:
    topic = await broker.topic()
    component, heir = broker.component(), broker.component()
    held, inbox = Inbox(hold=asyncio.Event()), Inbox()
    await component.subscribe(topic, "shop", held, {}, lasting=True)
    await component.publish(topic, b"one", {}, lasting=True)
    await held.expect(1)
    await component.close()
    await heir.publish(topic, b"two", {}, lasting=True)
    await heir.subscribe(topic, "shop", inbox, {}, lasting=True)
    await inbox.expect_all({b"one", b"two"})
    await heir.close()


async def test_a_lasting_group_gets_what_came_before_it(broker: Broker) -> None:
    topic = await broker.topic()
    component, inbox = broker.component(), Inbox()
    if not broker.keeps_for_nobody:
        pytest.skip("RabbitMQ's exchanges keep nothing: who wants it must have a queue")
    await component.publish(topic, b"before", {}, lasting=True)
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    assert (await inbox.expect(1))[0] == b"before"
    await component.close()


async def test_held_past_the_deadline_and_the_prefetch_and_then_taken_over(broker: Broker) -> None:
    """The proposal: held without an acknowledgement; after a crash another instance consumes it."""
    topic = await broker.topic()
    component, heir = broker.component(**broker.patience), broker.component(**broker.patience)
    never = asyncio.Event()
    held, taken = Inbox(hold=never), Inbox(hold=never)
    await component.subscribe(topic, "shop", held, {}, lasting=True, hold=True)
    entries = [BulkEntry(entry_id=str(number), data=b"%d" % number) for number in range(1500)]
    assert await component.bulk_publish(topic, entries, {}) == {}
    sent = {entry.data for entry in entries}
    await held.expect_all(sent)
    await heir.subscribe(topic, "shop", taken, {}, lasting=True, hold=True)
    await asyncio.sleep(broker.deadline_s * 1.75)
    if broker.puts_deadlines_off:
        assert taken.got == []
        assert held.cancelled == 0
    await component.close()
    await taken.expect_all(sent)
    await heir.close()


async def test_a_closed_subscription_is_forgotten(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component()
    left = []
    for _ in range(2):
        inbox = Inbox()
        subscribed = await component.subscribe(topic, "shop", inbox, {})
        left.append(weakref.ref(inbox))
        await subscribed.close()
        await subscribed.close()
        del inbox, subscribed

    def forgotten() -> bool:
        # Libraries end their own tasks a little later.
        gc.collect()
        return [one() for one in left] == [None, None]

    await until(forgotten)
    await component.close()


async def test_a_broker_that_is_down_at_the_start(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component(**broker.elsewhere())
    with pytest.raises(BrokerUnreachable):
        await component.start()
    with pytest.raises(BrokerUnreachable) as refused:
        await component.publish(topic, b"one", {})
    assert not refused.value.uncertain
    with pytest.raises(BrokerUnreachable):
        await component.subscribe(topic, "shop", Inbox(), {})
    failed = await component.bulk_publish(topic, [BulkEntry(entry_id="a", data=b"")], {})
    assert isinstance(failed["a"], BrokerUnreachable)
    await component.close()


async def test_wrong_credentials(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component(**broker.wrong_credentials())
    with pytest.raises(Denied) as refused:
        await component.start()
    assert "guess" not in str(refused.value)
    with pytest.raises(Denied):
        await component.publish(topic, b"one", {})
    await component.close()


async def publish_surely(component: Component, topic: str, data: bytes) -> None:
    """As the engine does it: again until it is taken."""
    while True:
        try:
            await component.publish(topic, data, {}, lasting=True)
            return
        except ComponentError:
            await asyncio.sleep(0.05)


async def test_a_broker_that_is_killed_and_comes_back_loses_nothing(broker: Broker) -> None:
    topic = await broker.topic()
    component = broker.component()
    inbox, holder = Inbox(), Inbox(hold=asyncio.Event())
    await component.subscribe(topic, "shop", inbox, {}, lasting=True)
    await component.subscribe(topic, "late", holder, {}, lasting=True, hold=True)
    sent = {b"%d" % number for number in range(200)}
    publishing = asyncio.gather(*(publish_surely(component, topic, data) for data in sorted(sent)[:100]))
    await inbox.expect(1)
    await asyncio.to_thread(broker.server.kill)
    later = asyncio.gather(*(publish_surely(component, topic, data) for data in sorted(sent)[100:]))
    await asyncio.to_thread(broker.server.start)
    await publishing
    await later
    await inbox.expect_all(sent)
    await holder.expect_all(sent)
    await component.close()
