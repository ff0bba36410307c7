"""Programs of users: processes that run for the time of a test, and say on their standard output what they get."""

import contextlib
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from tests.processes import ROOT

WITHIN_S: Final = 60


class Application:
    """A process that says on its standard output what it gets, a line for each."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reading = threading.Thread(target=self._read, args=(process.stdout,))
        self._reading.start()

    def _read(self, out: IO[str]) -> None:
        for line in out:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self) -> str:
        """The next line; waits for it."""
        line = self._lines.get(timeout=WITHIN_S)
        assert line is not None, "the application has ended"
        return line

    def ended(self) -> None:
        """Be done with its output, once it has ended."""
        self._reading.join(WITHIN_S)


@contextlib.contextmanager
def application(
    command: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT
) -> Iterator[Application]:
    """An application that runs for the time of a test."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    app = Application(process)
    try:
        yield app
    finally:
        process.terminate()
        try:
            process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        app.ended()
        assert process.stdout is not None
        process.stdout.close()
