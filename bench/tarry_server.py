"""Tarry as it is measured: `tarry serve` with its default settings, on a data folder of its own."""

import signal
from pathlib import Path
from typing import Any, Final

from bench.http_wire import Http
from bench.processes import Process, cpu_s_of, python, tarry_environment

TOPIC: Final = "/v1/topics/public/default/bench"
DESTINATION: Final = "persistent://public/default/bench"
SUBSCRIPTION: Final = f"{TOPIC}/subscriptions/reader"


class TarryServer:
    """A running server; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # In its own folder, so that no tarry.toml of somebody else is read.
        self._process = Process(
            python("tarry", "serve", "--data", str(folder / "data"), "--port", "0"),
            folder / "log",
            env=tarry_environment(),
            cwd=folder,
        )
        line = self._process.wait_for_line("ready on")
        self.port = int(line.rsplit(":", 1)[1].strip("/"))
        self.http = Http(self.port)

    def __enter__(self) -> "TarryServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def subscribe(self) -> None:
        """Make the subscription that consumers of a measurement share."""
        self.http.call("PUT", SUBSCRIPTION, {"type": "shared", "start": "earliest"})

    def status(self) -> dict[str, Any]:
        """The engine's figures."""
        found: dict[str, Any] = self.http.call("GET", "/v1/status")["engine"]
        return found

    def memory_bytes(self) -> int:
        """Memory that is its own: the resident set without mapped files."""
        return _status_bytes(self.pid, "RssAnon")

    def resident_bytes(self) -> int:
        """The resident set."""
        return _status_bytes(self.pid, "VmRSS")

    def cpu_s(self) -> float:
        """Processor time that it has used, all threads together."""
        return cpu_s_of(self.pid)

    def accepted(self) -> int:
        """Messages accepted so far."""
        return int(self.status()["counters"].get("accepted", 0))

    def stop(self) -> None:
        """End it in an orderly way."""
        self.http.close()
        self._process.end()

    def kill(self) -> None:
        """End it as a crash does."""
        self.http.close()
        self._process.end(signal.SIGKILL)


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)
