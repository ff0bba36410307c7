"""One server for all tests that need no settings of their own; each has its own topics."""

from collections.abc import Iterator

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, broker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(tmp_path_factory.mktemp("pulsar") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Broker) -> pulsar.Client:
    return server.client()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    name = request.node.name.translate(str.maketrans("[]/ ", "----"))
    return f"persistent://public/default/{name}"
