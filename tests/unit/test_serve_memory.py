"""Memory that is freed is kept for what comes next."""

import subprocess
import sys

import pytest

from tests.processes import environment

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
