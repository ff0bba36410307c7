"""`tarry-ledger`: the ledger as a Spark data source, batch and streaming, that yields Arrow record batches.

Options: `folder`, the ledger's folder; or `server`, the address of a server that shows its ledger, with `token_file` for its
token. `from` and `upto` bound a batch read; `from` is where a new streaming query begins (the index's cursor decides that,
not the checkpoint). `rows` bounds a streaming batch, and `partition_rows` is about how large an input partition is; fewer
rows than `flush_rows` wait for `wait_seconds`. With `ranges` a read says only which seqs it is about, a row for each partition (`RANGES`): for
jobs whose tasks read the ledger themselves, which spares the records the way through the JVM.

Who is called where: `LedgerSource` and the readers in the driver's planner process, `read` in the executors.

A token is never an option: options stand in plans, logs and Spark's pages. The driver's planner process takes it from the file
or from the variable `TARRY_PIPELINE__TOKEN`, and it reaches the executors inside the pickled reader.
"""

import os
import time
from bisect import bisect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from tarry.core.errors import Invalid, NotFound
from tarry.index.columns import RECORDS
from tarry.ledger.follow import FolderFollower, Follower
from tarry.ledger.replay import Frame
from tarry.pipeline.remote import PATIENCE_S, ServerFollower

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

RANGES = StructType([StructField("first_seq", LongType()), StructField("last_seq", LongType())])

BATCH_ROWS: Final = 2_000_000
"""Records that have piled up are taken in large batches: each costs Spark most of a second beside its rows."""
FLUSH_ROWS: Final = 500_000
PARTITION_ROWS: Final = 250_000
TOKEN_VARIABLE: Final = "TARRY_PIPELINE__TOKEN"  # noqa: S105 - its name


class LedgerAddress:
    """Where the ledger is, and what opens it. Travels to the executors; does not show its token."""

    def __init__(self, folder: str | None, server: str | None, token: str | None = None) -> None:
        self._folder = folder
        self._server = server
        self._token = token

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "LedgerAddress":
        """The place that the options of a source name, with the token of this process or of the file that they name."""
        folder, server = options.get("folder"), options.get("server")
        if (folder is None) == (server is None):
            raise Invalid("folder", "give the source the option folder or the option server")
        if server is None:
            return cls(folder, None)
        return cls(None, server, read_token(options.get("token_file")) or os.environ.get(TOKEN_VARIABLE))

    def follower(self, patience_s: float = PATIENCE_S) -> Follower:
        """A reader of the ledger; a server that does not answer is asked again for so long."""
        if self._folder is not None:
            return FolderFollower(self._folder)
        assert self._server is not None
        return ServerFollower(self._server, self._token, patience_s)

    def __repr__(self) -> str:
        return f"LedgerAddress({self._folder or self._server})"


def read_token(file: str | None) -> str | None:
    """The token that a file holds; None without a file."""
    if file is None:
        return None
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("token_file", f"{file} cannot be read: {error}") from None


class SeqRange(InputPartition):
    """Records from one seq up to and with another."""

    def __init__(self, first_seq: int, last_seq: int) -> None:
        super().__init__((first_seq, last_seq))
        self.first_seq = first_seq
        self.last_seq = last_seq


def ranges(first_seq: int, last_seq: int, bounds: list[int], rows: int) -> list[SeqRange]:
    """A range divided evenly into parts of about so many rows, where a segment begins if that is near.

    Even parts end together: a small rest that is read by itself, because a segment ends there, leaves the other cores idle.
    """
    total = last_seq + 1 - first_seq
    if total <= 0:
        return []
    count = -(-total // rows)
    cuts = [first_seq + total * n // count for n in range(1, count)]
    starts = sorted(bounds)
    moved = [_nearest(starts, cut, rows // 8) for cut in cuts]
    edges = [first_seq, *moved, last_seq + 1]
    return [SeqRange(low, high - 1) for low, high in pairwise(edges)]


def _nearest(starts: list[int], seq: int, within: int) -> int:
    """The begin of a segment that is near a seq, or else the seq itself."""
    at = bisect(starts, seq)
    near = min(starts[max(0, at - 1) : at + 1], key=lambda start: abs(start - seq), default=seq)
    return near if abs(near - seq) <= within else seq


def bounds_of(follower: Follower, first_seq: int) -> list[int]:
    """The seqs at which segments begin; raises `NotFound` if the asked ones were reclaimed."""
    bounds = follower.bounds()
    if first_seq < bounds[0]:
        raise NotFound(f"seq {first_seq} of the ledger has been reclaimed; {bounds[0]} is the first there is")
    return bounds


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


def read_range(place: LedgerAddress, part: SeqRange) -> Iterator[pa.RecordBatch]:
    """The records of one input partition. Runs on an executor."""
    for frame in place.follower().frames(part.first_seq, part.last_seq):
        yield batch_of(frame)


def _read(options: Mapping[str, str], place: LedgerAddress, part: SeqRange) -> Iterator[pa.RecordBatch]:
    if "ranges" not in options:
        return read_range(place, part)
    said = {"first_seq": [part.first_seq], "last_seq": [part.last_seq]}
    return iter([pa.RecordBatch.from_pydict(said)])


def records_of(place: LedgerAddress | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The records that batches hold, or that the ranges in them name. Runs on an executor."""
    for batch in batches:
        if "last_seq" not in batch.schema.names:
            yield batch
            continue
        assert place is not None
        for row in batch.to_pylist():
            yield from read_range(place, SeqRange(row["first_seq"], row["last_seq"]))


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
        return list(ranges(first, last, bounds_of(follower, first), rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return _read(self._options, self._place, partition)


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
        return list(ranges(first, end["seq"], bounds_of(follower, first), rows))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Records of one partition, on an executor."""
        return _read(self._options, self._place, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: the index's own cursor says what is done."""
