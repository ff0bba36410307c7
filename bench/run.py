"""A part while it is measured: its sizes, its figures, its turns, and folders that go afterwards."""

import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figures, Lateness
from bench.plan import Plan

TARRY: Final = "Tarry"


class Run:
    """One part of one run."""

    def __init__(self, part: str, plan: Plan, folder: Path, *, peers: bool) -> None:
        self.plan = plan
        self.peers = peers
        """Whether peers are measured too."""
        self.figures = Figures()
        self._part = part
        self._folder = folder.resolve()
        self._began = time.monotonic()
        self.failed: list[str] = []
        """Measurements that failed."""

    def turns(self) -> Iterator[int]:
        """The repeats. Whoever is compared is measured once in each: their turns alternate."""
        for turn in range(1, self.plan.repeats + 1):
            self.say(f"turn {turn} of {self.plan.repeats}")
            yield turn

    def say(self, text: str) -> None:
        """Tell the person who waits."""
        print(f"{time.monotonic() - self._began:7.1f} s  {self._part}: {text}", file=sys.stderr, flush=True)

    def add(self, what: str, value: float) -> None:
        """Take a value of Tarry's."""
        self.figures.add(TARRY, what, value)

    def add_lateness(self, what: str, seen: Lateness, own: Lateness | None = None) -> None:
        """Take a lateness of Tarry's, and the server's own part of it; nothing may be early."""
        self.figures.add_lateness(TARRY, what, seen)
        self.add("early", seen.early)
        if own is not None:
            self.figures.add_lateness(TARRY, f"{what} own", own)
            self.add("early", own.early)

    def skip(self, who: str, why: str) -> None:
        """Leave somebody out, and say why."""
        self.figures.skipped[who] = why
        self.say(f"{who} is skipped: {why}")

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """One measurement of several, whose failure is said and leaves the others what they are worth."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it was, it is shown
            traceback.print_exc()
            self.failed.append(what)
            self.skip(what, f"it failed: {str(error).partition(chr(10))[0][:200] or type(error).__name__}")

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new folder on the disk that is measured; it goes afterwards."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        # A peer may have to run as somebody else.
        place.chmod(0o755)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
