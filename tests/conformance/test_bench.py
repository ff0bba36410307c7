"""The benchmark runs: one part at its smallest size, from the command line to the report."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_this_checkout_is_measured_against_a_commit(tmp_path: Path) -> None:
    done = bench("--tiny", "--only", "memory", "--against", "HEAD", "--out", str(tmp_path))
    if "it has other locks" in done.stderr:
        pytest.skip(
            "the locks are being changed: the last commit cannot be measured until they are committed"
        )
    assert done.returncode == 0, done.stderr
    report = (tmp_path / "AGAINST.md").read_text()
    assert report in done.stdout
    resident = next(line for line in report.splitlines() if line.startswith("| resident "))
    _, old, new, ratio, _ = (cell.strip() for cell in resident.strip("|").split("|"))
    assert old.endswith(" M")
    assert new.endswith(" M")
    # The same commit, but for what is not committed yet.
    assert 0.5 < float(ratio) < 2
    # Nothing of it is taken for a result.
    assert [file.name for file in tmp_path.iterdir()] == ["AGAINST.md"]


def test_a_commit_that_is_not_here_is_refused() -> None:
    done = bench("--tiny", "--only", "memory", "--against", "never")
    assert done.returncode == 1
    assert "there is no such commit here" in done.stderr
