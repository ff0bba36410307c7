"""`make bench`: measures Tarry beside its peers and the machine's limits, part by part, and writes the report.

python -m bench [--quick | --full | --tiny] [--only PART,PART] [--no-peers] [--folder DIR] [--out DIR] [--report | --against REV]

Each part's result is kept as JSON; the report is made of all that are there, so that parts can be measured one by one.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import against, machine, plots, report, results
from bench.parts import NAMES, PARTS, Part
from bench.plan import SIZES, Plan
from bench.processes import CACHE, ROOT
from bench.results import Result
from bench.run import Run

HOME = Path(__file__).parent
KEPT = ("normal", "full")
"""The sizes whose results are worth keeping; others are kept only where somebody says where."""


def measured(run: Run, part: Part, plan: Plan, folder: Path, command: str) -> Result:
    """Measure one part."""
    began_at, began, described = results.now(), time.monotonic(), machine.describe(folder)
    part.measure(run)
    run.say("done")
    took_s = time.monotonic() - began
    return Result(part.name, plan, began_at, took_s, command, results.commit(), described, run.figures)


def parts_of(words: list[str] | None, *, everything: bool) -> list[Part]:
    """The parts that were asked for, in their order."""
    wanted = {name for word in words or [] for name in word.split(",") if name}
    if unknown := wanted - set(NAMES):
        raise SystemExit(f"There is no part {', '.join(sorted(unknown))}. Parts are: {', '.join(NAMES)}")
    return [part for part in PARTS if (part.name in wanted if wanted else part.usual or everything)]


def arguments() -> argparse.Namespace:
    """The command line's options."""
    listed = "\n".join(
        f"  {part.name:11} {part.about} ({part.minutes:.0f} min){'' if part.usual else ', only by name or --full'}"
        for part in PARTS
    )
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=…",
        description="Measure Tarry beside its peers.",
        epilog=f"parts, with their time at the normal size:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parser.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "once, and with less"),
        ("full", "five times, and every part: hours"),
        ("tiny", "only to see that it works"),
    ):
        size.add_argument(f"--{name}", action="store_const", const=name, dest="size", help=text)
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts, by spaces or commas")
    parser.add_argument("--no-peers", action="store_true", help="leave the peers out; nothing is downloaded")
    parser.add_argument(
        "--folder", type=Path, default=CACHE, help="where data folders are made; not a RAM disk"
    )
    parser.add_argument("--out", type=Path, help="write results and report there and not to bench/")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--report", action="store_true", help="measure nothing, write the report again")
    instead.add_argument(
        "--against", metavar="REV", help="measure this checkout and another commit in turns, without peers"
    )
    parser.set_defaults(size="normal")
    return parser.parse_args()


def main() -> int:
    """Read the arguments, measure, report."""
    given = arguments()
    plan = SIZES[given.size]
    if not given.report:
        given.folder.mkdir(parents=True, exist_ok=True)
        if machine.file_system(given.folder) in ("tmpfs", "ramfs"):
            print(
                f"{given.folder} is in memory: nothing there is durable. Name a --folder on a disk.",
                file=sys.stderr,
            )
            return 1
    parts = [] if given.report else parts_of(given.only, everything=plan.size == "full")
    failed = compare(given, plan, parts) if given.against else beside_peers(given, plan, parts)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def beside_peers(given: argparse.Namespace, plan: Plan, parts: Sequence[Part]) -> list[str]:
    """Measure parts beside the peers and write the report of all that was ever kept; gives the parts that failed."""
    out: Path | None = given.out or (HOME if plan.size in KEPT or given.report else None)
    kept = results.load_all(out / "results", NAMES) if out else []

    def one(part: Part) -> None:
        run = Run(part.name, plan, given.folder, peers=not given.no_peers)
        found = measured(run, part, plan, given.folder, _command(given))
        if out:
            found.save(out / "results")
        kept[:] = [result for result in kept if result.part != part.name] + [found]
        # After each part, so that a run which is broken off has not been for nothing.
        _write(out, kept)
        if run.failed:
            raise AssertionError(f"not all of it could be measured: {', '.join(run.failed)}")

    failed = _each(parts, one)
    print(_write(out, kept))
    return failed


def compare(given: argparse.Namespace, plan: Plan, parts: Sequence[Part]) -> list[str]:
    """Measure parts with another commit and with this checkout in turns; gives the parts that failed."""
    new, found = against.here(), list[against.Compared]()
    where = machine.describe(given.folder)
    with against.checkout(given.against) as old:

        def one(part: Part) -> None:
            found.append(against.measured(part, plan, given.folder, old, new))
            if given.out:
                given.out.mkdir(parents=True, exist_ok=True)
                (given.out / "AGAINST.md").write_text(against.report(found, old, new, where))

        failed = _each(against.comparable(parts), one)
        print(against.report(found, old, new, where))
    return failed


def _each(parts: Sequence[Part], measure: Callable[[Part], None]) -> list[str]:
    """Do it for each part; gives those that failed, which has not made the others worthless."""
    failed = []
    for part in parts:
        try:
            measure(part)
        except Exception:  # noqa: BLE001 - whatever it was, it is shown
            traceback.print_exc()
            print(f"bench: {part.name} failed; see above", file=sys.stderr)
            failed.append(part.name)
    return failed


def _command(given: argparse.Namespace) -> str:
    """The command as typed, without folders, which are somebody's own."""
    words = [f"--{given.size}"] if given.size != "normal" else []
    words += ["--only", *given.only] if given.only else []
    words += ["--no-peers"] if given.no_peers else []
    return f'make bench ARGS="{" ".join(words)}"' if words else "make bench"


def _write(out: Path | None, kept: list[Result]) -> str:
    """The report and its plots."""
    kept.sort(key=lambda result: NAMES.index(result.part))
    drawn = plots.draw(kept)
    text = report.write(kept, sorted(drawn) if out else [])
    if out:
        folder = out / "plots"
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in drawn.items():
            (folder / name).write_text(picture)
        (out / "RESULTS.md").write_text(text)
        shown = out / "RESULTS.md"
        print(f"written: {shown.relative_to(ROOT) if shown.is_relative_to(ROOT) else shown}", file=sys.stderr)
    return text


if __name__ == "__main__":
    sys.exit(main())
