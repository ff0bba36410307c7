"""An idle pipeline: what `tarry pipeline` costs beside a server to which nothing happens."""

import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.load_http import HOUR_MS, fill
from bench.plan import PAYLOAD_BYTES
from bench.processes import CannotStart, Process, cpu_s, processes_below, python, tarry_environment
from bench.run import Run
from bench.tarry_server import TarryServer

PENDING: Final = 1_000
START_WITHIN_S: Final = 180
RUNS: Final = "the pipeline runs"
SETTLE_S: Final = 20.0
"""The first messages are indexed, and what only the start needed has gone."""


def measure(run: Run) -> None:
    """Processor time in per cent of one core, and memory of the whole family of processes."""
    with run.place() as place, TarryServer(place) as server:
        due = time.time_ns() // 1_000_000 + HOUR_MS + np.arange(PENDING)
        fill(server.port, due, PAYLOAD_BYTES)
        pipeline = Process(
            python("tarry", "pipeline", "--data", str(place / "data")),
            place / "pipeline.log",
            env=tarry_environment(),
            cwd=place,
            keep_output=False,
        )
        try:
            _wait_for(pipeline, place / "pipeline.log")
            time.sleep(min(SETTLE_S, 5 * run.plan.idle_s))
            for _ in run.turns():
                began, cpu = time.monotonic(), cpu_s(pipeline.pid)
                time.sleep(run.plan.idle_s)
                share = (cpu_s(pipeline.pid) - cpu) / (time.monotonic() - began)
                run.add("idle cpu", share * 100)
                run.add("idle memory", sum(map(_own_bytes, processes_below(pipeline.pid))))
        finally:
            pipeline.end()


def _wait_for(pipeline: Process, log: Path) -> None:
    until = time.monotonic() + START_WITHIN_S
    while RUNS not in log.read_text(errors="replace"):
        if not pipeline.is_running() or time.monotonic() > until:
            raise CannotStart(f"the pipeline did not come up: {pipeline.last_words()}")
        time.sleep(0.2)


def _own_bytes(pid: int) -> int:
    """Memory of a process, with its share of what it has in common with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
