"""One server of each kind for the whole run; a test that kills one starts it again."""

from collections.abc import Iterator

import pytest

from tests.conformance.dapr.brokers.kinds import Broker, KafkaBroker, NatsBroker, RabbitBroker, RedisBroker
from tests.conformance.dapr.brokers.servers import KafkaServer, NatsServer, RabbitServer, RedisServer


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield RedisBroker(server)
    server.stop()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"), consumer_timeout_ms=3_000)
    server.start()
    yield RabbitBroker(server)
    server.stop()


@pytest.fixture(scope="session")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield NatsBroker(server)
    server.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield KafkaBroker(server)
    server.stop()


@pytest.fixture(params=["redis", "jetstream", "rabbitmq", pytest.param("kafka", marks=pytest.mark.soak)])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    found: Broker = request.getfixturevalue(request.param)
    return found
