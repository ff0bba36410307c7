"""The output of `go test -v`, read into cases. Pure."""

import re
from typing import Final

from tests.peers.suite import Case, Outcome

_VERDICT: Final = re.compile(
    r"^(?P<indent> *)--- (?P<verdict>PASS|FAIL|SKIP): (?P<name>\S+) \(", re.MULTILINE
)
_RUN: Final = re.compile(r"^=== RUN +(?P<name>\S+)$", re.MULTILINE)
_OUTCOMES: Final[dict[str, Outcome]] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
SAID_CHARS: Final = 2000


def read_cases(output: str, *, subtests: bool = False) -> list[Case]:
    """The tests of an output with their verdicts, in the order in which they began.

    One that began and has no verdict has failed: it hung or ended the process. `subtests` counts `Test/part` each as a
    case of its own, and those that have parts only through them.
    """
    verdicts = {found["name"]: _OUTCOMES[found["verdict"]] for found in _VERDICT.finditer(output)}
    names = list(dict.fromkeys([found["name"] for found in _RUN.finditer(output)] + list(verdicts)))
    whole = {name.rpartition("/")[0] for name in names if "/" in name}
    wanted = [name for name in names if (name not in whole if subtests else "/" not in name)]
    return [_case(name, verdicts.get(name, "failed"), output) for name in wanted]


def _case(name: str, outcome: Outcome, output: str) -> Case:
    return Case(name, outcome, output[-SAID_CHARS:] if outcome == "failed" else "")


def read_list(output: str) -> list[str]:
    """The names that `-test.list` prints: of tests, and not of benchmarks and examples."""
    return [line for line in output.split() if re.fullmatch(r"Test\w*", line)]
