"""`tarry index verify`: the index compared with what it ought to hold, version by version.

What it ought to hold follows from the ledger as far as that reaches back: every put that no record has ended, and every
message of a batch whose staged files are still there. What is older is known from the index alone; of that can be said
that it can be read, and that nothing in the ledger has ended it.

The ledger is read by the tasks themselves. The steps in between are functions from data frames to data frames.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tarry.core.errors import Unavailable
from tarry.index.adopted import files_of, with_keys
from tarry.index.files import Folder
from tarry.index.schema import DEL
from tarry.index.state import CommitState
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import FIRST_BATCH_SEQ, Adopt, Key, Kind, decode
from tarry.pipeline.ledger_parts import PARTITION_ROWS, LedgerAddress, ranges
from tarry.pipeline.session import spread

VERSIONS: Final = "seq long, fire_at_ms long, op int, crc long, kills_seq long"
"""A put (`op` is its kind), a del of the index, or a record (`op` is -1) that ends the version `kills_seq`."""
RECORD: Final = -1
SHOWN: Final = 20
"""Differences that are named one by one."""


class Pinned(Struct, frozen=True):
    """A version of the index, and how much of the ledger there is to compare it with."""

    uri: str
    cursor: int
    state: CommitState
    files: list[IndexFile]
    first_seq: int
    """The first seq that the ledger still has."""
    adopted: list[Adopt]
    """Batches whose record the ledger has and whose staged files are all there."""


class Comparison(Struct, frozen=True, kw_only=True):
    """The findings of a comparison."""

    cursor: int
    versions: int
    """Alive in the index."""
    from_ledger: int
    """Number of those that ought to be there which the ledger or staged files prove."""
    index_alone: int
    """The others: older than the ledger."""
    missing: int
    extra: int
    differing: int
    examples: list[str]

    @property
    def agrees(self) -> bool:
        """Whether there is no difference."""
        return not (self.missing or self.extra or self.differing)


def pin(table: GuardedTable, place: LedgerAddress) -> Pinned:
    """Look at the newest version of the index, and at the ledger up to its cursor."""
    table.refresh()
    follower = place.follower()
    first_seq, cursor = follower.first_seq(), table.cursor()
    if 0 < cursor < first_seq - 1:
        raise Unavailable(
            f"the index ends at seq {cursor}, but the ledger begins at {first_seq}: it is an older copy, and the records "
            "between are in neither of them; bring a newer one back"
        )
    folder = Folder(table.uri)
    adopted: list[Adopt] = []
    for frame in follower.frames(first_seq, cursor) if cursor >= first_seq else ():
        for at in np.flatnonzero(frame.fixed["kind"] == Kind.ADOPT).tolist():
            adopt = decode(frame.body(at))
            if isinstance(adopt, Adopt) and not folder.missing(files_of(adopt)):
                adopted.append(adopt)
    state = msgspec.convert(table.state(), CommitState)
    return Pinned(table.uri, cursor, state, table.files(), first_seq, adopted)


def ledger_versions(spark: SparkSession, place: LedgerAddress, first_seq: int, last_seq: int) -> DataFrame:
    """The puts and the ends that a range of the ledger holds."""
    bounds = place.follower().bounds()
    parts = [(part.first_seq, part.last_seq) for part in ranges(first_seq, last_seq, bounds, PARTITION_ROWS)]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.to_pylist():
                for frame in place.follower().frames(part["first_seq"], part["last_seq"]):
                    yield _records(frame.first_seq, frame.fixed)

    rows = last_seq - first_seq + 1
    return spread(spark, parts, "first_seq long, last_seq long", rows).mapInArrow(read, VERSIONS)


def _records(first_seq: int, fixed: Any) -> pa.RecordBatch:
    kind, fire = fixed["kind"].astype(np.int32), fixed["fire_at_ms"].astype(np.int64)
    waits = ((kind == Kind.PUT) | (kind == Kind.ENTRY)) & (fire > 0)
    chosen = np.flatnonzero(waits | (fixed["kills_seq"] > 0))
    return pa.RecordBatch.from_pydict(
        {
            "seq": pa.array(chosen + first_seq, pa.int64()),
            "fire_at_ms": pa.array(fire[chosen]),
            "op": pa.array(np.where(waits, kind, RECORD)[chosen], pa.int32()),
            "crc": pa.array(fixed["crc"][chosen].astype(np.int64)),
            "kills_seq": pa.array(fixed["kills_seq"][chosen].astype(np.int64)),
        }
    )


def file_versions(spark: SparkSession, uri: str, files: Sequence[IndexFile]) -> DataFrame:
    """The puts and dels of files of the index, by their keys."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("file").to_pylist():
                file = msgspec.json.decode(text, type=IndexFile)
                # The floor changes bodies, and with them checksums: then they are needed.
                columns = None if file.floor_ms > file.low else ["seq", "fire_at_ms", "op", "crc"]
                for table in Folder(uri).read(file.path, columns):
                    rows = with_keys(table, file).select(["seq", "fire_at_ms", "op", "crc"])
                    none = pa.nulls(rows.num_rows, pa.int64()).fill_null(0)
                    yield from rows.append_column("kills_seq", none).to_batches()

    texts = [(msgspec.json.encode(file).decode(),) for file in files]
    rows = sum(file.rows for file in files)
    return spread(spark, texts, "file string", rows).mapInArrow(read, VERSIONS)


