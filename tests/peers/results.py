"""Results of peers' suites: stored, one file for each suite, so that a run of one keeps the others' rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tests.peers.suite import Case

FOLDER: Final = Path(__file__).with_name("results")


class Stored(Struct, frozen=True, kw_only=True):
    """The outcome of a suite's last whole run."""

    name: str
    title: str
    version: str
    passed: int
    failed: list[str]
    """The names of the cases, in order."""
    skipped: int


def stored(name: str, title: str, version: str, cases: Sequence[Case]) -> Stored:
    """Cases as they are kept."""
    failed = sorted(case.name for case in cases if case.outcome == "failed")
    passed = sum(case.outcome == "passed" for case in cases)
    skipped = len(cases) - passed - len(failed)
    return Stored(name=name, title=title, version=version, passed=passed, failed=failed, skipped=skipped)


def save(result: Stored, folder: Path = FOLDER) -> None:
    """Keep a result in place of the last one."""
    text = msgspec.json.format(msgspec.json.encode(result), indent=1)
    (folder / f"{result.name}.json").write_bytes(text + b"\n")


def load_all(folder: Path = FOLDER) -> list[Stored]:
    """Every result, by title."""
    found = [msgspec.json.decode(path.read_bytes(), type=Stored) for path in folder.glob("*.json")]
    return sorted(found, key=lambda one: one.title.lower())
