"""Record histories for as long as one likes, and check them.

    python -m tests.linearizability --minutes 30
    python -m tests.linearizability --minutes 5 --seed 7
    python -m tests.linearizability --minutes 5 --takeovers

Works in rounds, each on a new server, or on two that share a ledger on a broker and take it over from one another. Ends with exit code 1 at the first history that nothing explains, and shows it.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.cluster.brokers import Brokers, brokers
from tests.linearizability.history import unexplained
from tests.linearizability.recording import recorder
from tests.linearizability.takeovers import recorder_of_two

ROUNDS: Final = 20
"""On one server."""
MESSAGES: Final = 60


async def _on_new_servers(
    folder: Path, seed: int, ends_at: float, cluster: Brokers | None
) -> tuple[int, list[str]]:
    """How many histories were checked, and those that nothing explains."""
    checked = 0
    servers = recorder(folder, seed) if cluster is None else recorder_of_two(folder, seed, cluster)
    async with servers as recording:
        for number in range(ROUNDS):
            # In turn everybody stays (then a conflict has to have its reason), the receivers go, and the server is killed.
            absences, kills = ((0, 0), (2, 0), (0, 1), (0, 2))[number % 4]
            histories = await recording.record(MESSAGES, absences=absences, kills=kills)
            checked += len(histories)
            offenders = unexplained(histories)
            if offenders or time.monotonic() >= ends_at:
                return checked, offenders
    return checked, []


def main() -> int:
    """The command."""
    arguments = argparse.ArgumentParser("python -m tests.linearizability", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=30.0, help="for how long (default 30)")
    arguments.add_argument("--seed", type=int, default=None, help="of what clients and receivers do")
    arguments.add_argument("--takeovers", action="store_true", help="two servers, and a broker")
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    ends_at = time.monotonic() + given.minutes * 60
    with contextlib.ExitStack() as around:
        cluster: Brokers | None = None
        if given.takeovers:
            kafka = around.enter_context(tempfile.TemporaryDirectory(prefix="tarry-kafka-"))
            cluster = around.enter_context(brokers(Path(kafka), count=1))
        return _record(seed, ends_at, cluster)


def _record(seed: int, ends_at: float, cluster: Brokers | None) -> int:
    """Record until the time is over; gives the exit code."""
    total = 0
    while total == 0 or time.monotonic() < ends_at:
        with tempfile.TemporaryDirectory(prefix="tarry-linearizable-") as folder:
            checked, offenders = asyncio.run(_on_new_servers(Path(folder), seed, ends_at, cluster))
        total += checked
        print(f"seed {seed}: {total} histories, {len(offenders)} that nothing explains", flush=True)
        if offenders:
            print("\n".join(offenders))
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
