"""The index stream: from the ledger into the index and the history, each record once (R6).

Spark's checkpoint and batch ids are hints. What is done is what the tables say: a batch reads the index's cursor, its tasks
leave out what is covered, and its files are committed only if they begin right after the cursor and are dense. The
history is committed first, under the same check, then the index: one cursor.

Tasks write files and say which; only the driver commits. The files of a batch that was adopted (R10) are there already: they
are added as they were staged, in the commit that passes the record of the adoption.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import DataFrame

from tarry.core.errors import Conflict, Unavailable
from tarry.index.adopted import files_of
from tarry.index.columns import index_rows, seen_in, set_aside_in
from tarry.index.files import Folder, write_partitions
from tarry.index.history import history_rows
from tarry.index.schema import HISTORY, INDEX
from tarry.index.state import CommitState, Seen
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import Adopt
from tarry.pipeline.ledger_parts import LedgerAddress, records_of

log = logging.getLogger(__name__)

WRITTEN: Final = "first_seq long, last_seq long, rows long, written string"
"""The report of a task: the range it has covered, and as JSON its files and what it saw."""

FLUSH_ROWS: Final = 250_000
FLUSH_BYTES: Final = 64 << 20
"""Maximum bytes that a task holds in memory at once, of bodies above all; then it writes files, and goes on."""

ATTEMPTS: Final = 5
"""How often a batch is tried while others commit: the cascade beside it, or a second driver."""


class WrittenFiles(Struct, frozen=True):
    """The files that one task wrote, and the facts that it saw."""

    index: list[IndexFile]
    history: list[IndexFile]
    seen: Seen
    adopted: list[Adopt]
    aside: list[int]
    """Seqs of records that were set aside, and bring nothing but their seq and what they end."""


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

    def begin(self, first_seq: int) -> None:
        """A new index begins with the ledger: what lived in segments that are gone by now was carried forward (R12)."""
        began = first_seq - 1
        if self.index.cursor() or not began:
            return
        if self.history.cursor() < began:
            self.history.append([], self.history.cursor() + 1, began, self.history.state())
        self.index.append([], 1, began, msgspec.to_builtins(CommitState(began=began)))

    def refresh(self) -> None:
        """Go to the newest versions."""
        self.index.refresh()
        self.history.refresh()


class Task(Struct, frozen=True):
    """The facts that a task needs. They travel to the executors."""

    index_uri: str
    history_uri: str
    cursor: int
    history_cursor: int
    """Higher than the index's where a driver died between the two commits: the history is not written twice."""
    state: CommitState
    default_ms: int
    now_ms: int
    keep_bodies: bool
    place: LedgerAddress | None = None
    """Where the ledger is, for batches that only say which ranges they are about."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the records of one partition that the index does not cover; gives the written files. On an executor."""
        records_in = (after_seq(batch, self.cursor) for batch in records_of(self.place, batches))
        for records in gathered(records_in):
            seqs = records.column("seq")
            written = self._written(records)
            yield pa.RecordBatch.from_pydict(
                {
                    "first_seq": [seqs[0].as_py()],
                    "last_seq": [seqs[-1].as_py()],
                    "rows": [records.num_rows],
                    "written": [msgspec.json.encode(written).decode()],
                }
            )

    def _written(self, records: pa.RecordBatch) -> WrittenFiles:
        name = f"{records.column('seq')[0].as_py()}-{records.column('seq')[-1].as_py()}"
        state = self.state
        waiting = index_rows(records, self.now_ms, state.namespaces(), state.other_ms(self.default_ms))
        ended = history_rows(after_seq(records, self.history_cursor), bodies=self.keep_bodies)
        return WrittenFiles(
            write_partitions(waiting, self.index_uri, INDEX, name),
            write_partitions(ended, self.history_uri, HISTORY, name),
            *seen_in(records, state.began or 0),
            set_aside_in(records),
        )


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches put together until they are worth a flush."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= FLUSH_ROWS or size >= FLUSH_BYTES:
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def after_seq(batch: pa.RecordBatch, seq: int) -> pa.RecordBatch:
    """The records above a seq."""
    return batch.filter(pc.greater(batch.column("seq"), seq))


