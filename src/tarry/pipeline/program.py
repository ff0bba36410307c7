"""The pipeline as a program: one Spark session, the index stream, and between batches the cascade.

It follows the ledger and writes the tables; the server knows nothing of it but what the tables and the progress file say.
One at a time for a work folder; two that get past that are kept apart by the tables' own fence (R6, R7). `--once` drains
what is durable now and stops. A signal to stop is obeyed at any time: nothing is lost by it, because what is done is what
the tables say.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tarry.core.errors import Conflict, TarryError, Unavailable
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.pipeline.ledger_parts import LedgerAddress
from tarry.pipeline.reporter import Reporter
from tarry.pipeline.session import abandon, check_java, explain, open_session, pack, stderr_to
from tarry.pipeline.source import LedgerSource
from tarry.pipeline.stream import IndexStream, Tables
from tarry.pipeline.upkeep import RetentionTimes, TableUpkeep

log = logging.getLogger(__name__)

# Spark's bridge says on this level what concerns nobody.
logging.getLogger("py4j").setLevel(logging.CRITICAL)

STOP_WITHIN_S: Final = 15.0
"""After this a stop is no longer graceful."""
SPARK_LOG: Final = "spark.log"
"""The output of Java and Spark, in the work folder; the file begins anew with each start."""
TRIGGER: Final = "1 second"
"""How often the ledger's head is looked at. Most looks make no batch."""
MOST_FLUSHES: Final = 4
"""How many times what is flushed together a batch may hold, where the pipeline is behind."""
MANY_FILES: Final = 500
"""After so many new files the cascade comes before its time."""


class PipelineSettings(Struct, frozen=True, kw_only=True):
    """Settings of the program."""

    ledger: dict[str, str]
    """Where the ledger is, as options of the source: `folder`; `server`, perhaps with `token_file`; or `kafka` and what goes with it."""
    tables: str
    """The folder or address of the two tables."""
    work: str
    """A local folder for Spark's checkpoint, the lock and the progress file."""
    storage_options: dict[str, str] = {}
    master: str = "local[2]"
    connect_timeout_ms: int = 60_000
    spark: dict[str, str] = {}
    ship: bool = True
    python: str | None = None
    flush_rows: int = 500_000
    flush_every_ms: int = 60_000
    cascade_every_ms: int = 30_000
    slot_ms: int = 300_000
    keep_bodies: bool = False
    keep_versions_ms: int = HOUR_MS
    keep_history_ms: int = 90 * DAY_MS


class Stopped(BaseException):
    """A signal to stop came while Spark was being started. No `Exception`: nothing is to catch it but `run`."""


class Pipeline:
    """Runs until it is told to stop."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._work = Path(settings.work)
        self._place = LedgerAddress.of(settings.ledger)
        self._follower = self._place.follower(patience_s=0)
        self._stop = threading.Event()
        self._interruptible = True
        """Whether a signal may end what the main thread does at once."""

    def run(self, *, once: bool = False) -> None:
        """Index durable records, and go on until stopped. Raises what it cannot go on after."""
        self._catch_signals()
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            with alone(self._work), Reporter(self._work, self._follower) as reporter:
                check_java()
                ledger_id = self._ledger_id(wait=not once)
                tables, upkeep = self._open_tables(ledger_id), self._upkeep(ledger_id)
                with self._session() as spark:
                    self._interruptible = False
                    # Spark has put a handler of its own in the place of ours.
                    self._catch_signals()
                    with self._explained():
                        _Run(self._settings, spark, self._place, tables, upkeep, reporter, self._stop).run(
                            once=once
                        )
        except Stopped:
            abandon()
            log.info("stopped while starting")
        except OSError as error:
            raise Unavailable(f"{error.filename or self._work}: {error.strerror or error}") from error

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stopped)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()
        if self._interruptible:
            raise Stopped

    def _ledger_id(self, *, wait: bool) -> bytes:
        """The id of the ledger; waits for a server that has not begun one, unless told not to."""
        told = False
        while True:
            try:
                return self._follower.ledger_id()
            except Unavailable as error:
                if not wait:
                    raise
                if not told:
                    log.info("waiting for the ledger: %s", error)
                told = True
            time.sleep(1.0)

    def _open_tables(self, ledger_id: bytes) -> Tables:
        tables = Tables.open(self._settings.tables, ledger_id, self._settings.storage_options or None)
        tables.index.check_commits()
        tables.history.check_commits()
        return tables

    def _upkeep(self, ledger_id: bytes) -> TableUpkeep:
        settings = self._settings
        retention = RetentionTimes(
            keep_versions_ms=settings.keep_versions_ms, keep_history_ms=settings.keep_history_ms
        )
        # Handles of its own: those of the stream are in use by its batches.
        return TableUpkeep(self._open_tables(ledger_id), self._follower, settings.slot_ms, retention)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of Spark into a line; after a signal to stop, such an error is the stop itself."""
        try:
            yield
        except TarryError:
            raise
        except Exception as error:
            if not self._stop.is_set():
                raise Unavailable(f"Spark failed: {explain(error)}") from error

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkSession]:
        settings = self._settings
        began_s = time.monotonic()
        with stderr_to(self._work / SPARK_LOG):
            spark = open_session(
                settings.master,
                {"spark.log.level": "ERROR", **settings.spark},
                python=settings.python,
                package=pack(self._work)
                if settings.ship and not settings.master.startswith("local")
                else None,
                variables=settings.storage_options,
                connect_within_s=settings.connect_timeout_ms / 1000,
            )
        took_ms = round((time.monotonic() - began_s) * 1000)
        log.info("spark is up", extra={"master": settings.master, "took_ms": took_ms})
        try:
            yield spark
        finally:
            # A Java that is gone cannot be stopped.
            with contextlib.suppress(Exception):
                spark.stop()


