"""The stage of the demonstration: `tarry up` in a folder of its own, on free ports, and the server inside it to be killed."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from tarry.homeserver.environment import ensure
from tarry.serve.datafolder import owner_pid

ROOT: Final = Path(__file__).parents[1]
CACHE: Final = ROOT / ".cache"
START_WITHIN_S: Final = 90
STOP_WITHIN_S: Final = 60

_SETTINGS: Final = """
data = "{data}"
[http]
port = {http}
[ledger]
segment_bytes = 4194304
[pipeline]
flush_every_ms = 2000
[doors.matrix]
port = {matrix}
[doors.pulsar]
port = {pulsar}
[doors.dapr]
port = {dapr}
grpc_port = {dapr_grpc}
"""
_LISTENERS: Final = ("http", "matrix", "pulsar", "dapr", "dapr_grpc")


class Stage:
    """A running Tarry with all its doors: where each is, and how to hit it."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.file = folder / "tarry.toml"
        self.ports = ports
        self.file.write_text(_SETTINGS.format(data=self.data, **ports))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The native API."""
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def pulsar_url(self) -> str:
        """The Pulsar door."""
        return f"pulsar://127.0.0.1:{self.ports['pulsar']}"

    def add_user(self, name: str, password: str) -> None:
        """Register a user of the private homeserver."""
        done = self.run("matrix", "user", name, "--password-stdin", given=f"{password}\n".encode())
        if done.returncode != 0:
            raise RuntimeError(f"no Matrix user could be registered: {done.stderr.decode()}")

    def start(self) -> None:
        """Start everything, and wait until the server and the homeserver behind its door answer."""
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                tarry("up", "--config", str(self.file)),
                env=_environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self._wait_for(f"{self.url}/readyz")
        self._wait_for(f"http://127.0.0.1:{self.ports['matrix']}/_matrix/client/versions")

    def kill_server(self) -> None:
        """SIGKILL, as a crash does it. `tarry up` starts it again."""
        pid = owner_pid(self.data)
        assert pid is not None, "no server owns the data folder"
        os.kill(pid, signal.SIGKILL)

    def run(self, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A command of Tarry's, with this stage's configuration."""
        command = tarry(*arguments, "--config", str(self.file))
        return subprocess.run(command, env=_environment(), cwd=self.folder, input=given, capture_output=True)

    def stop(self) -> None:
        """End all of it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _wait_for(self, url: str) -> None:
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            assert self._process is not None
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url, trust_env=False).status_code == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Tarry did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.1)


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A stage that leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="tarry-demo-"))
    made = Stage(folder, dict(zip(_LISTENERS, free_ports(len(_LISTENERS)), strict=True)))
    # The homeserver's own environment takes a minute to install: once, and not for every demonstration.
    ensure(CACHE / "synapse", print)
    (made.data / "homeserver").mkdir(parents=True, mode=0o700)
    (made.data / "homeserver" / "environment").symlink_to(CACHE / "synapse", target_is_directory=True)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def tarry(*arguments: str) -> list[str]:
    """A command line of Tarry's."""
    return [sys.executable, "-m", "tarry", *arguments]


def free_ports(count: int) -> list[int]:
    """Ports that are free, and below those that the system gives to connections: a server that was killed finds them free again."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("there are no free ports")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
