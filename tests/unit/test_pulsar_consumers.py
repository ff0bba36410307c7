"""Consumers of the Pulsar door, without I/O: permits, types, redelivery, delays, figures and bounds."""

from typing import Any

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID
from tests.unit.pulsar_kit import (
    ALL,
    IN_ORDER,
    TOPIC,
    Client,
    Desk,
    Sub,
    Type,
    filled,
    ids,
    payload_of,
    place,
)

HOUR_MS = 3_600_000


@pytest.mark.parametrize("type_", ALL)
def test_permits_are_what_is_given(type_: Any) -> None:
    desk = Desk()
    filled(desk, 10)
    client = desk.client()
    client.subscribe(type_=type_, permits=4)
    assert ids(client) == [0, 1, 2, 3]
    client.flow(3)
    assert ids(client) == [4, 5, 6]


@pytest.mark.parametrize("type_", ALL)
def test_permits_count_the_messages_of_a_batch(type_: Any) -> None:
    desk = Desk()
    filled(desk, 10, num_messages_in_batch=10)
    client = desk.client()
    client.subscribe(type_=type_, permits=25)
    assert ids(client) == [0, 1, 2]
    client.flow(5)
    assert ids(client) == []
    client.flow(1)
    assert ids(client) == [3]


def test_redelivery_counts() -> None:
    desk = Desk()
    filled(desk, 3)
    client = desk.client()
    client.subscribe()
    client.take(Type.MESSAGE)
    redeliver = wire.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[place(1)])
    client.tell(type=Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=redeliver)
    (again,) = client.take(Type.MESSAGE)
    assert (again.message.message_id.entryId, again.message.redelivery_count) == (1, 1)
    everything = wire.CommandRedeliverUnacknowledgedMessages(consumer_id=1, consumer_epoch=4)
    client.tell(type=Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=everything)
    told = [
        (one.message.message_id.entryId, one.message.redelivery_count, one.message.consumer_epoch)
        for one in client.take(Type.MESSAGE)
    ]
    assert told == [(0, 1, 4), (1, 2, 4), (2, 1, 4)]


def test_what_a_lost_consumer_held_goes_to_another() -> None:
    desk = Desk()
    filled(desk, 3)
    first, second = desk.client(), desk.client()
    first.subscribe()
    second.subscribe()
    assert ids(second) == []
    first.connection.lost()
    assert ids(second) == [0, 1, 2]


def test_failover_tells_who_is_active() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    first.subscribe(type_=Sub.Failover, consumer_name="a", permits=0)
    second.subscribe(type_=Sub.Failover, consumer_name="b", permits=0)

    def active(client: Client) -> list[bool]:
        return [one.active_consumer_change.is_active for one in client.take(Type.ACTIVE_CONSUMER_CHANGE)]

    # Not right behind the answer to SUBSCRIBE, which a client may be still at.
    assert (active(first), active(second)) == ([], [])
    first.flow(1)
    second.flow(1)
    assert (active(first), active(second)) == ([True], [False])
    second.flow(1)
    assert active(second) == []
    first.connection.lost()
    assert active(second) == [True]


def test_a_failover_consumer_that_took_over_before_its_first_permits_is_told_once() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    first.subscribe(type_=Sub.Failover, consumer_name="a")
    second.subscribe(type_=Sub.Failover, consumer_name="b", permits=0)
    first.connection.lost()
    second.flow(1)
    changes = second.take(Type.ACTIVE_CONSUMER_CHANGE)
    assert [one.active_consumer_change.is_active for one in changes] == [True]


def test_of_shared_consumers_the_first_priority_comes_first() -> None:
    desk = Desk()
    filled(desk, 6)
    second, first = desk.client(), desk.client()
    second.subscribe(priority_level=1, permits=0)
    first.subscribe(priority_level=0, permits=0)
    first.flow(4)
    second.flow(4)
    assert ids(first) == [0, 1, 2, 3]
    assert ids(second) == [4, 5]


