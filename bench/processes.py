"""Servers under measurement: started as processes of their own on free ports, ended by their process id."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar, Final, Self

ROOT: Final = Path(__file__).parent.parent
CACHE: Final = ROOT / "bench" / ".cache"


class CannotStart(Exception):
    """A server did not come up. The text says why."""


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Measured:
    """The checkout whose Tarry is started."""

    tree: ClassVar[Path] = ROOT
    python: ClassVar[Path] = Path(sys.executable)


@contextmanager
def tarry_of(tree: Path, interpreter: Path) -> Iterator[None]:
    """Start the Tarry of another checkout for a while; the benchmark's own processes stay those of this one."""
    before = _Measured.tree, _Measured.python
    _Measured.tree, _Measured.python = tree, interpreter
    try:
        yield
    finally:
        _Measured.tree, _Measured.python = before


def tarry_environment() -> dict[str, str]:
    """The environment for Tarry, of the checkout that is measured."""
    return environment(_Measured.tree)


def environment(tree: Path = ROOT) -> dict[str, str]:
    """The environment for our own processes: one checkout's Tarry, this benchmark, and no settings from outside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TARRY_", "PYTHON"))}
    return {
        **kept,
        "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}",
        # A server in use does not compile its modules at each start, whatever is set out here.
        "PYTHONPYCACHEPREFIX": str(tree / "bench" / ".cache" / "pycache"),
    }


class Process:
    """A process of which the end is in our hands; a context manager."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
        keep_output: bool = True,
    ) -> None:
        self._log = log
        with log.open("ab") as said:
            # A pipe that nobody reads would stop a talkative one: its output then goes where its errors go.
            output = subprocess.PIPE if keep_output else said
            self._process = subprocess.Popen(command, stdout=output, stderr=said, env=env, cwd=cwd, user=user)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> IO[bytes]:
        """Its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait_for_line(self, text: str) -> str:
        """The first line of output that holds a text."""
        for line in self.output:
            if text.encode() in line:
                return line.decode().strip()
        raise CannotStart(f"it ended: {self.last_words()}")

    def wait_for_port(self, port: int, within_s: float = 30) -> None:
        """Until it accepts connections."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise CannotStart(f"it ended: {self.last_words()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise CannotStart(f"nobody listens after {within_s:.0f} s: {self.last_words()}")

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """The end of what it said on standard error."""
        return self._log.read_text(errors="replace").strip()[-300:]

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module: of Tarry with the interpreter of the checkout that is measured, another with this one."""
    runs = str(_Measured.python) if module.partition(".")[0] == "tarry" else sys.executable
    return [runs, "-m", module, *arguments]


def cpu_s_of(pid: int) -> float:
    """Processor time that one process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s(root: int | None = None) -> float:
    """Processor time of a process, by default this one, and of everything below it, the ended included."""
    ticks = (sum(map(int, fields[11:15])) for fields in _family(root or os.getpid()).values())
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def processes_below(root: int) -> list[int]:
    """The ids of a process and of everything below it."""
    return list(_family(root))


def _family(root: int) -> dict[int, list[str]]:
    """The kernel's figures of a process and of all its descendants, by id, from the field after the name on."""
    fields: dict[int, list[str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields[int(name)] = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()

    def is_below(pid: int) -> bool:
        while pid in fields and pid != root:
            pid = int(fields[pid][1])
        return pid == root

    return {pid: found for pid, found in fields.items() if is_below(pid)}
