"""Brokers that the tests of this folder share: one for what `make test` runs, three for `make cluster`."""

from collections.abc import Iterator

import pytest

from tests.cluster.brokers import Brokers, brokers


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
