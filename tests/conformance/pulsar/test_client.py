"""Topics with the real client, beside delays: produce and consume in every way that it has."""

import re
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import JsonSchema, Record, String, StringSchema

from tarry.client import Client
from tests.conformance.pulsar.kit import WITHIN_MS, Broker, now_ms, payloads, received, silent

Earliest = pulsar.InitialPosition.Earliest
Type = pulsar.ConsumerType


def subscribed(client: pulsar.Client, topic: str, type_: Any = Type.Shared, **options: Any) -> Any:
    options.setdefault("subscription_name", "sub")
    return client.subscribe(topic, consumer_type=type_, initial_position=Earliest, **options)


def test_properties_keys_and_times_come_through(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic)
    sent = producer.send(
        b"payload",
        properties={"a": "1", "ü": "é"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=77,
    )
    (message,) = received(consumer, 1)
    assert message.data() == b"payload"
    assert message.properties() == {"a": "1", "ü": "é"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == (
        "key",
        "order",
        77,
    )
    assert message.message_id() == sent
    assert message.topic_name() == topic


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY", "NONE"])
@pytest.mark.parametrize("batching", [True, False])
def test_compression_and_batches_pass_through(
    client: pulsar.Client, topic: str, codec: str, batching: bool
) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(
        topic,
        compression_type=getattr(pulsar.CompressionType, codec),
        batching_enabled=batching,
        batching_max_publish_delay_ms=20,
    )
    sent = [b"%d " % n * 100 for n in range(50)]
    for payload in sent:
        producer.send_async(payload, lambda _, __: None)
    producer.flush()
    assert payloads(received(consumer, 50)) == sent


def test_permits_count_messages_of_batches(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, receiver_queue_size=7)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=25)
    for n in range(500):
        producer.send_async(b"%d" % n, lambda _, __: None)
    producer.flush()
    assert payloads(received(consumer, 500)) == [b"%d" % n for n in range(500)]


def test_chunks_are_put_together(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = bytes(range(256)) * 50_000
    producer.send(large)
    producer.send(b"after")
    assert payloads(received(consumer, 2)) == [large, b"after"]


def test_encryption_passes_through(server: Broker, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    """Only who has the key can read it, and the server has not; with a delay, in chunks and in a batch too."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "private.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    (tmp_path / "public.pem").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    keys = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "private.pem"))
    consumer = subscribed(client, topic, crypto_key_reader=keys)
    producer = client.create_producer(topic, encryption_key="key", crypto_key_reader=keys)
    chunks = client.create_producer(
        topic, encryption_key="key", crypto_key_reader=keys, chunking_enabled=True, batching_enabled=False
    )
    large = bytes(range(256)) * 25_000
    producer.send_async(b"secret", lambda _, __: None)
    producer.send_async(b"and another", lambda _, __: None)
    producer.flush()
    chunks.send(large)
    due_ms = now_ms() + 1_000
    producer.send(b"later", deliver_at=due_ms)
    assert payloads(received(consumer, 4)) == [b"secret", b"and another", large, b"later"]
    assert now_ms() >= due_ms
    with Client(server.server.url) as native:
        native.subscribe(topic, "native", type="exclusive", start="earliest")
        (stored, *_) = native.receive(topic, "native", max=1)
        assert b"key" in stored.payload
        assert b"secret" not in stored.payload


def test_the_clients_own_dead_letter_topic(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "first")
    consumer = subscribed(client, topic, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"x", deliver_at=now_ms() + 300)
    for count in range(3):
        (message,) = received(consumer, 1, ack=False)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    assert payloads(received(subscribed(client, f"{topic}-dead"), 1)) == [b"x"]
    assert silent(consumer)


def test_the_largest_message(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    # The client counts the metadata too.
    largest = bytes(5 * 1024 * 1024 - 200)
    producer.send(largest)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(largest + bytes(200))
    assert payloads(received(consumer, 1)) == [largest]


def test_null_and_empty_payloads(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    client.create_producer(topic).send(b"")
    assert payloads(received(consumer, 1)) == [b""]


def test_shared_consumers_share(client: pulsar.Client, topic: str) -> None:
    consumers = [subscribed(client, topic, receiver_queue_size=5) for _ in range(3)]
    producer = client.create_producer(topic, batching_enabled=False)
    for n in range(30):
        producer.send(b"%d" % n)
    got: list[bytes] = []
    each = [0, 0, 0]
    while len(got) < 30:
        for at, consumer in enumerate(consumers):
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            got.append(message.data())
            each[at] += 1
    assert sorted(got) == sorted(b"%d" % n for n in range(30))
    assert all(each)


def test_an_exclusive_subscription_takes_one_consumer(client: pulsar.Client, topic: str) -> None:
    first = subscribed(client, topic, Type.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribed(client, topic, Type.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribed(client, topic, Type.Shared)
    first.close()
    subscribed(client, topic, Type.Shared)


def test_failover_goes_over(client: pulsar.Client, topic: str) -> None:
    first = subscribed(client, topic, Type.Failover, consumer_name="a")
    second = subscribed(client, topic, Type.Failover, consumer_name="b")
    producer = client.create_producer(topic)
    producer.send(b"1")
    producer.send(b"2")
    assert payloads(received(first, 1)) == [b"1"]
    assert silent(second)
    first.close()
    producer.send(b"3")
    assert payloads(received(second, 2)) == [b"2", b"3"]


def test_cumulative_acknowledgement(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, Type.Exclusive)
    producer = client.create_producer(topic)
    for n in range(10):
        producer.send(b"%d" % n)
    messages = received(consumer, 10, ack=False)
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    again = subscribed(client, topic, Type.Exclusive)
    assert payloads(received(again, 3)) == [b"7", b"8", b"9"]


def test_part_of_a_batch_is_acknowledged(client: pulsar.Client, topic: str) -> None:
    options: dict[str, Any] = {"batch_index_ack_enabled": True}
    consumer = subscribed(client, topic, **options)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for n in range(10):
        producer.send_async(b"%d" % n, lambda _, __: None)
    producer.flush()
    messages = received(consumer, 10, ack=False)
    assert len({message.message_id().entry_id() for message in messages}) == 1
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = subscribed(client, topic, **options)
    assert payloads(received(again, 5)) == [b"1", b"3", b"5", b"7", b"9"]
    assert silent(again)
    again.close()
    assert silent(subscribed(client, topic, **options))


def test_what_is_not_acknowledged_in_time_comes_again(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, unacked_messages_timeout_ms=10_000)
    client.create_producer(topic).send(b"x")
    (message,) = received(consumer, 1, ack=False)
    consumer.redeliver_unacknowledged_messages()
    (again,) = received(consumer, 1)
    assert again.message_id() == message.message_id()
    assert again.redelivery_count() == 1


def test_unsubscribe_ends_it(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer.unsubscribe()
    latest = client.subscribe(topic, "sub", Type.Shared)
    producer.send(b"after")
    assert payloads(received(latest, 1)) == [b"after"]


@pytest.mark.parametrize("type_", [Type.Shared, Type.Exclusive])
def test_seek_by_id_and_by_time(client: pulsar.Client, topic: str, type_: Any) -> None:
    # As long as somebody has not acknowledged them, they are there to go back to.
    subscribed(client, topic, subscription_name="other")
    consumer = subscribed(client, topic, type_)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % n) for n in range(5)]
    first = received(consumer, 5)
    inclusive = subscribed(client, topic, subscription_name="inclusive", start_message_id_inclusive=True)
    inclusive.seek(ids[2])
    assert payloads(received(inclusive, 3)) == [b"2", b"3", b"4"]
    consumer.seek(ids[2])
    # The client passes over the message that it goes to, unless it is told otherwise.
    assert payloads(received(consumer, 2)) == [b"3", b"4"]
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"5")
    assert payloads(received(consumer, 1)) == [b"5"]
    consumer.seek(first[0].publish_timestamp() + 3_600_000)
    producer.send(b"6")
    assert payloads(received(consumer, 1)) == [b"6"]


def test_readers(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % n) for n in range(5)]

    def read_all(reader: Any) -> list[bytes]:
        got = []
        while reader.has_message_available():
            got.append(reader.read_next(timeout_millis=WITHIN_MS).data())
        return got

    assert read_all(client.create_reader(topic, pulsar.MessageId.earliest)) == [b"%d" % n for n in range(5)]
    assert read_all(client.create_reader(topic, ids[1])) == [b"2", b"3", b"4"]
    inclusive = client.create_reader(topic, ids[1], start_message_id_inclusive=True)
    assert read_all(inclusive) == [b"1", b"2", b"3", b"4"]
    inclusive.seek(pulsar.MessageId.earliest)
    assert len(read_all(inclusive)) == 5
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert read_all(latest) == []
    producer.send(b"new")
    assert latest.read_next(timeout_millis=WITHIN_MS).data() == b"new"


def test_readers_within_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=50)
    for n in range(10):
        producer.send_async(b"%d" % n, lambda _, __: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    middle = [reader.read_next(timeout_millis=WITHIN_MS) for _ in range(4)][-1].message_id()
    rest = client.create_reader(topic, middle)
    got = []
    while rest.has_message_available():
        got.append(rest.read_next(timeout_millis=WITHIN_MS).data())
    assert got == [b"%d" % n for n in range(4, 10)]


def test_the_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"a")
    last = producer.send(b"b")
    assert consumer.get_last_message_id() == last


def test_a_pattern_is_every_topic_that_it_matches(client: pulsar.Client, topic: str) -> None:
    """The Python client looks for further ones every minute, whatever it is told: no test waits for that."""
    for name in ("part-1", "part-2", "other"):
        client.create_producer(f"{topic}-{name}").send(name.encode())
    pattern = re.compile(f"{topic}-part-.*")
    consumer = client.subscribe(pattern, "sub", Type.Shared, initial_position=Earliest)
    assert sorted(payloads(received(consumer, 2))) == [b"part-1", b"part-2"]
    assert silent(consumer)


def test_several_topics_in_one_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe([f"{topic}-a", f"{topic}-b"], "sub", Type.Shared, initial_position=Earliest)
    for name in ("a", "b"):
        client.create_producer(f"{topic}-{name}").send(name.encode())
    assert sorted(payloads(received(consumer, 2))) == [b"a", b"b"]


# Producers


def test_a_name_is_one_producers(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="me")
    assert first.producer_name() == "me"
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")
    first.close()
    client.create_producer(topic, producer_name="me").send(b"x")
    assert client.create_producer(topic).producer_name() != client.create_producer(topic).producer_name()


def test_a_sequence_id_counts_once(server: Broker, client: pulsar.Client, topic: str) -> None:
    server.policy(f"topics/{topic.removeprefix('persistent://')}", {"deduplication": True})
    consumer = subscribed(client, topic)
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=0)
    for sequence in (5, 6, 5, 6, 7):
        producer.send(b"%d" % sequence, sequence_id=sequence)
    assert payloads(received(consumer, 3)) == [b"5", b"6", b"7"]
    assert silent(consumer)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 7


def test_access_modes(client: pulsar.Client, topic: str) -> None:
    mode = pulsar.ProducerAccessMode
    shared = client.create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=mode.Exclusive)
    shared.close()
    exclusive = client.create_producer(topic, access_mode=mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    exclusive.send(b"alone")
    fencing = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    fencing.send(b"fenced")
    with pytest.raises(pulsar.PulsarException):
        exclusive.send(b"not any more")
    fencing.close()
    client.create_producer(topic).send(b"free")


# Schemas


class Order(Record):  # type: ignore[misc]
    name = String()


def test_schemas(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(name="tea"))
    (message,) = received(consumer, 1)
    assert message.value().name == "tea"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())


# What is refused


def test_non_persistent_topics_are_refused(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer("non-persistent://public/default/x")
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe("non-persistent://public/default/x", "sub")
