"""`tarry pipeline` as people run it: what it says when something is missing, how it stops, and that it drains."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from deltalake import write_deltalake

from tarry.index.delta import DeltaIndex
from tarry.index.progress import Progress, read_progress
from tarry.index.schema import INDEX_SCHEMA
from tarry.ledger.record import Key
from tarry.pipeline.session import explain
from tarry.pipeline.stream import Tables
from tests.pipeline import archive
from tests.pipeline.kit import Writer
from tests.processes import CLOSED_DOORS, environment, free_port
from tests.waiting import wait_until

QUICK = {
    "TARRY_PIPELINE__SPARK": json.dumps({"spark.driver.extraJavaOptions": archive.options()}),
    "TARRY_PIPELINE__NICE": "0",
}
"""Tests wait for it, and a busy machine would let it wait."""


def command(data: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tarry", "pipeline", "--data", str(data), *options]


def once(data: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(data, "--once"),
        env=environment(**(QUICK | settings)),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=280,
    )


@contextlib.contextmanager
def started(data: Path, log: Path, **settings: str) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as file:
        process = subprocess.Popen(command(data), env=environment(**(QUICK | settings)), cwd="/", stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def progress(data: Path) -> Progress:
    return read_progress(data / "pipeline") or Progress()


def ledger(data: Path, count: int = 20) -> Writer:
    data.mkdir()
    writer = Writer(data)
    for n in range(count):
        writer.schedule(60_000 + n)
    return writer


def fake_java(folder: Path, version: str) -> str:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("java", "told"), [(None, "holds none"), ("11.0.2", "is version 11"), ("1.8.0_292", "is version 8")]
)
def test_without_a_usable_java_it_says_so_in_a_line(tmp_path: Path, java: str | None, told: str) -> None:
    ledger(tmp_path / "data")
    home = str(tmp_path / "none") if java is None else fake_java(tmp_path / "java", java)
    ran = once(tmp_path / "data", JAVA_HOME=home)
    assert ran.returncode == 7
    assert ran.stderr.startswith("tarry: the pipeline needs Java 17 or newer")
    assert (told in ran.stderr, ran.stderr.count("\n")) == (True, 1)
    assert (progress(tmp_path / "data").state, progress(tmp_path / "data").failures) == ("failed", 1)


def test_a_master_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    ledger(tmp_path / "data")
    port = free_port()
    ran = once(tmp_path / "data", TARRY_PIPELINE__MASTER=f"spark://127.0.0.1:{port}")
    assert ran.returncode == 6
    assert ran.stderr == (
        f"tarry: no Spark master answers at 127.0.0.1:{port}: [Errno 111] Connection refused; "
        "start it, or set pipeline.master\n"
    )


def test_a_master_that_never_gives_an_executor_is_given_up(tmp_path: Path) -> None:
    ledger(tmp_path / "data")
    # It takes connections and says nothing, as a wrong port or a hung master does.
    with socket.create_server(("127.0.0.1", 0)) as mute:
        master = f"spark://127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        ran = once(
            tmp_path / "data", TARRY_PIPELINE__MASTER=master, TARRY_PIPELINE__CONNECT_TIMEOUT_MS="6000",
            SPARK_LOCAL_IP="127.0.0.1",
        )  # fmt: skip
    assert ran.returncode == 6
    assert ran.stderr.startswith(f"tarry: {master} gave no executor within 6 s")
    assert time.monotonic() - began < 60


def test_tables_of_another_ledger_are_refused(tmp_path: Path) -> None:
    ledger(tmp_path / "data")
    Tables.open(str(tmp_path / "tables"), b"another ledger's")
    ran = once(tmp_path / "data", TARRY_PIPELINE__TABLES=str(tmp_path / "tables"))
    assert (ran.returncode, ran.stderr.count("\n")) == (6, 1)
    assert "belongs to another ledger" in ran.stderr


def test_a_table_that_somebody_else_changed_is_refused(tmp_path: Path) -> None:
    writer = ledger(tmp_path / "data")
    Tables.open(str(tmp_path / "data/tables"), writer.ledger.ledger_id)
    write_deltalake(tmp_path / "data/tables/index", INDEX_SCHEMA.empty_table(), mode="append")
    ran = once(tmp_path / "data")
    assert (ran.returncode, ran.stderr.count("\n")) == (4, 1)
    assert "tables/index/: version 1 was committed by another program (WRITE, delta-rs" in ran.stderr


def test_it_waits_for_a_server_and_stops_at_once_while_it_does(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert once(data).returncode == 6
    with started(data, tmp_path / "log") as process:
        wait_until(lambda: "waiting for the ledger" in (tmp_path / "log").read_text())
        again = once(data)
        assert (again.returncode, f"the pipeline with pid {process.pid} is at work" in again.stderr) == (
            4,
            True,
        )
        process.terminate()
        assert process.wait(10) == 0
    assert progress(data).state == "stopped"


def test_it_follows_until_it_is_told_to_stop(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    writer = Writer(data, segment_bytes=16 << 10)
    while len(writer.ledger.segments()) < 2:
        writer.schedule(30_000)
    # As if all these had ended before anybody started a pipeline.
    assert writer.ledger.reclaim(writer.ledger.segments()[0].last_seq)
    gone = writer.ledger.first_seq - 1
    for n in range(20):
        writer.schedule(60_000 + n)
    settings = {"TARRY_PIPELINE__FLUSH_EVERY_MS": "0", "TARRY_PIPELINE__NICE": "1"}
    with started(data, tmp_path / "log", **settings) as process:
        wait_until(lambda: process.poll() is not None or progress(data).cursor == writer.ledger.durable_seq)
        assert (progress(data).state, progress(data).pid) == ("running", process.pid)
        for n in range(5):
            writer.schedule(90_000 + n)
        wait_until(lambda: process.poll() is not None or progress(data).cursor == writer.ledger.durable_seq)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) - os.getpriority(os.PRIO_PROCESS, 0) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    told = progress(data)
    assert (told.state, told.lag, told.behind_ms, told.failures) == ("stopped", 0, 0, 0)
    assert told.commits >= 2
    view = DeltaIndex(str(data / "tables/index"), writer.ledger.ledger_id).newest()
    seqs = view.load(Key(0, 0), Key(1 << 47, 0), 1 << 40).due.seqs
    assert sorted(seqs.tolist()) == list(range(gone + 1, writer.ledger.durable_seq + 1))


def test_a_java_that_dies_ends_it_with_a_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ledger(data)
    with started(data, tmp_path / "log") as process:
        wait_until(lambda: process.poll() is not None or "spark is up" in (tmp_path / "log").read_text())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (java,) = (int(pid) for pid in children if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(java, signal.SIGKILL)
        assert process.wait(60) == 6
    assert re.search(r"^tarry: Spark failed: .+$", (tmp_path / "log").read_text(), re.MULTILINE)
    assert progress(data).state == "failed"


def test_the_server_goes_on_where_the_pipeline_cannot_run(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tarry", "up", "--port", "0", "--data", str(tmp_path / "data")],
            env=environment(
                JAVA_HOME=str(tmp_path / "none"), TARRY_LEDGER__SEGMENT_BYTES="1048576", **QUICK, **CLOSED_DOORS
            ),
            stdout=log, stderr=log, cwd=tmp_path,
        )  # fmt: skip
    try:
        said = "pipeline cannot run here; the rest goes on without it"
        wait_until(lambda: said in (tmp_path / "log").read_text())
        wait_until(lambda: "ready on http" in (tmp_path / "log").read_text())
        url = (tmp_path / "log").read_text().split("ready on ")[1].split()[0]
        assert httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
        assert (tmp_path / "log").read_text().count("the pipeline needs Java 17 or newer") == 1
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_errors_that_come_through_spark_are_told_in_one_line() -> None:
    stack = "[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):\n  File x, line 1\n"
    ours = (
        stack + "tarry.core.errors.Damage: 00000001.seg: damaged at byte 9: no\n\n\tat org.apache.spark.X\n"
    )
    assert explain(Exception(ours)) == "00000001.seg: damaged at byte 9: no"
    theirs = stack + "ModuleNotFoundError: No module named 'msgspec'\n\n\tat org.apache.spark.X\n"
    assert explain(Exception(theirs)) == "ModuleNotFoundError: No module named 'msgspec'"
    java = "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: lost\n\tat x\n"
    assert explain(Exception(java)) == "org.apache.spark.SparkException: lost"
