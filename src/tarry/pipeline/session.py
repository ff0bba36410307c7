"""A Spark session that is small enough to run beside the server, or large enough for a cluster, by configuration."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from tarry.core.errors import Unavailable

SMALL: Final[Mapping[str, str]] = {
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.noDataProgressEventInterval": "60000",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
"""What holds where the configuration says nothing: a driver of about a gigabyte on one small machine."""


def check_java() -> None:
    """Raise `Unavailable`, saying what to do, unless there is a Java that Spark can use."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        raise Unavailable(
            "the pipeline needs Java 17 or newer, and there is none: apt-get install default-jre-headless"
        )
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    number = text.split('"')[1].split(".")[0] if '"' in text else "0"
    if not number.isdigit() or int(number) < 17:
        raise Unavailable(f"the pipeline needs Java 17 or newer; {java} is version {number}")


def open_session(master: str, settings: Mapping[str, str], name: str = "tarry") -> SparkSession:
    """A session at a master, with the settings given over the small ones."""
    check_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Executors and planner processes run this same interpreter, with this same package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**SMALL, **settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