def test_a_subscription_has_one_type_at_a_time() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    first.subscribe(type_=Sub.Exclusive)
    assert second.subscribe(type_=Sub.Exclusive, permits=0).error.error == Code.ConsumerBusy
    assert second.subscribe(type_=Sub.Shared, permits=0).error.error == Code.ConsumerBusy
    first.connection.lost()
    assert second.subscribe(type_=Sub.Shared, permits=0).type == Type.SUCCESS


@pytest.mark.parametrize("type_", ALL)
def test_delays_count_where_they_should(type_: Any) -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe(type_=type_)
    filled(desk, 2, deliver_at_time=desk.bench.now_ms + HOUR_MS)
    assert ids(client) == ([0, 1] if type_ in IN_ORDER else [])
    desk.bench.wait(HOUR_MS - 1)
    assert ids(client) == []
    desk.bench.wait(1)
    assert ids(client) == ([] if type_ in IN_ORDER else [0, 1])


def test_delays_in_order_by_choice() -> None:
    desk = Desk(honour_delay_in_order=True)
    client = desk.client()
    client.subscribe(type_=Sub.Exclusive)
    writer = desk.client()
    writer.produce()
    due_ms = desk.bench.now_ms + 1_000
    for sequence, due in enumerate((0, due_ms, 0, due_ms + 1, 0)):
        writer.send(sequence, b"%d" % sequence, deliver_at_time=due)
    assert ids(client) == [0, 2, 4]
    client.ack(4, cumulative=True)
    desk.bench.wait(1_000)
    assert ids(client) == [1]
    # What waits is not meant by an acknowledgement of all before it, and what is given is.
    client.ack(4, cumulative=True)
    desk.bench.wait(1)
    assert ids(client) == [3]
    client.connection.lost()
    again = desk.client()
    again.subscribe(type_=Sub.Exclusive)
    assert ids(again) == [3]


def test_the_last_message_id() -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe()

    def last() -> wire.MessageIdData:
        asked = wire.CommandGetLastMessageId(consumer_id=1, request_id=3)
        answer = client.ask(type=Type.GET_LAST_MESSAGE_ID, getLastMessageId=asked)
        return answer.getLastMessageIdResponse.last_message_id

    assert last().entryId == NO_ID
    filled(desk, 2)
    assert (last().entryId, last().batch_index) == (1, -1)
    writer = desk.client()
    writer.produce()
    writer.send(0, num_messages_in_batch=5)
    assert (last().entryId, last().batch_index) == (2, 4)


