"""The longest delay (PIP-315), with the real client: who is refused, how, and what becomes of the neighbours."""

import subprocess
import sys
import time
from typing import Any
from urllib.request import urlopen

import pulsar
import pytest

from tarry.core.limits import MAX_DELAY_MS
from tests.conformance.pulsar.kit import Broker, broker, now_ms, payloads, received, silent

Earliest = pulsar.InitialPosition.Earliest


def place_of(topic: str) -> str:
    return f"topics/{topic.removeprefix('persistent://')}"


def too_long(producer: Any, delay_ms: int) -> str:
    """The text with which a delayed message is refused; and it is refused at once."""
    began = time.monotonic()
    with pytest.raises(pulsar.PulsarException) as caught:
        producer.send(b"too long", deliver_at=now_ms() + delay_ms)
    assert time.monotonic() - began < 10
    return str(caught.value)


def test_six_seconds_against_a_limit_of_five(server: Broker, client: pulsar.Client, topic: str) -> None:
    server.policy(place_of(topic), {"max_delay_ms": 5_000})
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, initial_position=Earliest)
    producer = client.create_producer(topic, send_timeout_millis=20_000)
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"refused", deliver_at=now_ms() + 6_000)
    producer.send(b"taken", deliver_at=now_ms() + 300)
    assert payloads(received(consumer, 1)) == [b"taken"]
    assert silent(consumer)


def test_the_neighbours_are_unharmed(server: Broker, client: pulsar.Client, topic: str) -> None:
    """Ten of a hundred messages sent together have too long a delay; these fail, each by itself."""
    server.policy(place_of(topic), {"max_delay_ms": 5_000})
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, initial_position=Earliest)
    producer = client.create_producer(topic, send_timeout_millis=20_000)
    results: dict[int, Any] = {}
    for n in range(100):
        delay_ms = 60_000 if n % 10 == 3 else 200
        producer.send_async(
            b"%d" % n, lambda result, _, n=n: results.update({n: result}), deliver_at=now_ms() + delay_ms
        )
    producer.flush()
    deadline = time.monotonic() + 20
    while len(results) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    refused = {n for n, result in results.items() if result != pulsar.Result.Ok}
    assert refused == {n for n in range(100) if n % 10 == 3}
    expected = [n for n in range(100) if n not in refused]
    assert sorted(int(one) for one in payloads(received(consumer, 90))) == expected
    assert silent(consumer)
    producer.send(b"goes on")
    assert payloads(received(consumer, 1)) == [b"goes on"]


def test_the_limit_itself_is_allowed(server: Broker, client: pulsar.Client, topic: str) -> None:
    """The limit is on what lies between the client's publish time and the due instant."""
    server.policy(place_of(topic), {"max_delay_ms": 60_000})
    producer = client.create_producer(topic)
    producer.send(b"x", deliver_at=now_ms() + 60_000)
    assert "ChecksumError" in too_long(producer, 61_000)


REFUSED = """
import sys, pulsar
client = pulsar.Client(sys.argv[1], operation_timeout_seconds=20)
producer = client.create_producer(sys.argv[2])
for deliver_at in (253_402_300_799_000, (1 << 63) - 1):
    try:
        producer.send(b"never", deliver_at=deliver_at)
        print("TAKEN")
    except pulsar.PulsarException:
        print("REFUSED")
client.close()
"""


def test_beyond_a_hundred_years_the_clients_log_says_why(server: Broker, topic: str) -> None:
    """No limit is set; every message has that of a hundred years. The exception has no room for the reason."""
    consumer = server.client().subscribe(topic, "sub", pulsar.ConsumerType.Shared, initial_position=Earliest)
    # In a process of its own: the log of the first client is that of all.
    ended = subprocess.run(
        [sys.executable, "-c", REFUSED, server.url, topic], capture_output=True, text=True, timeout=120
    )
    said = ended.stdout + ended.stderr
    assert (said.count("REFUSED"), said.count("TAKEN")) == (2, 0), said
    assert said.count(f"Exceeds max allowed delivery delay of {MAX_DELAY_MS} milliseconds") >= 2, said
    server.client().create_producer(topic).send(b"neighbour")
    assert payloads(received(consumer, 1)) == [b"neighbour"]


def test_nearest_level_wins_and_zero_lifts(server: Broker, client: pulsar.Client, topic: str) -> None:
    """Broker, namespace, topic, and back; a topic's 0 lifts the namespace's limit, as retry topics need it."""
    server.make_namespace("public/limited")
    topic = topic.replace("public/default", "public/limited")
    producer = client.create_producer(topic)
    namespace = "namespaces/public/limited"
    producer.send(b"no limit", deliver_at=now_ms() + 3_600_000)
    server.policy(namespace, {"max_delay_ms": 5_000})
    too_long(producer, 6_000)
    server.policy(place_of(topic), {"max_delay_ms": 10_000})
    producer.send(b"topic", deliver_at=now_ms() + 6_000)
    too_long(producer, 11_000)
    server.policy(place_of(topic), {"max_delay_ms": 0})
    producer.send(b"lifted", deliver_at=now_ms() + 3_600_000)
    server.policy(place_of(topic), None)
    too_long(producer, 6_000)
    server.policy(namespace, None)
    producer.send(b"no limit", deliver_at=now_ms() + 3_600_000)


def test_where_delaying_is_off_no_limit_counts(server: Broker, client: pulsar.Client, topic: str) -> None:
    server.policy(place_of(topic), {"max_delay_ms": 1_000, "delayed_delivery": False})
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, initial_position=Earliest)
    client.create_producer(topic).send(b"at once", deliver_at=now_ms() + 60_000)
    assert payloads(received(consumer, 1)) == [b"at once"]


def test_options(tmp_path: Any, topic: str) -> None:
    """The server's clock may measure; an ignored delay may be an error; in-order subscriptions may wait."""
    door = "measure_delay_by_server = true\nrefuse_ignored_delay = true\nhonour_delay_in_order = true"
    with broker(tmp_path / "data", door) as server:
        client = server.client()
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Exclusive, initial_position=Earliest)
        producer.send(b"first")
        due_ms = now_ms() + 4_000
        producer.send(b"later", deliver_at=due_ms)
        producer.send(b"second")
        messages = received(consumer, 2, ack=False)
        assert payloads(messages) == [b"first", b"second"]
        # What still waits is not meant by a cumulative acknowledgement.
        consumer.acknowledge_cumulative(messages[-1])
        consumer.close()
        again = client.subscribe(topic, "sub", pulsar.ConsumerType.Exclusive)
        assert payloads(received(again, 1)) == [b"later"]
        assert now_ms() >= due_ms
        server.policy(place_of(topic), {"delayed_delivery": False})
        with pytest.raises(pulsar.ChecksumError):
            producer.send(b"refused", deliver_at=now_ms() + 60_000)
        server.policy(place_of(topic), {"delayed_delivery": True, "max_delay_ms": 5_000})
        too_long(producer, 6_000)
        producer.send(b"taken", deliver_at=now_ms() + 100)
        figures = metrics(server)
        assert figures['tarry_pulsar_delays_refused_total{reason="off"}'] == 1
        assert figures['tarry_pulsar_delays_refused_total{reason="too_long"}'] == 1
        assert 'tarry_connections_limit{listener="doors.pulsar"}' in figures


def test_who_asks_for_a_delay_where_it_is_off_is_told(tmp_path: Any, topic: str) -> None:
    """By a figure and a line in the log, once for each producer."""
    other = f"{topic}-other"
    with broker(tmp_path / "data") as server:
        server.policy("namespaces/public/default", {"delayed_delivery": False})
        client = server.client()
        for name in (topic, other):
            producer = client.create_producer(name)
            for _ in range(3):
                producer.send(b"at once", deliver_at=now_ms() + 60_000)
        figures = metrics(server)
        assert figures["tarry_delays_ignored_total"] == 6
        assert figures['tarry_connections{listener="doors.pulsar"}'] == 1
        assert figures["tarry_pulsar_connections_failed_total"] == 0
        said = [line for line in server.server.log.read_text().splitlines() if "delays are ignored" in line]
        assert [topic in said[0], other in said[1], len(said)] == [True, True, 2]


def metrics(server: Broker) -> dict[str, float]:
    """The figures of a server, by their names and labels."""
    with urlopen(f"{server.server.url}/metrics", timeout=20) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
