"""Kill and restart the real server, and the driver of its pipeline, under load for as long as one likes, auditing what arrived.

    python -m tests.crash.soak --minutes 30
    python -m tests.crash.soak --minutes 30 --only pipeline --seed 7

Works in rounds, of the server alone, of both, and of the server with repeats, names and pauses, in turn: each has a new data folder, some crashes and an audit. Ends with exit
code 1 at the first offender, and then leaves the data folder and the logs where it says.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.crash.campaign import Campaign, Rounds, run
from tests.crash.indexed import IndexedCampaign
from tests.crash.native import NativeCampaign

CRASHES: Final = 20
"""In one round."""
CRASHES_WITH_PIPELINE: Final = 40
"""There some are of the driver, which takes longer to start than a server lives."""
LONGEST_MS: Final = 60_000
"""There messages have to wait until they are in the index."""

KINDS: Final[dict[str, Callable[[Path, int], Rounds]]] = {
    "server": Campaign,
    "pipeline": lambda folder, seed: IndexedCampaign(folder, seed, LONGEST_MS),
    "native": NativeCampaign,
}
"""Rounds, in the order in which they are run."""


def _go_on(crashes: int, ends_at: float) -> Callable[[int], bool]:
    return lambda crashed: crashed < crashes and time.monotonic() < ends_at


def main() -> int:
    """Soak; gives the exit code."""
    arguments = argparse.ArgumentParser(description="SIGKILL on the real server under load, with an audit.")
    arguments.add_argument("--minutes", type=float, default=30.0, help="for how long (default 30)")
    arguments.add_argument("--seed", type=int, default=None, help="of the moments at which it is killed")
    arguments.add_argument("--only", choices=tuple(KINDS), help="rounds of one kind only")
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    began = time.monotonic()
    ends_at = began + given.minutes * 60
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_at:
        rounds += 1
        kind = given.only or tuple(KINDS)[(rounds - 1) % len(KINDS)]
        crashes = CRASHES_WITH_PIPELINE if kind == "pipeline" else CRASHES
        folder = Path(tempfile.mkdtemp(prefix="tarry-soak-"))
        print(f"round {rounds}, {kind}, seed {seed}, in {folder}", flush=True)

        def say(line: str) -> None:
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            print(f"  {minutes:4}:{seconds:02}  {line}", flush=True)

        offenders = run(KINDS[kind](folder, seed), _go_on(crashes, ends_at), say)
        if offenders:
            print(f"{len(offenders)} offenders; everything is kept in {folder}:", *offenders, sep="\n  ")
            return 1
        print(f"round {rounds}: all is well", flush=True)
        shutil.rmtree(folder)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
