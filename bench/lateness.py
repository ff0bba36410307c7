"""Lateness: how long after its due instant a message reaches a consumer's socket."""

import json
import random
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.consumer import EventReader, poll
from bench.figures import Lateness
from bench.http_wire import HttpReply, request
from bench.load_http import BATCH, NDJSON, fill, ndjson_body
from bench.machine import WHO, sync_times
from bench.peers.entrants import in_turn
from bench.peers.peer import Peer
from bench.plan import PAYLOAD_BYTES
from bench.processes import ROOT, Process, environment, python
from bench.run import Run
from bench.tape import Tape, lateness
from bench.tarry_server import TarryServer
from bench.wire import RECV_BYTES, connect

SETTLE_MS = 3_000
"""Between the last schedule and the due instant: the registry has been flushed, the consumer waits."""
PER_S = 10_000
"""How many messages a slow and busy machine surely schedules in a second."""
STEP_MS = 10
AHEAD_MS = 500


def measure(run: Run) -> None:
    """Tarry's bursts and, beside the disk alone, its steady load; then the peers' bursts; and again."""
    first, sizes = run.plan.bursts[0], run.plan
    for _ in run.turns():
        for count in sizes.bursts:
            with run.place() as place:
                run.add_lateness(f"burst {count}", *burst(place, count, PAYLOAD_BYTES))
        with run.place() as place:
            run.add_lateness(f"events {first}", *burst(place, first, PAYLOAD_BYTES, events=True))
        with run.place() as place:
            run.figures.add_lateness(WHO, "sync", sync_times(place, sizes.steady_s / 2))
        with run.place() as place:
            run.add_lateness("steady", *steady(place, sizes.steady_per_s, sizes.steady_s, PAYLOAD_BYTES))
        in_turn(run, _peer)


def _peer(run: Run, name: str, peer: Peer) -> None:
    count = run.plan.bursts[0]
    run.figures.add_lateness(name, f"burst {count}", peer.burst(count))


def burst(folder: Path, count: int, size: int, *, events: bool = False) -> tuple[Lateness, Lateness]:
    """So many messages due at one instant: lateness at the consumer's socket, and the server's own part."""
    with TarryServer(folder) as server:
        server.subscribe()
        due_at_ms = _now_ms() + SETTLE_MS + count * 1000 // PER_S
        due = np.full(count, due_at_ms, np.int64)
        fill(server.port, due, size)
        if _now_ms() > due_at_ms - SETTLE_MS // 2:
            raise AssertionError(
                "scheduling took so long that the messages were due before the consumer was there"
            )
        tape = _read_events(server.port, count) if events else poll(server.port, count)
        return lateness(tape, due.astype(np.float64)), tape.own_lateness()


def _read_events(port: int, count: int) -> Tape:
    reader = EventReader(port)
    try:
        reader.open()
        return reader.run(count)
    finally:
        reader.close()


def steady(folder: Path, per_s: int, seconds: float, size: int) -> tuple[Lateness, Lateness]:
    """A load that goes on: messages are scheduled at a rate and come due at that rate, spread evenly.

    The producer is this process, the consumer another one, with an event stream.
    """
    count = int(per_s * seconds)
    with TarryServer(folder) as server:
        server.subscribe()
        told = folder / "due.json"
        # A folder may be used again: what is left there of an earlier load is not this one's.
        told.unlink(missing_ok=True)
        consumer = Process(
            python("bench.consumer", str(server.port), str(count), str(told)),
            folder / "consumer.log",
            env=environment(),
            cwd=ROOT,
        )
        try:
            consumer.wait_for_line("listening")
            due = _produce(server.port, count, per_s, size)
            (folder / "due.part").write_text(json.dumps(due.tolist()))
            (folder / "due.part").rename(told)
            found = json.loads(consumer.wait_for_line("{"))
        finally:
            consumer.end()
    return Lateness(**found["seen"]), Lateness(**found["own"])


def _produce(port: int, count: int, per_s: int, size: int) -> NDArray[np.int64]:
    """Send a small batch every step; gives the due instants."""
    connection = connect(port)[0]
    reply = HttpReply()
    due = np.empty(count, np.int64)
    began_ms = _now_ms()
    pick = random.Random(1)
    sent = 0
    while sent < count:
        until = min(count, (_now_ms() - began_ms) * per_s // 1000)
        # From a late turn on the batch is larger: the rate stays.
        until = min(until, sent + 1000)
        if until <= sent:
            time.sleep(STEP_MS / 1000)
            continue
        due[sent:until] = [_now_ms() + AHEAD_MS + pick.randrange(STEP_MS) for _ in range(sent, until)]
        body = ndjson_body(range(sent, until), due[sent:until], size)
        connection.sendall(request("POST", BATCH, body, NDJSON))
        while not reply.feed(connection.recv(RECV_BYTES)):
            pass
        sent = until
    connection.close()
    return due


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
