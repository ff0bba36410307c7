"""`tarry index rebuild`: the index made again, from the ledger as far as it reaches back and from the old index beyond.

The new files take the place of all old ones in one guarded commit (R7): a running server follows it like any other version, and
nobody has to be stopped. Records that are indexed meanwhile stay; a cascade that comes in between makes the commit fail,
and the rebuild begins again. Old files are only read where the ledger does not reach back to: where it does, even damage
in them is undone.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import SparkSession

from tarry.core.errors import Conflict, Unavailable
from tarry.index.adopted import files_of, with_keys
from tarry.index.columns import index_rows, into_slots
from tarry.index.files import Folder, write_partitions
from tarry.index.merge import PartitionWriter
from tarry.index.schema import INDEX
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import FIRST_BATCH_SEQ
from tarry.pipeline.jobs import job_session
from tarry.pipeline.ledger_parts import PARTITION_ROWS, LedgerAddress, SeqRange, ranges, read_range
from tarry.pipeline.program import PipelineSettings
from tarry.pipeline.session import spread
from tarry.pipeline.stream import gathered, now_ms
from tarry.pipeline.verify import Comparison, Pinned, pin, verify

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3


class IndexWork:
    """An index that is open to be compared or made again, with a Spark session of its own."""

    def __init__(
        self, spark: SparkSession, table: GuardedTable, place: LedgerAddress, default_ms: int
    ) -> None:
        self._spark = spark
        self._table = table
        self._place = place
        self._default_ms = default_ms

    def verify(self) -> Comparison:
        """Compare the rebuilt index with the ledger."""
        return verify(self._spark, pin(self._table, self._place), self._place)

    def rebuild(self) -> dict[str, int]:
        """Make it again."""
        return rebuild(self._spark, self._table, self._place, self._default_ms)


@contextlib.contextmanager
def open_index(settings: PipelineSettings) -> Iterator[IndexWork]:
    """Open the index of a configuration; raises `Unavailable` where there is none."""
    place = LedgerAddress.of(settings.ledger)
    uri = f"{settings.tables.rstrip('/')}/index"
    if "://" not in uri and not os.path.isdir(os.path.join(uri, "_delta_log")):
        raise Unavailable(f"{uri}: there is no index yet; `tarry pipeline --once` makes one")
    table = GuardedTable.open(uri, INDEX, place.follower().ledger_id(), settings.storage_options or None)
    with job_session(msgspec.structs.asdict(settings), "tarry-index") as spark:
        yield IndexWork(spark, table, place, settings.slot_ms)


class RebuildTask(Struct, frozen=True):
    """The work of one task: a range of the ledger, or a file of the old index."""

    first_seq: int = 0
    last_seq: int = -1
    file: IndexFile | None = None

    @property
    def rows(self) -> int:
        """About how many rows are read."""
        return self.last_seq - self.first_seq + 1 if self.file is None else self.file.rows


class Rebuilder:
    """The facts that a task needs. They travel to the executors."""

    def __init__(self, place: LedgerAddress, pinned: Pinned, default_ms: int, at_ms: int) -> None:
        self._place = place
        self._pinned = pinned
        self._default_ms = default_ms
        self._at_ms = at_ms

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the pieces that these rows name. On an executor."""
        for batch in batches:
            for text in batch.column("piece").to_pylist():
                piece = msgspec.json.decode(text, type=RebuildTask)
                files = self._of_ledger(piece) if piece.file is None else self._of_file(piece.file)
                yield pa.RecordBatch.from_pydict({"written": [msgspec.json.encode(files).decode()]})

    def _of_ledger(self, piece: RebuildTask) -> list[IndexFile]:
        state = self._pinned.state
        files: list[IndexFile] = []
        for records in gathered(read_range(self._place, SeqRange(piece.first_seq, piece.last_seq))):
            rows = index_rows(
                records,
                self._at_ms,
                state.namespaces(),
                state.other_ms(self._default_ms),
                state.passed,
            )
            files += write_partitions(rows, self._pinned.uri, INDEX, "rebuilt")
        return files

    def _of_file(self, file: IndexFile) -> list[IndexFile]:
        """The rows of an old file that nothing else can say."""
        state = self._pinned.state
        writer = PartitionWriter(self._pinned.uri, INDEX, "rebuilt")
        for table in Folder(self._pinned.uri).read(file.path):
            rows = with_keys(table, file)
            rows = rows.filter(_only_here(self._pinned, rows.column("seq")))
            if rows.num_rows:
                slotted = into_slots(rows, self._at_ms, state.namespaces(), state.other_ms(self._default_ms))
                writer.write(slotted)
        return writer.close()


