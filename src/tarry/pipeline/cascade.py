"""Cascade and compaction, one job (R7): a slot's files are rewritten into the slots where their rows belong now.

What comes near goes into finer slots, many small files become one, the rows of dead versions are dropped on the way together
with the dels that ended them, and files below the watermark go. Only exactly the files that were read are replaced, under the
table's fence; whoever loses the race reads again later. Nothing but speed depends on any of it.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from tarry.core.errors import Conflict
from tarry.core.limits import DAY_MS
from tarry.core.time.times import format_day
from tarry.index.adopted import with_keys
from tarry.index.columns import into_slots
from tarry.index.files import Folder
from tarry.index.kept import HistoryState
from tarry.index.merge import PartitionWriter, merged
from tarry.index.schema import DEL, HISTORY, INDEX
from tarry.index.state import CommitState
from tarry.index.table import GuardedTable, IndexFile
from tarry.pipeline.plan import ROUND_ROWS, Rewrite, UpkeepPlan, plan, plan_history
from tarry.pipeline.session import spread
from tarry.pipeline.stream import now_ms

REWRITTEN: Final = "written string"

FEW_ROWS: Final = 50_000
FEW_BYTES: Final = 8 << 20
"""Up to this a round is done in the driver itself: quicker than the start of a job, and cheap when little goes on."""


class RewriteTask(Struct, frozen=True):
    """The facts that a task needs. They travel to the executors."""

    uri: str
    state: CommitState
    default_ms: int
    now_ms: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrite the slots that these rows name. On an executor."""
        for batch in batches:
            for text in batch.column("rewrite").to_pylist():
                written = self.rewrite(msgspec.json.decode(text, type=Rewrite))
                yield pa.RecordBatch.from_pydict({"written": [msgspec.json.encode(written).decode()]})

    def rewrite(self, rewrite: Rewrite) -> list[IndexFile]:
        """Write the rows of some files anew, without the dead; gives the new files."""
        folder = Folder(self.uri)
        dead, needed = ends(folder, rewrite)
        writer = PartitionWriter(self.uri, INDEX, "cascade")
        sources = [_rows(folder, file) for file in rewrite.files]
        for rows in merged(sources, "fire_at_ms"):
            kept = living(rows, self.state, dead, needed)
            if kept.num_rows:
                writer.write(
                    into_slots(
                        kept, self.now_ms, self.state.namespaces(), self.state.other_ms(self.default_ms)
                    )
                )
        return writer.close()


def _rows(folder: Folder, file: IndexFile) -> Iterator[pa.Table]:
    """The rows of a file under their own keys, read as they are wanted."""
    for table in folder.read(file.path):
        yield with_keys(table, file)


