"""Brokers with TLS, passwords and rights: what the guide says is enough, and what is missing is told in words."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import pytest
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tarry.cli.shared_log import check_log
from tarry.cluster.failures import RIGHTS
from tarry.cluster.inspection import topic_settings
from tarry.cluster.kafka_partition import KafkaPartition
from tarry.config import Config, load
from tarry.core.errors import Unavailable
from tests.cluster.brokers import PASSWORD, USERS, Brokers
from tests.cluster.receiver import Receiver
from tests.cluster.servers import ClusterServer
from tests.cluster.test_takeover import check, schedule
from tests.waiting import wait_until

OF_TOPIC: Final = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.DELETE,
)
OF_GROUPS: Final = (AclOperation.READ, AclOperation.DESCRIBE)
"""The rights that docs/operations/cluster.md names."""

_names = itertools.count()


def grant(cluster: Brokers, user: str, topic: str, rights: Sequence[AclOperation]) -> None:
    """Rights of a user on a topic."""
    _grant(cluster, user, ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, rights)


def grant_groups(cluster: Brokers, user: str) -> None:
    """The guide's rights on the groups."""
    _grant(cluster, user, ResourceType.GROUP, "tarry-", ResourcePatternType.PREFIXED, OF_GROUPS)


def _grant(
    cluster: Brokers,
    user: str,
    what: ResourceType,
    name: str,
    how: ResourcePatternType,
    rights: Sequence[AclOperation],
) -> None:
    bindings = [
        AclBinding(what, name, how, f"User:{user}", "*", right, AclPermissionType.ALLOW) for right in rights
    ]
    for made in cluster.admin.create_acls(bindings).values():
        made.result(30)


class Access:
    """A user's way to the guarded listener, as it is configured."""

    def __init__(self, folder: Path, cluster: Brokers, user: str, password: str = PASSWORD) -> None:
        self._file = folder / f"password-of-{user}"
        self._file.write_text(f"{password}\n")
        assert cluster.certificate is not None
        self._addresses = cluster.guarded_addresses
        self.given = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "ssl.ca.location": str(cluster.certificate),
        }

    def client(self) -> dict[str, str]:
        """The settings, as the library gets them."""
        return {"bootstrap.servers": self._addresses, **self.given, "sasl.password": PASSWORD}

    def config(self, topic: str, key: Path) -> Config:
        """The configuration of a command."""
        overrides = {
            "ledger.log": "kafka",
            "ledger.topic": topic,
            "ledger.kafka": {"bootstrap.servers": self._addresses, **self.given},
            "ledger.kafka_files": {"sasl.password": str(self._file)},
            "cluster.id_key_file": str(key),
        }
        return load(environment={}, overrides=overrides).config

    def server(self, folder: Path, topic: str, key: Path) -> ClusterServer:
        """A server that comes this way."""
        return ClusterServer(
            folder, self._addresses, topic, key,
            access="\n".join(f'{name} = "{value}"' for name, value in self.given.items()),
            further=f'[ledger.kafka_files]\nsasl.password = "{self._file}"',
        )  # fmt: skip


@pytest.fixture
def topic(one_broker: Brokers) -> str:
    return one_broker.make_topic(f"guarded-{next(_names)}", min_insync_replicas="1")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(bytes(range(32)))
    return file


def test_the_rights_of_the_guide_are_enough_to_own_to_stand_by_and_to_take_over(
    one_broker: Brokers, topic: str, key: Path, tmp_path: Path
) -> None:
    user = USERS[0]
    grant(one_broker, user, topic, OF_TOPIC)
    grant_groups(one_broker, user)
    access = Access(tmp_path, one_broker, user)
    append = {result.about: result for result in check_log(access.config(topic, key))}["log append"]
    assert " ms (median of 20" in append.text
    a, b = (access.server(tmp_path / name, topic, key) for name in ("a", "b"))
    with Receiver() as receiver, a, b:
        a.launch()
        a.wait_owner()
        b.launch()
        b.wait_standby()

        def members() -> list[tuple[str, bool]]:
            shown = httpx.get(f"{a.url}/v1/overview", trust_env=False).json()["cluster"]
            return [(one["name"], one["lag"] is not None) for one in shown["standbys"]]

        wait_until(lambda: members() == [("b", True)], a.said)
        due = schedule(a, receiver, [f"m-{n}" for n in range(10)], 1_000)
        a.kill()
        b.wait_owner()
        check(receiver, due)
    partition = KafkaPartition(access.client(), topic, 0)
    try:
        partition.trim(5)
        wait_until(lambda: partition.ends()[0] == 5)
    finally:
        partition.close()


def test_a_wrong_password_is_told(one_broker: Brokers, topic: str, key: Path, tmp_path: Path) -> None:
    access = Access(tmp_path, one_broker, USERS[0], "swordfish")
    with access.server(tmp_path / "a", topic, key) as server:
        server.launch()
        (told,) = check_log(access.config(topic, key))
        assert told.level == "bad"
        words = ("invalid credentials", "SCRAM-SHA-512", "sasl.username", "ledger.kafka_files sasl.password")
        assert not [word for word in words if word not in told.text], told.text
        wait_until(lambda: "invalid credentials" in server.said(), server.said)
        assert not server.owns
        assert "swordfish" not in server.said() + told.text


def test_a_certificate_that_nobody_vouches_for_is_told(
    one_broker: Brokers, topic: str, tmp_path: Path
) -> None:
    client = Access(tmp_path, one_broker, USERS[0]).client()
    del client["ssl.ca.location"]
    with pytest.raises(Unavailable, match=r"certificate verify failed.*set ssl\.ca\.location"):
        topic_settings(client, topic, within_s=3)


def test_missing_rights_are_told_with_those_that_are_needed(
    one_broker: Brokers, topic: str, key: Path, tmp_path: Path
) -> None:
    user = USERS[1]
    access = Access(tmp_path, one_broker, user)
    with pytest.raises(Unavailable, match=f"Topic authorization failed: {RIGHTS}"):
        topic_settings(access.client(), topic)
    grant(one_broker, user, topic, [AclOperation.DESCRIBE])
    with pytest.raises(Unavailable, match=f"uthorization failed.*{RIGHTS}"):
        topic_settings(access.client(), topic)
    grant(one_broker, user, topic, [right for right in OF_TOPIC if right != AclOperation.WRITE])
    (append,) = (result for result in check_log(access.config(topic, key)) if result.about == "log append")
    assert append.level == "bad"
    assert RIGHTS in append.text
    grant(one_broker, user, topic, OF_TOPIC)
    # The groups are still missing: it never gets its turn.
    with access.server(tmp_path / "a", topic, key) as server:
        server.launch()
        wait_until(lambda: "Group authorization failed" in server.said(), server.said)
        assert RIGHTS in server.said()
        assert not server.owns
