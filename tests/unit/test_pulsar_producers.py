"""Producers of the Pulsar door, without I/O: receipts in order, refusals at their place, names and access modes."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest

from tarry.core.errors import Unavailable
from tarry.core.rules.policy import Policy
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.exclusivity import Mode
from tarry.doors.pulsar.frames import NO_ID, frame
from tarry.engine.answer import Answer, failed
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Sub, Type, message_of

HOUR_MS = 3_600_000
CPP = "Pulsar-CPP-v4.2.0"


def sends(count: int, payload: bytes = b"x", first: int = 0) -> bytes:
    return b"".join(
        frame(
            wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=n)),
            message_of(payload, n),
        )
        for n in range(first, first + count)
    )


def test_receipts_come_in_order_once_durable() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    client.connection.receive(sends(50))
    assert client.receipts() == []
    desk.bench.rest()
    assert client.receipts() == [(n, n) for n in range(50)]


def test_while_the_disk_is_behind_the_client_waits_and_is_not_refused() -> None:
    desk = Desk(bench=Bench(ledger_settings=LedgerSettings(segment_bytes=8 << 20, queue_max_bytes=200_000)))
    client = desk.client()
    client.produce()
    large = sends(4, bytes(150_000))
    size = len(large) // 4
    for at in range(4):
        client.connection.receive(large[at * size : (at + 1) * size])
    desk.bench.rest()
    assert client.take(Type.SEND_ERROR) == []
    assert client.receipts() == [(n, n) for n in range(4)]


def test_what_was_sent_comes_back_byte_for_byte() -> None:
    desk = Desk()
    writer, reader = desk.client(), desk.client()
    reader.subscribe()
    writer.produce()
    message = message_of(b"payload", 0, uuid="unknown to the broker", compression=wire.CompressionType.ZSTD)
    writer.tell(message, type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0))
    plain = message[6:]
    writer.tell(plain, type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=1))
    assert [rest for command, rest in reader.got if command.type == Type.MESSAGE] == [message, plain]


def test_a_bad_checksum_is_told_at_its_place() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    bad = bytearray(message_of(b"x", 1))
    bad[-1] ^= 1
    data = sends(1)
    data += frame(
        wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=1)), bytes(bad)
    )
    client.connection.receive(data)
    desk.bench.rest()
    told = client.take(Type.SEND_RECEIPT, Type.SEND_ERROR)
    assert [command.type for command in told] == [Type.SEND_RECEIPT, Type.SEND_ERROR]
    assert told[1].send_error.error == Code.ChecksumError


@pytest.mark.parametrize(("version", "code"), [(CPP, Code.ChecksumError), ("java", Code.NotAllowedError)])
def test_a_delay_that_is_too_long_fails_alone(version: str, code: int) -> None:
    desk = Desk()
    desk.bench.ask(desk.bench.engine.set_policy("topic", TOPIC, Policy(max_delay_ms=5_000)))
    client = desk.client(version)
    client.produce()
    now_ms = desk.bench.now_ms
    for sequence, delay_ms in enumerate((5_000, 5_001, 10)):
        client.send(sequence, publish_time=now_ms, deliver_at_time=now_ms + delay_ms)
    told = client.take(Type.SEND_RECEIPT, Type.SEND_ERROR)
    assert [command.type for command in told] == [Type.SEND_RECEIPT, Type.SEND_ERROR, Type.SEND_RECEIPT]
    error = told[1].send_error
    assert (error.sequence_id, error.error) == (1, code)
    assert error.message == "Exceeds max allowed delivery delay of 5000 milliseconds"
    assert desk.broker.delays_refused == {"too_long": 1, "off": 0}


@pytest.mark.parametrize("by_server", [False, True])
def test_which_clock_measures_the_longest_delay(by_server: bool) -> None:
    desk = Desk(measure_delay_by_server=by_server)
    desk.bench.ask(desk.bench.engine.set_policy("topic", TOPIC, Policy(max_delay_ms=5_000)))
    client = desk.client()
    client.produce()
    now_ms = desk.bench.now_ms
    # The client's clock is a minute ahead, or behind.
    client.send(0, publish_time=now_ms + 60_000, deliver_at_time=now_ms + 64_000)
    client.send(1, publish_time=now_ms - 60_000, deliver_at_time=now_ms + 1_000)
    refused = [command.send_error.sequence_id for command in client.take(Type.SEND_ERROR)]
    assert refused == ([0] if by_server else [1])


def test_an_ignored_delay_is_counted_and_by_choice_refused() -> None:
    desk, strict = Desk(), Desk(refuse_ignored_delay=True)
    for one in (desk, strict):
        one.bench.ask(one.bench.engine.set_policy("topic", TOPIC, Policy(delayed_delivery=False)))
        client = one.client()
        client.produce()
        client.send(0, deliver_at_time=one.bench.now_ms + HOUR_MS)
        client.send(1, deliver_at_time=one.bench.now_ms - 1)
        told = client.take(Type.SEND_RECEIPT, Type.SEND_ERROR)
        first = Type.SEND_ERROR if one is strict else Type.SEND_RECEIPT
        assert told[0].type == first
    assert strict.broker.delays_refused == {"too_long": 0, "off": 1}
    assert desk.bench.engine.stats().counters["delay_ignored"] == 1
    assert strict.bench.engine.stats().counters.get("delay_ignored", 0) == 0


def test_transactions_are_refused() -> None:
    client = Desk().client()
    assert client.produce(txn_enabled=True).error.error == Code.NotAllowedError
    client.produce()
    send = wire.CommandSend(producer_id=1, sequence_id=0, txnid_least_bits=1, txnid_most_bits=2)
    client.tell(message_of(b"x", 0), type=Type.SEND, send=send)
    assert client.take(Type.SEND_ERROR)[0].send_error.error == Code.NotAllowedError


# Sequence ids


def last_of(client: Client, name: str) -> int:
    answer = client.produce(producer_name=name).producer_success
    return answer.last_sequence_id


def test_a_sequence_id_counts_once_also_after_a_restart() -> None:
    desk = Desk()
    desk.deduplicate()
    client = desk.client()
    assert last_of(client, "me") == -1
    for sequence in (0, 1, 1, 0, 2):
        client.send(sequence)
    assert client.receipts() == [(0, 0), (1, 1), (1, NO_ID), (0, NO_ID), (2, 2)]
    desk.bench.reopen()
    again = Desk(bench=desk.bench)
    client = again.client()
    assert last_of(client, "me") == 2
    client.send(2)
    client.send(3)
    assert client.receipts() == [(2, NO_ID), (3, 3)]
    assert last_of(again.client(), "other") == -1


def test_unless_a_policy_says_otherwise_everything_counts() -> None:
    """As in Pulsar; and a producer is told that nothing is known of its sequence ids."""
    desk = Desk()
    client = desk.client()
    assert last_of(client, "me") == -1
    client.send(0)
    client.send(0)
    assert client.receipts() == [(0, 0), (0, 1)]
    client.connection.lost()
    assert last_of(desk.client(), "me") == -1


def test_a_policy_counts_from_the_next_message_on() -> None:
    desk = Desk()
    client = desk.client()
    client.produce(producer_name="me")
    client.send(0)
    desk.deduplicate()
    client.send(0)
    client.send(0)
    desk.deduplicate(False)
    client.send(0)
    assert client.receipts() == [(0, 0), (0, 1), (0, NO_ID), (0, 2)]


@pytest.mark.parametrize("on", [False, True])
def test_a_delayed_message_that_overtakes_a_batch_makes_it_no_duplicate(on: bool) -> None:
    """The C++ client sends a delayed message at once and the pending batch after it, with lower sequence ids."""
    desk = Desk()
    desk.deduplicate(on)
    client = desk.client(CPP)
    client.produce(producer_name="me")
    due_ms = desk.bench.now_ms + 1000
    for delayed in (9, 19):
        client.send(delayed, b"delayed", deliver_at_time=due_ms)
    client.send_batch(0, 18, payload=b"batch")
    assert client.receipts() == [(9, 0), (19, 1), (0, 2)]
    # The receipts were lost, and all of it comes again.
    client.send(9, b"delayed", deliver_at_time=due_ms)
    client.send_batch(0, 18, payload=b"batch")
    assert client.receipts() == ([(9, NO_ID), (0, NO_ID)] if on else [(9, 3), (0, 4)])


def test_a_batch_that_is_cut_differently_is_stored_again_rather_than_lost() -> None:
    desk = Desk()
    desk.deduplicate()
    client = desk.client()
    client.produce(producer_name="me")
    client.send_batch(0, 10, 9)
    # Numbers 5 to 9 are stored, 10 to 14 are not.
    client.send_batch(5, 10, 14)
    client.send_batch(3, 4, 6)
    assert client.receipts() == [(0, 0), (5, 1), (3, NO_ID)]
    client.connection.lost()
    assert last_of(desk.client(), "me") == 14


def test_batches_by_key_whose_numbers_are_interleaved_are_all_stored() -> None:
    """Java's batches by key: 0 and 5 are one, 1 and 4 the next, 2 and 3 the last."""
    desk = Desk()
    desk.deduplicate()
    client = desk.client()
    client.produce(producer_name="me")
    for _ in range(2):
        client.send_batch(0, 2, 5)
        client.send_batch(1, 2, 4)
        client.send_batch(2, 2, 3)
    assert client.receipts() == [(0, 0), (1, 1), (2, 2), (0, NO_ID), (1, NO_ID), (2, NO_ID)]


