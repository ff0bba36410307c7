"""A real server in a process of its own: started on a fixed port, killed, started again, and its last words."""

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
READY: Final = "tarry: ready on "
START_WITHIN_S: Final = 60


def free_port() -> int:
    """A port that is free, and below those that the system gives to connections.

    A server that was killed must find it free again, whoever has connected to whom in the meantime.
    """
    for _ in range(100):
        port = random.randrange(20_000, 32_000)
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port found")


class ServerProcess:
    """`tarry serve` on a data folder. One object for as many starts as one likes."""

    def __init__(self, folder: Path, config: str = "", *, port: int = 0) -> None:
        self.folder = folder
        self.port = port
        self.file = folder.with_name(folder.name + ".toml")
        self.file.write_text(config)
        self.log = folder.with_name(folder.name + ".log")
        self.log.touch()
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def launch(self, *, wrapper: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Start it and do not wait. `wrapper` is a command that runs the rest of the line."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
        command = [
            *wrapper, sys.executable, "-m", "tarry", "serve",
            "--config", str(self.file), "--data", str(self.folder), "--port", str(self.port),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**kept, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
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

    def start(self) -> Self:
        """Start it and wait until it is ready."""
        self.launch()
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