def ends(folder: Folder, rewrite: Rewrite) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The seqs of all dels that concern some files, and of dels in these files whose puts lie in other ones."""
    own = _seqs(folder, [file for file in rewrite.files if file.dels], dels=True)
    others = _seqs(folder, [file for file in rewrite.beside if file.dels], dels=True)
    if not len(own):
        return np.unique(others), own
    low, high = min(file.first_ms for file in rewrite.files), max(file.last_ms for file in rewrite.files)
    needed: list[NDArray[np.int64]] = []
    for file in rewrite.beside:
        if file.dels < file.rows and file.first_ms <= high and file.last_ms >= low:
            puts = _seqs(folder, [file], dels=False)
            needed.append(puts[np.isin(puts, own)])
    return np.unique(np.concatenate([own, others])), np.concatenate([np.empty(0, np.int64), *needed])


def _seqs(folder: Folder, files: Iterable[IndexFile], *, dels: bool) -> NDArray[np.int64]:
    """The seqs of the dels, or of the puts, in some files."""
    found = [np.empty(0, np.int64)]
    for file in files:
        for table in folder.read(file.path, ["fire_at_ms", "seq", "op"]):
            seqs = table.column("seq").to_numpy() + file.base
            found.append(seqs[(table.column("op").to_numpy() == DEL) == dels])
    return np.concatenate(found)


def living(
    rows: pa.Table, state: CommitState, dead: NDArray[np.int64], needed: NDArray[np.int64]
) -> pa.Table:
    """The rows that are still worth keeping: puts that nothing ended, and dels whose put lies in another file."""
    op, seq, fire = (rows.column(name).to_numpy() for name in ("op", "seq", "fire_at_ms"))
    below = state.passed.passed(fire, seq)
    is_del = op == DEL
    keep = ~below & ~state.is_cancelled(seq) & np.where(is_del, np.isin(seq, needed), ~np.isin(seq, dead))
    if is_del.any():
        # The same end twice: once is enough.
        first = np.zeros(len(seq), np.bool_)
        first[np.unique(np.where(is_del, -seq, seq), return_index=True)[1]] = True
        keep &= first
    return rows if keep.all() else rows.filter(pa.array(keep))


def cascade(
    spark: SparkSession | None, table: GuardedTable, default_ms: int, at_ms: int | None = None
) -> dict[str, Any]:
    """One round on the index: plan, rewrite, commit. Gives figures; a lost race gives none and harms nothing."""
    began = time.monotonic()
    table.refresh()
    state = msgspec.convert(table.state(), CommitState)
    at_ms = now_ms() if at_ms is None else at_ms
    todo = plan(table.files(), state, default_ms, at_ms).within(ROUND_ROWS)
    task = RewriteTask(table.uri, state, default_ms, at_ms)
    new = _rewritten(spark, task, todo.rewrites)
    new = [msgspec.structs.replace(file, written_ms=at_ms) for file in new]
    return _commit(table, todo, new, msgspec.to_builtins(state), began)


def tidy_history(table: GuardedTable, keep_ms: int) -> dict[str, Any]:
    """One round on the history: what is too old goes, small files are put together. In the driver."""
    began = time.monotonic()
    table.refresh()
    keep_from = format_day((now_ms() - keep_ms) // DAY_MS)
    todo = plan_history(table.files(), keep_from).within(ROUND_ROWS // 20)
    new = [file for rewrite in todo.rewrites for file in _history_together(table.uri, rewrite)]
    state = msgspec.convert(table.state(), HistoryState)
    return _commit(
        table, todo, new, msgspec.to_builtins(state.without(table.uri, todo.expired, keep_from)), began
    )


def _history_together(uri: str, rewrite: Rewrite) -> list[IndexFile]:
    folder = Folder(uri)
    writer = PartitionWriter(uri, HISTORY, "together")
    day = rewrite.files[0].partition
    for rows in merged([folder.read(file.path) for file in rewrite.files], "finalised_at_ms"):
        ordered = rows.sort_by([("finalised_at_ms", "ascending"), ("seq", "ascending")])
        writer.write(ordered.add_column(0, "day", pa.array([day] * rows.num_rows, pa.string())))
    return writer.close()


def _rewritten(spark: SparkSession | None, task: RewriteTask, rewrites: Sequence[Rewrite]) -> list[IndexFile]:
    rows = sum(rewrite.rows for rewrite in rewrites)
    size = sum(file.size for rewrite in rewrites for file in rewrite.files)
    if spark is None or (rows <= FEW_ROWS and size <= FEW_BYTES):
        return [file for rewrite in rewrites for file in task.rewrite(rewrite)]
    texts = [(msgspec.json.encode(rewrite).decode(),) for rewrite in rewrites]
    frame = spread(spark, texts, "rewrite string", rows)
    return [
        file
        for row in frame.mapInArrow(task.run, REWRITTEN).collect()
        for file in msgspec.json.decode(row.written, type=list[IndexFile])
    ]


def _commit(
    table: GuardedTable, todo: UpkeepPlan, new: list[IndexFile], state: dict[str, Any], began_s: float
) -> dict[str, Any]:
    old = [file for rewrite in todo.rewrites for file in rewrite.files]
    if not old and not todo.expired:
        return {}
    try:
        table.replace([*old, *todo.expired], new, state)
    except Conflict:
        return {}
    return {
        "rewritten": len(old),
        "expired": len(todo.expired),
        "files": len(new),
        "rows": sum(file.rows for file in new),
        "took_ms": round((time.monotonic() - began_s) * 1000),
    }
