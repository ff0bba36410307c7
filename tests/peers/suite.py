"""A peer's suite: what it needs, and the cases that came out of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from tests.peers.workplace import Workplace

Outcome = Literal["passed", "failed", "skipped"]


class Case(Struct, frozen=True):
    """One case of a suite, and what came of it."""

    name: str
    outcome: Outcome
    said: str = ""
    """The end of what the suite said of it, for whoever looks into a failure. It is not stored."""


class Suite(Protocol):
    """A suite that others wrote, or a program of ours on a client that others wrote."""

    name: str
    """How `--only` and the files of its results and reasons call it."""
    title: str
    """Its name in the table."""
    version: str
    """The version that is run."""
    programs: Sequence[str]
    """The programs that have to be on the path."""
    minutes: int
    """About how long it takes on two cores."""

    def lacking(self) -> str | None:
        """The reason for which it cannot be run here although its programs are there; None if it can."""

    def run(self, workplace: "Workplace", only: str) -> list[Case]:
        """Bring it, start what it needs, run it. `only` is a regular expression that limits the cases; "" is all."""
