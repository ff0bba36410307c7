"""An owner's view of the other servers and of the topic, for as long as it lives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from tarry.cluster.members import GroupMember
from tarry.cluster.topic_safety import TopicSettings
from tarry.config import load
from tarry.core.errors import Unavailable
from tarry.core.tenants.access import Access
from tarry.core.time.clock import SystemClock
from tarry.doors.http.app import build_app
from tarry.doors.http.settings import HttpSettings
from tarry.serve.composition import node as node_module
from tarry.serve.composition.node import ClusterNode
from tarry.serve.datafolder import DataFolder
from tests.serving import serving
from tests.unit.listener_kit import AppTransport
from tests.unit.test_topic_safety import SAFE
from tests.waiting import until


class Cluster:
    """Answers that the brokers would give."""

    def __init__(self) -> None:
        self.topic: TopicSettings | Exception = SAFE
        self.members: list[GroupMember] | Exception = []

    def look(self) -> list[GroupMember]:
        if isinstance(self.members, Exception):
            raise self.members
        return self.members

    def settings(self, client: object, topic: str) -> TopicSettings:
        if isinstance(self.topic, Exception):
            raise self.topic
        return self.topic


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(node_module, "Members", lambda *_: cluster)
    monkeypatch.setattr(node_module, "topic_settings", cluster.settings)
    monkeypatch.setattr(node_module, "LOOK_EVERY_S", 0.01)
    return cluster


@pytest.fixture
async def node(cluster: Cluster, tmp_path: Path) -> AsyncIterator[ClusterNode]:
    overrides = {"data": str(tmp_path / "data"), "ledger.kafka": {"bootstrap.servers": "127.0.0.1:1"}}
    with DataFolder.open(tmp_path / "data") as folder:
        config = load(environment={}, overrides=overrides).config
        node = ClusterNode(config, folder, SystemClock(), "http://127.0.0.1:1")
        looking = asyncio.create_task(node._look_on())
        yield node
        looking.cancel()


async def test_a_topic_that_was_made_unsafe_meanwhile_is_warned_of_and_one_that_was_mended_is_not(
    cluster: Cluster, node: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    unsafe = structs.replace(SAFE, settings={**SAFE.settings, "unclean.leader.election.enable": "true"})
    cluster.topic = unsafe
    await until(lambda: node.warnings)
    assert "acknowledged messages could be lost" in node.warnings[0]
    assert caplog.text.count("set unclean.leader.election.enable = false") == 1
    cluster.topic = SAFE
    await until(lambda: not node.warnings)


async def test_readiness_tells_the_warnings(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        app = build_app(served.engine, Access.open(), HttpSettings(), warnings=lambda: ["of the topic"])
        async with httpx.AsyncClient(transport=AppTransport(app), base_url="http://127.0.0.1") as client:
            answer = await client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json()["warnings"] == ["of the topic"]


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("broken")])
async def test_no_look_that_fails_is_the_last_one(
    cluster: Cluster, node: ClusterNode, error: Exception
) -> None:
    cluster.members = error
    await until(lambda: node._members_trouble == str(error))
    cluster.members = [GroupMember("b", 7)]
    await until(lambda: node._members == cluster.members and node._members_trouble is None)
