"""Restart: SIGKILL with many pending, and the way back to being on time."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.consumer import poll
from bench.load_http import HOUR_MS, fill
from bench.plan import PAYLOAD_BYTES
from bench.run import Run
from bench.tape import late_ms
from bench.tarry_server import TarryServer

EVERY_MS = 50
"""One message is due so often, before, during and after the restart."""
WATCH_MS = 8_000
ON_TIME_MS = 20
"""The aim for lateness: a message that came within this was on time."""


@dataclass(frozen=True)
class Restart:
    """Times from the start of the new process, in milliseconds."""

    ready_ms: float
    """Until it said that it is ready."""
    on_time_ms: float
    """Until the due instant of the first message that came on time."""
    late_after: int
    """Number of messages due after that one that were late all the same."""


def measure(run: Run) -> None:
    """Crash after crash."""
    pending = run.plan.restart_pending
    for _ in run.turns():
        with run.place() as place:
            found = after_kill(place, pending, PAYLOAD_BYTES)
        run.add(f"restart ready {pending}", found.ready_ms)
        run.add(f"restart on time {pending}", found.on_time_ms)
        run.add(f"restart late after {pending}", found.late_after)


def after_kill(folder: Path, pending: int, size: int) -> Restart:
    """Kill a server with so many pending and watch the next one."""
    with TarryServer(folder) as server:
        server.subscribe()
        later = np.random.default_rng(1).integers(HOUR_MS, 1000 * HOUR_MS, pending)
        fill(server.port, time.time_ns() // 1_000_000 + later, size)
        first_ms = time.time_ns() // 1_000_000 + 500
        due = first_ms + np.arange(0, WATCH_MS, EVERY_MS)
        fill(server.port, due, size)
        server.kill()
    began_ms = time.time_ns() / 1e6
    with TarryServer(folder) as server:
        ready_ms = time.time_ns() / 1e6 - began_ms
        tape = poll(server.port, len(due))
    late = late_ms(tape, due.astype(np.float64))
    if (late < 0).any():
        raise AssertionError("a message came early")
    on_time = np.flatnonzero((late <= ON_TIME_MS) & (due > began_ms))
    if not len(on_time):
        raise AssertionError("the server was not on time within the watch")
    first = int(on_time[0])
    return Restart(ready_ms, float(due[first]) - began_ms, int((late[first:] > ON_TIME_MS).sum()))
