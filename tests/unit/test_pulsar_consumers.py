"""Consumers of the Pulsar door, without I/O: permits, acknowledgements of every kind, redelivery, seek, readers."""

from typing import Any

import pytest

from tarry.core.murmur import murmur3_32
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, frame
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Sub, Type, payload_of, place

HOUR_MS = 3_600_000
IN_ORDER = [Sub.Exclusive, Sub.Failover]
ALL = [*IN_ORDER, Sub.Shared, Sub.Key_Shared]


def filled(desk: Desk, count: int, **metadata: Any) -> Client:
    writer = desk.client()
    writer.produce()
    for sequence in range(count):
        writer.send(sequence, b"%d" % sequence, **metadata)
    return writer


def ids(client: Client) -> list[int]:
    return [entry_id for entry_id, _ in client.messages()]


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


def test_acknowledged_is_for_good() -> None:
    desk = Desk()
    filled(desk, 5)
    client = desk.client()
    client.subscribe()
    client.ack(0, 2, 4)
    desk.bench.reopen()
    again = Desk(bench=desk.bench).client()
    again.subscribe()
    assert ids(again) == [1, 3]


@pytest.mark.parametrize("type_", IN_ORDER)
def test_cumulative_acknowledgement(type_: Any) -> None:
    desk = Desk()
    filled(desk, 5)
    client = desk.client()
    client.subscribe(type_=type_)
    client.ack(2, cumulative=True)
    client.connection.lost()
    again = desk.client()
    again.subscribe(type_=type_)
    assert ids(again) == [3, 4]


def test_part_of_a_batch_is_acknowledged_for_good() -> None:
    desk = Desk()
    filled(desk, 2, num_messages_in_batch=3)
    client = desk.client()
    client.subscribe()
    partial = wire.CommandAck(
        consumer_id=1, ack_type=wire.CommandAck.Individual, message_id=[place(0, ack_set=[0b101])]
    )
    client.tell(type=Type.ACK, ack=partial)
    desk.bench.ask(desk.bench.engine.upkeep.flush())
    partial.message_id[0].ack_set[0] = 0b110
    client.tell(type=Type.ACK, ack=partial)
    desk.bench.reopen()
    again = Desk(bench=desk.bench).client()
    again.subscribe()
    left = {one.message.message_id.entryId: list(one.message.ack_set) for one in again.take(Type.MESSAGE)}
    assert left == {0: [0b100], 1: []}
    partial.message_id[0].ack_set[0] = 0b011
    again.tell(type=Type.ACK, ack=partial)
    again.connection.lost()
    last = Desk(bench=desk.bench).client()
    last.subscribe()
    assert ids(last) == [1]


def test_cumulative_within_a_batch() -> None:
    desk = Desk()
    filled(desk, 3, num_messages_in_batch=2)
    client = desk.client()
    client.subscribe(type_=Sub.Exclusive)
    ack = wire.CommandAck(
        consumer_id=1, ack_type=wire.CommandAck.Cumulative, message_id=[place(1, ack_set=[0b10])]
    )
    client.tell(type=Type.ACK, ack=ack)
    client.connection.lost()
    again = desk.client()
    again.subscribe(type_=Sub.Exclusive)
    assert [
        (one.message.message_id.entryId, list(one.message.ack_set)) for one in again.take(Type.MESSAGE)
    ] == [
        (1, [0b10]),
        (2, []),
    ]


def test_an_acknowledgement_is_answered_if_asked_once_durable() -> None:
    desk = Desk()
    filled(desk, 1)
    client = desk.client()
    client.subscribe()
    client.ack(0)
    assert client.take(Type.ACK_RESPONSE) == []
    client.ack(0, request_id=5)
    (answer,) = client.take(Type.ACK_RESPONSE)
    assert (answer.ackResponse.request_id, answer.ackResponse.HasField("error")) == (5, False)
    client.ack(0, consumer_id=77, request_id=6)
    assert client.take(Type.ACK_RESPONSE)[0].ackResponse.error == Code.ConsumerNotFound
    client.ack(0, request_id=7, txnid_least_bits=1)
    assert client.take(Type.ACK_RESPONSE)[0].ackResponse.error == Code.NotAllowedError


