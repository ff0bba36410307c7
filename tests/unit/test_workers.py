"""A test worker that dies fails the run of `make test`, and does not make it hang."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT

DYING = """
import os, pytest

@pytest.mark.parametrize("n", range(3))
def test_good(n): assert n >= 0

def test_dies(): os._exit(3)
"""


def test_a_worker_that_dies_fails_the_run(tmp_path: Path) -> None:
    options = re.search(r"^PARALLEL := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert options is not None
    for name in ("test_a", "test_b"):
        (tmp_path / f"{name}.py").write_text(DYING)
    # As `make test` does it, with its way of giving tests to workers, but for a folder of its own.
    command = [
        sys.executable, "-m", "pytest", *options[1].replace("$(WORKERS)", "2").split(), "-p", "tests.conftest",
        "-p", "no:schemathesis", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path),
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=kept | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode != 0, ended.stdout
    assert "test_dies" in ended.stdout, ended.stdout
