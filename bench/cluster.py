"""The ledger in a topic of three brokers, beside the same server with its ledger on the disk, in turns; and takeovers.

Brokers, servers and load share this machine, so a ratio means something and a rate by itself little.
"""

import json
import os
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from bench import load_http
from bench.consumer import poll
from bench.http_wire import Http, HttpReply, request
from bench.lateness import burst, steady
from bench.load_http import HOUR_MS, fill, fill_as_taken
from bench.plan import PAYLOAD_BYTES
from bench.restart import EVERY_MS, ON_TIME_MS
from bench.run import TARRY, Run
from bench.schedule import Load
from bench.tape import late_ms
from bench.tarry_server import DESTINATION, SUBSCRIPTION, TarryServer
from bench.wire import Loaded, connect, drive
from tests.cluster.brokers import Brokers, brokers
from tests.cluster.servers import ClusterServer, two_servers
from tests.processes import ServerProcess
from tests.waiting import wait_until

LOCAL: Final = "Tarry, ledger on the disk"
SESSION_MS: Final = 3_000
SEGMENT_BYTES: Final = 64 << 20
"""The default."""
WATCH_MS: Final = 14_000
"""How long messages come due while the owner ends."""
FILL_WITHIN_S: Final = 150.0
"""So long messages are scheduled that only wait; what an owner has taken by then is how many there are."""

_CONFIG: Final = """
[ledger]
log = "kafka"
topic = "{topic}"
[ledger.kafka]
"bootstrap.servers" = "{addresses}"
[cluster]
id_key_file = "{key}"
"""


def measure(run: Run) -> None:
    """Both ledgers, load by load; then takeovers."""
    try:
        with run.place() as place, brokers(place) as kafka:
            for _ in run.turns():
                _sides(run, kafka)
                _ended(run, kafka, "takeover", ServerProcess.kill)
                _ended(run, kafka, "hand-over", ServerProcess.stop)
            # Once: it takes minutes to have so many.
            _ended(run, kafka, "takeover pending", ServerProcess.kill, run.plan.restart_pending)
    except pytest.skip.Exception as why:
        run.skip("Kafka", str(why))


def _lone(port: int, seconds: float, size: int) -> Loaded:
    """One message a request, one connection."""
    body = {"destination": DESTINATION, "payload": "x" * size, "delay_ms": HOUR_MS}
    one = request("POST", "/v1/messages", json.dumps(body).encode())
    return drive(connect(port, 1), repeat(one), HttpReply, seconds)


def _sides(run: Run, kafka: Brokers) -> None:
    """Each load on the disk and on the log, one after the other."""
    loads: tuple[tuple[str, Load], ...] = (
        ("lone", _lone),
        ("single", load_http.single),
        ("ndjson", load_http.ndjson),
    )
    count = run.plan.bursts[0]
    for who in (LOCAL, TARRY):
        for what, load in loads:
            with run.attempt(f"{what}, {who}"), run.place() as place:
                _prepare(who, place, kafka)
                _load(run, who, what, load, place)
        with run.attempt(f"burst, {who}"), run.place() as place:
            _prepare(who, place, kafka)
            run.figures.add_lateness(who, f"cluster burst {count}", burst(place, count, PAYLOAD_BYTES)[0])
        with run.attempt(f"steady, {who}"), run.place() as place:
            _prepare(who, place, kafka)
            late = steady(place, run.plan.steady_per_s, run.plan.steady_s, PAYLOAD_BYTES)[0]
            run.figures.add_lateness(who, "cluster steady", late)


def _prepare(who: str, place: Path, kafka: Brokers) -> None:
    """Have the server in this folder keep its ledger where it belongs: it reads the configuration beside it."""
    if who == LOCAL:
        return
    topic = kafka.make_topic(place.name)
    key = place / "key"
    key.write_bytes(os.urandom(32))
    (place / "tarry.toml").write_text(_CONFIG.format(topic=topic, addresses=kafka.addresses, key=key))


def _load(run: Run, who: str, what: str, load: Load, place: Path) -> None:
    seconds = run.plan.load_s
    with TarryServer(place) as server:
        load(server.port, seconds / 4, PAYLOAD_BYTES)
        before = server.accepted()
        loaded = load(server.port, seconds, PAYLOAD_BYTES)
        run.figures.add(who, f"cluster {what}", (server.accepted() - before) / loaded.seconds)
    p50, p99 = np.percentile(np.frombuffer(loaded.latencies_ns, np.int64), [50, 99]) / 1e6
    run.figures.add(who, f"cluster {what} p50", float(p50))
    run.figures.add(who, f"cluster {what} p99", float(p99))
    if who == LOCAL:
        # An aim is within so much of it.
        run.add(f"cluster {what} p50 on the disk", float(p50))


def _ended(
    run: Run, kafka: Brokers, what: str, end: Callable[[ClusterServer], object], pending: int = 0
) -> None:
    """End the owner while messages come due, and so many more wait that the standby has read."""
    topic = kafka.make_topic(f"bench-{what.replace(' ', '-')}-{time.time_ns()}")
    with (
        run.attempt(what),
        run.place() as folder,
        two_servers(folder, kafka, topic, SESSION_MS, segment_bytes=SEGMENT_BYTES) as (owner, standby),
    ):
        if pending:
            later = np.random.default_rng(1).integers(HOUR_MS, 1000 * HOUR_MS, pending)
            due = time.time_ns() // 1_000_000 + later
            taken = fill_as_taken(owner.port, due, PAYLOAD_BYTES, FILL_WITHIN_S)
            run.say(f"{taken:,} of {pending:,} wait")
            run.add(f"cluster {what} count", taken)
            # The lag is looked at every second: by then it counts all of them.
            time.sleep(2.0)
            wait_until(lambda: standby.figure("tarry_cluster_lag_records") == 0, standby.said)
        run.add(f"cluster {what}", _until_on_time(owner, standby, end))


def _until_on_time(
    owner: ClusterServer, standby: ClusterServer, end: Callable[[ClusterServer], object]
) -> float:
    """Seconds from the end of the owner to the due instant of the first message that is on time again."""
    first_ms = time.time_ns() // 1_000_000 + 1_000
    due = first_ms + np.arange(0, WATCH_MS, EVERY_MS)
    Http(owner.port).call("PUT", SUBSCRIPTION, {"type": "shared", "start": "earliest"})
    fill(owner.port, due, PAYLOAD_BYTES)
    time.sleep(1.0)
    began_ms = time.time_ns() / 1e6
    end(owner)
    standby.wait_owner()
    late = late_ms(poll(standby.port, len(due)), due.astype(np.float64))
    if (late < 0).any():
        raise AssertionError("a message came early")
    on_time = np.flatnonzero((late <= ON_TIME_MS) & (due > began_ms))
    if not len(on_time):
        raise AssertionError("nothing was on time within the watch")
    return (float(due[on_time[0]]) - began_ms) / 1000