def living(rows: DataFrame, state: CommitState) -> DataFrame:
    """The puts that no del or record among these rows, nor the watermark, nor the end of their batch has ended."""
    dead = rows.filter(sf.col("op") == DEL).select("seq")
    dead = dead.union(rows.filter(sf.col("kills_seq") > 0).select(sf.col("kills_seq").alias("seq")))
    waiting = rows.filter((sf.col("op") > DEL) & _above(state) & ~_cancelled(state))
    return waiting.join(dead, "seq", "left_anti").select("seq", "fire_at_ms", "crc")


def _above(state: CommitState) -> Column:
    passed = _below(state.passed.key)
    for ceiling in state.passed.ceilings:
        own = sf.col("seq") <= ceiling.seq
        of_batches = sf.col("seq").between(FIRST_BATCH_SEQ, ceiling.batch_seq - 1)
        passed |= (own | of_batches) & _below(ceiling.key)
    return ~passed


def _below(key: Key) -> Column:
    same = (sf.col("fire_at_ms") == key.fire_at_ms) & (sf.col("seq") < key.seq)
    return (sf.col("fire_at_ms") < key.fire_at_ms) | same


def _cancelled(state: CommitState) -> Column:
    inside = [
        sf.col("seq").between(batch.first_seq, batch.first_seq + batch.count - 1)
        & ~sf.col("seq").isin(batch.spared)
        for batch in state.cancelled
    ]
    return reduce(lambda one, other: one | other, inside, sf.lit(False))


def proved(pinned: Pinned) -> Column:
    """Whether the ledger or a staged file decides about a seq; else only the index does."""
    by_ledger = (sf.col("seq") >= pinned.first_seq) & (sf.col("seq") < FIRST_BATCH_SEQ)
    by_files = [
        sf.col("seq").between(adopt.first_seq, adopt.first_seq + adopt.count - 1) for adopt in pinned.adopted
    ]
    return reduce(lambda one, other: one | other, by_files, by_ledger)


def compared(found: DataFrame, expected: DataFrame) -> DataFrame:
    """Both side by side: with `found_*` and `expected_*`, of which either may be missing, and whether it `differs`."""
    left = found.select("seq", sf.col("fire_at_ms").alias("found_ms"), sf.col("crc").alias("found_crc"))
    right = expected.select(
        "seq", sf.col("fire_at_ms").alias("expected_ms"), sf.col("crc").alias("expected_crc")
    )
    same = sf.col("found_ms").eqNullSafe(sf.col("expected_ms")) & sf.col("found_crc").eqNullSafe(
        sf.col("expected_crc")
    )
    return left.join(right, "seq", "full_outer").withColumn("differs", ~same)


def verify(spark: SparkSession, pinned: Pinned, place: LedgerAddress) -> Comparison:
    """Compare a version of the index with the ledger."""
    indexed = file_versions(spark, pinned.uri, pinned.files)
    sources = [indexed.filter(~proved(pinned))]
    if pinned.cursor >= pinned.first_seq:
        sources.append(ledger_versions(spark, place, pinned.first_seq, pinned.cursor))
    staged = [file for adopt in pinned.adopted for file in files_of(adopt)]
    if staged:
        sources.append(file_versions(spark, pinned.uri, staged))
    expected = living(reduce(DataFrame.union, sources), pinned.state)
    both = compared(living(indexed, pinned.state), expected)
    if aside := place.follower().set_aside():
        # The index may have read them before they were set aside.
        both = both.filter(~sf.col("seq").isin(*aside))
    is_found, is_expected = sf.col("found_ms").isNotNull(), sf.col("expected_ms").isNotNull()
    counts = both.agg(
        sf.count_if(is_found).alias("versions"),
        sf.count_if(is_expected & proved(pinned)).alias("from_ledger"),
        sf.count_if(is_expected & ~proved(pinned)).alias("index_alone"),
        sf.count_if(~is_found).alias("missing"),
        sf.count_if(~is_expected).alias("extra"),
        sf.count_if(is_found & is_expected & sf.col("differs")).alias("differing"),
    ).collect()[0]
    examples: list[str] = []
    if counts.missing or counts.extra or counts.differing:
        examples = [_told(row) for row in both.filter("differs").orderBy("seq").limit(SHOWN).collect()]
    return Comparison(cursor=pinned.cursor, examples=examples, **counts.asDict())


def _told(row: Any) -> str:
    if row.found_ms is None:
        return f"seq {row.seq}, which fires at {row.expected_ms}, is missing in the index"
    if row.expected_ms is None:
        return f"seq {row.seq}, which fires at {row.found_ms}, is in the index although it has ended"
    return (
        f"seq {row.seq}: the index says {row.found_ms} and another checksum or instant than {row.expected_ms}"
    )
