"""The columns of the two Delta tables: the index of what waits, and the history of what became of it.

A row of the index is a *put* (a version that waits, with its body as it stands in the ledger) or a *del* (the key of a
version that is dead). Both are in the slot of the key that they are about (R6). The columns after the body repeat
parts of it, for people and for filters; a del has none of them.
"""

from typing import Final

import pyarrow as pa

PUT: Final = 1
"""A scheduled version (`op`)."""
ENTRY: Final = 3
"""A delayed entry of a topic."""
DEL: Final = 0
"""The end of a version."""

INDEX_SCHEMA: Final = pa.schema(
    [
        pa.field("slot", pa.string(), nullable=False),
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
"""The index. Partitioned by `slot`, which is therefore not in the files; files are sorted by (fire_at_ms, seq)."""

KEY_COLUMNS: Final = ("fire_at_ms", "seq", "op", "lane")
"""What the horizon reads."""

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
    ]
)
"""The history. Partitioned by `day` (UTC, of the end). `body` stays empty unless the configuration keeps bodies."""
