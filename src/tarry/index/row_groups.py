"""The row groups of a file, said once more, with a checksum.

Parquet protects its pages by checksums but not its footer, and the footer's statistics say which row groups are worth
reading: one flipped bit there would hide messages. So each file carries a small table of its row groups, and readers go
by that (R3).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tarry.core.errors import Damage
from tarry.index.schema import DEL
from tarry.ledger.lanes import DOORS, doors_of

GROUPS: Final = "tarry.groups"
"""The key of the file's metadata under which the table stands."""


class RowGroup(NamedTuple):
    """A row group: how many rows it has, and the lowest and highest value of the ordered column."""

    rows: int
    low: int
    high: int
    doors: tuple[int, ...] = ()
    """How many of its versions wait, by door (`tarry.ledger.lanes`): what is coming is counted without reading rows."""


def groups_of(rows: pa.Table, ordered: str, group_rows: int) -> Iterator[RowGroup]:
    """The row groups that rows become when so many are written together."""
    for start in range(0, rows.num_rows, group_rows):
        part = rows.slice(start, group_rows)
        span = pc.min_max(part.column(ordered))
        yield RowGroup(part.num_rows, span["min"].as_py(), span["max"].as_py(), _doors(part))


def _doors(rows: pa.Table) -> tuple[int, ...]:
    if "lane" not in rows.column_names:
        return ()
    waiting = rows.column("op").to_numpy() != DEL
    doors = doors_of(rows.column("lane").to_numpy()[waiting])
    return tuple(np.bincount(doors, minlength=len(DOORS)).tolist())


def written(groups: Sequence[RowGroup]) -> dict[str, str]:
    """The table as metadata of a file."""
    text = ";".join(",".join(map(str, (group.rows, group.low, group.high, *group.doors))) for group in groups)
    return {GROUPS: f"{google_crc32c.value(text.encode()):08x}:{text}"}


def read_groups(parquet: pq.ParquetFile, path: str) -> list[RowGroup]:
    """The table of an open file; raises `Damage` if its bytes are damaged."""
    stored = (parquet.metadata.metadata or {}).get(GROUPS.encode(), b"")
    crc, _, text = stored.partition(b":")
    if not text or crc != b"%08x" % google_crc32c.value(text):
        raise Damage(path, 0, "the table of its row groups is missing or does not match its checksum")
    numbers = [list(map(int, one.split(b","))) for one in text.split(b";")]
    groups = [RowGroup(rows, low, high, tuple(doors)) for rows, low, high, *doors in numbers]
    if len(groups) != parquet.metadata.num_row_groups:
        raise Damage(path, 0, f"the file should have {len(groups)} row groups")
    return groups
