"""A server that was refused for good by the brokers at its first claim owns once they let it."""

from pathlib import Path

from confluent_kafka.admin._acl import AclOperation

from tests.cluster.brokers import USERS, Brokers
from tests.cluster.test_access import OF_TOPIC, Access, grant, grant_groups
from tests.waiting import wait_until


def test_a_server_that_may_not_write_at_its_first_claim_owns_once_it_may(
    one_broker: Brokers, tmp_path: Path
) -> None:
    topic = one_broker.make_topic("read-only", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    user = USERS[0]
    grant(one_broker, user, topic, [right for right in OF_TOPIC if right != AclOperation.WRITE])
    grant_groups(one_broker, user)
    with Access(tmp_path, one_broker, user).server(tmp_path / "a", topic, key) as server:
        server.launch()
        # For its producer that is for good: nothing may be left out before what is taken.
        wait_until(lambda: "authorization failed" in server.said(), server.said)
        assert not server.owns
        grant(one_broker, user, topic, OF_TOPIC)
        server.wait_owner()
