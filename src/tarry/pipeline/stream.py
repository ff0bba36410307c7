"""The index stream: from the ledger into the index and the history, each record once (R6).

Spark's checkpoint and batch ids are hints. What is done is what the tables say: a batch reads the index's cursor, its tasks
leave out what is covered, and its files are committed only if they begin right after the cursor and are dense. The
history is committed first, under the same check, then the index: one cursor.

Tasks write files and say which; only the driver commits.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from tarry.core.errors import Conflict
from tarry.index.columns import history_rows, index_rows
from tarry.index.files import write_partitions
from tarry.index.schema import HISTORY, INDEX
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import Key, Kind, Mark, PolicySet, decode

WRITTEN: Final = "first_seq long, last_seq long, rows long, written string"
"""What a task says: the range it has covered, and as JSON its files and what it saw."""


class Written(Struct, frozen=True):
    """What one task wrote and saw."""

    index: list[IndexFile]
    history: list[IndexFile]
    watermark: tuple[int, int]
    policies: list[tuple[str, str, int | None]]
    """Granularities that were set or removed: scope, name, slot_ms."""


class State(Struct, frozen=True):
    """The pipeline's own small state, carried from commit to commit."""

    watermark: tuple[int, int] = (0, 0)
    granularity: dict[str, int] = {}
    """By namespace; that of the broker stands under the empty name."""


class Tables(Struct, frozen=True):
    """The two tables."""

    index: GuardedTable
    history: GuardedTable

    @classmethod
    def open(cls, uri: str, ledger_id: bytes, options: dict[str, str] | None = None) -> "Tables":
        """Open both below one folder or address."""
        root = uri.rstrip("/")
        return cls(
            GuardedTable.open(f"{root}/index", INDEX, ledger_id, options),
            GuardedTable.open(f"{root}/history", HISTORY, ledger_id, options),
        )

    def refresh(self) -> None:
        """Go to the newest versions."""
        self.index.refresh()
        self.history.refresh()


class Task(Struct, frozen=True):
    """What a task needs to know. It travels to the executors."""

    index_uri: str
    history_uri: str
    cursor: int
    history_cursor: int
    """Higher than the index's where a driver died between the two commits: the history is not written twice."""
    state: State
    default_ms: int
    now_ms: int
    keep_bodies: bool

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the records of one partition that are not covered, and say what was written. On an executor."""
        parts = [part for batch in batches if (part := self._after(batch, self.cursor)).num_rows]
        if not parts:
            return
        records = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        seqs = records.column("seq")
        first_seq, last_seq = seqs[0].as_py(), seqs[-1].as_py()
        name = f"{first_seq}-{last_seq}"
        watermark = Key(*self.state.watermark)
        granularity = {name: size for name, size in self.state.granularity.items() if name}
        default_ms = self.state.granularity.get("", self.default_ms)
        written = Written(
            write_partitions(
                index_rows(records, watermark, self.now_ms, granularity, default_ms),
                self.index_uri, INDEX, name,
            ),
            write_partitions(
                history_rows(self._after(records, self.history_cursor), bodies=self.keep_bodies).sort_by("day"),
                self.history_uri, HISTORY, name,
            ),
            *_seen(records),
        )  # fmt: skip
        yield pa.RecordBatch.from_pydict(
            {
                "first_seq": [first_seq],
                "last_seq": [last_seq],
                "rows": [records.num_rows],
                "written": [msgspec.json.encode(written).decode()],
            }
        )

    @staticmethod
    def _after(batch: pa.RecordBatch, seq: int) -> pa.RecordBatch:
        return batch.filter(pc.greater(batch.column("seq"), seq))


def _seen(records: pa.RecordBatch) -> tuple[tuple[int, int], list[tuple[str, str, int | None]]]:
    """The highest watermark and the granularities among some records."""
    kinds = records.column("kind").to_numpy()
    watermark = (0, 0)
    policies: list[tuple[str, str, int | None]] = []
    for row in ((kinds == Kind.MARK) | (kinds == Kind.POLICY)).nonzero()[0].tolist():
        record = decode(records.column("body")[row].as_py())
        if isinstance(record, Mark):
            watermark = max(watermark, (record.watermark.fire_at_ms, record.watermark.seq))
        elif isinstance(record, PolicySet) and record.scope in ("broker", "namespace"):
            size = None if record.policy is None else record.policy.get("slot_ms")
            policies.append((record.scope, record.name, None if size is None else int(size)))
    return watermark, policies


class IndexStream:
    """Commits batches of the ledger."""

    def __init__(self, tables: Tables, default_ms: int, *, keep_bodies: bool = False) -> None:
        self._tables = tables
        self._default_ms = default_ms
        self._keep_bodies = keep_bodies
        self.last_commit: dict[str, Any] = {}
        """Figures of the last commit, for metrics and logs."""

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Write and commit one batch; what Structured Streaming calls for each."""
        began = time.monotonic()
        self._tables.refresh()
        index, history = self._tables.index, self._tables.history
        state = msgspec.convert(index.state(), State)
        cursor = index.cursor()
        task = Task(
            index.uri,
            history.uri,
            cursor,
            history.cursor(),
            state,
            self._default_ms,
            now_ms(),
            self._keep_bodies,
        )
        rows = batch.mapInArrow(task.write, WRITTEN).collect()
        if not rows:
            return
        rows.sort(key=lambda row: row.first_seq)
        expected = cursor + 1
        for row in rows:
            if row.first_seq != expected or row.last_seq - row.first_seq + 1 != row.rows:
                raise Conflict(
                    f"the batch is not dense: seq {expected} is missing before {row.first_seq}", "gap"
                )
            expected = row.last_seq + 1
        written = [msgspec.json.decode(row.written, type=Written) for row in rows]
        after = _after(state, written)
        body = msgspec.to_builtins(after)
        last_seq = rows[-1].last_seq
        ended = [file for part in written for file in part.history]
        if history.cursor() < last_seq:
            history.append(ended, history.cursor() + 1, last_seq, {})
        index.append([file for part in written for file in part.index], cursor + 1, last_seq, body)
        self.last_commit = {
            "seq": last_seq,
            "rows": last_seq - cursor,
            "files": sum(len(part.index) for part in written),
            "took_ms": round((time.monotonic() - began) * 1000),
        }


def now_ms() -> int:
    """The present instant, by the driver's clock. It decides slots, and with them speed alone."""
    return time.time_ns() // 1_000_000


def _after(state: State, written: list[Written]) -> State:
    watermark = max([state.watermark, *(part.watermark for part in written)])
    granularity = dict(state.granularity)
    for part in written:
        for scope, name, size in part.policies:
            key = "" if scope == "broker" else name
            if size is None:
                granularity.pop(key, None)
            else:
                granularity[key] = size
    return State(watermark, granularity)