def test_of_a_batch_the_highest_sequence_id_counts_and_of_chunks_the_last() -> None:
    desk = Desk()
    desk.deduplicate()
    client = desk.client()
    client.produce(producer_name="me")
    client.send_batch(0, 10, 9)
    client.send_batch(0, 10, 9)
    assert client.receipts() == [(0, 0), (0, NO_ID)]
    for chunk in range(3):
        client.send(10, chunk_id=chunk, num_chunks_from_msg=3, uuid="u")
    assert [entry for _, entry in client.receipts()] == [1, 2, 3]


# Names and access modes


def test_a_name_is_taken_until_its_producer_goes() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    assert first.produce(producer_name="me").producer_success.producer_name == "me"
    refused = second.produce(producer_name="me").error
    assert refused.error == Code.ProducerBusy
    first.tell(
        type=Type.CLOSE_PRODUCER, close_producer=wire.CommandCloseProducer(producer_id=1, request_id=9)
    )
    assert second.produce(producer_name="me").type == Type.PRODUCER_SUCCESS


def test_a_client_that_comes_back_replaces_its_old_self() -> None:
    """Its old connection may be dead without anybody knowing."""
    desk = Desk()
    old, new = desk.client(), desk.client()
    old.produce(producer_name="me", epoch=0)
    assert new.produce(producer_name="me", epoch=1).type == Type.PRODUCER_SUCCESS
    assert old.take(Type.CLOSE_PRODUCER)
    old.send(0)
    assert old.receipts() == []


