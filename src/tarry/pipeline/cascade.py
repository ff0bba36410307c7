"""Cascade and compaction, one job (R7): a slot's files are rewritten into the slots where their rows belong now.

What comes near goes into finer slots, many small files become one, the rows of dead versions are dropped on the way, and
files below the watermark go. Only exactly the files that were read are replaced, under the table's fence; whoever
loses the race reads again later. Nothing but speed depends on any of it.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession

from tarry.core.errors import Conflict
from tarry.core.slots import parse_slot, size_for
from tarry.index.columns import into_slots
from tarry.index.files import write_partitions
from tarry.index.schema import DEL, INDEX
from tarry.index.table import GuardedTable, IndexFile
from tarry.pipeline.stream import State, now_ms

FILES_PER_SLOT: Final = 8
"""More files than this in one slot are put together."""

REWRITTEN: Final = "written string"


class Rewrite(Struct, frozen=True):
    """The files of one slot to be written anew, and the files whose dels may concern them."""

    files: list[IndexFile]
    beside: list[IndexFile]


class Plan(Struct, frozen=True):
    """What is to be done with the files of one version."""

    expired: list[IndexFile]
    """Wholly below the watermark: delivered, cancelled or carried elsewhere."""
    rewrites: list[Rewrite]


def plan(files: list[IndexFile], state: State, default_ms: int, now_ms: int) -> Plan:
    """Decide which files go and which are rewritten. Pure."""
    watermark_ms = state.watermark[0]
    expired = [file for file in files if file.high < watermark_ms]
    live = [file for file in files if file.high >= watermark_ms]
    finest_ms = min([state.granularity.get("", default_ms), *state.granularity.values()])
    by_slot: dict[str, list[IndexFile]] = defaultdict(list)
    for file in live:
        by_slot[file.partition].append(file)
    rewrites = []
    for name, members in sorted(by_slot.items(), key=lambda item: parse_slot(item[0]).start_ms):
        slot = parse_slot(name)
        # A slot is too coarse when its first row would not be put there today.
        first_ms = max(slot.start_ms, watermark_ms)
        coarse = slot.size_ms > max(finest_ms, size_for(first_ms, now_ms, finest_ms))
        if coarse or len(members) > FILES_PER_SLOT:
            low, high = min(file.low for file in members), max(file.high for file in members)
            paths = {file.path for file in members}
            beside = [
                file for file in live if file.path not in paths and file.low <= high and file.high >= low
            ]
            rewrites.append(Rewrite(members, beside))
    return Plan(expired, rewrites)


class RewriteTask(Struct, frozen=True):
    """What a task needs to know. It travels to the executors."""

    uri: str
    state: State
    default_ms: int
    now_ms: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrite the slots that these rows name. On an executor."""
        for batch in batches:
            for text in batch.column("rewrite").to_pylist():
                written = self._rewrite(msgspec.json.decode(text, type=Rewrite))
                yield pa.RecordBatch.from_pydict({"written": [msgspec.json.encode(written).decode()]})

    def _rewrite(self, rewrite: Rewrite) -> list[IndexFile]:
        rows = pa.concat_tables(self._read(file, None) for file in rewrite.files)
        op, seq, fire = (rows.column(name).to_numpy() for name in ("op", "seq", "fire_at_ms"))
        here = seq[op == DEL]
        beside = [self._read(file, ["seq", "op"]) for file in rewrite.beside]
        dead = np.concatenate(
            [
                here,
                *(table.column("seq").to_numpy()[table.column("op").to_numpy() == DEL] for table in beside),
            ]
        )
        watermark_ms, watermark_seq = self.state.watermark
        below = (fire < watermark_ms) | ((fire == watermark_ms) & (seq < watermark_seq))
        # A del whose put is dropped with it has done its work; one whose put lies elsewhere stays.
        done = (op == DEL) & np.isin(seq, seq[op != DEL])
        keep = ~below & ~done & ~((op != DEL) & np.isin(seq, dead))
        kept = rows.filter(pa.array(keep))
        if not kept.num_rows:
            return []
        granularity = {name: size for name, size in self.state.granularity.items() if name}
        default_ms = self.state.granularity.get("", self.default_ms)
        return write_partitions(
            into_slots(kept, self.now_ms, granularity, default_ms), self.uri, INDEX, "cascade"
        )

    def _read(self, file: IndexFile, columns: list[str] | None) -> pa.Table:
        path = f"{self.uri.removeprefix('file://').rstrip('/')}/{file.path}"
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            return parquet.read(columns)


def cascade(spark: SparkSession, table: GuardedTable, default_ms: int, limit: int = 64) -> dict[str, Any]:
    """One round: plan, rewrite in parallel, commit. Gives figures; a lost race gives none and harms nothing."""
    began = time.monotonic()
    table.refresh()
    state = msgspec.convert(table.state(), State)
    at_ms = now_ms()
    todo = plan(table.files(), state, default_ms, at_ms)
    rewrites = todo.rewrites[:limit]
    if not rewrites and not todo.expired:
        return {}
    new: list[IndexFile] = []
    if rewrites:
        texts = [(msgspec.json.encode(rewrite).decode(),) for rewrite in rewrites]
        frame = spark.createDataFrame(texts, "rewrite string").repartition(len(texts))
        task = RewriteTask(table.uri, state, default_ms, at_ms)
        for row in frame.mapInArrow(task.run, REWRITTEN).collect():
            new += msgspec.json.decode(row.written, type=list[IndexFile])
    old = [file for rewrite in rewrites for file in rewrite.files] + todo.expired
    try:
        table.replace(old, new, msgspec.to_builtins(state))
    except Conflict:
        return {}
    return {
        "rewritten": len(old) - len(todo.expired),
        "expired": len(todo.expired),
        "files": len(new),
        "rows": sum(file.rows for file in new),
        "took_ms": round((time.monotonic() - began) * 1000),
    }
