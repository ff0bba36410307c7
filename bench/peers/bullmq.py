"""BullMQ: delayed jobs on Redis, from Node. Its load is a Node program, as it has no other client."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.figures import Lateness
from bench.peers import packages
from bench.peers.peer import Entrant, Skipped
from bench.peers.redis import RedisServer
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH

PACKAGES: Final = ("bullmq@6.7.0", "ioredis@6.0.0")
PROGRAM: Final = Path(__file__).with_name("bullmq_load.cjs")


class BullMQ(RedisServer):
    """A Redis of its own and the program beside it."""

    def __init__(self, folder: Path, sync: str) -> None:
        self._modules = packages.npm_modules(*PACKAGES)
        super().__init__(folder, sync)

    def single(self, seconds: float) -> float:
        """`queue.add`, as many at once as the others have connections."""
        return float(self._run("single", seconds, CONNECTIONS)["per_s"])

    def batched(self, seconds: float) -> float:
        """`queue.addBulk`."""
        return float(self._run("batched", seconds, PEER_BATCH)["per_s"])

    def burst(self, count: int) -> Lateness:
        """One worker with many jobs at once; the clock stops when a job is handed to it."""
        found = self._run("burst", count, CONNECTIONS)
        return Lateness(count, found["p50"], found["p99"], found["worst"], found["early"])

    def _run(self, what: str, size: float, width: int) -> dict[str, Any]:
        words = [str(self.port), what, str(size), str(width), str(PAYLOAD_BYTES)]
        done = subprocess.run(
            ["node", PROGRAM, self._modules, *words], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise Skipped(f"its program failed: {done.stderr.strip()[-300:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


ENTRANTS = [
    Entrant("BullMQ, always", "synced before the answer", lambda folder: BullMQ(folder, "always")),
    Entrant(
        "BullMQ, everysec",
        "synced every second: not durable when it answers",
        lambda folder: BullMQ(folder, "everysec"),
    ),
]
