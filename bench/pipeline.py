"""The pipeline: how fast the index stream takes messages in, and the cascade of a day of them.

In this process, with Spark as `tarry pipeline` runs it by default, warmed up by a first batch.

python -m bench.pipeline FOLDER COUNT BYTES     the same by itself; says `cascading` when the cascade begins
"""

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.load_http import HOUR_MS, fill
from bench.processes import cpu_s
from bench.tarry_server import TarryServer
from tarry.ledger.follow import FolderFollower
from tarry.pipeline.cascade import cascade
from tarry.pipeline.session import open_session
from tarry.pipeline.source import LedgerSource, Place
from tarry.pipeline.stream import IndexStream, Tables

DAY_MS: Final = 24 * HOUR_MS
SLOT_MS: Final = 300_000
WARM_UP: Final = 20_000


@dataclass(frozen=True)
class Pipeline:
    """What was measured."""

    indexed_per_s: float
    index_cpu_s: float
    cascade_s: float
    cascade_cpu_s: float


def measure(folder: Path, count: int, size: int) -> Pipeline:
    """Index so many messages that are due on one day, and split that day into hours."""
    day_ms = (time.time_ns() // 1_000_000 // DAY_MS + 3) * DAY_MS
    due = day_ms + np.random.default_rng(1).integers(0, DAY_MS, count + WARM_UP)
    with TarryServer(folder) as server:
        fill(server.port, due, size)
    ledger = str(folder / "data" / "ledger")
    spark = open_session("local[2]", {}, "tarry-bench")
    try:
        spark.dataSource.register(LedgerSource)
        far, near = day_ms - DAY_MS, day_ms - DAY_MS // 8

        def index(name: str, now_ms: int) -> Tables:
            """The first time only a little."""
            tables = Tables.open(str(folder / name), FolderFollower(ledger).ledger_id())
            stream = IndexStream(tables, SLOT_MS, place=Place(ledger, None), clock=lambda: now_ms)
            source = {"folder": ledger, "from": str(tables.index.cursor() + 1), "ranges": "true"}
            if not tables.index.cursor():
                warm = spark.read.format(LedgerSource.name()).options(**source, upto=str(WARM_UP))
                stream.process(warm.load(), 0)
                return tables
            query = (
                spark.readStream.format(LedgerSource.name())
                .options(**source)
                .load()
                .writeStream.foreachBatch(stream.process)
                .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return tables

        head = FolderFollower(ledger).durable_seq()
        index("near", near)
        began, cpu = time.monotonic(), cpu_s()
        indexed = index("near", near)
        index_s, index_cpu_s = time.monotonic() - began, cpu_s() - cpu
        assert indexed.index.cursor() >= head
        shutil.rmtree(folder / "near")
        index("far", far)
        table = index("far", far).index
        print("cascading", flush=True)
        began, cpu = time.monotonic(), cpu_s()
        while cascade(spark, table, SLOT_MS, near):
            pass
        cascade_s, cascade_cpu_s = time.monotonic() - began, cpu_s() - cpu
        assert sum(file.rows for file in table.files()) == len(due)
    finally:
        spark.stop()
    return Pipeline((head - WARM_UP) / index_s, index_cpu_s, cascade_s, cascade_cpu_s)


if __name__ == "__main__":
    print(measure(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])), flush=True)
