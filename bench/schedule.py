"""Scheduling: how many messages a second are taken in, by Tarry and by its peers, in turns, beside the machine's raw limits."""

from collections.abc import Callable
from typing import Final

import numpy as np

from bench import load_http, machine
from bench.peers.entrants import in_turn
from bench.peers.peer import Peer
from bench.plan import PAYLOAD_BYTES, SMALL_BYTES
from bench.run import Run
from bench.tarry_server import TarryServer
from bench.wire import Loaded

Load = Callable[[int, float, int], Loaded]
LOADS: Final[tuple[tuple[str, Load], ...]] = (
    ("single", load_http.single),
    ("ndjson", load_http.ndjson),
    ("arrow", load_http.arrow),
)


def measure(run: Run) -> None:
    """The machine, Tarry, every peer; and again."""
    for _ in run.turns():
        with run.place() as place:
            machine.measure(run.figures, place, run.plan.load_s / 2)
        for size, suffix in ((PAYLOAD_BYTES, ""), (SMALL_BYTES, " small")):
            for name, load in LOADS:
                _load(run, name + suffix, load, size)
        in_turn(run, _peer)


def _load(run: Run, what: str, load: Load, size: int) -> None:
    """One load on a server of its own, after a shorter one to warm it up."""
    seconds = run.plan.load_s
    with run.place() as place, TarryServer(place) as server:
        load(server.port, seconds / 4, size)
        before, cpu_s = server.accepted(), server.cpu_s()
        loaded = load(server.port, seconds, size)
        accepted = server.accepted() - before
        run.add(what, accepted / loaded.seconds)
        run.add(f"{what} cpu", (server.cpu_s() - cpu_s) / accepted * 1e6)
    p50, p99 = np.percentile(np.frombuffer(loaded.latencies_ns, np.int64), [50, 99]) / 1e6
    run.add(f"{what} latency p50", float(p50))
    run.add(f"{what} latency p99", float(p99))


def _peer(run: Run, name: str, peer: Peer) -> None:
    seconds = run.plan.load_s
    peer.single(seconds / 4)
    run.figures.add(name, "single", peer.single(seconds))
    run.figures.add(name, "batched", peer.batched(seconds))
