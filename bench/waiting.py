"""Many messages that wait, in the index: what they cost the server, and whether anybody notices them.

They are scheduled as batches (`tarry bulk schedule`), due over thirty days, and indexed by `tarry pipeline --once`. Then: the
server's memory, a start after SIGKILL, and the lateness of a steady load beside that of a server with nothing waiting, in
turns. And the lateness beside a cascade on the same processors.
"""

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import lateness
from bench.figures import Lateness
from bench.http_wire import Http
from bench.load_http import HOUR_MS
from bench.processes import ROOT, Process, environment, python
from bench.tarry_server import TarryServer

DAYS: Final = 30
TOGETHER: Final = 10_000_000
"""Messages in one batch, at the most."""
CHUNK: Final = 250_000
TURNS: Final = 5
PER_S: Final = 1_000
STEADY_S: Final = 4.0
SETTLE_S: Final = 6.0
"""The server looks for a newer index every two seconds."""


@dataclass
class Waiting:
    """What was found."""

    scheduled_s: float = 0.0
    indexed_s: float = 0.0
    resident_bytes: int = 0
    ready_ms: float = 0.0
    """From the start of a process after SIGKILL until it said that it is ready."""
    beside: list[Lateness] = field(default_factory=list)
    """Of a steady load, with all of them waiting."""
    alone: list[Lateness] = field(default_factory=list)
    """The same load on a server with nothing else."""


def measure(folder: Path, count: int, size: int) -> Waiting:
    """Let so many wait, and look."""
    found = Waiting()
    full, empty = folder / "full", folder / "empty"
    with TarryServer(full) as server:
        began = time.monotonic()
        _schedule(folder, server.port, count, size)
        found.scheduled_s = time.monotonic() - began
        began = time.monotonic()
        _run("pipeline", "--once", "--data", str(full / "data"), cwd=full)
        found.indexed_s = time.monotonic() - began
        time.sleep(SETTLE_S)
        # The connection from before is long closed.
        server.http = Http(server.port)
        pending = server.status()["pending"]
        if pending != count:
            raise AssertionError(f"{pending} are pending, {count} were expected")
        server.kill()
    began = time.monotonic()
    with TarryServer(full) as server:
        found.ready_ms = (time.monotonic() - began) * 1000
        time.sleep(SETTLE_S)
        found.resident_bytes = server.resident_bytes()
    for _ in range(TURNS):
        found.alone.append(lateness.steady(empty, PER_S, STEADY_S, size)[0])
        found.beside.append(lateness.steady(full, PER_S, STEADY_S, size)[0])
    return found


def beside_a_cascade(folder: Path, count: int, size: int) -> Lateness:
    """The lateness of a steady load while Spark splits a day of so many messages on the same processors."""
    cascade = Process(
        ["nice", *python("bench.pipeline", str(folder / "cascade"), str(count), str(size))],
        folder / "cascade.log",
        env=environment(),
        cwd=ROOT,
    )
    try:
        cascade.wait_for_line("cascading")
        return lateness.steady(folder / "server", PER_S, STEADY_S, size)[0]
    finally:
        cascade.end()


def _schedule(folder: Path, port: int, count: int, size: int) -> None:
    """Batches from one Parquet file, due over thirty days from an hour on."""
    file = folder / "rows.parquet"
    rows = min(count, TOGETHER)
    _write(file, rows, size)
    for number in range(0, count, rows):
        url = f"http://127.0.0.1:{port}"
        _run("bulk", "schedule", str(file), "--name", f"batch-{number}", "--url", url, cwd=folder)
    file.unlink()


def _write(file: Path, rows: int, size: int) -> None:
    rng = np.random.default_rng(1)
    now_ms = time.time_ns() // 1_000_000
    schema = pa.schema(
        [("due", pa.int64()), ("payload", pa.binary()), ("key", pa.string()), ("destination", pa.string())]
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, rows, CHUNK):
            some = min(CHUNK, rows - start)
            due = now_ms + HOUR_MS + rng.integers(0, DAYS * 24 * HOUR_MS, some)
            payloads = rng.bytes(some * size)
            offsets = pa.py_buffer(np.arange(0, some * size + 1, size, dtype=np.int32))
            bodies = pa.Array.from_buffers(pa.binary(), some, [None, offsets, pa.py_buffer(payloads)])
            keys = pa.array([f"k{n % 100_000}" for n in range(start, start + some)])
            names = pa.DictionaryArray.from_arrays(
                pa.array(np.arange(some, dtype=np.int32) % 10), [f"waiting-{n}" for n in range(10)]
            ).cast(pa.string())
            writer.write_table(pa.table([due, bodies, keys, names], schema=schema))


def _run(*arguments: str, cwd: Path) -> None:
    subprocess.run(
        python("tarry", *arguments), check=True, env=environment(), cwd=cwd, stdout=subprocess.DEVNULL
    )
