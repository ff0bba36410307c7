"""A workplace for one suite: a temporary folder, servers of this tree in it, a cache that stays, and bounded commands."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.processes import ROOT, SMALL, ServerProcess, free_port

CACHE: Final = ROOT / ".cache" / "peers"

GENTLE: Final = ("nice", "-n", str(max(0, 10 - os.nice(0)))) if shutil.which("nice") else ()
"""Peers' compilers and suites let others on the machine go first; a run that does so already is not put back twice."""


class Door:
    """A server's door on a port of its own: `config` goes into the server's file."""

    def __init__(self, name: str, **settings: str | int | bool) -> None:
        self.name = name
        self.port = free_port()
        lines = {"enabled": True, "port": self.port, **settings}
        self.config = f"[doors.{name}]\n" + "".join(
            f"{key} = {_toml(value)}\n" for key, value in lines.items()
        )


class Workplace:
    """The workplace in which a suite runs. At its end the servers are killed and the folder is removed."""

    def __init__(self, suite: str) -> None:
        self._own = tempfile.TemporaryDirectory(prefix=f"tarry-peers-{suite}-")
        self.folder = Path(self._own.name)
        """A folder of its own, gone at the end."""
        self.cache = CACHE / suite
        """A folder that stays: what was downloaded and built. Git ignores it."""
        self._servers: list[ServerProcess] = []

    def serve(self, config: str = "", *, port: int = 0, **settings: str) -> ServerProcess:
        """A server that is ready, with a configuration (small segments are added) and variables `TARRY_…`."""
        folder = self.folder / f"server-{len(self._servers)}"
        server = ServerProcess(folder, SMALL + config, port=port)
        self._servers.append(server)
        return server.start(**settings)

    def command(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        within_s: float = 600,
        env: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, gently; what it says on both outputs is in `stdout`.

        One that takes too long is killed with all that it started, and has the exit code -9.
        """
        process = subprocess.Popen(
            [*GENTLE, *map(str, words)],
            cwd=cwd or self.folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, said.decode(errors="replace"))

    def must(self, *words: str | Path, cwd: Path | None = None, within_s: float = 600,
             env: Mapping[str, str] | None = None) -> str:  # fmt: skip
        """Run a command that has to succeed, such as a download; gives what it said."""
        done = self.command(*words, cwd=cwd, within_s=within_s, env=env)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stdout[-2000:]}"
            )
        return done.stdout

    def __enter__(self) -> Self:
        self.cache.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.kill()
        self._own.cleanup()


def missing(programs: Sequence[str]) -> list[str]:
    """Programs that are not on the path."""
    return [program for program in programs if shutil.which(program) is None]


def _toml(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'
