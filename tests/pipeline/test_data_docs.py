"""Every example of docs/data.md runs, on a data folder with something in it: Spark, DuckDB and Polars."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tarry.core.limits import HOUR_MS
from tests.documents import runnable
from tests.pipeline.kit import Writer, index_locally, tables_of
from tests.processes import environment

OWN_PYTHON = "/usr/bin/python3"
"""A Python without Tarry, which Spark's workers would be if nobody told them otherwise."""

EXAMPLES = [block.text for block in runnable("docs/data.md", "python")]


def test_the_examples_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer(tmp_path / "tarry-data")
    writer.schedule(5, owner="billing")
    writer.schedule(20 * HOUR_MS, owner="billing")
    doomed = writer.schedule(30 * HOUR_MS, owner="nobody")
    writer.run(7)
    index_locally(writer, tables_of(writer))
    writer.settle(writer.engine.cancel(doomed.id))
    index_locally(writer, tables_of(writer))
    monkeypatch.chdir(tmp_path)
    # What Spark's JVM calls the present folder is another one.
    data = str(tmp_path)
    names: dict[str, object] = {}
    said = []
    for example in EXAMPLES:
        exec(example.replace('"tarry-data', f'"{data}/tarry-data').replace('"ends', f'"{data}/ends'), names)
        said.append(capsys.readouterr().out)
    reading, bounded, stream, duckdb, polars = said
    assert reading.count("billing") == 1
    assert bounded.strip() == "1"
    assert stream == ""
    assert spark.read.parquet(f"{data}/ends").count() == 2
    assert re.search(r"cancelled +│ +1 +│", duckdb)
    assert re.search(r"sent +│ +1 +│ +2 ", duckdb)
    assert re.search(r"billing +│ +1 +│ 2026-11-16 07:00:00", duckdb)
    assert "nobody" not in duckdb
    assert re.search(r"http +┆ 1 +┆ 2 ", polars)


@pytest.mark.skipif(not Path(OWN_PYTHON).exists(), reason=f"{OWN_PYTHON} is not here")
def test_the_first_example_runs_in_a_session_of_the_users_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tarry-data")
    writer.schedule(5, owner="billing")
    writer.schedule(20 * HOUR_MS, owner="billing")
    writer.run(7)
    index_locally(writer, tables_of(writer))
    # The first `python3` on the path is another one, as in a terminal without an activated environment.
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python3").symlink_to(OWN_PYTHON)
    settings = environment(PATH=f"{other}:{os.environ['PATH']}")
    settings = {
        name: value for name, value in settings.items() if not name.startswith(("PYSPARK_", "SPARK_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[0]],
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("billing") == 1
    assert "sent" in done.stdout