def test_made_up_names_differ() -> None:
    client = Desk().client()
    given = {client.produce(number).producer_success.producer_name for number in range(5)}
    assert len(given) == 5


def test_exclusive_producers() -> None:
    desk = Desk()
    clients = [desk.client() for _ in range(4)]
    assert clients[0].produce().type == Type.PRODUCER_SUCCESS
    assert clients[1].produce(producer_access_mode=Mode.Exclusive).error.error == Code.ProducerFenced
    clients[0].connection.lost()
    exclusive = clients[1].produce(producer_access_mode=Mode.Exclusive).producer_success
    assert exclusive.topic_epoch == 0
    assert clients[2].produce().error.error == Code.ProducerBusy
    waiting = clients[2].produce(producer_access_mode=Mode.WaitForExclusive).producer_success
    assert not waiting.producer_ready
    clients[1].connection.lost()
    desk.bench.rest()
    ready = clients[2].take(Type.PRODUCER_SUCCESS)[-1].producer_success
    assert (ready.producer_ready, ready.topic_epoch) == (True, 1)
    clients[2].send(0)
    assert clients[2].receipts() == [(0, 0)]
    fencing = clients[3].produce(producer_access_mode=Mode.ExclusiveWithFencing).producer_success
    assert fencing.topic_epoch == 2
    assert clients[2].take(Type.CLOSE_PRODUCER)
    old = desk.client().produce(producer_access_mode=Mode.Exclusive, topic_epoch=1)
    assert old.error.error == Code.ProducerFenced


