"""A topic that could lose what it acknowledged is refused, with the setting that makes it so."""

import pytest
from msgspec import structs

from tarry.cluster.topic_safety import RECORD_BYTES, TopicSettings, doubtful, unsafe

SAFE = TopicSettings(
    name="tarry",
    replicas=[[1, 2, 3]],
    racks={1: "a", 2: "b", 3: "c"},
    settings={
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(RECORD_BYTES),
    },
)


def with_setting(name: str, value: str) -> TopicSettings:
    return structs.replace(SAFE, settings={**SAFE.settings, name: value})


def test_a_safe_topic_is_taken() -> None:
    assert unsafe(SAFE) == []
    assert doubtful(SAFE) == []


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        (structs.replace(SAFE, replicas=[[1]]), "replication factor of 3"),
        (structs.replace(SAFE, replicas=[[1, 2, 3], [1, 2]]), "replication factor of 3"),
        (with_setting("min.insync.replicas", "1"), "set min.insync.replicas = 2"),
        (with_setting("min.insync.replicas", "3"), "set min.insync.replicas = 2"),
        (with_setting("unclean.leader.election.enable", "true"), "unclean.leader.election.enable = false"),
        (with_setting("cleanup.policy", "compact"), "set cleanup.policy = delete"),
        (with_setting("cleanup.policy", "compact,delete"), "set cleanup.policy = delete"),
        (with_setting("retention.ms", "604800000"), "set retention.ms = -1"),
        (with_setting("retention.bytes", "1073741824"), "set retention.bytes = -1"),
        (with_setting("max.message.bytes", "1000000"), f"set max.message.bytes = {RECORD_BYTES}"),
    ],
)
def test_each_unsafe_setting_is_refused_with_its_remedy(topic: TopicSettings, remedy: str) -> None:
    (reason,) = unsafe(topic)
    assert remedy in reason
    assert reason.startswith("topic tarry ")


def test_all_reasons_are_told_at_once() -> None:
    topic = structs.replace(SAFE, replicas=[[1]], settings={"unclean.leader.election.enable": "true"})
    assert len(unsafe(topic)) == 3


@pytest.mark.parametrize("racks", [{1: "a", 2: "a", 3: "a"}, {1: None, 2: None, 3: None}, {}])
def test_one_rack_is_only_a_warning(racks: dict[int, str | None]) -> None:
    topic = structs.replace(SAFE, racks=racks)
    assert unsafe(topic) == []
    assert "power domains" in doubtful(topic)[0]
