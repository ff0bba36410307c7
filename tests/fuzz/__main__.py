"""`python -m tests.fuzz --seeds 20`: campaigns one after another; a failure prints its seed."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import Campaign


def main() -> int:
    """Run the seeds; gives the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seeds", type=int, default=20, help="how many, half a minute each")
    parser.add_argument("--first", type=int, default=1_000, help="the first of them")
    parser.add_argument("--steps", type=int, default=400, help="steps of the native door in each")
    given = parser.parse_args()
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory(prefix="tarry-fuzz-") as folder:
            campaign = Campaign(Path(folder), seed)
            try:
                asyncio.run(campaign.run(given.steps))
                print(
                    f"seed {seed}: held; the longest turn took {campaign.longest_cpu_s * 1000:.0f} ms",
                    flush=True,
                )
            except AssertionError as error:
                failed += 1
                print(f"seed {seed}: FAILED: {error}", flush=True)
    return 1 if failed else 0


sys.exit(main())
