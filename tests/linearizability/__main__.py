"""Record histories for as long as one likes, and check them.

    python -m tests.linearizability --minutes 30
    python -m tests.linearizability --minutes 5 --seed 7

Works in rounds, each on a new server. Ends with exit code 1 at the first history that nothing explains, and shows it.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.linearizability.history import unexplained
from tests.linearizability.recording import recorder

ROUNDS: Final = 20
"""On one server."""
MESSAGES: Final = 60


async def _on_one_server(folder: Path, seed: int, ends_at: float) -> tuple[int, list[str]]:
    """How many histories were checked, and those that nothing explains."""
    checked = 0
    async with recorder(folder, seed) as recording:
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
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    ends_at = time.monotonic() + given.minutes * 60
    total = 0
    while total == 0 or time.monotonic() < ends_at:
        with tempfile.TemporaryDirectory(prefix="tarry-linearizable-") as folder:
            checked, offenders = asyncio.run(_on_one_server(Path(folder), seed, ends_at))
        total += checked
        print(f"seed {seed}: {total} histories, {len(offenders)} that nothing explains", flush=True)
        if offenders:
            print("\n".join(offenders))
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