def test_figures_of_a_consumer() -> None:
    desk = Desk()
    filled(desk, 5)
    client = desk.client()
    client.subscribe(permits=3, consumer_name="me")
    asked = wire.CommandConsumerStats(consumer_id=1, request_id=3)
    stats = client.ask(type=Type.CONSUMER_STATS, consumerStats=asked).consumerStatsResponse
    assert (stats.consumerName, stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (
        "me",
        0,
        3,
        5,
    )
    asked.consumer_id = 8
    stats = client.ask(type=Type.CONSUMER_STATS, consumerStats=asked).consumerStatsResponse
    assert stats.error_code == Code.ConsumerNotFound


def test_what_another_door_took_in_is_a_message_too() -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe()
    desk.bench.publish("t", b"published", headers={"a": "b"}, key="k")
    desk.bench.schedule("t", payload=b"scheduled", delay_ms=5)
    desk.bench.wait(5)
    found = [(command, rest) for command, rest in client.got if command.type == Type.MESSAGE]
    assert [payload_of(rest) for _, rest in found] == [b"published", b"scheduled"]
    rest = found[0][1]
    metadata = wire.MessageMetadata.FromString(rest[10 : 10 + int.from_bytes(rest[6:10], "big")])
    assert metadata.partition_key == "k"
    assert {pair.key: pair.value for pair in metadata.properties} == {"a": "b"}


@pytest.mark.parametrize("type_", [Sub.Shared, Sub.Key_Shared])
def test_a_consumer_that_acknowledges_nothing_is_given_no_more(type_: Any) -> None:
    desk = Desk(max_unacked_messages=3)
    filled(desk, 10)
    client = desk.client()
    client.subscribe(type_=type_)
    got = ids(client)
    assert 3 <= len(got) <= 10
    asked = wire.CommandConsumerStats(consumer_id=1, request_id=3)
    stats = client.ask(type=Type.CONSUMER_STATS, consumerStats=asked).consumerStatsResponse
    assert stats.blockedConsumerOnUnackedMsgs
    filled(desk, 5)
    assert ids(client) == []
    client.ack(*got)
    assert ids(client)


def test_how_late_delayed_messages_were_is_told_by_door() -> None:
    desk = Desk()
    told: list[tuple[str, int, int]] = []
    desk.bench.dispatcher.sent.on_sent = lambda *late: told.append(late)
    filled(desk, 3, deliver_at_time=desk.bench.now_ms + 1_000)
    desk.bench.leap(1_007)
    assert told == [("pulsar", 7, 3)]


def test_a_reader_that_is_refused_leaves_no_subscription() -> None:
    desk = Desk()
    filled(desk, 1)
    desk.bench.ask(desk.broker.rules.set("topic", TOPIC, max_consumers=1))
    client = desk.client()
    client.subscribe(1, subscription="one", durable=False)
    assert client.subscribe(2, subscription="two", durable=False, permits=0).type == Type.ERROR
    assert list(desk.bench.engine.topics.find(TOPIC).subscriptions) == ["one"]


def test_a_connection_remembers_the_readers_that_went_elsewhere_and_no_others() -> None:
    desk = Desk()
    filled(desk, 3)
    client = desk.client()
    for number in range(20):
        client.subscribe(1, Sub.Exclusive, subscription=f"reader-{number}", durable=False)
        for _ in range(3):
            seek = wire.CommandSeek(consumer_id=1, request_id=client.request(), message_id=place(1))
            client.tell(type=Type.SEEK, seek=seek)
            client.subscribe(1, Sub.Exclusive, subscription=f"reader-{number}", durable=False)
        closing = wire.CommandCloseConsumer(consumer_id=1, request_id=client.request())
        client.tell(type=Type.CLOSE_CONSUMER, close_consumer=closing)
    assert len(client.connection.consumers._sought) <= 1
    assert not desk.bench.engine.topics.find(TOPIC).subscriptions


def test_of_many_permits_no_more_is_gathered_than_a_client_may_leave_unread() -> None:
    desk = Desk(max_connection_bytes=65_536)
    for _ in range(10):
        desk.bench.publish(TOPIC, *[bytes(100)] * 1000)
    reader = desk.client()
    sizes: list[int] = []
    write = reader.write

    def measured(data: bytes) -> None:
        sizes.append(len(data))
        write(data)

    reader.write = measured  # type: ignore[method-assign]
    reader.subscribe(permits=1_000_000)
    # A call gives out some thousands; all together are twice as much.
    assert max(sizes) < 1_000_000 < sum(sizes)
    assert len(reader.messages()) == 10_000


def test_a_client_that_stops_reading_while_it_gets_what_was_held_back_gets_no_more() -> None:
    desk = Desk()
    reader = desk.client()
    for number in (1, 2):
        reader.subscribe(number, subscription=f"sub-{number}", permits=5)
    reader.connection.hold()
    filled(desk, 5)
    write = reader.write

    def full(data: bytes) -> None:
        write(data)
        reader.connection.hold()

    reader.write = full  # type: ignore[method-assign]
    reader.connection.release()
    assert len(reader.messages()) == 5
    reader.connection.release()
    assert len(reader.messages()) == 5
