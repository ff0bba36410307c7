"""Kill and restart the real server under load for as long as one likes, auditing what arrived.

    python -m tests.crash.soak --minutes 30

Works in rounds: each has a new data folder, some twenty crashes and an audit. Ends with exit code 1 at the first offender,
and then leaves the data folder and the server's log where it says.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.crash.campaign import run

CRASHES: Final = 20
"""In one round."""


def main() -> int:
    """Soak; gives the exit code."""
    arguments = argparse.ArgumentParser(description="SIGKILL on the real server under load, with an audit.")
    arguments.add_argument("--minutes", type=float, default=30.0, help="for how long (default 30)")
    arguments.add_argument("--seed", type=int, default=None, help="of the moments at which it is killed")
    given = arguments.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    began = time.monotonic()
    ends_at = began + given.minutes * 60
    rounds = 0
    while rounds == 0 or time.monotonic() < ends_at:
        rounds += 1
        folder = Path(tempfile.mkdtemp(prefix="tarry-soak-"))
        print(f"round {rounds}, seed {seed}, in {folder}", flush=True)

        def say(line: str) -> None:
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            print(f"  {minutes:4}:{seconds:02}  {line}", flush=True)

        offenders = run(folder, seed, lambda crashes: crashes < CRASHES and time.monotonic() < ends_at, say)
        if offenders:
            print(f"{len(offenders)} offenders; everything is kept in {folder}:", *offenders, sep="\n  ")
            return 1
        print(f"round {rounds}: all is well", flush=True)
        shutil.rmtree(folder)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
