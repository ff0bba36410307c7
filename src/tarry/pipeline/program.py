"""The pipeline as a program: one Spark session, the index stream, and between batches the cascade.

It reads the ledger's folder and writes the tables; the server knows nothing of it but what the tables say. `--once` drains
what is durable now and stops. Progress is a small JSON file beside the tables, for `tarry doctor` and for people.
"""

import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tarry.core.errors import TarryError
from tarry.ledger.follow import FolderFollower
from tarry.pipeline.cascade import cascade
from tarry.pipeline.session import open_session
from tarry.pipeline.source import LedgerSource
from tarry.pipeline.stream import IndexStream, Tables

log = logging.getLogger(__name__)

# Spark's bridge says on this level what concerns nobody.
logging.getLogger("py4j").setLevel(logging.WARNING)


class PipelineSettings(Struct, frozen=True, kw_only=True):
    """What the program needs to know."""

    ledger: str
    """The ledger's folder."""
    tables: str
    """The folder or address of the two tables."""
    work: str
    """A local folder for Spark's checkpoint and the progress file."""
    master: str = "local[2]"
    spark: dict[str, str] = {}
    flush_rows: int = 500_000
    flush_every_ms: int = 60_000
    cascade_every_ms: int = 30_000
    slot_ms: int = 300_000
    keep_bodies: bool = False


class Pipeline:
    """Runs until it is told to stop."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._follower = FolderFollower(settings.ledger)

    def run(self, *, once: bool = False) -> int:
        """Index what is durable, and go on until stopped; gives the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stopped)
        Path(self._settings.work).mkdir(parents=True, exist_ok=True)
        tables = Tables.open(self._settings.tables, self._follower.ledger_id())
        spark = open_session(self._settings.master, self._settings.spark)
        try:
            spark.dataSource.register(LedgerSource)
            stream = IndexStream(tables, self._settings.slot_ms, keep_bodies=self._settings.keep_bodies)
            query = self._start(spark, tables, stream, once=once)
            self._watch(spark, tables, stream, query, once=once)
            failure = query.exception()
        finally:
            spark.stop()
        if failure is not None:
            log.error("the index stream stopped: %s", failure)
            return 1
        return 0

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _start(
        self, spark: SparkSession, tables: Tables, stream: IndexStream, *, once: bool
    ) -> StreamingQuery:
        settings = self._settings
        # The table's cursor says where to begin; a checkpoint that says otherwise would only be in the way.
        checkpoint = Path(settings.work) / f"checkpoint-{tables.index.cursor()}-{time.time_ns()}"
        source = (
            spark.readStream.format("tarry-ledger")
            .option("folder", settings.ledger)
            .option("from", str(tables.index.cursor() + 1))
            .option("rows", str(settings.flush_rows))
            .option("wait_seconds", "0" if once else str(settings.flush_every_ms / 1000))
            .load()
        )
        writer = source.writeStream.foreachBatch(stream.process).option("checkpointLocation", str(checkpoint))
        trigger = {"availableNow": True} if once else {"processingTime": "1 second"}
        return writer.trigger(**trigger).start()

    def _watch(
        self, spark: SparkSession, tables: Tables, stream: IndexStream, query: StreamingQuery, *, once: bool
    ) -> None:
        next_cascade_s = time.monotonic()
        while query.isActive and not self._stop.is_set():
            self._report(tables, stream)
            if time.monotonic() >= next_cascade_s:
                next_cascade_s = time.monotonic() + self._settings.cascade_every_ms / 1000
                self._cascade(spark)
            self._stop.wait(0.5 if once else 1.0)
        if query.isActive:
            query.stop()
        self._cascade(spark)
        self._report(tables, stream)

    def _cascade(self, spark: SparkSession) -> None:
        # A handle of its own: the stream's is in use by its batches.
        table = Tables.open(self._settings.tables, self._follower.ledger_id()).index
        try:
            figures = cascade(spark, table, self._settings.slot_ms)
        except TarryError as error:
            log.warning("no cascade this time: %s", error)
            return
        if figures:
            log.info("cascade: %s", figures)

    def _report(self, tables: Tables, stream: IndexStream) -> None:
        head = self._follower.durable_seq()
        progress: dict[str, Any] = {
            "at_ms": time.time_ns() // 1_000_000,
            "pid": os.getpid(),
            "head": head,
            "last_commit": stream.last_commit,
        }
        path = Path(self._settings.work) / "progress.json"
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(progress), encoding="utf-8")
        draft.replace(path)
