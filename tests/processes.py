"""Real servers in processes of their own: started, killed, started again, and what they said.

They listen on 127.0.0.1 only, on free ports, with a data folder of the test's own, and see nothing of what the
tester's shell has set for Tarry. A server inside the test's own loop is in `tests.serving`.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import pytest

from tarry.config.doors import DOORS

ROOT: Final = Path(__file__).parents[1]
READY: Final = "tarry: ready on "
START_WITHIN_S: Final = 60

SMALL: Final = "[ledger]\nsegment_bytes = 1048576\n"
"""Segments that cost no time to make."""

CLOSED_DOORS: Final = {f"TARRY_DOORS__{name.upper()}__ENABLED": "false" for name in DOORS}
"""For `tarry up`, which opens them all: a test has no business on their ports."""


_random: Final = random.SystemRandom()
"""Two workers that look for a port at one time must not look at the same ones."""
_given: Final[set[int]] = set()
"""Ports that were given out here: a server that is not up, or stands by, has its own although nobody listens there."""


def environment(**settings: str) -> dict[str, str]:
    """Environment for commands of this tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
    # One that is aborted says where its threads were.
    return kept | {"PYTHONPATH": str(ROOT / "src"), "PYTHONFAULTHANDLER": "1", **settings}


def tarry(*arguments: str, stdin: str | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tarry", *arguments],
        capture_output=True, text=True, input=stdin, timeout=60, env=environment(**settings), cwd="/",
    )  # fmt: skip


def free_port() -> int:
    """A port that is free, and below those that the system gives to connections.

    A server that was killed must find it free again, whoever has connected to whom in the meantime.
    """
    for _ in range(100):
        port = _random.randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise RuntimeError("no free port found")


def need(package: str, program: str) -> str:
    """The path of a program; installs Debian's package, or skips the test where that cannot be done."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/rabbitmq/bin")
    if found is None:
        done = subprocess.run(
            [ROOT / "tools" / "brokers.sh", package], capture_output=True, text=True, timeout=600, check=False
        )
        found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/rabbitmq/bin")
        if done.returncode != 0 or found is None:
            pytest.skip(f"{package} cannot be had here: {done.stderr.strip()}")
    return found


class ServerProcess:
    """`tarry serve` on a data folder. One object for as many starts as one likes; what still runs at the end is killed."""

    program: Sequence[str] = ("-m", "tarry")
    """The command line, as Python is told to run it."""

    def __init__(self, folder: Path, config: str = SMALL, *, port: int = 0) -> None:
        self.folder = folder
        self._port = port
        self.file = folder.with_name(folder.name + ".toml")
        self.file.write_text(config)
        self.log = folder.with_name(folder.name + ".log")
        self.log.touch()
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self.process is not None
        return self.process.pid

    @property
    def port(self) -> int:
        """The port of the native API."""
        return int(self.url.rpartition(":")[2]) if self.url else self._port

    def launch(self, *, wrapper: Sequence[str] = (), arguments: Sequence[str] = (), **settings: str) -> None:
        """Start it and do not wait. `wrapper` is a command that runs the rest of the line, `arguments` its end."""
        command = [
            *wrapper, sys.executable, *self.program, "serve",
            "--config", str(self.file), "--data", str(self.folder), "--port", str(self._port),
            *arguments,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment(**settings),
                # Not the terminal of whoever runs the tests: there, SIGHUP means another thing.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # To a file, so that a full pipe cannot stop the server.
                stderr=log,
            )

    def wait_ready(self) -> Self:
        """Wait for the line that says that it is ready."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line.startswith(READY):
            self.reap()
            raise AssertionError(f"the server did not start: {line}{self.said()}")
        self.url = line.removeprefix(READY).strip()
        return self

    def start(self, *, wrapper: Sequence[str] = (), arguments: Sequence[str] = (), **settings: str) -> Self:
        """Start it and wait until it is ready."""
        self.launch(wrapper=wrapper, arguments=arguments, **settings)
        return self.wait_ready()

    def refused(self) -> str:
        """Start it, and give the one line with which it refuses; an error if it does start, or says more."""
        said = len(self.said())
        self.launch()
        assert self.process is not None
        assert self.process.stdout is not None
        out = self.process.stdout.readline().decode()
        if out:
            self.kill()
            raise AssertionError(f"it was expected to refuse to start, but says: {out}")
        code = self.reap()
        text = self.said()[said:]
        assert "Traceback" not in text, text
        assert code == 1, f"exit code {code}: {text}"
        # Lines of the log begin with an instant.
        last = text.splitlines()[-1]
        assert last.startswith("tarry: "), text
        return last

    def said(self) -> str:
        """Everything that it said on standard error, over all starts."""
        return self.log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash does it."""
        if self.process is not None:
            self.process.kill()
            self.reap()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.reap()

    def reap(self) -> int:
        """Wait for its end; gives the exit code."""
        assert self.process is not None
        try:
            code = self.process.wait(START_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def running(
    folder: Path, config: str = SMALL, *, wrapper: Sequence[str] = (), **settings: str
) -> Iterator[ServerProcess]:
    """A server that is ready; `settings` are variables."""
    with ServerProcess(folder, config) as server:
        yield server.start(wrapper=wrapper, **settings)
