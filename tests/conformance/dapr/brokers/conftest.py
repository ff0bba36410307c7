"""One server of each kind for the whole run; a test that kills one starts it again."""

from collections.abc import Iterator

import pytest

from tests.conformance.dapr.brokers.apache_pulsar import PulsarServer
from tests.conformance.dapr.brokers.kinds import (
    ApachePulsarBroker,
    Broker,
    KafkaBroker,
    NatsBroker,
    PulsarBroker,
    RabbitBroker,
    RedisBroker,
)
from tests.conformance.dapr.brokers.servers import (
    KafkaServer,
    NatsServer,
    RabbitServer,
    RedisServer,
    TarryServer,
)

SLOW = {
    # RabbitMQ takes its time to start, and Pulsar's library to give up.
    "test_a_broker_that_is_killed_and_comes_back_loses_nothing[rabbitmq]",
    "test_held_past_the_deadline_and_the_prefetch_and_then_taken_over[rabbitmq]",
    "test_wrong_credentials[pulsar]",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what takes long to `-m soak`."""
    for item in items:
        if item.name in SLOW:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield RedisBroker(server)
    server.stop()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"), consumer_timeout_ms=4_000)
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


@pytest.fixture(scope="session")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = TarryServer(tmp_path_factory.mktemp("tarry"))
    server.start()
    yield PulsarBroker(server)
    server.stop()


@pytest.fixture(scope="session")
def apache_pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = PulsarServer(tmp_path_factory.mktemp("pulsar"))
    server.start()
    yield ApachePulsarBroker(server)
    server.stop()


LATER = [pytest.param(name, marks=pytest.mark.soak) for name in ("kafka", "apache_pulsar")]


@pytest.fixture(params=["redis", "jetstream", "pulsar", "rabbitmq", *LATER])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    found: Broker = request.getfixturevalue(request.param)
    return found
