"""Where a consumer of the Pulsar door is, without I/O: seek, readers, the end of subscriptions and topics."""

from typing import Any

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, frame
from tests.unit.pulsar_kit import (
    TOPIC,
    Client,
    Desk,
    Sub,
    Type,
    filled,
    ids,
    place,
)


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
