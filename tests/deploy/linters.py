"""Other people's linters, as `make test` and `make deploy-lint` install them below `.cache/linters`."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.processes import ROOT

FOLDER: Final = ROOT / ".cache" / "linters"


def linter(name: str) -> str:
    """The path of a linter; skips the test where it is not installed."""
    found = shutil.which(name, path=FOLDER / "bin")
    if found is None:
        pytest.skip(f"{name} is not here; `make deploy-lint` says why")
    return found


def said(*command: str | Path, folder: Path = ROOT, stdin: str | None = None) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, input=stdin, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refusal(*command: str | Path, folder: Path = ROOT, stdin: str | None = None) -> str:
    """The output of a command that must fail."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, input=stdin, timeout=300, check=False
    )
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr
