"""Acknowledgements at the Pulsar door, without I/O: of entries, of all before one, of a part of a batch."""

from typing import Any

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, frame
from tests.unit.pulsar_kit import (
    IN_ORDER,
    TOPIC,
    Desk,
    Sub,
    Type,
    filled,
    ids,
    place,
)


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


def test_a_consumer_is_closed_once_its_acknowledgements_are_durable() -> None:
    desk = Desk()
    filled(desk, 2)
    client = desk.client()
    client.subscribe()
    client.take()
    ack = wire.CommandAck(consumer_id=1, ack_type=wire.CommandAck.Individual, message_id=[place(0)])
    close = wire.CommandCloseConsumer(consumer_id=1, request_id=client.request())
    for command in (
        wire.BaseCommand(type=Type.ACK, ack=ack),
        wire.BaseCommand(type=Type.CLOSE_CONSUMER, close_consumer=close),
    ):
        client.connection.receive(frame(command))
    assert not client.take(Type.SUCCESS)
    desk.bench.rest()
    assert client.take(Type.SUCCESS)
    desk.bench.reopen()
    again = Desk(bench=desk.bench).client()
    again.subscribe()
    assert ids(again) == [1]


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
    desk.bench.ask(desk.bench.engine.flush())
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


def test_of_a_part_of_a_batch_no_more_is_kept_than_it_has_messages() -> None:
    desk = Desk()
    filled(desk, 2, num_messages_in_batch=100)
    client = desk.client()
    client.subscribe()
    for entry_id, words in ((0, 1024), (1, 2)):
        ack = wire.CommandAck(
            consumer_id=1,
            ack_type=wire.CommandAck.Individual,
            message_id=[place(entry_id, ack_set=[-2] + [-1] * (words - 1))],
        )
        client.tell(type=Type.ACK, ack=ack)
    sub = desk.bench.engine.topics.subscription(TOPIC, "sub")
    assert {entry_id: len(left) for entry_id, left in sub.partial.items()} == {0: 2, 1: 2}
    desk.bench.reopen()
    sub = desk.bench.engine.topics.subscription(TOPIC, "sub")
    assert {entry_id: len(left) for entry_id, left in sub.partial.items()} == {0: 2, 1: 2}
