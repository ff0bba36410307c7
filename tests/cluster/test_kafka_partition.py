"""A partition of real brokers keeps the contract of `LogPartition`: order, offsets, committed reads, trimming."""

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

from tarry.cluster.kafka_partition import KafkaPartition
from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.log.partition import LogDelivery, LogRecord
from tests.cluster.brokers import Brokers
from tests.waiting import wait_until

_names = itertools.count()


@pytest.fixture
def topic(one_broker: Brokers) -> str:
    return one_broker.make_topic(f"ledger-{next(_names)}", min_insync_replicas="1")


@pytest.fixture
def partition(one_broker: Brokers, topic: str) -> Iterator[KafkaPartition]:
    opened = open_partition(one_broker, topic)
    yield opened
    opened.close()


def open_partition(cluster: Brokers, topic: str) -> KafkaPartition:
    return KafkaPartition({"bootstrap.servers": cluster.addresses}, topic, 0)


def settled(partition: KafkaPartition, count: int) -> list[LogDelivery]:
    found: list[LogDelivery] = []
    wait_until(lambda: len(found.__iadd__(partition.deliveries(1.0))) >= count)
    return found


def read_all(partition: KafkaPartition, offset: int, count: int) -> list[LogRecord]:
    found: list[LogRecord] = []
    wait_until(lambda: len(found.__iadd__(partition.read(offset + len(found), 1.0))) >= count)
    return found


def test_a_topic_that_is_made_anew_has_another_identity(one_broker: Brokers, topic: str) -> None:
    with closing(open_partition(one_broker, topic)) as partition:
        first = partition.identity()
        assert first == partition.identity() != ""
        for future in one_broker.admin.delete_topics([topic]).values():
            future.result(30)
        wait_until(lambda: topic not in one_broker.admin.list_topics(timeout=30).topics)
        one_broker.make_topic(topic, min_insync_replicas="1")
        assert partition.identity() not in ("", first)


def test_records_stand_in_the_order_in_which_they_were_sent(partition: KafkaPartition) -> None:
    contents = [b"%d" % number for number in range(40)]
    tickets = [partition.send(content) for content in contents]
    assert tickets == list(range(40))
    deliveries = settled(partition, 40)
    assert [delivery.ticket for delivery in deliveries] == tickets
    assert [delivery.offset for delivery in deliveries] == list(range(40))
    assert not any(delivery.error for delivery in deliveries)
    assert [record.data for record in read_all(partition, 0, 40)] == contents
    assert partition.ends() == (0, 40)


def test_reading_goes_on_anywhere_and_waits_for_more(partition: KafkaPartition) -> None:
    for number in range(10):
        partition.send(b"%d" % number)
    settled(partition, 10)
    assert read_all(partition, 7, 3) == [LogRecord(n, b"%d" % n) for n in (7, 8, 9)]
    assert read_all(partition, 2, 8)[0] == LogRecord(2, b"2")
    assert partition.read(10, 0.05) == []
    partition.send(b"late")
    assert read_all(partition, 10, 1) == [LogRecord(10, b"late")]


def test_two_connections_see_one_order(one_broker: Brokers, topic: str, partition: KafkaPartition) -> None:
    other = open_partition(one_broker, topic)
    try:
        for number in range(20):
            partition.send(b"a%d" % number)
            other.send(b"b%d" % number)
        offsets = [delivery.offset for delivery in settled(partition, 20) + settled(other, 20)]
        assert sorted(offset for offset in offsets if offset is not None) == list(range(40))
        assert read_all(partition, 0, 40) == read_all(other, 0, 40)
    finally:
        other.close()


def test_what_was_trimmed_is_not_found(partition: KafkaPartition) -> None:
    for number in range(6):
        partition.send(b"%d" % number)
    settled(partition, 6)
    partition.trim(4)
    wait_until(lambda: partition.ends() == (4, 6))

    def gone() -> bool:
        with pytest.raises(NotFound):
            while not partition.read(0, 1.0):
                pass
        return True

    assert gone()
    assert read_all(partition, 4, 2) == [LogRecord(4, b"4"), LogRecord(5, b"5")]


def test_a_record_too_large_for_the_topic_has_no_known_outcome(one_broker: Brokers) -> None:
    topic = one_broker.make_topic("narrow", min_insync_replicas="1", max_message_bytes="1000")
    partition = open_partition(one_broker, topic)
    try:
        partition.send(b"x" * 5_000)
        (delivery,) = settled(partition, 1)
        assert delivery.error
        assert delivery.offset is None
    finally:
        partition.close()


def test_brokers_that_are_not_there_are_unavailable() -> None:
    partition = KafkaPartition(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "none", 0, answered_within_s=0.5
    )
    try:
        with pytest.raises(Unavailable, match=r"none-0 at 127\.0\.0\.1:1"):
            partition.ends()
    finally:
        partition.close()
