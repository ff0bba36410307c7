"""Reasons for cases of peers' suites that do not pass: one file for each suite, one line for each case.

`reasons/NAME.toml` maps the name of a case, or a pattern with `*`, to a kind and a sentence:

    [failed]
    "TestTxn*" = "outside: transactions are not claimed"

The kind is one of `KINDS`. A failure without a reason makes a run fail.
"""

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from msgspec import Struct

FOLDER: Final = Path(__file__).with_name("reasons")

KINDS: Final = {
    "outside": "outside what Tarry claims",
    "environment": "needs what is not on the machine, or measures the machine",
    "better": "Tarry's answer is better, and the sentence says why",
    "client": "a fault of the suite or its client, which its own server shows too",
}
"""By word: the kinds of reasons."""


class Reason(Struct, frozen=True):
    """A kind and a sentence."""

    kind: str
    text: str


def read_reasons(text: str) -> dict[str, Reason]:
    """The reasons in a file, by name or pattern; raises for a kind that is none and for a sentence that is missing."""
    found: dict[str, Reason] = {}
    for name, line in tomllib.loads(text).get("failed", {}).items():
        kind, colon, why = line.partition(":")
        if kind not in KINDS or not colon or not why.strip():
            raise ValueError(f"{name}: {line!r} is not a kind ({', '.join(KINDS)}), a colon and a reason")
        found[name] = Reason(kind, why.strip())
    return found


def reasons_of(suite: str) -> dict[str, Reason]:
    """The reasons of a suite; none if there is no file."""
    path = FOLDER / f"{suite}.toml"
    return read_reasons(path.read_text("utf-8")) if path.exists() else {}


def pattern_for(case: str, reasons: Mapping[str, Reason]) -> str | None:
    """The name or pattern under which a case has its reason: its own name before a pattern."""
    if case in reasons:
        return case
    return next((pattern for pattern in reasons if fnmatchcase(case, _literal(pattern))), None)


def unexplained(failed: Iterable[str], reasons: Mapping[str, Reason]) -> list[str]:
    """Cases that failed and have no reason."""
    return sorted(case for case in failed if pattern_for(case, reasons) is None)


def unused(failed: Iterable[str], reasons: Mapping[str, Reason]) -> list[str]:
    """Names and patterns of which no case failed: a test that depends on the moment, or a reason to be removed."""
    used = {pattern_for(case, reasons) for case in failed}
    return sorted(pattern for pattern in reasons if pattern not in used)


def _literal(pattern: str) -> str:
    """A pattern in which only `*` is special: brackets are part of many names."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
