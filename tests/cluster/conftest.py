"""Brokers that the tests of this folder share: one for what `make test` runs, three for `make cluster`; and an object store."""

from collections.abc import Iterator

import pytest

from tests.cluster.brokers import Brokers, brokers
from tests.cluster.object_store import ObjectStore, object_store


@pytest.fixture(scope="session")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A cluster of one node: enough for all that does not kill it."""
    with brokers(tmp_path_factory.mktemp("kafka"), count=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A cluster that survives one node."""
    with brokers(tmp_path_factory.mktemp("kafkas")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 store with a bucket."""
    with object_store(tmp_path_factory.mktemp("s3")) as running:
        yield running
