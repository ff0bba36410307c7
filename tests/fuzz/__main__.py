"""`python -m tests.fuzz --seeds 20`: campaigns one after another; a failure prints its seed."""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fuzz.campaign import ALONE_TURN_CPU_S, Campaign
from tests.fuzz.homeservers import Homeserver, synapse, tiny


@contextlib.asynccontextmanager
async def homeserver(folder: Path) -> AsyncIterator[Homeserver]:
    """A real one, or the small one where it cannot be had."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(synapse(folder))
            print("behind the Matrix door is Synapse", flush=True)
        except pytest.skip.Exception as missing:
            print(f"behind the Matrix door is no real homeserver: {missing}", flush=True)
            found = await stack.enter_async_context(tiny(folder))
        yield found


async def run(folder: Path, given: argparse.Namespace) -> int:
    """Every seed, before one homeserver; gives how many failed."""
    failed = 0
    async with homeserver(folder) as behind:
        for seed in range(given.first, given.first + given.seeds):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                campaign = Campaign(Path(place), seed, behind, ALONE_TURN_CPU_S)
                try:
                    await campaign.run(given.steps)
                except* AssertionError as errors:
                    failed += 1
                    print(f"seed {seed}: FAILED: {first_of(errors)}", flush=True)
                else:
                    accepted = ", ".join(f"{name} {count}" for name, count in campaign.accepted.items())
                    turn_ms = campaign.longest_cpu_s * 1000
                    print(
                        f"seed {seed}: held; the longest turn took {turn_ms:.0f} ms; accepted: {accepted}",
                        flush=True,
                    )
    return failed


def first_of(error: BaseException) -> BaseException:
    """The first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    """Run the seeds; gives the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seeds", type=int, default=20, help="how many, a minute each")
    parser.add_argument("--first", type=int, default=1_000, help="the first of them")
    parser.add_argument("--steps", type=int, default=400, help="steps of the native door in each")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tarry-fuzz-") as folder:
        return 1 if asyncio.run(run(Path(folder), given)) else 0


sys.exit(main())
