#!/usr/bin/env python3
"""Turns pip's standard output into progress: pip-progress.py TOTAL FOLDER < output of `pip install`.

TOTAL is the number of packages, FOLDER where they are installed. On a terminal there is one line, which is written again; elsewhere
a line every few seconds. Only the standard library is there when this runs.
"""

import re
import sys
import threading
import time
from pathlib import Path

EVERY_S = 5.0
"""The time between two lines where there is no terminal."""
STEPS = (
    (re.compile(r"^Collecting ([^\s=<>~!;\[]+)"), "fetching {name}"),
    (re.compile(r"^\s*(?:Downloading|Using cached) (\S+?)-\d\S* \(([^)]+)\)"), "fetching {name} ({size})"),
    (re.compile(r"^\s*Building wheel for (\S+)"), "packing {name}"),
    (re.compile(r"^Installing collected packages"), "installing"),
)


class Progress:
    """What pip is at, by its own words."""

    def __init__(self, total: int, folder: Path) -> None:
        self._total = total
        self._folder = folder
        self._before = self._installed()
        self._fetched = 0
        self._step = "reading the lock"

    def read(self, line: str) -> None:
        """Take in a line of pip's."""
        for pattern, step in STEPS:
            if found := pattern.match(line):
                self._fetched += line.startswith("Collecting")
                name, size = (*found.groups(), "", "")[:2]
                self._step = step.format(name=name, size=size)
                return

    def shown(self) -> str:
        """The progress in one line."""
        if self._step == "installing":
            done = max(0, self._installed() - self._before)
            return f"  installed {min(done, self._total)} of {self._total} packages"
        return f"  {min(self._fetched, self._total)} of {self._total}: {self._step}"

    def _installed(self) -> int:
        return sum(1 for _ in self._folder.glob("*.dist-info"))


def main() -> None:
    """Show the progress until pip closes its output."""
    progress = Progress(int(sys.argv[1]), Path(sys.argv[2]))
    terminal = sys.stderr.isatty()
    ended = threading.Event()

    def show() -> None:
        last, at = "", time.monotonic()
        while not ended.wait(0.2):
            line = progress.shown()
            if line == last or (not terminal and time.monotonic() - at < EVERY_S):
                continue
            last, at = line, time.monotonic()
            sys.stderr.write(f"\r\033[K{line[:79]}" if terminal else f"{line}\n")
            sys.stderr.flush()
        if terminal:
            sys.stderr.write("\r\033[K")

    showing = threading.Thread(target=show)
    showing.start()
    try:
        for line in sys.stdin:
            progress.read(line)
    finally:
        ended.set()
        showing.join()


if __name__ == "__main__":
    main()
