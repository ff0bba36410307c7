"""Run the simulation for as many seeds as one likes.

    python -m tests.simulation.run --seeds 10000 [--first 0] [--steps 250] [--jobs 2]
    python -m tests.simulation.run --seed 4711 --trace

A run that fails prints its seed, the guarantee that was broken, and how to have it again.
"""

import argparse
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from typing import NamedTuple
from unittest import mock

from tarry.engine.bodies import readahead
from tarry.engine.bulk_commands import walk
from tarry.registry import sieve, table
from tarry.testing.disk import SimulatedCrash
from tests.simulation.coverage import ENOUGH_SEEDS, never_met, report
from tests.simulation.world import Simulation

DEFAULT_STEPS = 250


class Failure(Exception):
    """A seed that fails, with how to have it again."""


def run_seed(
    seed: int,
    steps: int = DEFAULT_STEPS,
    trace: Callable[[str], None] | None = None,
    focus: Mapping[str, float] | None = None,
    *,
    replicated: bool = False,
) -> Simulation:
    """One run; raises `Failure`."""
    simulation = Simulation(seed, steps, trace, focus, replicated=replicated)
    try:
        # Bursts are small here: none would be kept whole, and a bulk command would be done in one step. Each life would clear megabytes for a few keys, and no other thread wants its turn.
        with (
            mock.patch.object(readahead, "WHOLE", 2),
            mock.patch.object(walk, "STEP", 3),
            mock.patch.object(table, "PAUSE_S", 0.0),
            mock.patch.multiple(sieve, _BITS=12, _MASK=(1 << 12) - 1),
        ):
            simulation.run()
    except (Exception, SimulatedCrash) as error:
        again = f"python -m tests.simulation.run --seed {seed} --steps {steps} --trace"
        raise Failure(f"seed {seed}, step {simulation.step}: {error!r}\nto have it again: {again}") from error
    return simulation


def is_replicated(seed: int) -> bool:
    """Whether a seed's run has several servers on one log: every third has."""
    return seed % 3 == 0


class Runs(NamedTuple):
    """The results of many runs."""

    failures: list[tuple[int, str]]
    """The seeds that failed, with what is to be said of each."""
    met: Counter[str]
    """In how many runs each kind of fault or rare event was met."""


def run_range(first: int, count: int, steps: int = DEFAULT_STEPS) -> Runs:
    """Many runs."""
    # The engine says what goes wrong, and here much does.
    logging.getLogger("tarry").setLevel(logging.CRITICAL + 1)
    runs = Runs([], Counter())
    for seed in range(first, first + count):
        try:
            simulation = run_seed(seed, steps, replicated=is_replicated(seed))
            runs.met.update(kind for kind, times in simulation.coverage.ended(simulation).items() if times)
        except Failure as failure:
            cause = failure.__cause__
            where = traceback.extract_tb(cause.__traceback__)[-1] if cause is not None else ""
            runs.failures.append((seed, f"{failure}\n  at {where}"))
    return runs


def _chunk(bounds: tuple[int, int, int]) -> Runs:
    return run_range(*bounds)


def _rarely_collect() -> None:
    """Have a process look for garbage rarely: it took an eighth of the time of a run, which ends with most of what it has made."""
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="print the steps of --seed")
    args = parser.parse_args()
    if args.seed is not None:
        try:
            trace = print if args.trace else None
            simulation = run_seed(args.seed, args.steps, trace, replicated=is_replicated(args.seed))
        except Failure as failure:
            traceback.print_exception(failure.__cause__)
            print(failure)
            return 1
        print(
            f"seed {args.seed}: all guarantees hold"
            + (f"; {simulation.refused}" if simulation.refused else "")
        )
        return 0
    began = time.monotonic()
    size = 50
    chunks = [
        (first, min(size, args.first + args.seeds - first), args.steps)
        for first in range(args.first, args.first + args.seeds, size)
    ]
    failed = done = 0
    met: Counter[str] = Counter()
    with get_context("spawn").Pool(args.jobs, _rarely_collect) as pool:
        for (_, count, _), runs in zip(chunks, pool.imap(_chunk, chunks), strict=True):
            done += count
            met += runs.met
            for _, text in runs.failures:
                failed += 1
                print(f"FAILED {text}", flush=True)
            if sys.stdout.isatty():
                print(f"\r{done} of {args.seeds} seeds, {failed} failed", end="", flush=True)
    print(
        f"\r{done} seeds from {args.first} on, {args.steps} steps each, in {time.monotonic() - began:.0f} s: {failed} failed"
    )
    print(f"In how many of the runs that held each kind was met:\n{report(max(1, done - failed), met)}")
    missed = never_met(met) if done >= ENOUGH_SEEDS else []
    if missed:
        print(f"FAILED: no run has met: {', '.join(missed)}")
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
