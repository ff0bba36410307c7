"""A Spark session for one job of a person's: small, quiet, and stopped afterwards."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarry.core.errors import TarryError, Unavailable
from tarry.pipeline import datasource
from tarry.pipeline.session import open_session, pack
from tarry.pipeline.source import LedgerSource


@contextmanager
def job_session(settings: Mapping[str, Any], name: str) -> Iterator[SparkSession]:
    """A session with the settings of the program, that knows Tarry's data sources. Of an error of Spark's, one line is left."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with TemporaryDirectory() as folder:
        ships = settings["ship"] and not settings["master"].startswith("local")
        with _quiet():
            spark = open_session(
                settings["master"],
                settings["spark"],
                name,
                python=settings["python"],
                package=pack(Path(folder)) if ships else None,
                variables=settings["storage_options"],
                connect_within_s=settings["connect_timeout_ms"] / 1000,
            )
            datasource.register(spark)
            spark.dataSource.register(LedgerSource)
        try:
            yield spark
        except PySparkException as error:
            raise Unavailable(_cause(error)) from None
        finally:
            spark.stop()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the JVM says while it starts, before it has read how much it is to say."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)


def _cause(error: Exception) -> str:
    """The line of a trace from Python that says what went wrong; else Spark's own first line."""
    kinds = {kind.__name__: kind for kind in _all_errors(TarryError)}
    lines = str(error).splitlines()
    for line in reversed(lines):
        name, colon, text = line.strip().partition(": ")
        if colon and name.rpartition(".")[2] in kinds:
            return text
    return lines[0] if lines else type(error).__name__


def _all_errors(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_errors(below)
