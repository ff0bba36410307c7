"""A data folder moves onto real brokers and back, with real servers before, between and after: each message is delivered once."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tarry.cluster.kafka_partition import KafkaPartition
from tarry.ledger.disk import RealDisk
from tarry.ledger.log.replicated_log import LogNode
from tarry.ledger.move import MoveIn
from tarry.serve.datafolder import DataFolder
from tests.cluster.brokers import Brokers
from tests.cluster.receiver import Receiver
from tests.cluster.servers import ClusterServer
from tests.processes import ServerProcess, environment
from tests.waiting import wait_until

LOCAL = '[ledger]\nsegment_bytes = 1048576\n[webhook]\nallow = ["127.0.0.0/8"]\n'


def run(server: ClusterServer, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command, to its end."""
    return subprocess.run(
        [sys.executable, *server.program, *arguments],
        capture_output=True, text=True, timeout=120, env=environment(), cwd="/",
    )  # fmt: skip


def move(server: ClusterServer, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`tarry move` with a server's configuration and folder."""
    return run(server, "move", *arguments, "--config", str(server.file), "--data", str(server.folder))


def schedule(server: ServerProcess, receiver: Receiver, names: list[str], delay_ms: int) -> dict[str, str]:
    """Messages whose bodies are their names; their ids. A disk that is slower than the requests is given time."""
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        return {name: _taken(server, client, receiver.url, name, delay_ms) for name in names}


def _taken(server: ServerProcess, client: httpx.Client, url: str, name: str, delay_ms: int) -> str:
    """The id of a message, once the server has taken it."""
    answers: list[httpx.Response] = []

    def is_taken() -> bool:
        body = {"destination": url, "payload": name, "delay_ms": delay_ms}
        answers.append(client.post("/v1/messages", json=body))
        assert answers[-1].status_code in (201, 503), answers[-1].text
        return answers[-1].status_code == 201

    wait_until(is_taken, server.said)
    return str(answers[-1].json()["id"])


def send(server: ServerProcess, receiver: Receiver, ids: dict[str, str]) -> None:
    """Send messages at once, and wait until they have arrived."""
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        for id_ in ids.values():
            assert client.get(f"/v1/messages/{id_}").json()["state"] == "scheduled"
            assert client.post(f"/v1/messages/{id_}/send").status_code == 200
    wait_until(lambda: receiver.counts.keys() >= ids.keys(), server.said)


def interrupted_move(folder: Path, brokers: Brokers, topic: str, name: str) -> None:
    """A move that ends as its process would, with frames on their way."""

    class Crash(Exception):
        pass

    def told(step: str, done_bytes: int) -> None:
        if step.startswith("writing") and done_bytes > 2 << 20:
            # Some of what was sent has arrived, and some is on its way.
            wait_until(lambda: partition.ends()[1] > 1)
            raise Crash

    partition = KafkaPartition({"bootstrap.servers": brokers.addresses}, topic, 0)
    with DataFolder.open(folder) as opened:
        node = LogNode(name, opened.id_check())
        with pytest.raises(Crash):
            MoveIn(partition, RealDisk(), str(opened.ledger), node, told).run(0, b"crash", lambda *_: None)
    partition.close()


def test_a_folder_moves_onto_brokers_and_back(one_broker: Brokers, tmp_path: Path) -> None:
    topic = one_broker.make_topic("moved", min_insync_replicas="1")
    folder, key = tmp_path / "a", tmp_path / "a" / "id.key"
    with Receiver() as receiver:
        local = ServerProcess(folder, LOCAL)
        with local.start():
            ids = {
                part: schedule(local, receiver, [f"{part}-{n}" for n in range(10)], 86_400_000)
                for part in ("disk", "kafka", "taken over", "back")
            }
            overdue = schedule(local, receiver, [f"overdue-{n}" for n in range(10)], 1_500)
            schedule(local, receiver, ["x" * 60_000 + str(n) for n in range(80)], 86_400_000)
            send(local, receiver, ids["disk"])
            wait_until(lambda: receiver.counts.keys() >= overdue.keys(), local.said)
            late = schedule(local, receiver, [f"late-{n}" for n in range(10)], 300)
            assert local.stop() == 0
        a, b = (ClusterServer(tmp_path / name, one_broker.addresses, topic, key) for name in ("a", "b"))
        try:
            interrupted_move(folder, one_broker, topic, "a")
            # The folder is still a ledger of its own, and the log is nobody's.
            local.file.write_text(LOCAL)
            with local.start():
                assert local.stop() == 0
            wait_until(lambda: receiver.counts.keys() >= late.keys(), local.said)
            a.file.write_text(a.config)
            b.launch()
            wait_until(lambda: "is being moved into this log" in b.said(), b.said)
            assert not b.owns
            assert b.stop() == 0

            looked = move(a, "kafka", "--dry-run")
            assert (looked.returncode, looked.stderr) == (0, "")
            assert "goes on with an earlier attempt" in looked.stdout
            moved = move(a, "kafka")
            assert moved.returncode == 0, moved.stderr
            assert f"moved-0 at {one_broker.addresses} has everything up to seq" in moved.stdout
            assert move(a, "kafka").returncode == 4

            a.launch()
            a.wait_owner()
            b.launch()
            b.wait_standby()
            send(a, receiver, ids["kafka"])
            refused = move(a, "disk")
            assert refused.returncode != 0
            assert "is in use by the server" in refused.stderr
            a.kill()
            b.wait_owner()
            send(b, receiver, ids["taken over"])
            assert "stop all of its servers first" in move(a, "disk", "--dry-run").stderr
            assert b.stop() == 0

            back = move(b, "disk")
            assert back.returncode == 0, back.stderr
            assert 'set ledger.log = "disk"' in back.stdout
            a.launch()
            wait_until(lambda: "moved out of this log, to the disk of b" in a.said(), a.said)
            assert not a.owns
            a.kill()
            after = ServerProcess(tmp_path / "b", LOCAL)
            with after.start():
                send(after, receiver, ids["back"])
            expected = {name for some in ids.values() for name in some} | set(overdue) | set(late)
            assert receiver.counts == dict.fromkeys(expected, 1)
        finally:
            for server in (a, b):
                server.kill()


def test_a_backup_of_the_owner_is_a_ledger_of_its_own_and_moves_onto_another_topic(
    one_broker: Brokers, tmp_path: Path
) -> None:
    topic, other = (
        one_broker.make_topic(name, min_insync_replicas="1") for name in ("backed-up", "restored")
    )
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    a = ClusterServer(tmp_path / "a", one_broker.addresses, topic, key)
    with Receiver() as receiver:
        a.launch()
        try:
            a.wait_owner()
            ids = {
                part: schedule(a, receiver, [f"{part}-{n}" for n in range(10)], 86_400_000)
                for part in ("owner", "disk", "moved")
            }
            send(a, receiver, ids["owner"])
            backup = tmp_path / "backup"
            done = run(
                a, "backup", str(backup), "--url", a.url, "--config", str(a.file), "--data", str(a.folder)
            )
            assert done.returncode == 0, done.stderr
        finally:
            a.kill()
        done = run(a, "restore", str(backup), "--data", str(tmp_path / "b"))
        assert done.returncode == 0, done.stderr
        alone = ServerProcess(tmp_path / "b", LOCAL)
        with alone.start():
            send(alone, receiver, ids["disk"])
            assert alone.stop() == 0
        b = ClusterServer(tmp_path / "b", one_broker.addresses, other, key)
        try:
            moved = move(b, "kafka")
            assert moved.returncode == 0, moved.stderr
            b.launch()
            b.wait_owner()
            send(b, receiver, ids["moved"])
        finally:
            b.kill()
        assert receiver.counts == dict.fromkeys((name for some in ids.values() for name in some), 1)
