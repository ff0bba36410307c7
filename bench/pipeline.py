"""The pipeline: how fast the index stream takes messages in, the cascade of a day of them, and who is late because of it.

In this process, with Spark as `tarry pipeline` runs it by default, warmed up by a first batch.

python -m bench.pipeline FOLDER COUNT BYTES     cascades one after another until it is ended; says `cascading` before the first
"""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from bench import lateness
from bench.load_http import HOUR_MS, fill
from bench.plan import PAYLOAD_BYTES
from bench.processes import ROOT, Process, cpu_s, environment, python
from bench.run import Run
from bench.tarry_server import TarryServer
from tarry.ledger.follow import FolderFollower
from tarry.pipeline.cascade import cascade
from tarry.pipeline.ledger_parts import LedgerAddress
from tarry.pipeline.session import open_session
from tarry.pipeline.source import LedgerSource
from tarry.pipeline.stream import IndexStream, Tables

DAY_MS: Final = 24 * HOUR_MS
SLOT_MS: Final = 300_000
WARM_UP: Final = 20_000
DAY: Final = "day"
CASCADING: Final = "cascading"
STEADY_PER_S: Final = 1_000


class Indexing:
    """A ledger with so many messages that are due on one day, and Spark to put them into slots; a context manager."""

    def __init__(self, folder: Path, count: int, size: int) -> None:
        self._folder = folder
        day_ms = (time.time_ns() // 1_000_000 // DAY_MS + 3) * DAY_MS
        self._far_ms, self._near_ms = day_ms - DAY_MS, day_ms - DAY_MS // 8
        due = day_ms + np.random.default_rng(1).integers(0, DAY_MS, count + WARM_UP)
        self._rows = len(due)
        with TarryServer(folder) as server:
            fill(server.port, due, size)
        self._ledger = str(folder / "data" / "ledger")
        self._head = FolderFollower(self._ledger).durable_seq()
        self._spark = open_session("local[2]", {}, "tarry-bench")
        self._spark.dataSource.register(LedgerSource)

    def __enter__(self) -> "Indexing":
        return self

    def __exit__(self, *_: object) -> None:
        self._spark.stop()

    def _tables(self, name: str) -> Tables:
        return Tables.open(str(self._folder / name), FolderFollower(self._ledger).ledger_id())

    def _indexed(self, name: str, now_ms: int) -> tuple[float, float]:
        """Index everything into new tables; gives the seconds and the processor time after the first few."""
        source = {"folder": self._ledger, "ranges": "true"}

        def stream(tables: Tables) -> IndexStream:
            return IndexStream(tables, SLOT_MS, place=LedgerAddress(self._ledger, None), clock=lambda: now_ms)

        first = self._spark.read.format(LedgerSource.name()).options(**source, upto=str(WARM_UP))
        stream(self._tables(name)).process(first.option("from", "1").load(), 0)
        tables = self._tables(name)
        began, cpu = time.monotonic(), cpu_s()
        query = (
            self._spark.readStream.format(LedgerSource.name())
            .options(**source)
            .option("from", str(tables.index.cursor() + 1))
            .load()
            .writeStream.foreachBatch(stream(tables).process)
            .option("checkpointLocation", str(self._folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s, took_cpu_s = time.monotonic() - began, cpu_s() - cpu
        assert tables.index.cursor() >= self._head
        return took_s, took_cpu_s

    def index_rate(self) -> tuple[float, float]:
        """Into slots of an hour: messages a second, and processor time of everything for each in microseconds."""
        seconds, cpu = self._indexed("near", self._near_ms)
        shutil.rmtree(self._folder / "near")
        shutil.rmtree(self._folder / "checkpoint-near")
        count = self._head - WARM_UP
        return count / seconds, cpu / count * 1e6

    def make_day(self) -> None:
        """One slot of a day, which is cascaded as often as one likes."""
        self._indexed(DAY, self._far_ms)

    def cascaded(self) -> tuple[float, float]:
        """Split a copy of that day into hours; gives the seconds and the processor time of everything."""
        copy = self._folder / "copy"
        # Files of the table are never changed once they are written: links are as good as copies.
        shutil.copytree(self._folder / DAY, copy, copy_function=os.link)
        table = self._tables("copy").index
        began, cpu = time.monotonic(), cpu_s()
        while cascade(self._spark, table, SLOT_MS, self._near_ms):
            pass
        took_s, took_cpu_s = time.monotonic() - began, cpu_s() - cpu
        assert sum(file.rows for file in table.files()) == self._rows
        shutil.rmtree(copy)
        return took_s, took_cpu_s


def measure(run: Run) -> None:
    """The index stream and the cascade in turns; then the lateness of a steady load beside cascades."""
    count = run.plan.indexed
    with run.place() as place, Indexing(place, count, PAYLOAD_BYTES) as indexing:
        indexing.make_day()
        # The first cascade of a session also loads what the later ones find loaded.
        indexing.cascaded()
        for _ in run.turns():
            rate, each_us = indexing.index_rate()
            run.add("indexed", rate)
            run.add("indexed cpu", each_us)
            seconds, cpu = indexing.cascaded()
            run.add(f"cascade {count}", seconds)
            run.add("cascade cpu", cpu)
    with run.place() as place:
        _beside(run, place)


def _beside(run: Run, place: Path) -> None:
    """Cascades, one after another, at the priority of `tarry pipeline`, and beside them a server that delivers."""
    words = (str(place / "cascade"), str(run.plan.indexed), str(PAYLOAD_BYTES))
    cascades = Process(
        ["nice", *python("bench.pipeline", *words)], place / "cascade.log", env=environment(), cwd=ROOT
    )
    try:
        run.say("a steady load beside cascades")
        cascades.wait_for_line(CASCADING)
        for turn in run.turns():
            seen, own = lateness.steady(
                place / f"server{turn}", STEADY_PER_S, run.plan.steady_s / 2, PAYLOAD_BYTES
            )
            assert cascades.is_running(), cascades.last_words()
            run.add_lateness("cascading", seen, own)
    finally:
        cascades.end()


def main(folder: Path, count: int, size: int) -> None:
    """Cascade until somebody ends it."""
    with Indexing(folder, count, size) as indexing:
        indexing.make_day()
        print(CASCADING, flush=True)
        while True:
            indexing.cascaded()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
