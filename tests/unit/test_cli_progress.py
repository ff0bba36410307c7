"""Progress of a long job: a line for each step, and one now and then while a step takes long."""

import os
import pty
from collections.abc import Callable

import pytest

from tarry.cli.progress import StepProgress, Tasks
from tests.waiting import wait_until


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def said(capfd: pytest.CaptureFixture[str]) -> Callable[[], str]:
    whole: list[str] = []

    def read() -> str:
        whole.append(capfd.readouterr().err)
        return "".join(whole)

    return read


def test_each_step_is_told_once_and_again_when_it_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    clock, read = Clock(), said(capfd)
    with StepProgress("starting Spark", clock) as progress:
        wait_until(lambda: "starting Spark, 0 s" in read())
        clock.now_s = 3.0
        progress.step("counting")
        with progress.following(lambda: Tasks(12, 40)):
            wait_until(lambda: "counting, 12 of 40 tasks, 3 s" in read())
            clock.now_s = 14.0
            wait_until(lambda: "counting, 12 of 40 tasks, 14 s" in read())
    assert read().splitlines() == [
        "tarry: starting Spark, 0 s",
        "tarry: counting, 12 of 40 tasks, 3 s",
        "tarry: counting, 12 of 40 tasks, 14 s",
    ]


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    with open(writer, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with StepProgress("starting Spark"):
            shown = os.read(reader, 200)
            while b"starting Spark, 0 s" not in shown:
                shown += os.read(reader, 200)
        rest = os.read(reader, 1000)
    assert b"\n" not in shown + rest
    assert rest.endswith(b"\r\x1b[K")
    os.close(reader)


def test_what_cannot_be_asked_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    progress = StepProgress("counting", Clock())

    def gone() -> Tasks:
        raise ConnectionError("Spark has ended")

    with progress, progress.following(gone):
        assert progress.line() == "counting, 0 s"
