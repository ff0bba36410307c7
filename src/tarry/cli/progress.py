"""Progress of a job that a person waits for, on standard error: its step, the tasks of that step, and the time so far.

On a terminal that is one line, which is written again and is gone at the end; elsewhere a line for each step, and one now and then.
"""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

EVERY_S: Final = 10.0
"""The time between two lines about one step, where there is no terminal."""
_REDRAW_S: Final = 0.25


class Tasks(NamedTuple):
    """How many of a step's tasks are done."""

    done: int
    of: int
    unit: str = "tasks"


class StepProgress:
    """Shows the step that runs. `now_s` is a clock that only goes forward."""

    def __init__(self, first: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._step = first
        self._tasks: Callable[[], Tasks | None] = lambda: None
        # A copy: what starts Spark turns standard error away for a while.
        try:
            self._out: Any = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8")
        except (io.UnsupportedOperation, OSError):
            self._out = sys.stderr
        self._terminal = self._out.isatty()
        self._ended = threading.Event()
        self._showing = threading.Thread(target=self._show, daemon=True)

    def step(self, name: str) -> None:
        """The next step begins."""
        self._step = name

    @contextlib.contextmanager
    def following(self, tasks: Callable[[], Tasks | None]) -> Iterator[None]:
        """Ask for the tasks of what runs, inside."""
        self._tasks = tasks
        try:
            yield
        finally:
            self._tasks = lambda: None

    def line(self) -> str:
        """The line to show now: the step, its tasks, and the time so far."""
        tasks = None
        # What is asked may end at any moment.
        with contextlib.suppress(Exception):
            tasks = self._tasks()
        counted = "" if tasks is None else f", {tasks.done} of {tasks.of} {tasks.unit}"
        return f"{self._step}{counted}, {self._now_s() - self._began_s:.0f} s"

    def _show(self) -> None:
        shown, shown_at_s = "", -EVERY_S
        while True:
            if self._terminal:
                self._write(f"\r\033[K{self.line()}")
            elif self._step != shown or self._now_s() - shown_at_s >= EVERY_S:
                shown, shown_at_s = self._step, self._now_s()
                self._write(f"tarry: {self.line()}\n")
            if self._ended.wait(_REDRAW_S):
                break
        if self._terminal:
            self._write("\r\033[K")

    def _write(self, text: str) -> None:
        # Whoever closed standard error wants to see nothing.
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()

    def __enter__(self) -> Self:
        self._showing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._showing.join()
        if self._out is not sys.stderr:
            self._out.close()


def spark_tasks(spark: Any) -> Tasks | None:
    """The tasks of the stages that Spark runs now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
    if not stages:
        return None
    return Tasks(sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages))
