"""Bulk schedule: a DataFrame into a running server, from `save` to its return (R10).

The rows come from a Parquet file: 200 bytes of payload, due over thirty days, in no order. First Spark reads it, with two
tasks on this machine in a session that is warm, and writes it to Tarry; then `tarry bulk schedule` does the same without Spark.
"""

import subprocess
import time
from pathlib import Path
from typing import Any, Final

from bench.http_wire import Http
from bench.plan import PAYLOAD_BYTES
from bench.processes import cpu_s, python, tarry_environment
from bench.run import Run
from bench.tarry_server import TarryServer
from tarry.pipeline import datasource
from tarry.pipeline.session import open_session

DAYS: Final = 30
WARM_ROWS: Final = 20_000


def measure(run: Run) -> None:
    """Schedule the rows in both ways, in turns, each time on a new server."""
    rows = run.plan.bulk
    with run.place() as place:
        spark = open_session("local[2]", {"spark.driver.memory": "1g"}, "bench-bulk")
        try:
            datasource.register(spark)
            run.say(f"a file of {rows:,} rows")
            file = place / "rows.parquet"
            _made(spark, rows, PAYLOAD_BYTES).coalesce(1).write.parquet(str(file))
            (part,) = file.glob("*.parquet")
            for _ in run.turns():
                with run.place() as data, TarryServer(data) as server:
                    _turn(run, spark, part, server)
        finally:
            spark.stop()


def _turn(run: Run, spark: Any, file: Path, server: TarryServer) -> None:
    rows = run.plan.bulk
    url = f"http://127.0.0.1:{server.port}"
    frame = spark.read.parquet(str(file))
    _write(frame.limit(WARM_ROWS), url, "warm")
    began, cpu = time.monotonic(), cpu_s()
    _write(frame, url, "spark")
    _add(run, "bulk", time.monotonic() - began, cpu_s() - cpu)
    command = python("tarry", "bulk", "schedule", str(file), "--name", "file", "--url", url)
    began, cpu = time.monotonic(), cpu_s()
    subprocess.run(command, check=True, env=tarry_environment(), cwd=file.parent, stdout=subprocess.DEVNULL)
    _add(run, "bulk file", time.monotonic() - began, cpu_s() - cpu)
    # The connection from before is long closed.
    server.http = Http(server.port)
    assert server.status()["pending"] == 2 * rows + WARM_ROWS
    run.add("bulk memory", server.memory_bytes())


def _add(run: Run, what: str, seconds: float, cpu: float) -> None:
    run.add(what, run.plan.bulk / seconds)
    run.add(f"{what} cpu", cpu / run.plan.bulk * 1e6)


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
