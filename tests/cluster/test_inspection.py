"""The answers of real brokers about a topic are enough to refuse one that could lose a ledger."""

import pytest

from tarry.cluster.inspection import topic_settings
from tarry.cluster.topic_safety import doubtful, unsafe
from tarry.core.errors import NotFound, Unavailable
from tests.cluster.brokers import Brokers


def test_a_topic_with_one_replica_is_refused(one_broker: Brokers) -> None:
    one_broker.make_topic("lonely", min_insync_replicas="1")
    found = topic_settings({"bootstrap.servers": one_broker.addresses}, "lonely")
    assert found.racks == {1: "rack-1"}
    reasons = " ".join(unsafe(found))
    assert "replication factor of 3" in reasons
    assert "set min.insync.replicas = 2" in reasons
    assert "retention" not in reasons
    assert doubtful(found)


def test_kafkas_defaults_are_refused_for_their_retention(one_broker: Brokers) -> None:
    one_broker.make_topic("kept-a-week", retention_ms="604800000")
    reasons = " ".join(unsafe(topic_settings({"bootstrap.servers": one_broker.addresses}, "kept-a-week")))
    assert "set retention.ms = -1" in reasons


def test_a_missing_topic_is_told_with_the_way_to_make_it(one_broker: Brokers) -> None:
    with pytest.raises(NotFound, match="replication factor of 3"):
        topic_settings({"bootstrap.servers": one_broker.addresses}, "missing")


def test_brokers_that_do_not_answer_are_unavailable() -> None:
    with pytest.raises(Unavailable, match="topic tarry"):
        topic_settings({"bootstrap.servers": "127.0.0.1:1"}, "tarry", within_s=0.5)
