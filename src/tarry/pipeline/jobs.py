"""A Spark session for one job of a person's: small, quiet, and stopped afterwards."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarry.core.errors import Unavailable
from tarry.pipeline import datasource
from tarry.pipeline.session import explain, open_session, pack, stderr_to
from tarry.pipeline.source import LedgerSource


@contextmanager
def job_session(settings: Mapping[str, Any], name: str) -> Iterator[SparkSession]:
    """A session with the program's settings and Tarry's data sources. Spark's errors are re-raised as `Unavailable` with one line."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with TemporaryDirectory() as folder:
        ships = settings["ship"] and not settings["master"].startswith("local")
        # Without what Java says while it starts, before it has read how much it is to say.
        with stderr_to(Path(os.devnull)):
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
        except (PySparkException, Py4JJavaError) as error:
            # Of two failures at one time Spark tells as the bridge does, and not in its own class.
            raise Unavailable(explain(error)) from None
        finally:
            spark.stop()
