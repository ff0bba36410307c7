"""The benchmark runs: one part at its smallest size, from the command line to the report."""

import os
import subprocess
import sys
from pathlib import Path

from bench.results import Result

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_a_part_is_measured_kept_and_reported(tmp_path: Path) -> None:
    done = bench("--tiny", "--no-peers", "--only", "memory", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept = Result.load(tmp_path / "results" / "memory.json")
    assert set(kept.figures.values()["Tarry"]) == {
        f"{what} {kept.plan.pending}" for what in ("wheel", "tail", "resident")
    }
    assert kept.command == 'make bench ARGS="--tiny --only memory --no-peers"'
    report = (tmp_path / "RESULTS.md").read_text()
    assert "50,000 in the wheel, bytes each" in report
    assert report in done.stdout


def test_an_unknown_part_is_refused_with_the_names_of_all(tmp_path: Path) -> None:
    done = bench("--tiny", "--only", "everything", "--out", str(tmp_path))
    assert done.returncode == 1
    assert "There is no part everything" in done.stderr
    assert "schedule" in done.stderr
    assert not list(tmp_path.iterdir())
