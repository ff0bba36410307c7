"""The memory of a server: what is freed is kept for what comes next, and what nobody needs is not loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from tarry import Client
from tests.processes import environment, running

MEASURE = """
import ctypes, resource, sys
if not hasattr(ctypes.CDLL(None), "mallopt"):
    sys.exit("no glibc")
from tarry.serve.composition.memory import keep_memory
keep_memory(16 << 20, 64 << 20)
blocks = lambda: [bytearray(1 << 20) for _ in range(8)]
# The first time it is had from the kernel in any case.
del (first := blocks())[:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
second = blocks()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_large_blocks_are_had_from_the_kernel_once() -> None:
    ran = subprocess.run([sys.executable, "-c", MEASURE], env=environment(), capture_output=True, text=True)
    if "no glibc" in ran.stderr:
        pytest.skip("this is about glibc")
    assert ran.returncode == 0, ran.stderr
    pages = (8 << 20) // 4096
    assert int(ran.stdout) < pages // 10


def test_a_server_does_without_pandas(tmp_path: Path) -> None:
    """pyarrow would import it, where there is one, with the first array that is made of a list."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("this system does not say what a process has loaded")
    with running(tmp_path / "d") as server, Client(server.url) as client:
        client.schedule("orders", "x", delay="1h")
        assert len(list(client.list())) == 1
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
    assert "/pyarrow/" in loaded
    assert "/pandas/" not in loaded
