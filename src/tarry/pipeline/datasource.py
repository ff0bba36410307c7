"""`spark.read.format("tarry")` and `df.write.format("tarry")`: Tarry as a Spark data source.

Reading is `tarry.pipeline.views`: the views `scheduled`, `history` and `ledger`. Options: `view`; `path` (by `load`), a data folder
or a folder of tables; `ledger`, its folder, or `server` and `token_file`, where it is not beside the tables; `bodies`, for payloads
and headers; `columns`, to read only some; `is.COLUMN`, `min.COLUMN` and `max.COLUMN`, to read only some rows; `pushdown`, to take
Spark's own filters (see `PushedReader`); `storage.*`, for an object store. For a stream of the history also `from` and `rows`.

Writing is `tarry.pipeline.bulk`.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tarry.core.errors import Invalid
from tarry.pipeline.bulk import BulkStreamWriter, BulkWriter, Job
from tarry.pipeline.spark_views import HistoryStreamReader, ViewReader, reader_of, spark_schema
from tarry.pipeline.views.parts import view_of


class TarrySource(DataSource):
    """The data source named `tarry`."""

    @classmethod
    def name(cls) -> str:
        """The name of the source in `format`."""
        return "tarry"

    def schema(self) -> StructType:
        """The columns of the view; only asked for when reading."""
        return spark_schema(view_of(self.options).asked(self.options))

    # Reading

    def reader(self, schema: StructType) -> ViewReader:
        """A batch read of a view, as of this moment."""
        return reader_of(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> HistoryStreamReader:  # noqa: N802 - Spark's name
        """A stream of the history."""
        return HistoryStreamReader(dict(self.options), schema)

    # Writing

    def writer(self, schema: StructType, overwrite: bool) -> BulkWriter:
        """A batch of messages (R10)."""
        return BulkWriter(self._job(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BulkStreamWriter:  # noqa: N802 - Spark's name
        """A batch of messages for each micro-batch."""
        return BulkStreamWriter(self._job(schema, overwrite))

    def _job(self, schema: StructType, overwrite: bool) -> Job:
        if overwrite:
            raise Invalid("mode", "messages are added to those that wait: use mode append")
        return Job.of(self.options, schema.names)


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let Spark push filters into it."""
    context = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", "")
    if (context.master or "").startswith("local") and not chosen:
        # Else Spark's workers are whatever `python3` is, which may not have this package.
        context.pythonExec = sys.executable
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TarrySource)
