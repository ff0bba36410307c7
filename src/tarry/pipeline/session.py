"""A Spark session that is small enough to run beside the server, or large enough for a cluster, by configuration.

What Spark needs and does not have is told in one line before it is started: a Java, a master that answers, an executor.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from pyspark.sql import DataFrame, SparkSession

from tarry.core.errors import Unavailable

JAVA_AT_LEAST: Final = 17
MASTER_ANSWERS_WITHIN_S: Final = 5.0
CONNECT_WITHIN_S: Final = 60.0

SMALL: Final[Mapping[str, str]] = {
    "spark.driver.memory": "768m",
    # One collector thread and a heap that is given back: an idle driver is a guest on the server's machine.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.noDataProgressEventInterval": "60000",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    # What goes wrong is told by this program, in a line; Spark would add a hundred.
    "spark.log.level": "FATAL",
    "spark.sql.session.timeZone": "UTC",
}
"""Spark's settings where the configuration has none: a driver of about a gigabyte."""

LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Other users of this machine can connect to its ports, too; with a local master Spark makes a secret of its own.
    "spark.authenticate": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
"""Settings for a master on this machine: nobody from elsewhere can connect, and two cores are all there is."""


class NoJava(Unavailable):
    """There is no Java that Spark can use: trying again helps nobody."""


ROWS_PER_TASK: Final = 50_000
"""Below this a task costs more than it does."""


def check_java() -> None:
    """Raise `NoJava`, saying what to do, unless there is a Java that Spark can use."""
    needed = f"the pipeline needs Java {JAVA_AT_LEAST} or newer"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME={home} holds none" if home else "there is none"
        raise NoJava(f"{needed}, and {where}: apt-get install default-jre-headless")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJava(f"{needed}, and {java} does not run: {error}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        version = f"is version {found[1]}" if found else "does not tell its version"
        raise NoJava(f"{needed}, and {java} {version}: apt-get install default-jre-headless")


def check_master(master: str) -> None:
    """Raise `Unavailable` if none of the machines that a `spark://` master names takes a connection."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        parts = urlsplit(f"//{address}")
        try:
            where = (parts.hostname or "", parts.port or 7077)
            socket.create_connection(where, MASTER_ANSWERS_WITHIN_S).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise Unavailable(f"no Spark master answers at {'; '.join(reasons)}; start it, or set pipeline.master")


def open_session(
    master: str,
    settings: Mapping[str, str],
    name: str = "tarry",
    *,
    python: str | None = None,
    package: Path | None = None,
    variables: Mapping[str, str] | None = None,
    connect_within_s: float = CONNECT_WITHIN_S,
) -> SparkSession:
    """A session at a master, with the settings given over the small ones.

    `package` is sent to the executors, `python` is what runs there, and `variables` are in the environment of its functions:
    they travel with the tasks, so that a key is in no setting, page or command line of Spark. Raises `Unavailable` if a cluster gives no
    executor in time; that bound holds only in the main thread.
    """
    check_java()
    check_master(master)
    local = master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Planner processes run this same interpreter, and so do executors unless they have one of their own.
    os.environ["PYSPARK_PYTHON"] = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    chosen = {**SMALL, **(LOCAL if local else {}), **settings}
    if package is not None:
        given = chosen.get("spark.submit.pyFiles")
        chosen["spark.submit.pyFiles"] = f"{given},{package}" if given else str(package)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if local:
        return _opened(builder, variables)
    told = f"{master} gave no executor within {connect_within_s:g} s; look at its workers, or raise pipeline.connect_timeout_ms"
    with _within(connect_within_s, told):
        spark = _opened(builder, variables)
        spark.sparkContext.parallelize([0], 1).count()
    return spark


def pack(folder: Path) -> Path:
    """This package as a zip that Python can import, for executors that do not have it."""
    root = Path(__file__).parents[1]
    path = folder / "tarry.zip"
    with ZipFile(path, "w", ZIP_DEFLATED) as packed:
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                packed.writestr(ZipInfo(str(file.relative_to(root.parent))), file.read_bytes(), ZIP_DEFLATED)
    return path


def _opened(builder: SparkSession.Builder, variables: Mapping[str, str] | None) -> SparkSession:
    try:
        spark = builder.getOrCreate()
        spark.sparkContext.environment.update(variables or {})
        return spark
    except Exception as error:  # Errors of Java and of the bridge to it have no root in common.
        raise Unavailable(f"Spark does not start: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The text of an error, without the stack that follows."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    # A Java exception that comes through the bridge says first that it does so.
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (told or lines or [type(error).__name__])[0].strip().removeprefix(": ")


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started inside write their standard error to a file, for as long as they live."""
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(file)
        os.close(kept)


_OURS: Final = re.compile(r"^tarry\.core\.errors\.\w+: (.+)$", re.MULTILINE)
_PYTHONS: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception): .+)$", re.MULTILINE)


def explain(error: BaseException) -> str:
    """One line of an error that comes through Spark: our own words, which stand somewhere inside, or the cause of it all."""
    text = str(error)
    told = _OURS.findall(text) or _PYTHONS.findall(text)
    return str(told[-1]) if told else first_line(error)


def abandon() -> None:
    """End a Java that is in the middle of starting: it would wait for its cluster for ever, and PySpark may not know it yet."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"spark" in Path("/proc", pid, "cmdline").read_bytes():
                    os.kill(int(pid), signal.SIGKILL)


class _TooLong(BaseException):
    """Raised by the alarm. No `Exception`, because the bridge to Java would wrap it."""


@contextlib.contextmanager
def _within(seconds: float, told: str) -> Iterator[None]:
    """Interrupt the block after some time, with `Unavailable`. Does nothing outside the main thread."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _TooLong

    try:
        before = signal.signal(signal.SIGALRM, ring)
    except ValueError:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _TooLong:
        abandon()
        raise Unavailable(told) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def spread(spark: SparkSession, pieces: Sequence[Any], schema: str, rows: int) -> DataFrame:
    """Pieces of work as a data frame, divided among tasks: as many as keep all cores busy, and few for few rows."""
    tasks = min(len(pieces), 4 * spark.sparkContext.defaultParallelism, 1 + rows // ROWS_PER_TASK)
    return spark.createDataFrame(list(pieces), schema).repartition(max(1, tasks))
