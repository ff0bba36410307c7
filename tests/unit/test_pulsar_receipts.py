"""Answers of the Pulsar door wait for their record: each command that has one is asked for while the disk is held."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import frame
from tarry.doors.pulsar.rules import AutoTopicCreation
from tarry.serve.composition.rights import RIGHTS
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Sub, filled, message_of, place
from tests.unit.test_receipts import rows_of

Type = wire.BaseCommand


class Case(NamedTuple):
    """A command, what there is before it, and the command that answers it."""

    operation: str
    asked: Callable[[Client], bytes]
    answered: int
    before: Callable[[Client], object] = lambda client: None


def command(message: bytes = b"", **fields: object) -> bytes:
    return frame(wire.BaseCommand(**fields), message)  # type: ignore[arg-type]


def consumed(client: Client) -> None:
    """A consumer with two entries."""
    filled(client.desk, 2)
    client.subscribe()


def acknowledged(client: Client) -> None:
    """A consumer with one of its entries acknowledged, of which the disk has not heard."""
    consumed(client)
    client.connection.receive(command(type=Type.ACK, ack=_ack()))


def sent(client: Client) -> None:
    client.produce()
    client.connection.receive(_send(client))


def schema(client: Client) -> bytes:
    asked = wire.CommandGetOrCreateSchema(
        request_id=client.request(),
        topic=TOPIC,
        schema=wire.Schema(name="s", type=wire.Schema.String, schema_data=b""),
    )
    return command(type=Type.GET_OR_CREATE_SCHEMA, getOrCreateSchema=asked)


def _send(_: Client) -> bytes:
    return command(message_of(b"x", 1), type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=1))


def _ack(request_id: int | None = None) -> wire.CommandAck:
    return wire.CommandAck(
        consumer_id=1, ack_type=wire.CommandAck.Individual, message_id=[place(0)], request_id=request_id
    )


def _producer(client: Client) -> bytes:
    return command(
        type=Type.PRODUCER,
        producer=wire.CommandProducer(topic=f"{TOPIC}-new", producer_id=1, request_id=client.request()),
    )


def _subscribe(client: Client) -> bytes:
    asked = wire.CommandSubscribe(
        topic=TOPIC, subscription="new", subType=Sub.Shared, consumer_id=7, request_id=client.request()
    )
    return command(type=Type.SUBSCRIBE, subscribe=asked)


def _rule(client: Client) -> None:
    """A rule that topics of the namespace are made with partitions."""
    made = AutoTopicCreation(topicType="partitioned", defaultNumPartitions=3)
    client.desk.bench.ask(
        client.desk.broker.rules.set("namespace", "public/default", auto_topic_creation=made)
    )


def _partitions(client: Client) -> bytes:
    asked = wire.CommandPartitionedTopicMetadata(topic=f"{TOPIC}-new", request_id=client.request())
    return command(type=Type.PARTITIONED_METADATA, partitionMetadata=asked)


CASES = [
    Case("PARTITIONED_METADATA", _partitions, Type.PARTITIONED_METADATA_RESPONSE, _rule),
    Case("PRODUCER", _producer, Type.PRODUCER_SUCCESS),
    Case("SEND", _send, Type.SEND_RECEIPT, lambda client: client.produce()),
    Case(
        "CLOSE_PRODUCER",
        lambda client: command(
            type=Type.CLOSE_PRODUCER,
            close_producer=wire.CommandCloseProducer(producer_id=1, request_id=client.request()),
        ),
        Type.SUCCESS,
        sent,
    ),
    Case("SUBSCRIBE", _subscribe, Type.SUCCESS),
    Case(
        "ACK",
        lambda client: command(type=Type.ACK, ack=_ack(request_id=client.request())),
        Type.ACK_RESPONSE,
        consumed,
    ),
    Case(
        "CLOSE_CONSUMER",
        lambda client: command(
            type=Type.CLOSE_CONSUMER,
            close_consumer=wire.CommandCloseConsumer(consumer_id=1, request_id=client.request()),
        ),
        Type.SUCCESS,
        acknowledged,
    ),
    Case(
        "SEEK",
        lambda client: command(
            type=Type.SEEK,
            seek=wire.CommandSeek(consumer_id=1, request_id=client.request(), message_id=place(1)),
        ),
        Type.SUCCESS,
        consumed,
    ),
    Case(
        "UNSUBSCRIBE",
        lambda client: command(
            type=Type.UNSUBSCRIBE,
            unsubscribe=wire.CommandUnsubscribe(consumer_id=1, request_id=client.request()),
        ),
        Type.SUCCESS,
        consumed,
    ),
    Case("GET_OR_CREATE_SCHEMA", schema, Type.GET_OR_CREATE_SCHEMA_RESPONSE, lambda client: client.produce()),
]


def test_every_command_with_a_record_is_tried() -> None:
    with_record = {
        operation
        for operation in RIGHTS["Pulsar"]
        if next(row.records for row in rows_of("Pulsar") if fnmatchcase(operation, row.pattern)) != "none"
    }
    assert {case.operation for case in CASES} == with_record


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.operation)
def test_the_pulsar_door_says_yes_once_it_is_on_disk(case: Case) -> None:
    client = Desk().client()
    case.before(client)
    ledger = client.desk.bench.ledger
    client.take()
    client.connection.receive(case.asked(client))
    # Nothing is synced meanwhile.
    assert ledger.next_seq - 1 > ledger.durable_seq, "it has written no record"
    early = [answer.type for answer, _ in client.got]
    assert case.answered not in early, "it was answered before its record was on disk"
    client.desk.bench.rest()
    assert case.answered in [answer.type for answer, _ in client.got]
