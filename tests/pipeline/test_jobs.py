"""A Spark session for a job of a person's: whatever goes wrong in it is told in one line, and it is stopped."""

import re
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tarry.config import load
from tarry.core.errors import Unavailable
from tarry.pipeline import jobs


@pytest.mark.parametrize("sort", ["of the bridge", "of Spark"])
def test_an_error_is_told_in_one_line_and_the_session_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    stopped: list[bool] = []
    # The session that all tests share stands for the job's own, and must live on.
    monkeypatch.setattr(jobs, "open_session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(True))
    settings = msgspec.structs.asdict(load(environment={}).config.pipeline)
    with pytest.raises(Unavailable) as told, jobs.job_session(settings, "a job"):
        assert not stopped
        if sort == "of the bridge":
            # What Java raises and PySpark has no class for.
            spark._jvm.java.util.ArrayList().get(0)  # type: ignore[union-attr]
        else:
            spark.read.parquet(str(tmp_path / "nothing")).collect()
    assert re.search("IndexOutOfBounds" if sort == "of the bridge" else "PATH_NOT_FOUND", str(told.value))
    assert "\n" not in str(told.value)
    assert stopped == [True]