def test_acknowledgements_of_nothing_do_no_harm() -> None:
    desk = Desk()
    filled(desk, 1)
    client = desk.client()
    client.subscribe()
    client.ack(NO_ID, 1 << 62, 17)
    client.connection.lost()
    again = desk.client()
    again.subscribe()
    assert ids(again) == [0]


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

    assert (active(first), active(second)) == ([True], [False])
    first.connection.lost()
    assert active(second) == [True]


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


def sticky(*ranges: tuple[int, int]) -> wire.KeySharedMeta:
    return wire.KeySharedMeta(
        keySharedMode=wire.KeySharedMode.STICKY,
        hashRanges=[wire.IntRange(start=low, end=high) for low, high in ranges],
    )


def test_sticky_consumers_get_the_hash_slots_that_they_chose() -> None:
    desk = Desk()
    low, high = desk.client(), desk.client()
    low.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((0, 32767)))
    assert (
        high.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((32000, 40000)), permits=0).error.error
        == Code.ConsumerAssignError
    )
    assert high.subscribe(type_=Sub.Key_Shared, permits=0).error.error == Code.ConsumerAssignError
    high.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((32768, 60000)))
    writer = desk.client()
    writer.produce()
    expected: dict[str, list[bytes]] = {"low": [], "high": [], "nobody": []}
    for sequence in range(60):
        key = f"key-{sequence}"
        slot = murmur3_32(key.encode()) % 65536
        whose = "low" if slot < 32768 else "high" if slot <= 60000 else "nobody"
        expected[whose].append(key.encode())
        writer.send(sequence, key.encode(), partition_key=key)
    assert [payload for _, payload in low.messages()] == expected["low"]
    assert [payload for _, payload in high.messages()] == expected["high"]
    rest = desk.client()
    rest.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((60001, 65535)))
    assert [payload for _, payload in rest.messages()] == expected["nobody"]


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": "k", "ordering_key": b"o"}, b"o"),
        ({"partition_key": "az==", "partition_key_b64_encoded": True}, b"k"),
    ],
)
def test_which_key_counts(metadata: dict[str, Any], key: bytes) -> None:
    desk = Desk()
    slot = murmur3_32(key) % 65536
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared, keySharedMeta=sticky((slot, slot)))
    filled(desk, 1, **metadata)
    assert len(client.messages()) == 1


@pytest.mark.parametrize("key", [b"\xff\xfe", b"k" * 5000])
def test_keys_that_are_no_short_text_keep_their_order(key: bytes) -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared)
    filled(desk, 3, ordering_key=key)
    assert ids(client) == [0, 1, 2]


# Going elsewhere


def seek(client: Client, **to: Any) -> wire.BaseCommand:
    return client.ask(type=Type.SEEK, seek=wire.CommandSeek(consumer_id=1, request_id=50, **to))


def test_seek_closes_the_consumers_first() -> None:
    desk = Desk()
    filled(desk, 5)
    first, second = desk.client(), desk.client()
    first.subscribe()
    second.subscribe()
    first.ack(0, 1, 2, 3, 4)
    first.got.clear()
    assert seek(first, message_id=place(3)).success.request_id == 50
    assert [command.type for command in first.take()] == [Type.CLOSE_CONSUMER, Type.SUCCESS]
    assert second.take(Type.CLOSE_CONSUMER)
    first.flow(10)
    assert ids(first) == []
    first.subscribe()
    assert ids(first) == [3, 4]


def test_seek_to_the_ends_and_to_an_instant() -> None:
    desk = Desk()
    other = desk.client()
    other.subscribe(subscription="keeps", permits=0)
    writer = filled(desk, 3)
    desk.bench.wait(10_000)
    later_ms = desk.bench.now_ms
    writer.send(3, b"3")
    for to, expected in (
        ({"message_id": wire.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)}, [0, 1, 2, 3]),
        ({"message_id": wire.MessageIdData(ledgerId=(1 << 63) - 1, entryId=(1 << 63) - 1)}, []),
        ({"message_publish_time": later_ms}, [3]),
        ({"message_publish_time": 0}, [0, 1, 2, 3]),
    ):
        client = desk.client()
        client.subscribe(permits=0)
        seek(client, **to)
        client.subscribe()
        assert ids(client) == expected
        client.connection.lost()


