"""Features that only the Java client has: NotAllowedError as an exception of its own, and reconsume-later. `make soak` runs it."""

from pathlib import Path

import pytest

from tests.conformance.pulsar.java_kit import CLIENT, class_path, java, need_compiler
from tests.conformance.pulsar.kit import Broker

pytestmark = pytest.mark.soak

PROGRAM = Path(__file__).with_name("Retrying.java")


def lines(server: Broker, scenario: str, topic: str) -> list[str]:
    classes = class_path(CLIENT)
    need_compiler()
    ended = java(classes, str(PROGRAM), scenario, server.url, topic)
    assert ended.returncode == 0, ended.stdout[-2000:]
    words = ("taken", "refused:", "connected:", "received:", "buried:")
    return [line for line in ended.stdout.splitlines() if line.startswith(words)]


def test_one_message_over_the_limit_fails_and_its_neighbours_do_not(server: Broker, topic: str) -> None:
    """PIP-315: NotAllowedError with the exact text."""
    scope = "topics/" + topic.removeprefix("persistent://")
    server.policy(scope, {"max_delay_ms": 5000})
    try:
        refused, connected = lines(server, "limit", topic)
    finally:
        server.policy(scope, None)
    assert "Exceeds max allowed delivery delay of 5000 milliseconds" in refused
    assert connected == "connected: true"


def test_ten_rounds_of_reconsume_later_and_then_the_dead_letter_topic(server: Broker, topic: str) -> None:
    received, buried = lines(server, "reconsume", topic)
    # Once as it was sent, and once for each round.
    assert (received, buried) == ("received: 11", "buried: stubborn")
