"""Files that hold secrets: made whole or not at all, and never readable by others, not even for a moment."""

import os
from pathlib import Path


def write_secret(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file that only its owner may read; `FileExistsError` if it is there and not to be replaced."""
    if not replace:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        _fill(descriptor, text)
        return
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    _fill(descriptor, text)
    beside.replace(path)


def _fill(descriptor: int, text: str) -> None:
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
