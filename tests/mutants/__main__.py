"""Make each mutant in a copy of the tree, run the closest tests, and report the mutants that no test noticed.

    python -m tests.mutants [--part ledger] [--match TEXT] [--jobs 2]

Ends with 1 if a mutant went unnoticed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Literal

from tests.mutants.mutant import Mutant, mutants
from tests.processes import ROOT

WITHIN_S: Final = 600
"""A mutant that makes its tests hang is noticed."""
LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv", ".cache", ".*_cache", "__pycache__", "tarry-data")

Outcome = Literal["noticed", "unnoticed", "broken"]


def verdict(mutant: Mutant, tree: Path) -> tuple[Outcome, str]:
    """Make a mutant in a tree of its own, run its tests, and take it back."""
    path = tree / mutant.file
    good = path.read_text("utf-8")
    path.write_text(mutant.applied(good), "utf-8")
    try:
        ended = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider",
             *mutant.tests],
            cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "src")}, capture_output=True, text=True,
            timeout=WITHIN_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "noticed", "its tests hang"
    finally:
        path.write_text(good, "utf-8")
    if ended.returncode == 1:
        return "noticed", ""
    # Everything else than failed tests says something about the list, or about pytest.
    return ("unnoticed" if ended.returncode == 0 else "broken"), ended.stdout[-1500:]


def run(chosen: list[Mutant], jobs: int) -> int:
    """Run mutants, as many at a time as there are jobs; gives the exit status."""
    began = time.monotonic()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="tarry-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            tree = Path(folder, str(number))
            shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
            trees.put(tree)

        def one(mutant: Mutant) -> tuple[Mutant, Outcome, str]:
            tree = trees.get()
            try:
                return mutant, *verdict(mutant, tree)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            for mutant, outcome, said in pool.map(one, chosen):
                print(
                    f"{outcome:9} {mutant.name}{f' ({said})' if outcome == 'noticed' and said else ''}",
                    flush=True,
                )
                if outcome != "noticed":
                    bad += 1
                    print("\n".join(f"    {line}" for line in said.splitlines()[-20:]), flush=True)
    print(f"{len(chosen) - bad} noticed, {bad} not, in {time.monotonic() - began:.0f} s", flush=True)
    return 1 if bad else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", default="*", help="only the list of this part")
    parser.add_argument("--match", default="", help="only mutants whose file or harm has this text")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    given = parser.parse_args()
    listed = mutants(given.part)
    for mutant in listed:
        if mutant.equivalent:
            print(f"equivalent {mutant.name}: {mutant.equivalent}")
    return run([one for one in listed if not one.equivalent and given.match in one.name], given.jobs)


if __name__ == "__main__":
    sys.exit(main())
