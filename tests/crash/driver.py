"""A real driver in a process of its own: `tarry pipeline` beside a server, killed and started again; and its short jobs."""

import contextlib
import os
import signal
import subprocess
import sys
from typing import Final

from tarry.index.progress import read_progress
from tests.processes import ServerProcess, environment

END_WITHIN_S: Final = 60
JOB_WITHIN_S: Final = 280


class DriverProcess:
    """`tarry pipeline` on a server's data folder, under its configuration. One object for as many starts as one likes."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self.log = server.folder.with_name(server.folder.name + "-driver.log")
        self.log.touch()
        self.process: subprocess.Popen[bytes] | None = None
        self._commits = 0
        """Number of commits in all the lives before this one."""

    def launch(self) -> None:
        """Start it; Spark takes its time, and nobody waits for it."""
        self._commits = self.commits
        with self.log.open("ab") as log:
            # A session of its own, so that its Java can be killed with it.
            self.process = subprocess.Popen(
                self._command("pipeline"), env=environment(), stderr=log, start_new_session=True
            )

    @property
    def commits(self) -> int:
        """Batches that were committed, over all lives."""
        progress = read_progress(self._server.folder / "pipeline")
        return 0 if progress is None else progress.commits

    @property
    def at_work(self) -> bool:
        """Whether it has committed something in this life."""
        return self.process is not None and self.commits > self._commits

    def kill(self, *, with_java: bool) -> None:
        """SIGKILL, to it alone or to its Java too. A Java that is left alone lives on for a moment, beside the next driver."""
        if self.process is not None:
            if with_java:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(END_WITHIN_S)
        self.process = None
        return code

    def said(self) -> str:
        """Everything that it said, over all lives."""
        return self.log.read_text(errors="replace")

    def job(self, *words: str, within_s: float = JOB_WITHIN_S) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, on the same data folder."""
        return subprocess.run(
            self._command(*words), env=environment(), capture_output=True, text=True, timeout=within_s
        )

    def _command(self, *words: str) -> list[str]:
        where = ("--config", str(self._server.file), "--data", str(self._server.folder))
        return [sys.executable, "-m", "tarry", *words, *where]