def test_a_reader_is_gone_with_its_connection_also_after_a_seek() -> None:
    desk = Desk()
    filled(desk, 3)
    client = desk.client()
    start = wire.MessageIdData(ledgerId=NO_ID, entryId=NO_ID)
    client.subscribe(type_=Sub.Exclusive, subscription="reader", durable=False, start_message_id=start)
    assert ids(client) == [0, 1, 2]
    seek(client, message_id=place(2))
    topic = desk.bench.engine.topics.find(TOPIC)
    assert "reader" in topic.subscriptions
    client.subscribe(type_=Sub.Exclusive, subscription="reader", durable=False, start_message_id=start)
    assert ids(client) == [2]
    seek(client, message_id=place(2))
    client.connection.lost()
    assert topic.subscriptions == {}


def test_a_reader_from_some_time_ago() -> None:
    desk = Desk()
    writer = filled(desk, 2)
    desk.bench.wait(100_000)
    writer.send(2, b"2")
    client = desk.client()
    client.subscribe(
        type_=Sub.Exclusive, subscription="reader", durable=False, start_message_rollback_duration_sec=60
    )
    assert ids(client) == [2]


def test_unsubscribe() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    first.subscribe()
    second.subscribe()
    asked = wire.CommandUnsubscribe(consumer_id=1, request_id=9)
    refused = first.ask(type=Type.UNSUBSCRIBE, unsubscribe=asked)
    assert refused.error.error == Code.MetadataError
    asked.force = True
    assert first.ask(type=Type.UNSUBSCRIBE, unsubscribe=asked).success.request_id == 9
    assert first.take(Type.CLOSE_CONSUMER) == []
    assert second.take(Type.CLOSE_CONSUMER)
    assert desk.bench.engine.topics.find(TOPIC).subscriptions == {}


def test_a_deleted_topic_closes_its_consumers() -> None:
    desk = Desk()
    client = desk.client()
    client.subscribe()
    desk.bench.ask(desk.bench.engine.topics.delete(TOPIC))
    assert client.take(Type.CLOSE_CONSUMER)


def test_a_topic_is_made_unless_that_is_not_wanted() -> None:
    client = Desk().client()
    refused = client.subscribe(force_topic_creation=False, permits=0)
    assert refused.error.error == Code.TopicNotFound
    assert client.subscribe(permits=0).type == Type.SUCCESS


# Delays


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


# Questions


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


# From other doors


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


# Bounds


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


def test_keys_of_a_consumer_that_held_too_much_come_once_it_does_not() -> None:
    desk = Desk(max_unacked_messages=2)
    client = desk.client()
    client.subscribe(type_=Sub.Key_Shared)
    other = desk.client()
    writer = desk.client()
    writer.produce()
    for sequence in range(6):
        writer.send(sequence, b"x", partition_key="a" if sequence < 2 else "b")
    assert ids(client) == [0, 1]
    # Looking further parks them.
    other.subscribe(type_=Sub.Key_Shared, consumer_name="other")
    other.connection.lost()
    got: list[int] = []
    held = [0, 1]
    while held:
        client.ack(*held)
        held = ids(client)
        got += held
    assert got == [2, 3, 4, 5]


def test_a_reader_whose_client_went_before_it_began_is_gone() -> None:
    desk = Desk()
    client = desk.client()
    asked = Sub(
        topic=TOPIC, subscription="reader", subType=Sub.Exclusive, consumer_id=1, request_id=1, durable=False
    )
    client.connection.receive(frame(wire.BaseCommand(type=Type.SUBSCRIBE, subscribe=asked)))
    client.connection.lost()
    desk.bench.rest()
    assert desk.bench.engine.topics.find(TOPIC).subscriptions == {}


def test_how_late_delayed_messages_were_is_told_by_door() -> None:
    desk = Desk()
    told: list[tuple[str, int, int]] = []
    desk.bench.engine.dispatcher.on_sent = lambda *late: told.append(late)
    filled(desk, 3, deliver_at_time=desk.bench.now_ms + 1_000)
    desk.bench.leap(1_007)
    assert told == [("pulsar", 7, 3)]
