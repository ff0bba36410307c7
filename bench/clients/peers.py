"""The client libraries beside ours, each with the server that it is mostly used with; all sync before they answer."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers import bullmq, packages
from bench.peers.peer import Skipped
from bench.peers.postgresql import PostgreSQL
from bench.peers.redis import RedisServer
from bench.plan import PAYLOAD_BYTES
from bench.processes import environment

LOAD: Final = Path(__file__).with_name("load.py")
WITHIN_S: Final = 180
CELERY: Final = "celery[redis]==5.7.0"
PROCRASTINATE: Final = ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9")

Found = Mapping[str, float]


@dataclass(frozen=True)
class Library:
    """A client library."""

    name: str
    about: str
    server: Callable[[Path], Any]
    """Starts its server with a data folder; it has `port` and `stop`."""
    run: Callable[[int, str, int, float], Found]
    """Port, `schedule` or `work`, callers or places, seconds or entries."""
    works: bool = True
    """Whether it has a worker."""


def load(client: str, address: object, what: str, width: int, amount: float, python: object = None) -> Found:
    """Run the load with one library in a process of its own."""
    ours = python is None
    words = [str(python or sys.executable), str(LOAD), client, str(address), what, str(width), str(amount)]
    if what == "work":
        words[-1] = str(int(amount))
    return _said(words, environment() if ours else None)


def _said(words: list[str], env: Mapping[str, str] | None = None) -> Found:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=env, timeout=WITHIN_S, check=False, cwd=LOAD.parent
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"its load was not done in {WITHIN_S} s") from None
    if done.returncode != 0 or not done.stdout.strip():
        raise Skipped(f"its load failed: {done.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _redis(port: int, what: str, width: int, amount: float) -> Found:
    return load("redis", port, what, width, amount)


def _celery(port: int, what: str, width: int, amount: float) -> Found:
    return load("celery", port, what, width, amount, packages.python_with(CELERY))


def _procrastinate(port: int, what: str, width: int, amount: float) -> Found:
    return load("procrastinate", port, what, width, amount, packages.python_with(*PROCRASTINATE))


def _bullmq(port: int, what: str, width: int, amount: float) -> Found:
    modules = packages.npm_modules(*bullmq.PACKAGES)
    words = [modules, port, "callers" if what == "schedule" else what, amount, width, PAYLOAD_BYTES]
    return _said(["node", str(bullmq.PROGRAM), *map(str, words)])


def _synced(folder: Path) -> RedisServer:
    return RedisServer(folder, "always")


REDIS: Final = "redis-py"
LIBRARIES: Final = (
    Library(REDIS, "asyncio, ZADD; Redis, appendfsync always", _synced, _redis, works=False),
    Library("BullMQ", "Node; Redis, appendfsync always", _synced, _bullmq),
    Library("Celery", "threads; Redis, appendfsync always", _synced, _celery),
    Library("procrastinate", "asyncio; PostgreSQL", PostgreSQL, _procrastinate),
)
