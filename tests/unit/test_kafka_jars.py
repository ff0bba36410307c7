"""Tests that need Kafka are skipped where it cannot be had, and fail in CI."""

from pathlib import Path

import pytest

from tests.conformance.dapr.brokers.servers import kafka_jars


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    tool = tmp_path / "tool.sh"
    tool.write_text("#!/bin/sh\necho 'Kafka needs mvn, which is not here' >&2\nexit 1\n")
    tool.chmod(0o755)
    return tool


def test_without_jars_a_test_is_skipped_here_and_fails_in_ci(
    failing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Kafka needs mvn"):
        kafka_jars(failing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Kafka needs mvn"):
        kafka_jars(failing)
