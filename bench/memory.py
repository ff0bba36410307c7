"""Memory: what a pending message costs the server."""

import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.load_http import HOUR_MS, fill
from bench.plan import SMALL_BYTES
from bench.run import Run
from bench.tarry_server import TarryServer

MINUTE_MS: Final = 60_000
SETTLED_BYTES: Final = 256 * 1024
PLACES: Final = {"tail": (HOUR_MS, 1000 * HOUR_MS), "wheel": (7 * MINUTE_MS, 9 * MINUTE_MS)}
"""How far ahead they are due. The wheel is filled ten minutes ahead; nothing may become due while we measure."""


def measure(run: Run) -> None:
    """A server with half of them in the tail and half in the wheel."""
    pending = run.plan.pending
    for _ in run.turns():
        with run.place() as place:
            each, resident = of_pending(place, pending)
        for name, size in each.items():
            run.add(f"{name} {pending}", size)
        run.add(f"resident {pending}", resident)


def of_pending(folder: Path, pending: int) -> tuple[dict[str, float], int]:
    """Bytes of one in the tail and of one in the wheel, and of the whole server at the end.

    Of one: the growth for the second half of those at its place, when buffers and pools have their size.
    """
    rng = np.random.default_rng(1)
    each: dict[str, float] = {}
    with TarryServer(folder) as server:
        for name, (low_ms, high_ms) in PLACES.items():

            def add(count: int, low_ms: int = low_ms, high_ms: int = high_ms) -> int:
                due = time.time_ns() // 1_000_000 + rng.integers(low_ms, high_ms, count)
                fill(server.port, due, SMALL_BYTES)
                return _settled(server)

            before = add(pending // 4)
            each[name] = (add(pending // 4) - before) / (pending // 4)
            held = server.status()[f"in_{name}"]
            if held != pending // 2:
                raise AssertionError(f"{held} entries are in the {name}, {pending // 2} were expected")
        return each, server.resident_bytes()


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
