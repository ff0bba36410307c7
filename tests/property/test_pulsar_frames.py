"""Frames of the Pulsar door against anything that may come: cut anywhere, garbled, or made of nothing."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import (
    BadChecksum,
    Frames,
    Malformed,
    Places,
    frame,
    message_head,
    message_heads,
    metadata_of,
    places_of,
    receipt_frame,
    receipt_frames,
    varint,
    with_checksum,
)
from tests.unit.pulsar_kit import Desk, Type, message_of

numbers = st.integers(0, (1 << 64) - 1)
entries = st.integers(0, (1 << 62) - 1)


def fed(data: bytes, cuts: list[int]) -> list[tuple[bytes, bytes]]:
    frames = Frames(1 << 20)
    found: list[tuple[bytes, bytes]] = []
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        found += frames.feed(data[at:cut])
        at = max(at, cut)
    return found


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=80)), max_size=8),
    st.lists(st.integers(0, 600), max_size=12),
)
def test_frames_come_out_however_they_are_cut(made: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    data = b"".join(
        (4 + len(command) + len(rest)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + rest
        for command, rest in made
    )
    assert fed(data, [cut for cut in cuts if cut <= len(data)]) == made


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_a_message_is_told_from_a_garbled_one(metadata: bytes, payload: bytes) -> None:
    message = with_checksum(metadata, payload)
    assert metadata_of(message) == metadata
    garbled = bytearray(message)
    garbled[-1] ^= 0x40
    with pytest.raises(BadChecksum):
        metadata_of(bytes(garbled))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_not(data: bytes) -> None:
    try:
        assert len(metadata_of(data)) <= len(data)
    except (Malformed, BadChecksum):
        pass


ledgers = st.integers(1, (1 << 63) - 1)
partitions = st.integers(-1, (1 << 31) - 1)
every_places = st.builds(places_of, ledgers, partitions)


@given(numbers, numbers, numbers, entries, ledgers)
def test_receipts_are_what_protobuf_writes(
    producer: int, sequence: int, highest: int, entry_id: int, ledger: int
) -> None:
    made = receipt_frame(varint(producer), places_of(ledger), sequence, highest, entry_id)
    ((body, rest),) = Frames(1 << 20).feed(made)
    command = wire.BaseCommand.FromString(body)
    receipt = command.send_receipt
    assert (command.type, rest) == (Type.SEND_RECEIPT, b"")
    assert (receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id) == (
        producer,
        sequence,
        highest,
    )
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (ledger, entry_id)


runs = st.tuples(entries, st.integers(0, 300)).map(lambda run: range(run[0], run[0] + run[1]))
"""Numbers as they follow each other, over the edges between widths as well."""


@given(numbers, every_places, runs, entries)
def test_many_receipts_are_those_of_each(producer: int, places: Places, entry_ids: range, first: int) -> None:
    sequences = range(first, first + len(entry_ids))
    for told in (list(entry_ids), [-1, *entry_ids][: len(entry_ids)]):
        together = receipt_frames(varint(producer), places, list(sequences), told)
        each = [
            receipt_frame(varint(producer), places, *pair)
            for pair in zip(sequences, [0] * len(told), told, strict=True)
        ]
        assert together == b"".join(each)


@given(numbers, every_places, runs, st.none() | numbers, st.data())
def test_the_heads_of_many_messages_are_those_of_each(
    consumer: int, places: Places, entry_ids: range, epoch: int | None, data: st.DataObject
) -> None:
    size = st.integers(0, 5 << 20)
    sizes = data.draw(st.lists(size, min_size=len(entry_ids), max_size=len(entry_ids)))
    together = message_heads(varint(consumer), places, list(entry_ids), epoch, sizes)
    assert together == [
        message_head(varint(consumer), places, *pair)
        for pair in zip(
            entry_ids, [0] * len(sizes), [()] * len(sizes), [epoch] * len(sizes), sizes, strict=True
        )
    ]


@given(
    numbers,
    ledgers,
    partitions,
    entries,
    st.integers(0, 1 << 31),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=40),
    st.none() | numbers,
    st.binary(max_size=50),
)
def test_messages_are_what_protobuf_writes(
    consumer: int,
    ledger: int,
    partition: int,
    entry_id: int,
    count: int,
    left: list[int],
    epoch: int | None,
    message: bytes,
) -> None:
    places = places_of(ledger, partition)
    made = message_head(varint(consumer), places, entry_id, count, left, epoch, len(message)) + message
    ((body, rest),) = Frames(1 << 20).feed(made)
    told = wire.BaseCommand.FromString(body).message
    assert rest == message
    assert (told.consumer_id, told.message_id.entryId, told.redelivery_count) == (consumer, entry_id, count)
    assert (told.message_id.ledgerId, told.message_id.partition) == (ledger, partition)
    assert list(told.ack_set) == left
    assert (told.consumer_epoch if told.HasField("consumer_epoch") else None) == epoch


# A whole connection

PLACE = wire.MessageIdData(ledgerId=1, entryId=0, ack_set=[5])


def command(number: int, **field: Any) -> bytes:
    return frame(wire.BaseCommand(type=number, **field))


SEEDS = [
    command(Type.CONNECT, connect=wire.CommandConnect(client_version="x")),
    command(Type.PRODUCER, producer=wire.CommandProducer(topic="t", producer_id=1, request_id=1)),
    command(
        Type.PRODUCER,
        producer=wire.CommandProducer(
            topic="t",
            producer_id=2,
            request_id=1,
            producer_name="x",
            producer_access_mode=wire.ProducerAccessMode.WaitForExclusive,
            schema=wire.Schema(name="s", schema_data=b"{}", type=wire.Schema.Json),
        ),
    ),
    frame(
        wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0)),
        message_of(b"payload", 0, partition_key="k", deliver_at_time=1),
    ),
    command(Type.CLOSE_PRODUCER, close_producer=wire.CommandCloseProducer(producer_id=1, request_id=4)),
    *(
        command(
            Type.SUBSCRIBE,
            subscribe=wire.CommandSubscribe(
                topic="t",
                subscription=f"s{durable}",
                subType=kind,
                consumer_id=1,
                request_id=2,
                durable=durable,
                start_message_id=PLACE,
                keySharedMeta=wire.KeySharedMeta(
                    keySharedMode=wire.KeySharedMode.STICKY, hashRanges=[wire.IntRange(start=0, end=65535)]
                ),
            ),
        )
        for durable in (True, False)
        for kind in (wire.CommandSubscribe.Shared, wire.CommandSubscribe.Key_Shared)
    ),
    command(Type.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=10)),
    *(
        command(Type.ACK, ack=wire.CommandAck(consumer_id=1, ack_type=kind, message_id=places, request_id=8))
        for kind in (wire.CommandAck.Individual, wire.CommandAck.Cumulative)
        for places in ([], [PLACE], [wire.MessageIdData(ledgerId=1, entryId=0)])
    ),
    command(
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        redeliverUnacknowledgedMessages=wire.CommandRedeliverUnacknowledgedMessages(consumer_id=1),
    ),
    command(Type.SEEK, seek=wire.CommandSeek(consumer_id=1, request_id=3)),
    command(Type.SEEK, seek=wire.CommandSeek(consumer_id=1, request_id=3, message_publish_time=5)),
    command(Type.UNSUBSCRIBE, unsubscribe=wire.CommandUnsubscribe(consumer_id=1, request_id=3)),
    command(Type.CLOSE_CONSUMER, close_consumer=wire.CommandCloseConsumer(consumer_id=1, request_id=3)),
    command(
        Type.GET_LAST_MESSAGE_ID, getLastMessageId=wire.CommandGetLastMessageId(consumer_id=1, request_id=3)
    ),
    command(Type.CONSUMER_STATS, consumerStats=wire.CommandConsumerStats(consumer_id=1, request_id=3)),
    command(Type.LOOKUP, lookupTopic=wire.CommandLookupTopic(topic="t", request_id=3)),
    command(
        Type.PARTITIONED_METADATA,
        partitionMetadata=wire.CommandPartitionedTopicMetadata(topic="t", request_id=3),
    ),
    command(
        Type.GET_TOPICS_OF_NAMESPACE,
        getTopicsOfNamespace=wire.CommandGetTopicsOfNamespace(namespace="public/default", request_id=3),
    ),
    command(Type.GET_SCHEMA, getSchema=wire.CommandGetSchema(topic="t", request_id=3, schema_version=b"1")),
    command(
        Type.GET_OR_CREATE_SCHEMA,
        getOrCreateSchema=wire.CommandGetOrCreateSchema(
            topic="t", request_id=3, schema=wire.Schema(name="s", schema_data=b"{}", type=wire.Schema.Json)
        ),
    ),
    command(Type.AUTH_RESPONSE, authResponse=wire.CommandAuthResponse()),
    *(command(number) for number in range(2, 70, 3)),
]


@st.composite
def garbled(draw: st.DrawFn) -> bytes:
    """Commands that make sense, in any order, with some bytes changed, left out or made up."""
    data = bytearray(SEEDS[0] + b"".join(draw(st.lists(st.sampled_from(SEEDS[1:]), max_size=10))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        if draw(st.booleans()):
            data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


DESK = Desk()


@settings(max_examples=150, deadline=None)
@given(garbled(), st.lists(st.integers(0, 400), max_size=5))
def test_a_connection_survives_anything_or_ends(data: bytes, cuts: list[int]) -> None:
    """Never an error that escapes, and afterwards nothing is left of it: the broker goes on with others."""
    client = DESK.client(connect=False)
    at = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        if not client.closed:
            client.connection.receive(data[at:cut])
        at = max(at, cut)
        DESK.bench.rest()
    client.connection.lost()
    DESK.bench.rest()
    assert not any(producing.by_name for producing in DESK.broker.producing.values())
    topics = DESK.bench.engine.topics
    for name in topics.names():
        assert not any(sub.consumers for sub in topics.find(name).subscriptions.values())
