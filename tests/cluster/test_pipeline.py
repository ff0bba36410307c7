"""The pipeline of servers that share a ledger, with tables in a real object store: it goes on at the next owner, whom it reads from, or reads the log itself."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from tarry.index.delta import DeltaIndex
from tarry.ledger.copy import read_copy_state
from tarry.ledger.disk import RealDisk
from tarry.ledger.record import Key
from tests.cluster.brokers import Brokers
from tests.cluster.object_store import BUCKET, ObjectStore
from tests.cluster.receiver import Receiver
from tests.cluster.servers import ClusterServer
from tests.pipeline import archive
from tests.pipeline.test_program import once
from tests.processes import environment
from tests.waiting import wait_until

SECRET = "open-sesame-and-close"
TABLES = f"s3://{BUCKET}/pipeline"


def schedule(server: ClusterServer, receiver: Receiver, names: list[str]) -> dict[str, tuple[str, int]]:
    """Messages due in a day, by their bodies: the id and the due instant of each."""
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        answers = {
            name: client.post(
                "/v1/messages", json={"destination": receiver.url, "payload": name, "delay": "1d"}
            ).json()
            for name in names
        }
    return {name: (answer["id"], answer["due_at_ms"]) for name, answer in answers.items()}


def test_it_goes_on_at_the_next_owner(
    one_broker: Brokers, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = one_broker.make_topic("pipeline", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    options = "\n".join(f'{name} = "{value}"' for name, value in store.options.items())
    further = f'[pipeline]\ntables = "{TABLES}"\n[pipeline.storage_options]\n{options}\n'
    servers = [
        ClusterServer(tmp_path / name, one_broker.addresses, topic, key, further=further) for name in "ab"
    ]
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)

    def run(server: ClusterServer) -> None:
        ran = once(
            tmp_path / "driver",
            TARRY_PIPELINE__SERVER=server.url,
            TARRY_PIPELINE__TABLES=TABLES,
            TARRY_PIPELINE__STORAGE_OPTIONS=json.dumps(store.options),
            TARRY_PIPELINE__SPARK=json.dumps({"driver.extraJavaOptions": archive.options()}),
        )
        assert ran.returncode == 0, ran.stderr[-3000:]

    a, b = servers
    try:
        with Receiver() as receiver:
            a.launch()
            a.wait_owner()
            b.launch()
            b.wait_standby()
            due = schedule(a, receiver, [f"a-{n}" for n in range(20)])
            run(a)
            due |= schedule(a, receiver, [f"between-{n}" for n in range(20)])
            a.kill()
            b.wait_owner()
            due |= schedule(b, receiver, [f"b-{n}" for n in range(20)])
            run(b)
            state = read_copy_state(RealDisk(), str(b.folder / "ledger"))
            assert state is not None
            view = DeltaIndex(f"{TABLES}/index", state.ledger_id, store.options).newest()
            indexed = view.load(Key(0, 0), Key(1 << 47, 0), 1 << 40).due
            assert sorted(indexed.fire_at_ms.tolist()) == sorted(at_ms for _, at_ms in due.values())
            with httpx.Client(base_url=b.url, timeout=20, trust_env=False) as client:
                for id_, _ in due.values():
                    assert client.post(f"/v1/messages/{id_}/send").status_code == 200
            wait_until(lambda: receiver.counts.keys() >= due.keys(), b.said)
            assert receiver.counts == dict.fromkeys(due, 1)
    finally:
        for server in servers:
            server.kill()


def test_it_reads_the_log_itself_and_needs_no_owner(
    one_broker: Brokers, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of two owners, void ones between them, a frame of several parts; audited and verified from the log alone."""
    topic = one_broker.make_topic("pipeline-log", min_insync_replicas="1")
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    tables = f"s3://{BUCKET}/pipeline-log"
    options = "\n".join(f'{name} = "{value}"' for name, value in store.options.items())
    further = f'[pipeline]\ntables = "{tables}"\n[pipeline.storage_options]\n{options}\n'
    a, b = (
        ClusterServer(tmp_path / name, one_broker.addresses, topic, key, further=further) for name in "ab"
    )
    for name, value in store.options.items():
        monkeypatch.setenv(name, value)
    room = {"TARRY_LEDGER__SEGMENT_BYTES": str(8 << 20)}
    # Spark's own record of all that it is told: settings, plans, options.
    (events := tmp_path / "events").mkdir()
    spark = json.dumps(
        {
            "driver.extraJavaOptions": archive.options(),
            "eventLog.enabled": "true",
            "eventLog.dir": str(events),
            "eventLog.compress": "false",
        }
    )
    (tmp_path / "password").write_text(SECRET)
    told: list[str] = []

    def tarry(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tarry", *arguments],
            env=environment(
                TARRY_DATA=str(tmp_path / "driver"),
                TARRY_CONFIG=str(a.file),
                TARRY_PIPELINE__SPARK=spark,
                TARRY_LEDGER__KAFKA_FILES=json.dumps({"sasl.password": str(tmp_path / "password")}),
            ),
            capture_output=True, text=True, timeout=280, check=False, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        told.append(done.stdout + done.stderr)
        return done.stdout

    try:
        with Receiver() as receiver:
            a.launch(**room)
            a.wait_owner()
            b.launch(**room)
            b.wait_standby()
            due = schedule(a, receiver, [f"a-{n}" for n in range(20)])
            # Several parts, and a record that is nobody's.
            due |= schedule(a, receiver, ["large-" + "x" * (2 << 20)])
            stranger = Producer({"bootstrap.servers": one_broker.addresses})
            stranger.produce(topic, b"somebody else's record", partition=0)
            stranger.flush(20)
            tarry("pipeline", "--once")
            due |= schedule(a, receiver, [f"between-{n}" for n in range(20)])
            a.kill()
            b.wait_owner()
            due |= schedule(b, receiver, [f"b-{n}" for n in range(20)])
            state = read_copy_state(RealDisk(), str(b.folder / "ledger"))
            assert state is not None
            # Nobody owns the ledger now.
            b.kill()
            tarry("pipeline", "--once")
            view = DeltaIndex(f"{tables}/index", state.ledger_id, store.options).newest()
            indexed = view.load(Key(0, 0), Key(1 << 47, 0), 1 << 40).due
            assert sorted(indexed.fire_at_ms.tolist()) == sorted(at_ms for _, at_ms in due.values())
            verdict = json.loads(tarry("index", "verify", "--json"))
            assert (verdict["versions"], verdict["missing"], verdict["extra"]) == (len(due), 0, 0)
            assert verdict["from_ledger"] == len(due)
            assert "The books balance." in tarry("audit")
            told += [
                path.read_text(errors="replace")
                for folder in (events, tmp_path / "driver")
                for path in folder.rglob("*")
                if path.is_file()
            ]
            assert any("SparkListenerSQLExecutionStart" in text for text in told)
            assert not any(SECRET in text for text in told)
    finally:
        for server in (a, b):
            server.kill()
