"""The interface of every server in the comparison, ours included."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.figures import Lateness
from bench.processes import CannotStart
from bench.wire import Refused


class Skipped(Exception):
    """A peer cannot be had on this machine. The text says why."""


FAILURES: Final = (Skipped, CannotStart, Refused, AssertionError, OSError, subprocess.SubprocessError)
"""Failures of a peer. It is left out then, and Tarry is measured all the same."""


class Peer(Protocol):
    """A running server."""

    def single(self, seconds: float) -> float:
        """Messages scheduled a second, one a request, over 64 connections."""
        ...

    def batched(self, seconds: float) -> float:
        """Messages scheduled a second in the server's own form of many at once."""
        ...

    def burst(self, count: int) -> Lateness:
        """So many messages due at one instant, taken by one consumer."""
        ...

    def stop(self) -> None:
        """End the server."""
        ...


@dataclass(frozen=True)
class Entrant:
    """One row of the comparison."""

    name: str
    promise: str
    """The part of a request that is on disk when it is answered."""
    start: Callable[[Path], Peer]
    """Start it with a data folder; raises `Skipped`."""
