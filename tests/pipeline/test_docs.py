"""The commands of the pages about the pipeline, the data and bulk batches, as they stand there. See `tests.documents`."""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from tarry.core.limits import HOUR_MS
from tarry.pipeline import jobs, rebuild
from tests.documents import runnable
from tests.pipeline.kit import Writer, index_locally, tables_of
from tests.processes import running
from tests.unit.cli_kit import Shell

LATER = datetime(2099, 5, 4, 9, 30, tzinfo=UTC)


@pytest.fixture
def tarry(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    """The command line beside a data folder with something in it. Jobs share the session of all tests: a Java machine takes its time."""

    @contextmanager
    def shared(_settings: Any, _name: str) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(jobs, "job_session", shared)
    monkeypatch.setattr(rebuild, "job_session", shared)
    monkeypatch.chdir(tmp_path)
    writer = Writer(tmp_path / "tarry-data")
    writer.schedule(5, owner="billing")
    writer.schedule(20 * HOUR_MS, owner="billing")
    writer.run(7)
    index_locally(writer, tables_of(writer))
    return Shell(monkeypatch, capsys)


def typed(tarry: Shell, page: str) -> list[str]:
    """The output of a page's commands, line by line. Each must succeed: the next one would run all the same."""
    told = []
    for line in "".join(block.text for block in runnable(page, "sh")).splitlines():
        program, *words = shlex.split(line.partition("&&")[0], comments=True)
        assert program.endswith("tarry"), line
        ended = tarry(*words)
        assert ended.code == 0, (line, ended)
        told.append(ended.out)
    return told


def test_the_index_the_report_and_the_audit(tarry: Shell, tmp_path: Path) -> None:
    verified, rebuilt = typed(tarry, "docs/pipeline.md")
    assert "missing 0" in verified
    assert "up to seq" in rebuilt
    *exports, tables, page, machine, audit = typed(tarry, "docs/data.md")
    assert [path.name for path in sorted(tmp_path.glob("*.parquet"))] == ["waiting.parquet"]
    assert (tmp_path / "ended.csv").read_text().count("sent") == 1
    assert len(exports) == 3
    assert exports[-1].count("billing") == 1
    assert "scheduled" in tables
    assert page == ""
    assert "<html" in (tmp_path / "report.html").read_text()
    assert json.loads(machine)["scheduled"] == 1
    assert "accepted" in audit


def test_batches_from_spark(spark: SparkSession, tmp_path: Path) -> None:
    short, whole = runnable("docs/bulk.md", "python")
    (tmp_path / "token").write_text("this server asks for none")
    rows = [(LATER, "a letter"), (LATER, "another")]
    of_page = spark.createDataFrame(rows, "send_at timestamp, body string")
    by_name = of_page.selectExpr("send_at as due", "body as payload", "'letters' as destination")
    with running(tmp_path / "data") as server:
        swaps = {
            "http://127.0.0.1:8080": server.url,
            "https://tarry.example.com": server.url,
            "/run/secrets/tarry": str(tmp_path / "token"),
        }
        for name, block, frame in (("short", short, by_name), ("whole", whole, of_page)):
            text = block.text.replace("spring-letters", name)
            for told, here in swaps.items():
                text = text.replace(told, here)
            exec(text, {"spark": spark, "df": frame})
        found = httpx.get(f"{server.url}/v1/batches").json()["batches"]
    assert sorted(batch["name"] for batch in found) == ["short", "whole"]
