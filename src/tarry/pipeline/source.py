"""`tarry-ledger`: the ledger as a Spark data source, batch and streaming, that yields Arrow record batches.

Options: `folder`, the ledger's folder; or `server`, the address of a server that shows its ledger, with `token_file` for its
token; or `kafka`, the addresses of the brokers that hold the ledger's log, with the options of `tarry.pipeline.kafka`. `from` and `upto` bound a batch read; `from` is where a new streaming query begins (the index's cursor decides that,
not the checkpoint). `rows` bounds a streaming batch, and `partition_rows` is about how large an input partition is; fewer
rows than `flush_rows` wait for `wait_seconds`. With `ranges` a read says only which seqs it is about, a row for each partition (`RANGES`): for
jobs whose tasks read the ledger themselves, which spares the records the way through the JVM.

Who is called where: `LedgerSource` and the readers in the driver's planner process, `read` in the executors.

A token is never an option: options stand in plans, logs and Spark's pages. The driver's planner process takes it from the file
or from the variable `TARRY_PIPELINE__TOKEN`, and it reaches the executors inside the pickled reader.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from tarry.pipeline.ledger_parts import (
    PARTITION_ROWS,
    LedgerAddress,
    SeqRange,
    planned,
    read_range,
)

SCHEMA = StructType(
    [
        StructField("seq", LongType(), False),
        StructField("kind", IntegerType(), False),
        StructField("lane", IntegerType(), False),
        StructField("crc", LongType(), False),
        StructField("fire_at_ms", LongType(), False),
        StructField("kills_seq", LongType(), False),
        StructField("kills_fire_at_ms", LongType(), False),
        StructField("body", BinaryType(), False),
    ]
)

RANGES = StructType(
    [
        StructField(name, LongType())
        for name in ("first_seq", "last_seq", "log_offset", "log_epoch", "log_seq")
    ]
)
"""A range, and the place in the ledger's log at which its reader begins, if it is read from there."""

BATCH_ROWS: Final = 2_000_000
"""Records that have piled up are taken in large batches: each costs Spark most of a second beside its rows."""
FLUSH_ROWS: Final = 500_000


def _partitions(parts: list[SeqRange]) -> list[InputPartition]:
    return [InputPartition(part) for part in parts]


def _read(options: Mapping[str, str], place: LedgerAddress, part: SeqRange) -> Iterator[pa.RecordBatch]:
    if "ranges" not in options:
        return read_range(place, part)
    said = [part.first_seq, part.last_seq, *(part.begin or (None, None, None))]
    columns = [pa.array([number], pa.int64()) for number in said]
    return iter([pa.RecordBatch.from_arrays(columns, names=RANGES.names)])


class LedgerSource(DataSource):
    """The data source that `spark.read.format("tarry-ledger")` makes."""

    @classmethod
    def name(cls) -> str:
        """The name of the source in `format`."""
        return "tarry-ledger"

    def schema(self) -> StructType:
        """The columns of `tarry.index.columns.RECORDS`, or of `RANGES`."""
        return RANGES if "ranges" in self.options else SCHEMA

    def reader(self, schema: StructType) -> "LedgerReader":
        """A batch read, up to the durable head of this moment."""
        return LedgerReader(dict(self.options))

    def streamReader(self, schema: StructType) -> "LedgerStreamReader":  # noqa: N802 - Spark's name
        """A streaming read."""
        return LedgerStreamReader(dict(self.options))


class LedgerReader(DataSourceReader):
    """One read of a range."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._place = LedgerAddress.of(options)

    def partitions(self) -> list[InputPartition]:
        """The range, divided."""
        follower = self._place.follower()
        first = int(self._options.get("from", follower.first_seq()))
        last = min(int(self._options.get("upto", 1 << 62)), follower.durable_seq())
        rows = int(self._options.get("partition_rows", PARTITION_ROWS))
        return _partitions(planned(follower, first, last, rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return _read(self._options, self._place, partition.value)


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Records as they become durable, in batches of a bounded size."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._place = LedgerAddress.of(options)
        self._upto: int | None = None
        """Where a query ends that takes what is there now."""
        self._waiting_since_s: float | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The seq before the first."""
        return {"seq": int(self._options.get("from", 1)) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How large a batch may be."""
        return ReadMaxRows(int(self._options.get("rows", BATCH_ROWS)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read up to the present durable head, and no further."""
        self._upto = self._place.follower().durable_seq()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """As far as this batch goes: at most the limit, and only when it is worth one, by size or by time."""
        begin = start["seq"]
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        if self._upto is not None:
            return {"seq": min(self._upto, begin + rows)}
        head = self._place.follower().durable_seq()
        now_s = time.monotonic()
        if head <= begin:
            self._waiting_since_s = None
            return start
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        wait_s = float(self._options.get("wait_seconds", 0))
        worth_it = min(rows, int(self._options.get("flush_rows", FLUSH_ROWS)))
        if head - begin < worth_it and now_s - self._waiting_since_s < wait_s:
            return start
        self._waiting_since_s = None
        return {"seq": min(head, begin + rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A batch, divided."""
        follower = self._place.follower()
        rows = int(self._options.get("partition_rows", PARTITION_ROWS))
        first = start["seq"] + 1
        return _partitions(planned(follower, first, end["seq"], rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return _read(self._options, self._place, partition.value)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: the index's own cursor says what is done."""
