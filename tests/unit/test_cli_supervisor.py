import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tarry.cli import supervisor
from tarry.cli.exits import NOT_INSTALLED
from tarry.cli.supervisor import Child
from tests.processes import environment
from tests.waiting import wait_until

LOUD = "import sys, os, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n');"


def child(name: str = "c", *, essential: bool = True) -> Child:
    made = Child(name, ["unused"], essential=essential)
    made.starts, made.started_at_s, made.start_at_s = 1, 0.0, None
    return made


def test_a_clean_end_or_a_start_that_fails_at_once_ends_the_whole() -> None:
    assert child().ended(0, 100.0) == 0
    assert child().ended(1, 1.0) == 1
    # A busy machine takes its time to find out what is wrong.
    assert child().ended(1, supervisor.STEADY_AFTER_S - 0.1) == 1
    assert child(essential=False).ended(0, 100.0) is None
    assert child(essential=False).ended(1, 1.0) is None


def test_what_cannot_run_here_is_left_alone_and_the_rest_goes_on() -> None:
    one = child(essential=False)
    assert one.ended(NOT_INSTALLED, 1.0) is None
    assert one.start_at_s is None


def test_a_crash_is_started_again_after_a_wait_that_doubles_and_begins_anew() -> None:
    one = child()
    waited = []
    for _ in range(10):
        one.starts += 1
        assert one.ended(-signal.SIGKILL, 1.0) is None
        assert one.start_at_s is not None
        waited.append(one.start_at_s - 1.0)
        one.start_at_s = None
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert one.ended(1, supervisor.STEADY_AFTER_S) is None
    assert one.start_at_s == supervisor.STEADY_AFTER_S + 0.5


def test_being_killed_at_the_very_start_is_no_reason_to_give_up() -> None:
    assert child().ended(-signal.SIGKILL, 0.1) is None


def supervised(*codes: str, marks: Path, first: str = "") -> "subprocess.Popen[str]":
    """A supervisor of one child for each piece of code; it begins with a piece of its own."""
    children = [
        f"Child('c{n}', [sys.executable, '-c', {LOUD + code!r}, {str(marks)!r}])"
        for n, code in enumerate(codes)
    ]
    program = f"{first}import sys; from tarry.cli.supervisor import *; sys.exit(Supervisor([{', '.join(children)}]).run())"
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment(), stderr=subprocess.PIPE, text=True
    )


def pids(marks: Path) -> list[int]:
    return [int(line) for line in marks.read_text().split()] if marks.exists() else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_children_and_the_end_is_clean(tmp_path: Path, number: signal.Signals) -> None:
    marks = tmp_path / "m"
    with supervised("time.sleep(60)", "time.sleep(60)", marks=marks) as running:
        wait_until(lambda: len(pids(marks)) == 2)
        running.send_signal(number)
        assert running.wait(20) == 0
    assert not any(is_alive(pid) for pid in pids(marks))


def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    marks = tmp_path / "m"
    with supervised("time.sleep(60)", marks=marks) as running:
        wait_until(lambda: len(pids(marks)) == 1)
        os.kill(pids(marks)[0], signal.SIGKILL)
        wait_until(lambda: len(pids(marks)) == 2)
        running.terminate()
        assert running.wait(20) == 0
        assert running.stderr is not None
        assert "tarry: c0 ended (signal SIGKILL); it starts again in 0.5 s" in running.stderr.read()


def test_the_exit_code_of_a_child_that_cannot_start_is_passed_on(tmp_path: Path) -> None:
    marks = tmp_path / "m"
    with supervised("time.sleep(60)", "sys.exit(7)", marks=marks) as running:
        assert running.wait(20) == 7
    assert not any(is_alive(pid) for pid in pids(marks))


def test_children_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    marks = tmp_path / "m"
    with supervised("time.sleep(60)", marks=marks) as running:
        wait_until(lambda: len(pids(marks)) == 1)
        running.kill()
        running.wait()
        wait_until(lambda: not is_alive(pids(marks)[0]))


def test_orphans_that_have_ended_do_not_stay(tmp_path: Path) -> None:
    """As the first process of a container does; outside of one, a process may ask for the orphans below it."""
    marks = tmp_path / "m"
    orphan = f"import os; os.fork() or open({str(marks)!r}, 'a').write(f'{{os.getpid()}}\\n')"
    adopting = "import ctypes; ctypes.CDLL(None).prctl(36, 1); "  # PR_SET_CHILD_SUBREAPER
    leaving = f"import subprocess; subprocess.run([sys.executable, '-c', {orphan!r}]); time.sleep(60)"
    with supervised(leaving, marks=marks, first=adopting) as running:
        wait_until(lambda: len(pids(marks)) == 2)
        child, orphaned = pids(marks)
        wait_until(lambda: not is_alive(orphaned))
        assert is_alive(child)
        running.terminate()
        assert running.wait(20) == 0
