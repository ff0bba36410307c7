"""One server owns a ledger on a broker, another stands by and takes it over: nothing is lost, and nothing comes early."""

import signal
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest

from tarry.core.time.clock import SystemClock
from tests.cluster.brokers import Brokers
from tests.cluster.receiver import Receiver
from tests.cluster.servers import ClusterServer, service_url, two_servers
from tests.processes import ServerProcess, tarry
from tests.waiting import wait_until


@pytest.fixture
def topic(one_broker: Brokers, request: pytest.FixtureRequest) -> str:
    return one_broker.make_topic(f"ledger-of-{request.node.name}"[:200], min_insync_replicas="1")


@pytest.fixture
def servers(one_broker: Brokers, topic: str, tmp_path: Path) -> Iterator[list[ClusterServer]]:
    with two_servers(tmp_path, one_broker, topic) as started:
        yield started


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def schedule(
    server: ServerProcess, receiver: Receiver, names: Sequence[str], delay_ms: int
) -> dict[str, int]:
    """Messages whose bodies are their names; gives the due instant of each."""
    with httpx.Client(base_url=server.url, timeout=20, trust_env=False) as client:
        due: dict[str, int] = {}
        for name in names:
            due[name] = SystemClock().now_ms() + delay_ms
            body = {"destination": receiver.url, "payload": name, "due_at_ms": due[name]}
            answer = client.post("/v1/messages", json=body)
            assert answer.status_code == 201, answer.text
        return due


def check(receiver: Receiver, due: dict[str, int]) -> None:
    """All of them come, and none early."""
    wait_until(lambda: receiver.counts.keys() >= due.keys(), lambda: f"{receiver.counts} of {list(due)}")
    assert not [name for name, at_ms in receiver.arrivals if at_ms < due[name]]


def test_a_standby_takes_over_from_a_killed_owner_and_hands_over_to_its_next_life(
    servers: list[ClusterServer], receiver: Receiver
) -> None:
    a, b = servers
    client = pulsar.Client(service_url(servers), operation_timeout_seconds=20)
    try:
        consumer = client.subscribe("orders", "shop", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("orders")
        due = schedule(a, receiver, [f"killed-{n}" for n in range(20)], 3_000)
        for n in range(20):
            producer.send(b"killed-%d" % n, deliver_after=timedelta(seconds=3))
        a.kill()
        b.wait_owner()
        assert b.figure("tarry_cluster_epoch") == 2
        # The client goes on by itself with the other address.
        producer.send(b"sent to b")
        due |= schedule(b, receiver, ["b's own"], 10)
        check(receiver, due)
        assert b.figure("tarry_cluster_owner") == 1
        assert b.figure("tarry_cluster_takeovers_total") == 2
        b.wait_figure("tarry_cluster_append_seconds_count", 2)

        a.launch()
        a.wait_standby()
        refused = httpx.post(f"{a.url}/v1/messages", json={}, trust_env=False)
        assert refused.status_code == 503
        assert f"{b.name} owns the ledger, at {b.url}" in refused.json()["detail"]
        due |= schedule(b, receiver, [f"handed-{n}" for n in range(20)], 2_500)
        assert b.stop() == 0
        a.wait_owner()
        assert a.figure("tarry_cluster_epoch") == 3
        check(receiver, due)
        producer.send(b"sent to a")
        expected = {b"killed-%d" % n for n in range(20)} | {b"sent to a", b"sent to b"}
        got: set[bytes] = set()
        while got < expected:
            message = consumer.receive(20_000)
            got.add(message.data())
            consumer.acknowledge(message)
        assert got == expected
    finally:
        client.close()


def test_a_server_with_another_id_key_never_stands(one_broker: Brokers, topic: str, tmp_path: Path) -> None:
    keys = [tmp_path / "key", tmp_path / "another"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 32)
    with (
        ClusterServer(tmp_path / "a", one_broker.addresses, topic, keys[0]) as owner,
        ClusterServer(tmp_path / "b", one_broker.addresses, topic, keys[1]) as other,
    ):
        owner.launch()
        owner.wait_owner()
        other.launch()
        wait_until(
            lambda: "the ledger is of another id key than this node's (a claimed it last)" in other.said()
        )
        assert other.figure("tarry_cluster_standing") == 0
        ready = other.ready()
        assert ready is not None
        assert ready.json()["reasons"] == ["standby, and not able to take over; the log says why"]


def test_a_paused_owner_that_wakes_sends_nothing(servers: list[ClusterServer], receiver: Receiver) -> None:
    a, b = servers
    due = schedule(a, receiver, [f"m-{n}" for n in range(20)], 1_000)
    a.signal(signal.SIGSTOP)
    b.wait_owner()
    check(receiver, due)
    a.signal(signal.SIGCONT)
    assert a.reap() == 1
    assert f"{b.name} owns the ledger now, from epoch 2" in a.said()
    # Whatever the woken one had sent would be here: its process has ended.
    assert set(receiver.counts.values()) == {1}


@pytest.fixture(scope="module")
def patient(one_broker: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClusterServer]]:
    """An owner and a standby that nobody takes for dead: the tests that share them come one after another, the hand-over last."""
    topic = one_broker.make_topic("ledger-of-patient-servers", min_insync_replicas="1")
    with two_servers(tmp_path_factory.mktemp("patient"), one_broker, topic, session_ms=30_000) as started:
        yield started


def test_the_owner_shows_who_stands_by_and_how_far_behind(
    patient: list[ClusterServer], receiver: Receiver
) -> None:
    def shown() -> Any:
        return httpx.get(f"{owner.url}/v1/overview", trust_env=False).json()["cluster"]

    owner, standby = patient
    wait_until(lambda: [one["name"] for one in shown()["standbys"]] == [standby.name])
    assert (shown()["owner"], shown()["epoch"], shown()["trouble"]) == (owner.name, 1, None)
    wait_until(lambda: shown()["standbys"][0]["lag"] is not None)
    standby.signal(signal.SIGSTOP)
    try:
        schedule(owner, receiver, [f"m-{n}" for n in range(60)], 600_000)
        wait_until(lambda: shown()["standbys"][0]["lag"] >= 60)
    finally:
        standby.signal(signal.SIGCONT)


def test_an_append_is_measured_while_the_ledger_goes_on(patient: list[ClusterServer]) -> None:
    owner, standby = patient
    done = tarry("doctor", "--json", TARRY_CONFIG=str(owner.file), TARRY_DATA=str(owner.folder))
    assert '"log append"' in done.stdout, done.stdout + done.stderr
    assert '"id key"' in done.stdout
    standby.wait_figure("tarry_cluster_void_records_total", 21)
    assert owner.owns, owner.said() + standby.said()
    assert standby.stands_by


def test_the_hand_over_at_sigterm_waits_for_no_time_out(
    patient: list[ClusterServer], receiver: Receiver
) -> None:
    owner, standby = patient
    due = schedule(owner, receiver, [f"handed-{n}" for n in range(20)], 1_000)
    began_s = time.monotonic()
    assert owner.stop() == 0
    standby.wait_owner()
    # A session is what a crash costs before anybody tries.
    assert time.monotonic() - began_s < 15
    check(receiver, due)
    assert set(receiver.counts.values()) == {1}


def test_a_topic_that_could_lose_the_ledger_is_refused(
    one_broker: Brokers, topic: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    server = ClusterServer(tmp_path / "a", one_broker.addresses, topic, key)
    server.program = ServerProcess.program
    line = server.refused()
    assert "make the topic with a replication factor of 3" in line
    assert "set min.insync.replicas = 2" in line
