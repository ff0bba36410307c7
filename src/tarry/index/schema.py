"""The columns of the two Delta tables: the index of what waits, and the history of what became of it.

A row of the index is a *put* (a version that waits, with its body as it stands in the ledger) or a *del* (the key of a
version that is dead). Both are in the slot of the key that they are about (R6). The columns after the body repeat
parts of it, for people and for filters; a del has none of them.

The key of a row is `(max(fire_at_ms, floor_ms), seq + base)`. For what the pipeline writes, base and floor are zero. The
files of an adopted batch are in the table exactly as they were staged (R10), before anybody knew their seqs and their floor:
there the two partition columns say them, and the cascade writes them into the rows.
"""

from typing import Final

import pyarrow as pa
from msgspec import Struct

PUT: Final = 1
"""A scheduled version (`op`)."""
ENTRY: Final = 3
"""A delayed entry of a topic."""
DEL: Final = 0
"""The end of a version."""

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("slot", pa.string(), nullable=False),
        pa.field("base", pa.int64(), nullable=False),
        pa.field("floor_ms", pa.int64(), nullable=False),
        pa.field("fire_at_ms", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("crc", pa.int64()),
        pa.field("body", pa.binary()),
        pa.field("batch", pa.string()),
        pa.field("due_at_ms", pa.int64()),
        pa.field("accepted_at_ms", pa.int64()),
        pa.field("namespace", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("door", pa.string()),
        pa.field("key", pa.string()),
        pa.field("group", pa.string()),
        pa.field("attempts", pa.int32()),
    ]
)
"""The index. Its first three columns are partitions and therefore not in the files; files are sorted by
(fire_at_ms, seq)."""

KEY_COLUMNS: Final = ("fire_at_ms", "seq", "op", "lane")
"""Columns that the horizon reads."""

HISTORY_SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("origin_seq", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("door", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("destination", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("key", pa.string()),
        pa.field("scheduled_at_ms", pa.int64()),
        pa.field("due_at_ms", pa.int64()),
        pa.field("finalised_at_ms", pa.int64(), nullable=False),
        pa.field("lateness_ms", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("body", pa.binary()),
        pa.field("messages", pa.int64(), nullable=False),
        pa.field("batch", pa.string()),
        pa.field("version_seq", pa.int64()),
        pa.field("fire_at_ms", pa.int64()),
    ]
)
"""The history. Partitioned by `day` (UTC, of the end). `body` stays empty unless the configuration keeps bodies. A
row is one message; the cancellation of a batch is one row for all of its `messages`. `version_seq` and `fire_at_ms` are
the key of the version that ended (of a batch: the seqs of its first and last message, as `origin_seq` and `version_seq`): with them an audit can tell what was sent early from what was sent by command, also
when the ledger is gone."""

STAGED: Final = "staged"
"""The folder in the index's folder below which the files of batches are staged: `staged/<token>/…`."""


class Layout(Struct, frozen=True):
    """How a table lies on disk."""

    schema: pa.Schema
    partition: str
    """The partition column by whose values rows are divided into files."""
    ordered: str
    """The column by which files are sorted and chosen."""
    constants: tuple[str, ...] = ()
    """Further partition columns, all zero in what the pipeline writes."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns."""
        return (self.partition, *self.constants)


INDEX: Final = Layout(INDEX_SCHEMA, "slot", "fire_at_ms", ("base", "floor_ms"))
HISTORY: Final = Layout(HISTORY_SCHEMA, "day", "finalised_at_ms")
