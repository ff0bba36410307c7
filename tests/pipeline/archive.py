"""An archive of the classes that Spark loads, from which Java maps them: a session starts in little more than half the time.

    python -m tests.pipeline.archive      make it, unless it is there; takes some seconds

Without one everything runs, more slowly. It is good for one Java and one PySpark, by which it is named.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Final

import pyspark

from tests.processes import ROOT

SHORT_LIVED: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a Java that lives for a minute: it is done before its best compiler has paid off."""


def options() -> str:
    """Options of the Java of a test's Spark."""
    archive = _archive()
    # An archive that does not fit is left alone; whoever reads what Java prints must not be told so.
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else SHORT_LIVED


def _archive() -> Path:
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    runtime = java.resolve().parent.parent / "lib" / "modules"
    made_ns = runtime.stat().st_mtime_ns if runtime.exists() else 0
    wanted = f"{runtime} {made_ns} {pyspark.__file__} {pyspark.__version__} {SHORT_LIVED}"
    return ROOT / ".cache" / f"spark-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.jsa"


def make() -> None:
    """Let a session run and write the archive when its Java ends."""
    from pyspark import SparkContext

    from tarry.core.errors import Unavailable
    from tarry.pipeline.session import open_session, stderr_to

    archive = _archive()
    if archive.exists():
        return
    archive.parent.mkdir(exist_ok=True)
    for old in archive.parent.glob("spark-*"):
        old.unlink()
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    java = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    try:
        with stderr_to(archive.with_suffix(".log")):
            spark = open_session("local[2]", {"spark.driver.extraJavaOptions": java}, "archive")
    except Unavailable as error:
        # What needs a Spark says so itself.
        print(f"no archive of Spark's classes: {error}", file=sys.stderr)
        return
    spark.range(1000).selectExpr("id % 7 as key", "id").groupBy("key").sum("id").orderBy("key").collect()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    if part.exists():
        part.rename(archive)


if __name__ == "__main__":
    make()