def test_who_was_fenced_stays_fenced_after_a_crash() -> None:
    desk = Desk()
    old = desk.client()
    assert old.produce(producer_access_mode=Mode.ExclusiveWithFencing).producer_success.topic_epoch == 0
    new = desk.client().produce(producer_access_mode=Mode.ExclusiveWithFencing).producer_success
    assert new.topic_epoch == 1
    bench = desk.bench
    bench.reopen()
    for round_ in range(2):
        client = Desk(bench=bench).client()
        fenced = client.produce(1, producer_access_mode=Mode.ExclusiveWithFencing, topic_epoch=0)
        assert fenced.error.error == Code.ProducerFenced
        back = client.produce(1, producer_access_mode=Mode.ExclusiveWithFencing, topic_epoch=1)
        assert back.producer_success.topic_epoch == 1
        client.connection.lost()
        if round_ == 0:
            # This time from the registry: its snapshot is of the whole ledger.
            bench.stop()
            bench.start()
    assert (
        Desk(bench=bench).client().produce(producer_access_mode=Mode.Exclusive).producer_success.topic_epoch
        == 2
    )


def test_an_epoch_is_told_once_it_cannot_be_forgotten() -> None:
    desk = Desk()
    first, second = desk.client(), desk.client()
    first.produce(producer_access_mode=Mode.Exclusive)
    asked = wire.CommandProducer(
        topic=TOPIC, producer_id=1, request_id=9, producer_access_mode=Mode.ExclusiveWithFencing
    )
    second.connection.receive(frame(wire.BaseCommand(type=Type.PRODUCER, producer=asked)))
    while desk.bench.engine.topics.epoch(TOPIC) == 0:
        assert desk.bench.commit()
    assert second.take(Type.PRODUCER_SUCCESS) == []
    desk.bench.rest()
    assert second.take(Type.PRODUCER_SUCCESS)[0].producer_success.topic_epoch == 1


def test_an_epoch_that_is_made_up_does_not_raise_the_topics() -> None:
    desk = Desk()
    client = desk.client()
    made_up = client.produce(producer_access_mode=Mode.Exclusive, topic_epoch=(1 << 64) - 1)
    assert made_up.producer_success.topic_epoch == 0
    client.connection.lost()
    assert desk.client().produce(producer_access_mode=Mode.Exclusive).producer_success.topic_epoch == 1


def test_a_client_that_is_lost_before_its_epoch_is_durable_leaves_the_topic_free() -> None:
    desk = Desk()
    client = desk.client()
    asked = wire.CommandProducer(
        topic=TOPIC, producer_id=1, request_id=9, producer_access_mode=Mode.Exclusive
    )
    client.connection.receive(frame(wire.BaseCommand(type=Type.PRODUCER, producer=asked)))
    while desk.bench.engine.topics.epoch(TOPIC) < 0:
        assert desk.bench.commit()
    client.connection.lost()
    desk.bench.rest()
    assert client.take(Type.PRODUCER_SUCCESS) == []
    assert desk.client().produce(producer_access_mode=Mode.Exclusive).producer_success.topic_epoch == 1


def test_a_producer_is_let_in_once_its_initial_subscription_is_made() -> None:
    client = Desk().client()
    refused = client.produce(initial_subscription_name="no/name")
    assert refused.error.error == Code.NotAllowedError
    # It is as it was, where it is there already.
    client.subscribe(type_=Sub.Failover, subscription="first", permits=0)
    assert client.produce(initial_subscription_name="first").type == Type.PRODUCER_SUCCESS
    assert client.desk.bench.engine.topics.subscription(TOPIC, "first").type == "failover"


