"""The benchmark of two commits: whose code is started, in which turns, and the report of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import against
from bench.against import Compared, Side
from bench.figures import Figure, Figures
from bench.parts import PARTS
from bench.plan import NORMAL
from bench.processes import ROOT, environment, python, tarry_environment, tarry_of
from bench.run import TARRY, Run

OLD, NEW = Side("aaa", Path("/old"), Path("/old/python")), Side("bbb", Path("/new"))


def rates(*values: float) -> Figures:
    return Figures({TARRY: {"single": list(values)}})


def test_two_commits_take_turns() -> None:
    assert list(against.turns(2, OLD, NEW)) == [(1, OLD), (1, NEW), (2, OLD), (2, NEW)]


def test_a_part_is_measured_with_the_tarry_of_each_commit_in_turns(tmp_path: Path) -> None:
    started: list[tuple[str, str]] = []

    def measure(run: Run) -> None:
        assert (run.plan.repeats, run.peers) == (1, False)
        started.append((python("tarry")[0], tarry_environment()["PYTHONPATH"].split(":")[0]))
        assert python("bench.consumer")[0] == sys.executable
        run.add("single", len(started))

    part = replace(PARTS[0], measure=measure)
    found = against.measured(part, replace(NORMAL, repeats=2), tmp_path, OLD, NEW)
    assert started == [("/old/python", "/old/src"), (sys.executable, "/new/src")] * 2
    assert (found.old.values(), found.new.values()) == (
        {TARRY: {"single": [1.0, 3.0]}},
        {TARRY: {"single": [2.0, 4.0]}},
    )
    assert tarry_environment() == environment()
    assert python("tarry")[0] == sys.executable


def test_another_commit_s_code_is_what_is_started_and_the_load_stays_ours(tmp_path: Path) -> None:
    other = tmp_path / "src" / "tarry"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "__main__.py").write_text("import bench, tarry; print(tarry.__file__, bench.__file__)")
    with tarry_of(tmp_path, Path(sys.executable)):
        env = tarry_environment()
    said_it = subprocess.run(
        python("tarry"), env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said_it.stdout.split() == [str(other / "__init__.py"), str(ROOT / "bench" / "__init__.py")]


def test_two_commits_are_reported_with_the_ratio_of_each_turn() -> None:
    compared = Compared("schedule", "0.10", rates(10, 20, 40), rates(11, 30, 44))
    compared.new.add("this machine", "echo", 7.0)
    text = against.report([compared], OLD, NEW, [("memory", "1 GiB")])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    # The medians alone would give 1.5.
    assert ["single", "20 (10 … 40)", "30 (11 … 44)", "1.10 (1.10 … 1.50)", "more"] in rows
    assert ["this machine: echo", "–", "7", "–", ""] in rows
    assert ["memory", "1 GiB"] in rows


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.06, 1.2], "more"),
        ([1.04, 1.2], ""),
        ([0.94, 0.5], "less"),
        ([0.96, 0.5], ""),
        ([0.5, 2.0], ""),
        ([2.0], ""),
    ],
)
def test_a_difference_is_one_that_all_turns_show(ratios: list[float], verdict: str) -> None:
    assert against.verdict(Figure(ratios)) == verdict


def test_parts_that_run_tarry_s_code_in_the_benchmark_itself_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = {part.name for part in PARTS} - {part.name for part in against.comparable(PARTS)}
    assert left == {"pipeline", "bulk", "tricks", "http", "cluster"}
    assert "bulk is left out" in capsys.readouterr().err


def git(here: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words],
        cwd=here, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def two_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits with equal locks, the older one tagged «then»."""
    monkeypatch.setattr(against, "ROOT", tmp_path / "here")
    monkeypatch.setattr(against, "CACHE", tmp_path / "cache")
    here = tmp_path / "here"
    (here / "requirements").mkdir(parents=True)
    (here / "requirements" / "base.txt").write_text("a==1")
    (here / "requirements" / "dev.txt").write_text("b==1")
    git(here, "init", "--quiet")
    for number in "12":
        (here / "code").write_text(number)
        git(here, "add", ".")
        git(here, "commit", "--quiet", "--no-verify", "-m", number)
    git(here, "tag", "then", "HEAD~1")
    return here


def test_another_commit_is_checked_out_and_goes_afterwards(two_commits: Path) -> None:
    with against.checkout("then") as side:
        assert (side.tree / "code").read_text() == "1"
        assert git(two_commits, "rev-parse", "then").startswith(side.name)
    assert not side.tree.exists()
    assert len(git(two_commits, "worktree", "list").splitlines()) == 1
    assert (two_commits / "code").read_text() == "2"


def test_a_commit_with_other_locks_has_an_environment_of_its_own(two_commits: Path) -> None:
    with against.checkout("then") as side:
        assert side.python == Path(sys.executable)
    setting_up = "mkdir -p .venv/bin && echo $1 > .venv/bin/python"
    (two_commits / "tools").mkdir()
    (two_commits / "tools" / "python-env.sh").write_text(f"#!/bin/sh\n{setting_up}\n")
    (two_commits / "tools" / "python-env.sh").chmod(0o755)
    git(two_commits, "add", ".")
    git(two_commits, "commit", "--quiet", "-m", "tools")
    (two_commits / "requirements" / "base.txt").write_text("a==2")
    git(two_commits, "commit", "--quiet", "--all", "-m", "locks")
    with against.checkout("HEAD~1") as side:
        assert side.python == side.tree / ".venv" / "bin" / "python"
        assert side.python.read_text() == "base\n"


def test_a_commit_that_is_not_here_is_refused(two_commits: Path) -> None:
    with pytest.raises(SystemExit, match="no such commit"), against.checkout("never"):
        pass


def test_an_environment_that_cannot_be_made_is_told(two_commits: Path) -> None:
    (two_commits / "tools").mkdir()
    (two_commits / "tools" / "python-env.sh").write_text("#!/bin/sh\nexit 1\n")
    (two_commits / "tools" / "python-env.sh").chmod(0o755)
    git(two_commits, "add", ".")
    git(two_commits, "commit", "--quiet", "-m", "tools")
    (two_commits / "requirements" / "base.txt").write_text("a==2")
    with pytest.raises(SystemExit, match="cannot be made"), against.checkout("HEAD"):
        pass
    assert len(git(two_commits, "worktree", "list").splitlines()) == 1
