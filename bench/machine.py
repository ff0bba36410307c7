"""The machine: what it is, and its raw limits. Every figure of a server stands beside these."""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

from bench.figures import Figures, Lateness
from bench.http_wire import HttpReply, request
from bench.plan import CONNECTIONS, PAYLOAD_BYTES
from bench.processes import Process, environment, free_port, python
from bench.wire import Reply, connect, drive

WHO = "this machine"
LOAD = "load average at the start"
BLOCK_BYTES = 4096
FILE_BYTES = 64 << 20
LARGE_BYTES = 4 << 20
SMALL_BYTES = 2048
SYNC_EVERY_S = 0.002
ECHO_BYTES = 300
IN_FLIGHT, LANES, BATCH = 256, 4, 256


def describe(folder: Path) -> list[tuple[str, str]]:
    """Describe the machine, for the head of the report."""
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
        (f"{LOAD} (1, 5, 15 min)", load),
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
    """Measure the disk, the loopback, bare uvicorn and a bare group commit, once each."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "zeros"
    path.write_bytes(bytes(FILE_BYTES))
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
        figures.add(WHO, "syncs", _writes_per_s(file, BLOCK_BYTES, seconds))
        figures.add(WHO, "bytes", _writes_per_s(file, LARGE_BYTES, seconds) * LARGE_BYTES)
    finally:
        os.close(file)

    def served(
        words: list[str], ask: bytes, make_reply: Callable[[], Reply], lanes: int = CONNECTIONS
    ) -> float:
        return _served(folder, words, ask, make_reply, lanes, seconds)

    figures.add(WHO, "echo", served(["echo"], bytes(ECHO_BYTES), lambda: _Bytes(ECHO_BYTES)))
    post = request("POST", "/v1/messages", b"x" * ECHO_BYTES)
    figures.add(WHO, "uvicorn", served(["uvicorn"], post, HttpReply))
    # One answer for each record, many of them under way; and one answer for each batch of as many.
    for what, size, together in (
        ("commit", PAYLOAD_BYTES, IN_FLIGHT // LANES),
        ("commit batched", PAYLOAD_BYTES * BATCH, 1),
    ):
        words = ["commit", str(path), str(size)]
        rate = served(words, bytes(size * together), partial(_Bytes, together), LANES)
        figures.add(WHO, what, rate * together * size // PAYLOAD_BYTES)


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


def sync_times(folder: Path, seconds: float) -> Lateness:
    """How long a small write with `fdatasync` takes, one every two milliseconds: below that nothing durable can be."""
    path = folder / "syncs"
    path.write_bytes(bytes(FILE_BYTES))
    file = os.open(path, os.O_RDWR)
    took_ms: list[float] = []
    try:
        os.fsync(file)
        ends = time.perf_counter() + seconds
        while (began := time.perf_counter()) < ends:
            os.pwrite(file, bytes(SMALL_BYTES), len(took_ms) * SMALL_BYTES % FILE_BYTES)
            os.fdatasync(file)
            took_ms.append((time.perf_counter() - began) * 1000)
            time.sleep(SYNC_EVERY_S)
    finally:
        os.close(file)
    return Lateness.of(np.array(took_ms))


class _Bytes:
    """So many bytes, whatever they are."""

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


def _served(
    folder: Path, words: list[str], ask: bytes, make_reply: Callable[[], Reply], lanes: int, seconds: float
) -> float:
    """Requests a second that one of the raw servers answers."""
    port = free_port()
    kind, *rest = words
    command = python("bench.raw_servers", kind, str(port), *rest)
    with Process(command, folder / f"{kind}.log", env=environment()) as server:
        server.wait_for_port(port)
        drive(connect(port, lanes), repeat(ask), make_reply, seconds / 4)
        return drive(connect(port, lanes), repeat(ask), make_reply, seconds).per_s
