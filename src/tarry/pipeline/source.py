"""`tarry-ledger`: the ledger as a Spark data source, batch and streaming, that yields Arrow record batches.

Options: `folder`, the ledger's folder. `from` and `upto` bound a batch read; `from` is where a new streaming query begins (the
index's cursor decides that, not the checkpoint). `rows` bounds a streaming batch and `partition_rows` an input partition;
fewer rows than `rows` wait for `wait_seconds`.

Who is called where: `LedgerSource` and `LedgerStreamReader` in the driver's planner process, `read` in the executors.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from tarry.index.columns import RECORDS
from tarry.ledger.follow import Follower
from tarry.ledger.replay import Frame

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

BATCH_ROWS = 500_000
PARTITION_ROWS = 250_000


class Range(InputPartition):
    """Records from one seq up to and with another."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__((first_seq, last_seq))
        self.first_seq = first_seq
        self.last_seq = last_seq


def ranges(first_seq: int, last_seq: int, bounds: list[int], rows: int) -> list[Range]:
    """A range divided at segment bounds and then by size."""
    cuts = sorted({first_seq, *(bound for bound in bounds if first_seq < bound <= last_seq)})
    found: list[Range] = []
    for low, high in zip(cuts, [*cuts[1:], last_seq + 1], strict=True):
        found += [Range(at, min(at + rows, high) - 1) for at in range(low, high, rows)]
    return found


def batch_of(frame: Frame) -> pa.RecordBatch:
    """The records of a frame as columns; bodies are not copied one by one."""
    fixed = frame.fixed
    sizes = np.concatenate([[0], np.cumsum(fixed["size"], dtype=np.int64)]).astype(np.int32)
    bodies = pa.Array.from_buffers(
        pa.binary(), frame.count, [None, pa.py_buffer(sizes.tobytes()), pa.py_buffer(frame.bodies)]
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(frame.first_seq, frame.first_seq + frame.count, dtype=np.int64)),
            pa.array(fixed["kind"].astype(np.int32)),
            pa.array(fixed["lane"].astype(np.int32)),
            pa.array(fixed["crc"].astype(np.int64)),
            pa.array(fixed["fire_at_ms"].astype(np.int64)),
            pa.array(fixed["kills_seq"].astype(np.int64)),
            pa.array(fixed["kills_fire_at_ms"].astype(np.int64)),
            bodies,
        ],
        schema=RECORDS,
    )


def read_range(options: dict[str, str], part: Range) -> Iterator[pa.RecordBatch]:
    """The records of one input partition. Runs on an executor."""
    for frame in Follower(options["folder"]).frames(part.first_seq, part.last_seq):
        yield batch_of(frame)


class LedgerSource(DataSource):
    """The data source that `spark.read.format("tarry-ledger")` makes."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "tarry-ledger"

    def schema(self) -> StructType:
        """The columns of `tarry.index.columns.RECORDS`."""
        return SCHEMA

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

    def partitions(self) -> list[InputPartition]:
        """The range, divided."""
        follower = Follower(self._options["folder"])
        first = max(int(self._options.get("from", 1)), follower.first_seq())
        last = min(int(self._options.get("upto", 1 << 62)), follower.head().seq)
        rows = int(self._options.get("partition_rows", PARTITION_ROWS))
        return list(ranges(first, last, follower.bounds(), rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return read_range(self._options, partition)


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Records as they become durable, in batches of a bounded size."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
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
        """Take what is durable at this moment, and no more."""
        self._upto = Follower(self._options["folder"]).head().seq

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        """As far as this batch goes: at most the limit, and only when it is worth one, by size or by time."""
        begin = start["seq"]
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
        if self._upto is not None:
            return {"seq": min(self._upto, begin + rows)}
        head = Follower(self._options["folder"]).head().seq
        now_s = time.monotonic()
        if head <= begin:
            self._waiting_since_s = None
            return start
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        wait_s = float(self._options.get("wait_seconds", 0))
        if head - begin < rows and now_s - self._waiting_since_s < wait_s:
            return start
        self._waiting_since_s = None
        return {"seq": min(head, begin + rows)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """A batch, divided."""
        follower = Follower(self._options["folder"])
        rows = int(self._options.get("partition_rows", PARTITION_ROWS))
        return list(ranges(start["seq"] + 1, end["seq"], follower.bounds(), rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return read_range(self._options, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: the index's own cursor says what is done."""
