"""Work beside the index stream: the cascade, the history's files, and retention.

A round costs little when there is nothing to do. Nothing but speed and room depends on it, so that what goes wrong here is
said and tried again later.
"""

import logging
import time
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import SparkSession

from tarry.core.errors import TarryError
from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.ledger.follow import Follower
from tarry.pipeline.cascade import cascade, tidy_history
from tarry.pipeline.retention import sweep
from tarry.pipeline.stream import Tables, now_ms

log = logging.getLogger(__name__)

ROUNDS = 8
"""Rewriting goes on at once while there is more of it, but not without end: the program looks around in between."""


class RetentionTimes(Struct, frozen=True, kw_only=True):
    """How long old versions of the tables, and the history, are kept."""

    keep_versions_ms: int = HOUR_MS
    keep_history_ms: int = 90 * DAY_MS


class TableUpkeep:
    """Keeps the two tables small and quick."""

    def __init__(
        self, tables: Tables, follower: Follower, default_ms: int, retention: RetentionTimes
    ) -> None:
        """The tables are handles of its own: those of the stream are in use by its batches."""
        self._tables = tables
        self._follower = follower
        self._default_ms = default_ms
        self._retention = retention
        self._next_sweep_s = 0.0
        self._checked_version = -1
        self.last: dict[str, dict[str, Any]] = {}
        """By what was done: the figures of the last time that there was something to do."""

    def round(self, spark: SparkSession | None) -> None:
        """One round of everything that is due. Raises `Conflict` if another program has changed the index."""
        if self._tables.index.version != self._checked_version:
            self._tables.index.check_commits()
            self._checked_version = self._tables.index.version
        try:
            for _ in range(ROUNDS):
                if not self._note("cascade", cascade(spark, self._tables.index, self._default_ms)):
                    break
            self._note("history", tidy_history(self._tables.history, self._retention.keep_history_ms))
            if time.monotonic() >= self._next_sweep_s:
                self._next_sweep_s = (
                    time.monotonic() + min(10 * MINUTE_MS, self._retention.keep_versions_ms) / 1000
                )
                self.sweep()
        except (TarryError, OSError) as error:
            log.warning("no upkeep of the tables this time: %s", error)

    def sweep(self) -> None:
        """Delete what nobody needs any more."""
        for name, table in (("index", self._tables.index), ("history", self._tables.history)):
            swept = sweep(table, self._follower, self._retention.keep_versions_ms, now_ms())
            if swept.files or swept.log_files:
                self._note(f"swept the {name}", msgspec.structs.asdict(swept))

    def _note(self, what: str, figures: dict[str, Any]) -> bool:
        if figures:
            log.info(what, extra=figures)
            self.last[what] = {"at_ms": now_ms(), **figures}
        return bool(figures)
