"""This checkout against another commit: the same load on the Tarry of each, in turns, in one run.

The load and the ways of measuring are this checkout's for both; only Tarry's processes are the other's. Both run in one
environment, unless the other commit locks other packages: then it gets one of its own, which takes some minutes.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench import machine, results
from bench.figures import Figure, Figures, said, turn_by_turn
from bench.parts import Part
from bench.plan import Plan
from bench.processes import CACHE, ROOT, tarry_of
from bench.run import TARRY, Run
from bench.tables import table

LOCK: Final = "requirements/base.txt"
"""The lock of what a server runs with."""
MARGIN: Final = 0.05
"""A ratio that is further from 1 than this in every turn is a difference to be explained."""


@dataclass(frozen=True)
class Side:
    """A commit that is compared, and where its code is."""

    name: str
    tree: Path
    python: Path = Path(sys.executable)
    """The interpreter of the environment with its packages."""


@dataclass
class Compared:
    """A part, measured with the older and with the newer commit."""

    part: str
    load: str
    """The machine's load average at the start."""
    old: Figures = field(default_factory=Figures)
    new: Figures = field(default_factory=Figures)


@contextmanager
def checkout(revision: str) -> Iterator[Side]:
    """Another commit in a work tree of its own, which goes afterwards."""
    commit = _git("rev-parse", "--verify", "--quiet", "--short=10", f"{revision}^{{commit}}")
    if commit is None:
        raise SystemExit(
            f"--against {revision}: there is no such commit here. Name a commit, a branch or a tag."
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="against-", dir=CACHE) as folder:
        tree = Path(folder).resolve() / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            yield Side(commit, tree, interpreter(commit, tree))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=False)


def interpreter(commit: str, tree: Path) -> Path:
    """The interpreter for a commit: ours, or where its lock is another one that of the environment which its own tools make."""
    if not _git("diff", "--name-only", commit, "--", LOCK):
        return Path(sys.executable)
    print(f"bench: {commit} locks other packages: setting up its environment", file=sys.stderr)
    outside = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    made = subprocess.run(["tools/python-env.sh", "base"], cwd=tree, env=outside, check=False)
    if made.returncode != 0:
        raise SystemExit(f"--against {commit}: its environment cannot be made.")
    return tree / ".venv" / "bin" / "python"


def here() -> Side:
    """This checkout, as it is."""
    return Side(results.commit(), ROOT)


def comparable(parts: Sequence[Part]) -> list[Part]:
    """The parts that can be measured with another commit's Tarry; says which cannot."""
    for part in parts:
        if not part.apart:
            print(
                f"bench: {part.name} is left out: it runs code of Tarry in the benchmark's own process, "
                "where another commit's cannot take its place",
                file=sys.stderr,
            )
    return [part for part in parts if part.apart]


def turns(repeats: int, old: Side, new: Side) -> Iterator[tuple[int, Side]]:
    """The order of measurements: the old commit and the new one in each turn."""
    for turn in range(1, repeats + 1):
        yield turn, old
        yield turn, new


def measured(part: Part, plan: Plan, folder: Path, old: Side, new: Side) -> Compared:
    """Measure one part, without peers, in turns."""
    load = dict(machine.describe(folder))
    found = Compared(part.name, next(value for name, value in load.items() if name.startswith(machine.LOAD)))
    for turn, side in turns(plan.repeats, old, new):
        run = Run(part.name, replace(plan, repeats=1), folder, peers=False)
        run.say(f"{side.name}, turn {turn} of {plan.repeats}")
        with tarry_of(side.tree, side.python):
            part.measure(run)
        (found.old if side is old else found.new).take(run.figures)
    return found


def report(compared: Sequence[Compared], old: Side, new: Side, where: Sequence[tuple[str, str]]) -> str:
    """Every figure of both with its ratio."""
    how = (
        f"Measured in turns, {old.name} first in each, with the load of this checkout. Values are medians with the lowest and "
        "the highest; a ratio is new / old, turn by turn. The last column says where it is more than "
        f"{MARGIN:.0%} away from 1 in every turn. Rows of {machine.WHO} show how much the machine itself changed."
    )
    parts = [
        f"# {new.name} against {old.name}",
        how,
        table(["", ""], [list(row) for row in where if not row[0].startswith(machine.LOAD)]),
    ]
    for one in compared:
        rows = [_row(one, who, what) for who, figures in one.new.values().items() for what in figures]
        head = ["what", f"old, {old.name}", f"new, {new.name}", "new / old", "in every turn"]
        parts += [f"## {one.part}", f"{machine.LOAD}: {one.load}.", table(head, rows)]
    return "\n\n".join(parts) + "\n"


def _row(one: Compared, who: str, what: str) -> list[str]:
    before, now = one.old.get(who, what), one.new.get(who, what)
    ratio = turn_by_turn(now, before)
    name = what if who == TARRY else f"{who}: {what}"
    return [name, said(before), said(now), said(ratio), verdict(ratio)]


def verdict(ratio: Figure | None) -> str:
    """Whether all turns agree that there is a difference, and which; one turn alone agrees with nobody."""
    if ratio is None or len(ratio.values) < 2:
        return ""
    low, high = ratio.spread
    if low > 1 + MARGIN:
        return "more"
    return "less" if high < 1 - MARGIN else ""


def _git(*words: str) -> str | None:
    """The output of git, or nothing where it refuses."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
