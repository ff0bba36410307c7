"""The ports on which Tarry is to listen: each is free, or our own server has it; and how to find one that is free."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tarry.cli.finding import CheckResult
from tarry.config import Config, ConfigError
from tarry.config.dapr import DaprApp
from tarry.config.doors import DOORS
from tarry.core.errors import Unavailable

_LISTEN = "0A"


class ConfiguredPort(NamedTuple):
    """An address that the configuration names."""

    host: str
    port: int
    setting: str
    opened: bool
    """Whether the configuration says that it is opened; if not, `tarry up` does and `tarry serve` does not."""


def ports_of(config: Config) -> Iterator[ConfiguredPort]:
    """Every address to listen on. A port of 0 is one that is free by itself."""
    yield ConfiguredPort(config.http.host, config.http.port, "http.port", True)
    for name in DOORS:
        door = getattr(config.doors, name)
        if door.enabled is not False:
            yield ConfiguredPort(door.host, door.port, f"doors.{name}.port", door.enabled is True)
    dapr = config.doors.dapr
    if dapr.enabled is not False:
        apps: tuple[DaprApp, ...] = (dapr, *dapr.apps)
        for at, app in enumerate(apps):
            name = "doors.dapr" if not at else f"doors.dapr.apps[{at - 1}]"
            if at:
                yield ConfiguredPort(app.host, app.port, f"{name}.port", dapr.enabled is True)
            yield ConfiguredPort(app.host, app.grpc_port, f"{name}.grpc_port", dapr.enabled is True)


def check_ports(config: Config, server_pid: int | None) -> Iterator[CheckResult]:
    """Look at each port that is named; `server_pid` is the server that uses the data folder, if one does."""
    for port in ports_of(config):
        if port.port:
            yield check_port(port, server_pid)


def check_port(port: ConfiguredPort, server_pid: int | None) -> CheckResult:
    """The port is free, or it is our own server that has it."""
    about = f"port {port.port}"
    trouble = _trouble(port)
    if trouble is None:
        return CheckResult(about, "ok", f"free ({port.setting})")
    if server_pid is not None and listens(server_pid, port.port):
        return CheckResult(about, "ok", f"the server with pid {server_pid} listens ({port.setting})")
    return CheckResult(
        about,
        "bad" if port.opened else "note",
        f"{trouble}{_by(port.port)}, and not by the server of this data folder; stop that, or set {port.setting}",
    )


class InUse(NamedTuple):
    """Ports that cannot be listened on, and a data folder that another Tarry has."""

    lines: list[str]
    """A line for each of them, with who has it."""
    options: dict[str, str]
    """Options of `tarry up` with which it would start."""


def check_free(config: Config, shifted: Callable[[int], Config]) -> InUse | None:
    """None if a server of this configuration can start here. `shifted` is the configuration with another offset."""
    # Late: `dapr` imports this module, and a command for a server elsewhere has none of the server's libraries.
    from tarry.serve.datafolder import owner_pid

    lines = [
        f"port {port.port} ({port.setting}): {trouble}{_by(port.port)}" for port, trouble in _in_use(config)
    ]
    options = {"--ports": f"+{_free_offset(shifted)}"} if lines else {}
    if (pid := owner_pid(Path(config.data))) is not None:
        lines.append(f"data folder {config.data}: the Tarry with pid {pid} uses it")
        options["--data"] = f"{config.data.rstrip('/')}-2"
    return InUse(lines, options) if lines else None


def _in_use(config: Config) -> Iterator[tuple[ConfiguredPort, str]]:
    for port in ports_of(config):
        if port.port and port.opened and (trouble := _trouble(port)) is not None:
            yield port, trouble


def _free_offset(shifted: Callable[[int], Config]) -> int:
    """An offset with which every port is free: ten thousand, or the next thousand that does."""
    offsets: list[int] = [10_000, *range(1_000, 16_000, 1_000), *range(100, 15_000, 100)]
    for offset in offsets:
        with contextlib.suppress(ConfigError):
            if next(_in_use(shifted(offset)), None) is None:
                return offset
    raise Unavailable("every port of this machine that was tried is in use")


def _trouble(port: ConfiguredPort) -> str | None:
    """Why a port cannot be listened on; None if it can."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(port.host, port.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _by(port: int) -> str:
    """The process that listens on a port, as far as this user may know."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError):
            if _listens(pid, port):
                return f" by {(folder / 'comm').read_text().strip()} with pid {pid}"
    return ""


def first_free(ports: Iterable[int]) -> int:
    """The first port that is free on this machine, where 0 stands for any; raises OSError if none is."""
    for port in ports:
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("127.0.0.1", port))
            return int(trial.getsockname()[1])
    raise OSError("no free port")


def listens(pid: int, port: int) -> bool:
    """Whether a process listens on a port; said to be so where the system does not tell."""
    try:
        return _listens(pid, port)
    except OSError:
        return True


def _listens(pid: int, port: int) -> bool:
    held = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return any(
        row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port and f"socket:[{row[9]}]" in held
        for row in rows
    )
