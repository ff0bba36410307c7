"""A node says that it stands only while the group has it, and a group that refused it is asked again."""

from collections.abc import Iterator

import pytest

from tarry.cluster import candidacy as candidacy_module
from tarry.cluster.candidacy import Candidacy
from tests.unit.mock_brokers import mock_broker
from tests.waiting import wait_until

TOPIC = "tarry"
TOO_LONG_MS = 3_600_000
"""Longer than the library lets a client be silent."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with mock_broker(TOPIC) as found:
        yield found


class Node:
    """A candidate and what it was told."""

    def __init__(self, address: str, name: str, session_timeout_ms: int = 6_000) -> None:
        self.told: list[bool] = []
        self.candidacy = Candidacy(
            {"bootstrap.servers": address},
            TOPIC,
            0,
            name,
            session_timeout_ms=session_timeout_ms,
            chosen=self.told.append,
        )
        self.candidacy.start()


def test_who_waits_for_its_turn_is_a_member_too_and_who_has_left_is_none(address: str) -> None:
    nodes = [Node(address, "a"), Node(address, "b")]
    try:
        wait_until(lambda: all(node.candidacy.is_member for node in nodes))
        wait_until(lambda: [True] in [node.told for node in nodes])
    finally:
        for node in nodes:
            node.candidacy.close()
    assert not any(node.candidacy.is_member for node in nodes)
    assert all(node.told[-1:] in ([], [False]) for node in nodes), "nobody is left with the turn"


def test_a_node_that_cannot_join_says_so_and_joins_once_it_can(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidacy_module, "TRY_AGAIN_S", 0.05)
    node = Node(address, "a", TOO_LONG_MS)
    try:
        wait_until(lambda: node.candidacy.trouble is not None)
        assert "session.timeout.ms" in str(node.candidacy.trouble)
        assert not node.candidacy.is_member
        node.candidacy._settings["session.timeout.ms"] = 6_000
        wait_until(lambda: node.candidacy.is_member)
        assert node.candidacy.trouble is None
        wait_until(lambda: node.told == [True])
    finally:
        node.candidacy.close()
