"""Small file systems, to be filled."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

BLOCK: bytes = bytes(1 << 20)


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[None]:
    """A small file system of its own; the test is skipped where it cannot be had."""
    path.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"only root can mount a small file system: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def fill(ballast: Path) -> None:
    """Write a file until nothing more has room beside it."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        # The last write takes less than it was given, and the next one nothing.
        while file.write(BLOCK):
            pass
