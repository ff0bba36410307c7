"""Real servers with snapshots in a real object store: the log is trimmed, and a server with an empty disk takes over (R12)."""

from pathlib import Path

import httpx
import pytest

from tarry.cluster.kafka_partition import KafkaPartition
from tests.cluster.brokers import Brokers
from tests.cluster.object_store import BUCKET, ObjectStore
from tests.cluster.receiver import Receiver
from tests.cluster.servers import ClusterServer
from tests.waiting import wait_until


def further(store: ObjectStore) -> str:
    options = "\n".join(f'{name} = "{value}"' for name, value in store.options.items())
    return f"""
shared = "s3://{BUCKET}/servers"
[engine]
snapshot_every_ms = 300
reclaim_every_ms = 300
[pipeline.storage_options]
{options}
"""


def churn(server: ClusterServer, count: int) -> None:
    """Traffic that leaves nothing behind: large messages that are cancelled."""
    body = {"destination": "churn", "payload": "x" * 60_000, "delay": "1d"}
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        for _ in range(count):
            id_ = client.post("/v1/messages", json=body).json()["id"]
            assert client.post(f"/v1/messages/{id_}/cancel").status_code == 200


@pytest.mark.parametrize("life", ["empty disk", "was away"])
def test_a_server_that_lacks_what_was_trimmed_takes_over(
    life: str, one_broker: Brokers, store: ObjectStore, tmp_path: Path
) -> None:
    topic = one_broker.make_topic(f"trimmed-{life.replace(' ', '-')}", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    a, b = (
        ClusterServer(tmp_path / name, one_broker.addresses, topic, key, further=further(store))
        for name in ("a", "b")
    )
    partition = KafkaPartition({"bootstrap.servers": one_broker.addresses}, topic, 0)
    try:
        with Receiver() as receiver:
            a.launch()
            a.wait_owner()
            if life == "was away":
                b.launch()
                b.wait_standby()
                assert b.stop() == 0
            with httpx.Client(base_url=a.url, timeout=20, trust_env=False) as client:
                names = [f"m-{n}" for n in range(20)]
                ids = [
                    client.post(
                        "/v1/messages",
                        json={"destination": receiver.url, "payload": name, "delay": "1d", "owner": "ann"},
                    ).json()["id"]
                    for name in names
                ]
            churn(a, 60)
            wait_until(lambda: partition.ends()[0] > 30, a.said)
            assert a.figure("tarry_cluster_snapshot_failed") == 0
            b.launch()
            b.wait_standby()
            assert "begins anew at a snapshot" in b.said()
            a.kill()
            b.wait_owner()
            with httpx.Client(base_url=b.url, timeout=20, trust_env=False) as client:
                assert [client.get(f"/v1/messages/{id_}").json()["state"] for id_ in ids] == [
                    "scheduled"
                ] * 20
                for id_ in ids:
                    assert client.post(f"/v1/messages/{id_}/send").status_code == 200
            wait_until(lambda: len(receiver.counts) == 20, b.said)
            assert receiver.counts == dict.fromkeys(names, 1)
    finally:
        partition.close()
        for server in (a, b):
            server.kill()
