"""One small Spark session for all tests of the pipeline."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tarry.pipeline import datasource
from tarry.pipeline.session import open_session
from tarry.pipeline.source import LedgerSource
from tests.pipeline import archive


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session(
        "local[2]",
        {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": archive.options()},
        "tarry-tests",
    )
    session.dataSource.register(LedgerSource)
    datasource.register(session)
    yield session
    session.stop()
