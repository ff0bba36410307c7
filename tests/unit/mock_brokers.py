"""A broker of librdkafka's own, within this process: topics, groups and positions, and nothing of an administrator's."""

import contextlib
from collections.abc import Iterator

from confluent_kafka import Producer


@contextlib.contextmanager
def mock_broker(topic: str) -> Iterator[str]:
    """The address of one that has a topic."""
    holder = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    holder.produce(topic, b"", partition=0)
    assert holder.flush(30) == 0
    (broker,) = holder.list_topics(timeout=30).brokers.values()
    yield f"{broker.host}:{broker.port}"
