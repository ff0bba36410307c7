"""One server of each kind for the whole run; a test that kills one starts it again."""

from collections.abc import Iterator

import pytest

from tests.conformance.dapr.brokers.kinds import Broker, RedisBroker
from tests.conformance.dapr.brokers.servers import RedisServer


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield RedisBroker(server)
    server.stop()


@pytest.fixture(params=["redis"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each broker in turn."""
    found: Broker = request.getfixturevalue(request.param)
    return found
