"""The machine: what it is, and its raw limits. Every figure of a server stands beside these."""

import os
import platform
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from bench.figures import Figures
from bench.http_wire import HttpReply, request
from bench.plan import CONNECTIONS
from bench.processes import Process, environment, free_port, python
from bench.wire import Reply, connect, drive

WHO = "this machine"
BLOCK_BYTES = 4096
FILE_BYTES = 64 << 20
LARGE_BYTES = 4 << 20
ECHO_BYTES = 300


def describe(folder: Path) -> list[tuple[str, str]]:
    """What it is, for the head of the report."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo")), 0)
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    return [
        ("processor", f"{os.cpu_count()} × {cpu}"),
        ("memory", f"{memory_kib / (1 << 20):.1f} GiB"),
        ("file system of the data", file_system(folder)),
        ("kernel, Python", f"{platform.release()}, {platform.python_version()}"),
        ("load average at the start (1, 5, 15 min)", load),
    ]


def file_system(folder: Path) -> str:
    """The kind of the file system that holds a folder."""
    best, kind = "", "unknown"
    for line in _lines("/proc/self/mounts"):
        _, place, this_kind, *_ = line.split()
        if len(place) >= len(best) and folder.resolve().is_relative_to(place):
            best, kind = place, this_kind
    return kind


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def measure(figures: Figures, folder: Path, seconds: float) -> None:
    """Measure the disk, the loopback and bare uvicorn, once each."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "zeros"
    path.write_bytes(bytes(FILE_BYTES))
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
        syncs = _writes_per_s(file, BLOCK_BYTES, seconds)
        large = _writes_per_s(file, LARGE_BYTES, seconds)
    finally:
        os.close(file)
        path.unlink()
    figures.add(WHO, "syncs", syncs)
    figures.add(WHO, "bytes", large * LARGE_BYTES)
    figures.add(
        WHO, "echo", _served(folder, "echo", bytes(ECHO_BYTES), lambda: _EchoReply(ECHO_BYTES), seconds)
    )
    post = request("POST", "/v1/messages", b"x" * ECHO_BYTES)
    figures.add(WHO, "uvicorn", _served(folder, "uvicorn", post, HttpReply, seconds))


def _writes_per_s(file: int, size: int, seconds: float) -> float:
    """Writes of one size, each followed by `fdatasync`, over a file of zeros."""
    data = b"\x5a" * size
    began = time.perf_counter()
    count = 0
    while (took := time.perf_counter() - began) < seconds:
        os.pwrite(file, data, count * size % FILE_BYTES)
        os.fdatasync(file)
        count += 1
    return count / took


class _EchoReply:
    """As many bytes as were sent."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._got = 0

    def feed(self, data: bytes) -> bool:
        """Count."""
        self._got += len(data)
        if self._got < self._size:
            return False
        self._got = 0
        return True


def _served(folder: Path, kind: str, ask: bytes, make_reply: Callable[[], Reply], seconds: float) -> float:
    port = free_port()
    server = Process(python("bench.raw_servers", kind, str(port)), folder / f"{kind}.log", env=environment())
    try:
        server.wait_for_port(port)
        drive(connect(port, CONNECTIONS), repeat(ask), make_reply, seconds / 4)
        return drive(connect(port, CONNECTIONS), repeat(ask), make_reply, seconds).per_s
    finally:
        server.end()
