"""Tells how far the program is: the progress file about once a second, and a log line for every commit.

A thread of its own, so that a long cascade does not look like a standstill.
"""

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import replace

from tarry.core.errors import TarryError
from tarry.index.progress import Progress, read_progress, write_progress
from tarry.ledger.follow import Follower

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
WRITE_EVERY_S: Final = 5.0
"""An idle program writes as seldom as this."""
SAMPLES: Final = 1024


class Reporter:
    """Keeps the progress file of a work folder, from `with` to its end."""

    def __init__(self, work: Path, follower: Follower) -> None:
        self._work = work
        self._follower = follower
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._heads: deque[tuple[float, int]] = deque()
        """When the head was first seen at a seq that is not indexed, oldest first."""
        self._written_s = 0.0
        before = read_progress(work) or Progress()
        self._progress = replace(
            before, state="starting", pid=os.getpid(), started_at_ms=_now_ms(), behind_ms=0
        )

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if isinstance(error, Exception):
            self.failed(str(error))
        elif self._progress.state != "failed":
            self._change(state="stopped")

    def running(self, cursor: int) -> None:
        """Report that the pipeline has begun, with the index complete up to a seq."""
        self._change(state="running", cursor=cursor)
        log.info("the pipeline runs", extra={"cursor": cursor, "durable_seq": self._progress.durable_seq})

    def committed(self, commit: dict[str, Any]) -> None:
        """A batch was committed."""
        cursor = int(commit["seq"])
        progress = self._progress
        behind_ms = progress.behind_ms if cursor < progress.durable_seq else 0
        self._change(
            cursor=cursor,
            behind_ms=behind_ms,
            commits=progress.commits + 1,
            last_commit_at_ms=_now_ms(),
            last_commit=commit,
        )
        log.info("indexed", extra={**commit, "lag": self._progress.lag})

    def failed(self, reason: str) -> None:
        """This life ends with an error."""
        progress = self._progress
        self._change(state="failed", failures=progress.failures + 1, failure=reason, failed_at_ms=_now_ms())

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self._look(time.monotonic())

    def _look(self, now_s: float) -> None:
        try:
            durable_seq = self._follower.durable_seq()
        except TarryError:
            # There is no ledger yet, or its server does not answer: what was seen last stands.
            durable_seq = self._progress.durable_seq
        heads, cursor = self._heads, self._progress.cursor
        if durable_seq > max(cursor, heads[-1][1] if heads else 0):
            heads.append((now_s, durable_seq))
        while heads and heads[0][1] <= cursor:
            heads.popleft()
        if len(heads) > SAMPLES:
            self._heads = heads = deque(list(heads)[::2])
        behind_ms = round((now_s - heads[0][0]) * 1000) if heads else 0
        if durable_seq != self._progress.durable_seq or behind_ms or now_s - self._written_s > WRITE_EVERY_S:
            self._change(durable_seq=durable_seq, behind_ms=behind_ms)

    def _change(self, **fields: Any) -> None:
        with self._lock:
            self._progress = replace(self._progress, **fields)
        self._write()

    def _write(self) -> None:
        with self._lock:
            self._written_s = time.monotonic()
            self._progress = replace(self._progress, at_ms=_now_ms())
            try:
                write_progress(self._work, self._progress)
            except OSError as error:
                # A full disk is no reason to stop indexing.
                log.warning("the progress cannot be written: %s", error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
