"""Ends reads that take too long, with one timer for all of them.

`asyncio.timeout` costs a tenth of a whole request here; a place in a table costs next to nothing, and
a bound of many seconds needs no better than a tick's precision.
"""

import asyncio
from types import TracebackType
from typing import Any, Final

from tarry.doors.http.problems import timed_out

TICK_S: Final = 1.0


class Deadlines:
    """Tasks that wait for a client, each since some tick; those that wait too long are interrupted."""

    def __init__(self, limit_ms: int) -> None:
        self._ticks = max(1, round(limit_ms / 1000 / TICK_S))
        self._now = 0
        self._since: dict[asyncio.Task[Any], int] = {}
        self._expired: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self) -> "Within":
        """What is awaited inside is cut short with a 408 once the time is over."""
        return Within(self)

    def enter(self, task: asyncio.Task[Any]) -> None:
        """Begin to count for a task."""
        self._since[task] = self._now
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def leave(self, task: asyncio.Task[Any]) -> bool:
        """Stop counting; whether it was interrupted."""
        self._since.pop(task, None)
        if task in self._expired:
            self._expired.discard(task)
            return True
        return False

    def _tick(self) -> None:
        self._now += 1
        self._timer = None
        for task, since in list(self._since.items()):
            # One tick more than asked: the first one was not whole.
            if self._now - since > self._ticks:
                del self._since[task]
                self._expired.add(task)
                task.cancel()
        if self._since:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)


class Within:
    """The context that `Deadlines.within` gives."""

    __slots__ = ("_deadlines", "_task")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._deadlines.enter(task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._deadlines.leave(self._task) and kind is asyncio.CancelledError:
            # Ours, and not the shutdown's: only then does it become a 408.
            if self._task.uncancel() == 0:
                raise timed_out() from None
