"""Message ids with the real client: equal ids of two topics make a client take one message for another."""

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, payloads, received

ACK_TIMEOUT_MS = 10_000
"""The shortest that the client takes."""


@pytest.mark.parametrize("partitioned", [False, True])
def test_of_two_messages_the_one_that_is_not_acknowledged_comes_again(
    server: Broker, client: pulsar.Client, topic: str, partitioned: bool
) -> None:
    """The first entries of two topics, or of two partitions: one is acknowledged, and the other's timeout still counts."""
    kind = "-partition-" if partitioned else "-other-"
    topics = [f"{topic}{kind}{number}" for number in range(2)]
    consumer = client.subscribe(
        topics,
        "sub",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        unacked_messages_timeout_ms=ACK_TIMEOUT_MS,
    )
    for name in topics:
        client.create_producer(name).send(name.encode())
    first, second = received(consumer, 2, ack=False)
    assert first.message_id() != second.message_id()
    consumer.acknowledge(first)
    assert payloads(received(consumer, 1)) == [second.data()]


def test_an_id_that_was_kept_finds_its_message_and_none_of_the_next_topic(
    server: Broker, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    kept = [producer.send(b"%d" % number) for number in range(3)][1]
    stored = kept.serialize()
    reader = client.create_reader(
        topic, pulsar.MessageId.deserialize(stored), start_message_id_inclusive=True
    )
    assert reader.read_next(timeout_millis=20_000).data() == b"1"
    reader.close()
    producer.close()
    server.delete_topic(topic)
    client.create_producer(topic).send(b"of the next one")
    again = client.create_reader(topic, pulsar.MessageId.deserialize(stored), start_message_id_inclusive=True)
    # The id is of an earlier topic: all that is here comes after it.
    assert again.read_next(timeout_millis=20_000).data() == b"of the next one"
    again.close()
