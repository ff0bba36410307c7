"""Rounds of faults on a real cluster under load: `python -m tests.cluster --rounds 10`.

Each round prints how long the takeover took, for how long nothing came when it was due, and what was lost, early or doubled. At the
end the books of the clients and `tarry audit` must agree. Exit code 1 with the offenders, and then everything is left where it
says.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.campaign import ClusterCampaign
from tests.cluster.faults import FAULTS
from tests.crash.campaign import run


def main() -> int:
    """Run the rounds; gives the exit code."""
    arguments = argparse.ArgumentParser(
        prog="make cluster", description="Faults on a real cluster under load, with an audit."
    )
    arguments.add_argument(
        "--rounds", type=int, default=len(FAULTS), help="how many (default: each fault once)"
    )
    arguments.add_argument("--minutes", type=float, default=600.0, help="begin no round after so long")
    arguments.add_argument("--seed", type=int, default=None, help="of the order of faults and their instants")
    arguments.add_argument("--only", default="", help="faults whose names contain this")
    given = arguments.parse_args()
    faults = [fault for fault in FAULTS if given.only in fault.name]
    if not faults:
        arguments.error(
            f"no fault is named like that; there are: {'; '.join(fault.name for fault in FAULTS)}"
        )
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="tarry-cluster-"))
    count: int = given.rounds
    began = time.monotonic()
    last_begins: float = began + given.minutes * 60
    print(f"{given.rounds} rounds, seed {seed}, in {folder}", flush=True)

    def go_on(rounds: int) -> bool:
        return rounds < count and time.monotonic() < last_begins

    def say(line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"{minutes:3}:{seconds:02} {line}", flush=True)

    # Ended by whoever began it, it ends what it has begun.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    campaign = ClusterCampaign(folder, seed, faults)
    try:
        offenders = run(campaign, go_on, say)
    finally:
        print("", *campaign.figures(), sep="\n", flush=True)
    if offenders:
        print(f"{len(offenders)} offenders; everything is kept in {folder}:", *offenders, sep="\n  ")
        return 1
    print("all is well", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
