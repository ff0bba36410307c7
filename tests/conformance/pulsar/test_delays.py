"""Delayed delivery with the real client (PIP-26): each sentence of the seed that a client can see, and Pulsar's own cases."""

from typing import Any

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, due_of, now_ms, payloads, received, send_delayed, silent

Earliest = pulsar.InitialPosition.Earliest
Type = pulsar.ConsumerType


def subscribed(client: pulsar.Client, topic: str, name: str, type_: Any, **options: Any) -> Any:
    return client.subscribe(topic, name, type_, initial_position=Earliest, **options)


def on_time(consumer: Any) -> Any:
    """The next message, which is not early."""
    (message,) = received(consumer, 1)
    assert now_ms() >= due_of(message)
    return message


def test_shared_waits_and_failover_does_not(client: pulsar.Client, topic: str) -> None:
    """Ten delayed messages: shared gets none at once, failover all in order at once, shared later all."""
    shared = subscribed(client, topic, "shared", Type.Shared)
    failover = subscribed(client, topic, "failover", Type.Failover)
    producer = client.create_producer(topic)
    sent = [f"m{n}".encode() for n in range(10)]
    for payload in sent:
        send_delayed(producer, payload, 1_500)
    assert payloads(received(failover, 10)) == sent
    assert payloads([on_time(shared) for _ in sent]) == sent


@pytest.mark.parametrize("type_", [Type.Exclusive, Type.Failover])
def test_subscriptions_in_order_ignore_delays(client: pulsar.Client, topic: str, type_: Any) -> None:
    consumer = subscribed(client, topic, "sub", type_)
    producer = client.create_producer(topic)
    send_delayed(producer, b"in an hour", 3_600_000)
    producer.send(b"now")
    assert payloads(received(consumer, 2)) == [b"in an hour", b"now"]


@pytest.mark.parametrize("type_", [Type.Shared, Type.KeyShared])
def test_nothing_is_early_and_immediates_go_between(client: pulsar.Client, topic: str, type_: Any) -> None:
    consumer = subscribed(client, topic, "sub", type_)
    producer = client.create_producer(topic)
    for n in range(5):
        send_delayed(producer, f"later {n}".encode(), 1_000, partition_key=f"k{n}")
        producer.send(f"now {n}".encode(), partition_key=f"k{n}")
    at_once: list[bytes] = []
    for _ in range(10):
        (message,) = received(consumer, 1)
        if message.data().startswith(b"later"):
            assert now_ms() >= due_of(message)
        else:
            at_once.append(message.data())
    assert at_once == [f"now {n}".encode() for n in range(5)]


