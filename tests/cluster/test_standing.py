"""A server that the group of real brokers refuses does not say that it stands by, and stands once it is let in."""

from pathlib import Path

from confluent_kafka.admin._acl import AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tarry.cluster.candidacy import Candidacy
from tests.cluster.brokers import USERS, Brokers
from tests.cluster.test_access import OF_TOPIC, Access, grant, grant_groups
from tests.waiting import wait_until


def test_a_session_that_the_brokers_do_not_take_is_told_and_is_no_membership(one_broker: Brokers) -> None:
    topic = one_broker.make_topic("short-session", min_insync_replicas="1")
    candidacy = Candidacy(
        {"bootstrap.servers": one_broker.addresses},
        topic,
        0,
        "node",
        # Their minimum is a second.
        session_timeout_ms=500,
        chosen=lambda mine: None,
    )
    candidacy.start()
    try:
        wait_until(lambda: candidacy.trouble is not None)
        assert "group.min.session.timeout.ms" in str(candidacy.trouble)
        assert not candidacy.is_member
    finally:
        candidacy.close()


def test_a_server_without_rights_on_the_group_stands_once_it_has_them(
    one_broker: Brokers, tmp_path: Path
) -> None:
    topic = one_broker.make_topic("no-group", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    user = USERS[1]
    grant(one_broker, user, topic, OF_TOPIC)
    with Access(tmp_path, one_broker, user).server(tmp_path / "a", topic, key) as server:
        server.launch()
        wait_until(lambda: "Group authorization failed" in server.said(), server.said)
        assert server.figure("tarry_cluster_standing") == 0
        assert not server.owns
        grant_groups(one_broker, user)
        try:
            server.wait_owner()
        finally:
            # Other tests count on its having none.
            groups = AclBindingFilter(
                ResourceType.GROUP, None, ResourcePatternType.ANY, f"User:{user}", None,  # type: ignore[arg-type]
                AclOperation.ANY, AclPermissionType.ANY,
            )  # fmt: skip
            for gone in one_broker.admin.delete_acls([groups]).values():
                gone.result(30)
