"""Ends reads that take too long, with one timer for all of them.

`asyncio.timeout` costs a tenth of a whole request here; a place in a table costs next to nothing, and
a bound of many seconds needs no better than a tick's precision.
"""

import asyncio
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def within(self) -> "Within":
        """Cut short with a 408 whatever is awaited inside once the time is over."""
        return Within(self)

    def enter(self) -> "asyncio.Task[Any]":
        """Begin to count for the present task."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(TICK_S, self._tick)
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._since[task] = self._now
        return task

    def leave(self, task: "asyncio.Task[Any]") -> None:
        """Stop counting; raises a 408 if it was interrupted here."""
        self._since.pop(task, None)
        if task in self._expired:
            self._expired.discard(task)
            # Ours, and not the shutdown's: only then is it a 408.
            if task.uncancel() == 0:
                raise timed_out() from None

    def _tick(self) -> None:
        assert self._loop is not None
        self._now += 1
        for task, since in list(self._since.items()):
            # One tick more than asked: the first one was not whole.
            if self._now - since > self._ticks:
                del self._since[task]
                self._expired.add(task)
                task.cancel()
        # It stops when nobody waits: an idle server has nothing to wake up for.
        self._timer = self._loop.call_later(TICK_S, self._tick) if self._since else None


class Within:
    """The context that `Deadlines.within` gives."""

    __slots__ = ("_deadlines", "_task")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def __enter__(self) -> None:
        self._task = self._deadlines.enter()

    def __exit__(self, *_: object) -> None:
        self._deadlines.leave(self._task)
