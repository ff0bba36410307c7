"""Bulk schedule: a DataFrame into a running server, from `save` to its return (R10).

python -m bench.bulk [--rows N] [--quick] [--folder DIR]

The rows come from a Parquet file: 200 bytes of payload, due over thirty days, in no order. First Spark reads it, with two
tasks on this machine in a session that is warm, and writes it to Tarry; then `tarry bulk schedule` does the same without Spark.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.http_wire import Http
from bench.processes import CACHE, cpu_s, environment, python
from bench.tarry_server import TarryServer

DAYS: Final = 30
WARM_ROWS: Final = 20_000


@dataclass(frozen=True)
class Bulk:
    """What was found."""

    rows: int
    spark_s: float
    """One `df.write.format("tarry")`."""
    spark_cpu_s: float
    """Processor time of everything meanwhile, the server too."""
    file_s: float
    """One `tarry bulk schedule` of a Parquet file."""
    file_cpu_s: float
    pending: int
    """What the server says is pending afterwards: all of both."""
    server_bytes: int
    """The server's memory then."""


def measure(place: Path, rows: int, payload_bytes: int) -> Bulk:
    """Schedule so many rows in both ways."""
    from tarry.pipeline import datasource
    from tarry.pipeline.session import open_session

    with TarryServer(place / "server") as server:
        url = f"http://127.0.0.1:{server.port}"
        spark = open_session("local[2]", {"spark.driver.memory": "1g"}, "bench-bulk")
        try:
            datasource.register(spark)
            file = place / "rows.parquet"
            _made(spark, rows, payload_bytes).coalesce(1).write.parquet(str(file))
            (part,) = file.glob("*.parquet")
            read = spark.read.parquet(str(part))
            _write(read.limit(WARM_ROWS), url, "warm")
            began, cpu = time.monotonic(), cpu_s()
            _write(read, url, "spark")
            spark_s, spark_cpu_s = time.monotonic() - began, cpu_s() - cpu
        finally:
            spark.stop()
        command = python("tarry", "bulk", "schedule", str(part), "--name", "file", "--url", url)
        began, cpu = time.monotonic(), cpu_s()
        subprocess.run(command, check=True, env=environment(), cwd=place, stdout=subprocess.DEVNULL)
        file_s, file_cpu_s = time.monotonic() - began, cpu_s() - cpu
        # The connection from before is long closed.
        server.http = Http(server.port)
        pending = int(server.status()["pending"])
        assert pending == 2 * rows + WARM_ROWS
        return Bulk(rows, spark_s, spark_cpu_s, file_s, file_cpu_s, pending, server.memory_bytes())


def _made(spark: Any, rows: int, payload_bytes: int) -> Any:
    first_ms = time.time_ns() // 1_000_000 + 3_600_000
    step = DAYS * 86_400_000 / rows
    # Spread, and not in the order of their instants: as a real table would be.
    return spark.range(0, rows, 1, 2).selectExpr(
        f"cast({first_ms} + pmod(id * 7919, {rows}) * {step} as long) as due",
        f"substring(repeat(sha2(cast(id as string), 256), {payload_bytes // 64 + 1}), 1, {payload_bytes}) as payload",
        "cast(id % 100000 as string) as key",
        "concat('bench-', id % 10) as destination",
    )


def _write(frame: Any, url: str, name: str) -> None:
    frame.write.format("tarry").option("server", url).option("name", name).mode("append").save()


def main() -> int:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.bulk", description="Measure bulk schedule.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_const", const=500_000, dest="rows")
    parser.add_argument("--folder", type=Path, default=CACHE)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        found = measure(place, given.rows, 200)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for what, seconds, cpu in (
        ("df.write", found.spark_s, found.spark_cpu_s),
        ("tarry bulk schedule", found.file_s, found.file_cpu_s),
    ):
        rate, each_us = found.rows / seconds, cpu / found.rows * 1e6
        print(
            f"{what}, {found.rows:,} rows: {seconds:.1f} s, {rate:,.0f} /s, {each_us:.1f} µs of processors each"
        )
    print(f"pending {found.pending:,}; memory of the server {found.server_bytes / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