def test_an_initial_subscription_is_made() -> None:
    desk = Desk()
    client = desk.client()
    client.produce(initial_subscription_name="first")
    client.send(0)
    assert desk.bench.engine.topics.subscription(TOPIC, "first").backlog == 1


def test_closing_waits_for_the_receipts() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    close = wire.CommandCloseProducer(producer_id=1, request_id=9)
    client.connection.receive(
        sends(3) + frame(wire.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=close))
    )
    assert client.take(Type.SUCCESS) == []
    desk.bench.rest()
    assert [command.type for command in client.take()][-4:] == [Type.SEND_RECEIPT] * 3 + [Type.SUCCESS]


def test_what_comes_while_a_part_is_under_way_is_published_together() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    publish, parts = desk.broker.engine.topics.publish_each, []

    def counted(topic: str, entries: Sequence[NewEntry]) -> Any:
        parts.append(len(entries))
        return publish(topic, entries)

    with patch.object(desk.broker.engine.topics, "publish_each", counted):
        frames = sends(10)
        size = len(frames) // 10
        for at in range(10):
            client.connection.receive(frames[at * size : (at + 1) * size])
        assert parts == [1]
        desk.bench.rest()
    assert parts == [1, 9]
    assert client.receipts() == [(n, n) for n in range(10)]


def test_what_is_gathered_is_published_before_the_next_command_and_at_the_end() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    frames = sends(8)
    size = len(frames) // 8
    for at in range(4):
        client.connection.receive(frames[at * size : (at + 1) * size])
    client.ask(
        type=Type.CLOSE_PRODUCER, close_producer=wire.CommandCloseProducer(producer_id=1, request_id=9)
    )
    assert client.receipts() == [(n, n) for n in range(4)]
    client.produce()
    for at in range(4, 8):
        client.connection.receive(frames[at * size : (at + 1) * size])
    client.connection.lost()
    desk.bench.rest()
    assert desk.broker.engine.topics.find(TOPIC).visible == 8


def test_what_is_gathered_counts_as_unanswered() -> None:
    desk = Desk(max_connection_bytes=70_000)
    client = desk.client()
    client.produce()
    for part in range(6):
        frames = sends(1, bytes(20_000), first=part)
        client.connection.receive(frames)
    assert client.pauses == [True]
    desk.bench.rest()
    assert client.pauses == [True, False]
    assert len(client.receipts()) == 6


def test_a_part_that_is_answered_at_once_does_not_hand_over_the_next_one_twice() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    engine = desk.broker.engine
    rooms: list[Answer[None]] = []

    def room(_: int) -> Answer[None]:
        rooms.append(Answer())
        return rooms[-1]

    refusals = [failed(Unavailable("not now"))]
    publish = engine.topics.publish_each
    with (
        patch.object(engine, "space", room),
        patch.object(
            engine.topics, "publish_each", lambda *given: refusals.pop() if refusals else publish(*given)
        ),
    ):
        client.connection.receive(sends(1))
        client.connection.receive(sends(1, first=1))
        assert len(rooms) == 1
        rooms[0].settle(None)
        assert len(rooms) == 2
        rooms[1].settle(None)
        desk.bench.rest()
    assert [one.send_error.sequence_id for one in client.take(Type.SEND_ERROR)] == [0]
    assert client.receipts() == [(1, 0)]


def test_a_producer_that_is_closed_while_it_is_opened_does_not_wait_for_the_topic() -> None:
    desk = Desk()
    desk.client().produce(producer_name="there")
    hasty = desk.client()
    asked = wire.CommandProducer(
        topic=TOPIC,
        producer_id=1,
        request_id=1,
        producer_access_mode=wire.ProducerAccessMode.WaitForExclusive,
        initial_subscription_name="sub",
    )
    closing = wire.CommandCloseProducer(producer_id=1, request_id=2)
    hasty.connection.receive(
        frame(wire.BaseCommand(type=Type.PRODUCER, producer=asked))
        + frame(wire.BaseCommand(type=Type.CLOSE_PRODUCER, close_producer=closing))
    )
    desk.bench.rest()
    hasty.connection.lost()
    assert desk.client().produce(producer_name="another").type == Type.PRODUCER_SUCCESS
