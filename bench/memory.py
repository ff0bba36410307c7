"""Memory: what a pending message costs the server."""

import time
from pathlib import Path

import numpy as np

from bench.load_http import HOUR_MS, fill
from bench.plan import SMALL_BYTES
from bench.run import Run
from bench.tarry_server import TarryServer

MINUTE_MS = 60_000
SETTLED_BYTES = 256 * 1024


def measure(run: Run) -> None:
    """Of messages in the wheel and in the tail, in turns."""
    pending = run.plan.pending
    for _ in run.turns():
        for name in ("wheel", "tail"):
            with run.place() as place:
                each, resident = of_pending(place, pending, near=name == "wheel")
            run.add(f"{name} {pending}", each)
            run.add(f"resident {name} {pending}", resident)


def of_pending(folder: Path, pending: int, *, near: bool) -> tuple[float, int]:
    """Bytes of one, and of the whole server at the end.

    Of one: the growth for the second half of so many pending messages, when buffers and pools have their size.
    They are due within the horizon (`near`: they are in the wheel) or beyond it (in the tail).
    """
    rng = np.random.default_rng(1)
    # The wheel is filled ten minutes ahead. Nothing may become due while we measure.
    low_ms, high_ms = (5 * MINUTE_MS, 7 * MINUTE_MS) if near else (HOUR_MS, 1000 * HOUR_MS)
    with TarryServer(folder) as server:

        def add(count: int) -> None:
            fill(server.port, time.time_ns() // 1_000_000 + rng.integers(low_ms, high_ms, count), SMALL_BYTES)

        half = pending // 2
        add(half)
        before = _settled(server)
        add(pending - half)
        after = _settled(server)
        place = "in_wheel" if near else "in_tail"
        held = server.status()[place]
        if held != pending:
            raise AssertionError(f"{held} entries are {place}, {pending} were expected")
        return (after - before) / (pending - half), server.resident_bytes()


def _settled(server: TarryServer) -> int:
    """Its memory once that does not change any more."""
    last = server.memory_bytes()
    for _ in range(20):
        time.sleep(0.5)
        now = server.memory_bytes()
        if abs(now - last) < SETTLED_BYTES:
            return now
        last = now
    return last