def test_deliver_after_is_a_delay_from_the_sending(client: pulsar.Client, topic: str) -> None:
    from datetime import timedelta

    consumer = subscribed(client, topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    sent_at_ms = now_ms()
    producer.send(b"x", deliver_after=timedelta(milliseconds=700))
    received(consumer, 1)
    assert now_ms() >= sent_at_ms + 700


def test_equal_due_times_keep_their_order(client: pulsar.Client, topic: str) -> None:
    """A thousand messages due at one instant arrive in the order in which they were sent, with a queue of any length."""
    queues = (1, 10, 1_000)
    consumers = [
        subscribed(client, topic, f"queue-{size}", Type.Shared, receiver_queue_size=size) for size in queues
    ]
    producer = client.create_producer(topic, max_pending_messages=2_000)
    due_ms = now_ms() + 4_000
    for n in range(1_000):
        producer.send_async(b"%d" % n, lambda _, __: None, deliver_at=due_ms)
    producer.flush()
    for consumer in consumers:
        messages = received(consumer, 1_000)
        ids = [message.message_id().entry_id() for message in messages]
        assert ids == sorted(set(ids))
        assert payloads(messages) == [b"%d" % n for n in range(1_000)]


def test_different_due_times_come_in_their_order(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    base_ms = now_ms() + 3_000
    for n in (3, 1, 4, 0, 2):
        producer.send_async(b"%d" % n, lambda _, __: None, deliver_at=base_ms + 50 * n)
    producer.flush()
    assert payloads(received(consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_all_consumers_gone_and_back(client: pulsar.Client, topic: str) -> None:
    """Delivered exactly once, though nobody was there when they became due."""
    subscribed(client, topic, "sub", Type.Shared).close()
    producer = client.create_producer(topic)
    for n in range(20):
        send_delayed(producer, b"%d" % n, 400)
    subscribed(client, topic, "sub", Type.Shared).close()
    second = subscribed(client, topic, "sub", Type.Shared)
    assert sorted(payloads(received(second, 20))) == sorted(b"%d" % n for n in range(20))
    assert silent(second)


def test_key_shared_interleaved_with_a_late_second_consumer(client: pulsar.Client, topic: str) -> None:
    first = subscribed(client, topic, "sub", Type.KeyShared, consumer_name="a")
    producer = client.create_producer(topic)
    for n in range(40):
        if n % 2:
            producer.send(b"%d" % n, partition_key=f"k{n % 7}")
        else:
            send_delayed(producer, b"%d" % n, 4_000, partition_key=f"k{n % 7}")
    got = received(first, 20)
    second = subscribed(client, topic, "sub", Type.KeyShared, consumer_name="b")
    took: dict[str, set[str]] = {}
    while len(got) < 40:
        for name, consumer in (("a", first), ("b", second)):
            try:
                message = consumer.receive(timeout_millis=100)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            took.setdefault(message.partition_key(), set()).add(name)
            got.append(message)
    assert sorted(int(message.data()) for message in got) == list(range(40))
    assert all(len(names) == 1 for names in took.values())


def test_everything_waits_in_several_reads(client: pulsar.Client, topic: str) -> None:
    """Many that wait do not hide the one that does not."""
    producer = client.create_producer(topic, max_pending_messages=10_000)
    for _ in range(6_000):
        producer.send_async(b"later", lambda _, __: None, deliver_at=now_ms() + 3_600_000)
    producer.send(b"now")
    producer.flush()
    consumer = subscribed(client, topic, "sub", Type.Shared)
    assert payloads(received(consumer, 1)) == [b"now"]
    assert silent(consumer)


def test_a_past_instant_is_at_once(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    producer.send(b"past", deliver_at=now_ms() - 10_000)
    producer.send(b"long ago", deliver_at=1)
    assert payloads(received(consumer, 2)) == [b"past", b"long ago"]


def test_every_subscription_gets_it_once(client: pulsar.Client, topic: str) -> None:
    """All subscriptions share one index, and each is given the message for itself."""
    consumers = [subscribed(client, topic, f"s{n}", Type.Shared) for n in range(5)]
    producer = client.create_producer(topic)
    send_delayed(producer, b"x", 500)
    for consumer in consumers:
        assert payloads(received(consumer, 1)) == [b"x"]
    assert all(silent(consumer, 50) for consumer in consumers)


def test_disabling_delivers_at_once_and_removing_delays_again(
    server: Broker, client: pulsar.Client, topic: str
) -> None:
    place = f"topics/{topic.removeprefix('persistent://')}"
    consumer = subscribed(client, topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    server.policy(place, {"delayed_delivery": False})
    send_delayed(producer, b"off", 3_600_000)
    assert payloads(received(consumer, 1)) == [b"off"]
    server.policy(place, None)
    send_delayed(producer, b"on", 700)
    assert on_time(consumer).data() == b"on"


def test_the_tick_makes_later_and_never_early(server: Broker, client: pulsar.Client, topic: str) -> None:
    server.policy(f"topics/{topic.removeprefix('persistent://')}", {"tick_ms": 1_000})
    consumer = subscribed(client, topic, "sub", Type.Shared)
    producer = client.create_producer(topic)
    due_ms = (now_ms() // 1_000 + 2) * 1_000 - 990
    producer.send(b"x", deliver_at=due_ms)
    received(consumer, 1)
    assert now_ms() >= due_ms - due_ms % 1_000 + 1_000


def test_negative_acknowledgement_of_a_delayed_message(client: pulsar.Client, topic: str) -> None:
    consumer = subscribed(client, topic, "sub", Type.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    send_delayed(producer, b"x", 300)
    (first,) = received(consumer, 1, ack=False)
    assert first.redelivery_count() == 0
    consumer.negative_acknowledge(first)
    (again,) = received(consumer, 1)
    assert again.redelivery_count() == 1
    assert again.message_id() == first.message_id()
