"""Many messages that wait, in the index: what they cost the server, and whether anybody notices them.

They are scheduled as batches (`tarry bulk schedule`), due over thirty days, and indexed by `tarry pipeline --once`. Then: the
server's memory, a start after SIGKILL, and the lateness of a steady load beside that of a server with nothing waiting, in
turns.
"""

import subprocess
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import lateness
from bench.http_wire import Http
from bench.load_http import HOUR_MS
from bench.plan import PAYLOAD_BYTES
from bench.processes import python, tarry_environment
from bench.run import Run
from bench.tarry_server import TarryServer

DAYS: Final = 30
TOGETHER: Final = 10_000_000
"""Messages in one batch, at the most."""
CHUNK: Final = 250_000
PER_S: Final = 1_000
SETTLE_S: Final = 6.0
"""The server looks for a newer index every two seconds."""


def measure(run: Run, count: int, size: int) -> None:
    """Let so many wait, and look."""
    with run.place() as folder:
        full, empty = folder / "full", folder / "empty"
        with TarryServer(full) as server:
            _set_up(run, folder, server, full, count, size)
            server.kill()
        _starts(run, full, count)
        for turn in range(run.plan.waiting_turns):
            run.say(f"lateness beside {count:,} and beside none, {turn + 1} of {run.plan.waiting_turns}")
            for what, place in (("alone", empty), ("beside", full)):
                seen, own = lateness.steady(place, PER_S, run.plan.steady_s / 2, PAYLOAD_BYTES)
                run.add_lateness(f"waiting {count} {what}", seen, own)


def _set_up(run: Run, folder: Path, server: TarryServer, full: Path, count: int, size: int) -> None:
    """Schedule so many, and have them indexed."""
    run.say(f"{count:,} are scheduled")
    began = time.monotonic()
    _schedule(folder, server.port, count, size)
    run.add(f"waiting {count} scheduled", time.monotonic() - began)
    run.say("they are indexed")
    began = time.monotonic()
    _run("pipeline", "--once", "--data", str(full / "data"), cwd=full)
    run.add(f"waiting {count} indexed", time.monotonic() - began)
    time.sleep(SETTLE_S)
    # The connection from before is long closed.
    server.http = Http(server.port)
    pending = server.status()["pending"]
    if pending != count:
        raise AssertionError(f"{pending} are pending, {count} were expected")


def _starts(run: Run, full: Path, count: int) -> None:
    """Start after SIGKILL, and look at the memory; again and again."""
    for _ in run.turns():
        began = time.monotonic()
        with TarryServer(full) as server:
            run.add(f"waiting {count} ready", (time.monotonic() - began) * 1000)
            time.sleep(SETTLE_S)
            run.add(f"waiting {count} resident", server.resident_bytes())
            server.kill()


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
        python("tarry", *arguments), check=True, env=tarry_environment(), cwd=cwd, stdout=subprocess.DEVNULL
    )