class _Run:
    """One session's work."""

    def __init__(
        self,
        settings: PipelineSettings,
        spark: SparkSession,
        place: LedgerAddress,
        tables: Tables,
        upkeep: TableUpkeep,
        reporter: Reporter,
        stop: threading.Event,
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._tables = tables
        self._reporter = reporter
        self._stop = stop
        self._upkeep = upkeep
        self._place = place
        self._stream = IndexStream(
            tables, settings.slot_ms, keep_bodies=settings.keep_bodies, place=self._place
        )
        self._added = 0
        """Files that came since the last upkeep."""

    def run(self, *, once: bool) -> None:
        threading.Thread(target=self._hasten, daemon=True).start()
        self._spark.dataSource.register(LedgerSource)
        self._tables.begin(self._place.follower().first_seq())
        cursor = self._tables.index.cursor()
        query = self._start(cursor, once=once)
        self._reporter.running(cursor)
        next_cascade_s = time.monotonic()
        while query.isActive and not self._stop.wait(0.2 if once else 1.0):
            if not once and (time.monotonic() >= next_cascade_s or self._added > MANY_FILES):
                self._keep_up()
                next_cascade_s = time.monotonic() + self._settings.cascade_every_ms / 1000
        if query.isActive:
            query.stop()
        elif (failure := query.exception()) is not None and not self._stop.is_set():
            raise Unavailable(f"the index stream stopped: {explain(failure)}")
        if once and not self._stop.is_set():
            self._keep_up()

    def _start(self, cursor: int, *, once: bool) -> StreamingQuery:
        settings = self._settings
        source = (
            self._spark.readStream.format(LedgerSource.name())
            .options(**settings.ledger, **self._place.options_from(cursor + 1))
            .option("from", str(cursor + 1))
            .option("ranges", "true")
            .option("flush_rows", str(settings.flush_rows))
            .option("rows", str(MOST_FLUSHES * settings.flush_rows))
            .option("wait_seconds", "0" if once else str(settings.flush_every_ms / 1000))
            .load()
        )
        writer = source.writeStream.foreachBatch(self._process).option(
            "checkpointLocation", self._checkpoint()
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=TRIGGER).start()

    def _checkpoint(self) -> str:
        """An empty folder: the table's cursor says where to begin, and a checkpoint that says otherwise would be in the way."""
        folder = Path(self._settings.work).absolute() / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        return f"file://{folder}"

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        before = self._stream.last_commit
        self._stream.process(batch, batch_id)
        if self._stream.last_commit is not before:
            self._added += int(self._stream.last_commit["files"])
            self._reporter.committed(self._stream.last_commit)

    def _keep_up(self) -> None:
        self._added = 0
        self._upkeep.round(self._spark)

    def _hasten(self) -> None:
        """Once a stop is wanted: end the jobs that the main thread may be waiting for, and then do not wait for ever."""
        self._stop.wait()
        patience = threading.Timer(STOP_WITHIN_S, os._exit, (1,))
        patience.daemon = True
        patience.start()
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelAllJobs()


@contextlib.contextmanager
def alone(work: Path) -> Iterator[None]:
    """Hold the work folder's lock; raises `Conflict` if another pipeline has it."""
    lock = os.open(work / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise Conflict(
                f"{work}: the pipeline with pid {pid or '?'} is at work here already", "running"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)
