"""Run peers' suites and write `docs/conformance.md`. Ends with 1 if a case failed that has no reason."""

import argparse
import importlib
import pkgutil
import sys
import time

from tests.peers import suites
from tests.peers.page import rewrite
from tests.peers.reasons import reasons_of, unexplained, unused
from tests.peers.results import save, stored
from tests.peers.suite import Case, Suite
from tests.peers.workplace import Workplace, missing


def all_suites() -> list[Suite]:
    """Every suite there is a module for."""
    found = [
        importlib.import_module(f"{suites.__name__}.{one.name}")
        for one in pkgutil.iter_modules(suites.__path__)
    ]
    return [module.SUITE for module in found if hasattr(module, "SUITE")]


def run(suite: Suite, cases: str, *, store: bool) -> bool:
    """Run one suite and tell what came of it; whether every failure has its reason."""
    lacking = missing(suite.programs)
    reason = f"{', '.join(lacking)} not found" if lacking else suite.lacking()
    if reason is not None:
        print(f"{suite.name}: skipped: {reason}", flush=True)
        return True
    print(f"{suite.name}: {suite.title} {suite.version}, about {suite.minutes} minutes", flush=True)
    began = time.monotonic()
    with Workplace(suite.name) as workplace:
        outcome = suite.run(workplace, cases)
    failed = [case.name for case in outcome if case.outcome == "failed"]
    reasons = reasons_of(suite.name)
    strange = set(unexplained(failed, reasons))
    for case in outcome:
        if case.outcome == "failed":
            print(f"{suite.name}: {'UNEXPLAINED' if case.name in strange else 'failed'} {case.name}")
        if case.name in strange:
            print(_indented(case))
    if not cases:
        for pattern in unused(failed, reasons):
            print(f"{suite.name}: the reason for {pattern} was not needed this time")
        if store:
            save(stored(suite.name, suite.title, suite.version, outcome))
    passed = sum(case.outcome == "passed" for case in outcome)
    print(f"{suite.name}: {passed} passed, {len(failed)} failed, {len(strange)} of them unexplained,"
          f" in {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    return not strange


def _indented(case: Case) -> str:
    return "\n".join(f"    {line}" for line in case.said.splitlines()[-25:])


def main() -> int:
    """The command."""
    known = {suite.name: suite for suite in all_suites()}
    parser = argparse.ArgumentParser("python -m tests.peers", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="NAMES", help=f"of these, with commas: {', '.join(known)}"
    )
    parser.add_argument(
        "--cases", default="", metavar="REGEX", help="only these cases; nothing is stored then"
    )
    parser.add_argument("--page", action="store_true", help="only write the page anew from what is stored")
    asked = parser.parse_args()
    names = [name for name in asked.only.split(",") if name] or list(known)
    strangers = [name for name in names if name not in known]
    if strangers:
        parser.error(f"there is no suite {', '.join(strangers)}; there are {', '.join(known)}")
    good = True
    for name in [] if asked.page else names:
        good = run(known[name], asked.cases, store=not asked.cases) and good
    rewrite()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