def _only_here(pinned: Pinned, seqs: Any) -> Any:
    """Which seqs only the index knows: those older than the ledger, and of batches whose staged files are gone."""
    here = pc.or_(pc.less(seqs, pinned.first_seq), pc.greater_equal(seqs, FIRST_BATCH_SEQ))
    for adopt in pinned.adopted:
        inside = pc.and_(
            pc.greater_equal(seqs, adopt.first_seq), pc.less(seqs, adopt.first_seq + adopt.count)
        )
        here = pc.and_(here, pc.invert(inside))
    return here


def pieces(pinned: Pinned, bounds: list[int]) -> list[RebuildTask]:
    """The work, divided. Old files that hold nothing of their own are not read at all."""
    todo = [
        RebuildTask(part.first_seq, part.last_seq)
        for part in ranges(pinned.first_seq, pinned.cursor, bounds, PARTITION_ROWS)
        if pinned.cursor >= pinned.first_seq
    ]
    for file in pinned.files:
        low_seq, high_seq = file.low_seq + file.base, file.high_seq + file.base
        proved = [(pinned.first_seq, FIRST_BATCH_SEQ)]
        proved += [(adopt.first_seq, adopt.first_seq + adopt.count) for adopt in pinned.adopted]
        if not any(first_seq <= low_seq and high_seq < end_seq for first_seq, end_seq in proved):
            todo.append(RebuildTask(file=file))
    return todo


def rebuild(
    spark: SparkSession, table: GuardedTable, place: LedgerAddress, default_ms: int
) -> dict[str, int]:
    """Make the index again and put it in the place of the old one. Gives figures."""
    attempts = ATTEMPTS
    while True:
        pinned = pin(table, place)
        new = _written(spark, pinned, place, default_ms)
        # A staged file that is in the index as it was staged stays there.
        staying = {file.path for file in new} & {file.path for file in pinned.files}
        old = [file for file in pinned.files if file.path not in staying]
        new = [file for file in new if file.path not in staying]
        attempts -= 1
        try:
            table.refresh()
            table.replace(old, new, table.state(), rebuilt=True)
        except Conflict as conflict:
            if not attempts:
                raise Conflict(
                    f"the pipeline changed the index while it was made again: stop it, and try again ({conflict})",
                    conflict.state,
                ) from conflict
            log.info("the index was changed meanwhile; once more")
        else:
            rows = sum(file.rows for file in new)
            return {"cursor": pinned.cursor, "old_files": len(old), "new_files": len(new), "rows": rows}


def _written(spark: SparkSession, pinned: Pinned, place: LedgerAddress, default_ms: int) -> list[IndexFile]:
    at_ms = now_ms()
    work = pieces(pinned, place.follower().bounds())
    todo = [(msgspec.json.encode(piece).decode(),) for piece in work]
    files = [file for adopt in pinned.adopted for file in files_of(adopt)]
    if todo:
        frame = spread(spark, todo, "piece string", sum(piece.rows for piece in work))
        run = Rebuilder(place, pinned, default_ms, at_ms).run
        for row in frame.mapInArrow(run, "written string").collect():
            files += msgspec.json.decode(row.written, type=list[IndexFile])
    return [msgspec.structs.replace(file, written_ms=at_ms) for file in files]