class IndexStream:
    """Commits batches of the ledger."""

    def __init__(
        self,
        tables: Tables,
        default_ms: int,
        *,
        keep_bodies: bool = False,
        place: LedgerAddress | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._tables = tables
        self._place = place
        self._clock = clock or now_ms
        self._default_ms = default_ms
        self._keep_bodies = keep_bodies
        self.last_commit: dict[str, Any] = {}
        """Figures of the last commit, for metrics and logs."""

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Write and commit one batch; what Structured Streaming calls for each."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._attempt(batch)
                return
            except Conflict as conflict:
                # Another driver was quicker: what it covered is left out the next time.
                if conflict.state != "raced" or attempt == ATTEMPTS:
                    raise

    def _attempt(self, batch: DataFrame) -> None:
        began = time.monotonic()
        self._tables.refresh()
        index, history = self._tables.index, self._tables.history
        state = msgspec.convert(index.state(), CommitState)
        cursor, at_ms = index.cursor(), self._clock()
        task = Task(
            index.uri,
            history.uri,
            cursor,
            history.cursor(),
            state,
            self._default_ms,
            at_ms,
            self._keep_bodies,
            self._place,
        )
        rows = batch.mapInArrow(task.write, WRITTEN).collect()
        if not rows:
            return
        rows.sort(key=lambda row: row.first_seq)
        check_dense(rows, cursor + 1)
        parts = [msgspec.json.decode(row.written, type=WrittenFiles) for row in rows]
        for seq in (seq for part in parts for seq in part.aside):
            log.warning("seq %d is set aside: it is passed over", seq)
        files = [file for part in parts for file in (*part.index, *_adopted(index.uri, part.adopted))]
        files = [msgspec.structs.replace(file, written_ms=at_ms) for file in files]
        after = state.after([part.seen for part in parts], self._default_ms, at_ms)
        last_seq = rows[-1].last_seq
        if history.cursor() < last_seq:
            ended = [file for part in parts for file in part.history]
            history.append(ended, history.cursor() + 1, last_seq, history.state())
        commit(index, files, cursor + 1, last_seq, after)
        self.last_commit = {
            "seq": last_seq,
            "rows": last_seq - cursor,
            "files": len(files),
            "took_ms": round((time.monotonic() - began) * 1000),
        }


def commit(
    index: GuardedTable, files: Sequence[IndexFile], first_seq: int, last_seq: int, state: CommitState
) -> None:
    """Commit a batch to the index, also when the cascade commits beside it."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            index.append(files, first_seq, last_seq, msgspec.to_builtins(state))
            return
        except Conflict as conflict:
            index.refresh()
            # The cascade leaves the cursor where it is, and with it the state and what is to be appended.
            if conflict.state != "raced" or attempt == ATTEMPTS or index.cursor() != first_seq - 1:
                raise


def check_dense(rows: Sequence[Any], first_seq: int) -> None:
    """Raise `Conflict` unless ranges follow each other from a seq on, each with all of its records."""
    expected = first_seq
    for row in rows:
        if row.first_seq != expected or row.last_seq - row.first_seq + 1 != row.rows:
            raise Conflict(f"the batch is not dense: seq {expected} is missing before {row.first_seq}", "gap")
        expected = row.last_seq + 1


def _adopted(uri: str, adopted: Sequence[Adopt]) -> list[IndexFile]:
    """The staged files of batches; every one must be there."""
    files: list[IndexFile] = []
    for adopt in adopted:
        staged = files_of(adopt)
        for path in Folder(uri).missing(staged):
            raise Unavailable(
                f"{path}: this staged file of the batch {adopt.name!r}, which the ledger has adopted, is missing; "
                "restore it from a backup of the tables' folder"
            )
        files += staged
    return files


def now_ms() -> int:
    """The present instant, by the driver's clock. It decides slots, and with them speed alone."""
    return time.time_ns() // 1_000_000
