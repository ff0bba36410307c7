"""Where a consumer of the Pulsar door is, without I/O: seek, readers, the end of subscriptions and topics."""

from typing import Any

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, frame
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench
from tests.unit.pulsar_kit import (
    ALL,
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


@pytest.mark.parametrize("type_", ALL)
def test_a_seek_that_fails_loses_nothing_that_was_held(type_: Any) -> None:
    """The disk is so far behind that the seek is refused: what the consumer held comes again, and nothing is skipped."""
    settings = LedgerSettings(segment_bytes=8 << 20, queue_max_bytes=100_000)
    desk = Desk(bench=Bench(ledger_settings=settings))
    filled(desk, 4)
    client = desk.client()
    client.subscribe(type_=type_)
    assert ids(client) == [0, 1, 2, 3]
    other = desk.bench.subscribe(TOPIC, "s")
    for size in (10_000, 100):
        while desk.bench.engine.topics.publish(TOPIC, [NewEntry(payload=bytes(size))]).error() is None:
            pass
    while other.seek(0).error() is None:
        pass
    count = desk.bench.engine.topics.find(TOPIC).next
    asked = wire.CommandSeek(consumer_id=1, request_id=77, message_id=place(3))
    client.connection.receive(frame(wire.BaseCommand(type=Type.SEEK, seek=asked)))
    (refused,) = client.take(Type.ERROR)
    assert refused.error.request_id == 77
    desk.bench.rest()
    client.take()
    client.subscribe(type_=type_)
    assert ids(client) == list(range(count))
    client.connection.lost()
    desk.bench.reopen()
    again = Desk(bench=desk.bench).client()
    again.subscribe(type_=type_)
    assert ids(again) == list(range(count))
