"""Candidacy is one node's turn at a time, and another's once that one is gone."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from tarry.cluster.candidacy import Candidacy
from tests.cluster.brokers import Brokers
from tests.waiting import wait_until

_names = itertools.count()


class Node:
    """A candidate, and what it was told."""

    def __init__(self, cluster: Brokers, topic: str) -> None:
        self.mine = threading.Event()
        self.told: list[bool] = []
        self.candidacy = Candidacy(
            {"bootstrap.servers": cluster.addresses},
            topic,
            0,
            "node",
            session_timeout_ms=2_000,
            chosen=self._chosen,
        )
        self.candidacy.start()

    def _chosen(self, mine: bool) -> None:
        self.told.append(mine)
        (self.mine.set if mine else self.mine.clear)()


@pytest.fixture
def topic(one_broker: Brokers) -> str:
    return one_broker.make_topic(f"candidates-{next(_names)}", min_insync_replicas="1")


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    started: list[Node] = []
    yield started
    for node in started:
        node.candidacy.close()


def test_the_second_node_gets_its_turn_when_the_first_leaves(
    one_broker: Brokers, topic: str, nodes: list[Node]
) -> None:
    nodes.append(Node(one_broker, topic))
    wait_until(nodes[0].mine.is_set)
    nodes.append(Node(one_broker, topic))
    third = Node(one_broker, topic)
    nodes.append(third)
    # They are members: whoever has the turn keeps it while it is there.
    wait_until(lambda: len(_members(one_broker, topic)) == 3)
    assert nodes[0].mine.is_set()
    assert not nodes[1].mine.is_set()
    assert not third.mine.is_set()
    nodes[0].candidacy.close()
    wait_until(lambda: nodes[1].mine.is_set() or third.mine.is_set())
    assert not (nodes[1].mine.is_set() and third.mine.is_set())


def _members(cluster: Brokers, topic: str) -> list[object]:
    (future,) = cluster.admin.describe_consumer_groups([f"tarry-{topic}-0"]).values()
    return list(future.result(30).members)
