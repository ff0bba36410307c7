"""Make each mutant in a copy of the tree, run the closest tests, and report the mutants that no test noticed.

    python -m tests.mutants [--part ledger] [--match TEXT] [--jobs 2]

Ends with 1 if a mutant went unnoticed, or if a test that noticed one fails without any change too.
"""

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import Final, Literal, NamedTuple

from tests.conftest import UNSHRUNK
from tests.mutants.mutant import Mutant, mutants
from tests.processes import ROOT

WITHIN_S: Final = 600
"""A mutant that makes its tests hang is noticed."""
HANGS: Final = "its tests hang"
LEFT_OUT: Final = shutil.ignore_patterns(".git", ".venv", ".cache", ".*_cache", "__pycache__", "tarry-data")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)


class Verdict(NamedTuple):
    """The outcome of a mutant."""

    outcome: Literal["noticed", "unnoticed", "broken"]
    said: str
    """Which test noticed, or the end of what pytest said."""


def copied(tree: Path) -> Path:
    """A copy of the tree to make mutants in."""
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
    # Most of a short run is compiling modules. Compiled ones that are believed by the hash of their source, and never
    # written again, can be kept from mutant to mutant.
    for part in ("src", "tests"):
        compileall.compile_dir(tree / part, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return tree


def ran(
    tree: Path, tests: Sequence[str], within_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy of the tree."""
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:schemathesis", "-p", "no:cacheprovider", *tests],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "src"), UNSHRUNK: "1"}, capture_output=True, text=True, timeout=within_s,
    )  # fmt: skip


def judged(mutant: Mutant, tree: Path) -> Verdict:
    """Make a mutant in a copy of the tree, run its tests, and take it back."""
    path = tree / mutant.file
    good = path.read_text("utf-8")
    path.write_text(mutant.applied(good), "utf-8")
    try:
        ended = ran(tree, ["-x", *mutant.tests], WITHIN_S)
    except subprocess.TimeoutExpired:
        return Verdict("noticed", HANGS)
    finally:
        path.write_text(good, "utf-8")
    if ended.returncode == 0:
        return Verdict("unnoticed", ended.stdout[-1500:])
    failed = _FAILED.findall(ended.stdout)
    if ended.returncode != 1 or not failed:
        # Everything else than failed tests says something about the list, or about pytest.
        return Verdict("broken", ended.stdout[-1500:] + ended.stderr[-1500:])
    return Verdict("noticed", failed[0])


def run(chosen: list[Mutant], jobs: int) -> int:
    """Run mutants, as many at a time as there are jobs; gives the exit status."""
    began = time.monotonic()
    bad = 0
    by: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="tarry-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            trees.put(copied(Path(folder, str(number))))

        def one(mutant: Mutant) -> tuple[Verdict, float]:
            tree = trees.get()
            at = time.monotonic()
            try:
                return judged(mutant, tree), time.monotonic() - at
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(jobs) as pool:
            for mutant, (verdict, took_s) in zip(chosen, pool.map(one, chosen), strict=True):
                print(f"{verdict.outcome:9} {took_s:4.0f} s  {mutant.name}", flush=True)
                if verdict.outcome != "noticed":
                    bad += 1
                elif verdict.said != HANGS:
                    by.add(verdict.said)
                print("\n".join(f"    {line}" for line in verdict.said.splitlines()[-20:]), flush=True)
        # A test that fails without any change has noticed nothing.
        unchanged = ran(trees.get(), sorted(by)) if by else None
    if unchanged is not None and unchanged.returncode != 0:
        bad += 1
        print(f"some of these tests fail without a change too:\n{unchanged.stdout[-3000:]}", flush=True)
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
