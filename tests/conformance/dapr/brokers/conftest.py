"""One server of each kind for the whole run; a test that kills one starts it again."""

from collections.abc import Iterator

import pytest

from tests.conformance.dapr.brokers.kinds import Broker, RabbitBroker, RedisBroker
from tests.conformance.dapr.brokers.servers import RabbitServer, RedisServer


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


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    found: Broker = request.getfixturevalue(request.param)
    return found
