"""A broker and an object store that the tests of this folder share; `make cluster` has three brokers of its own."""

from collections.abc import Iterator

import pytest

from tests.certificates import certificate
from tests.cluster.brokers import Brokers, brokers
from tests.cluster.links import Network
from tests.cluster.object_store import ObjectStore, object_store


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A cluster of one node: enough for all that does not kill it."""
    folder = tmp_path_factory.mktemp("kafka")
    with brokers(folder, count=1, guard=certificate(folder)) as cluster:
        yield cluster


@pytest.fixture
def network() -> Iterator[Network]:
    """Links that end with the test."""
    with Network() as made:
        yield made


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 store with a bucket."""
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        yield running
