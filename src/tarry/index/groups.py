"""The row groups of a file, said once more, with a checksum.

Parquet protects its pages by checksums but not its footer, and the footer's statistics say which row groups are worth
reading: one flipped bit there would hide messages. So each file carries a small table of its row groups, and readers go
by that (R3).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tarry.core.errors import Damage

GROUPS: Final = "tarry.groups"
"""The key of the file's metadata under which the table stands."""


class Group(NamedTuple):
    """A row group: how many rows it has, and the lowest and highest value of the ordered column."""

    rows: int
    low: int
    high: int


def groups_of(rows: pa.Table, ordered: str, group_rows: int) -> Iterator[Group]:
    """The row groups that rows become when so many are written together."""
    for start in range(0, rows.num_rows, group_rows):
        part = rows.column(ordered).slice(start, group_rows)
        span = pc.min_max(part)
        yield Group(len(part), span["min"].as_py(), span["max"].as_py())


def written(groups: Sequence[Group]) -> dict[str, str]:
    """The table as metadata of a file."""
    text = ";".join(f"{group.rows},{group.low},{group.high}" for group in groups)
    return {GROUPS: f"{google_crc32c.value(text.encode()):08x}:{text}"}


def read_groups(parquet: pq.ParquetFile, path: str) -> list[Group]:
    """The table of an open file; raises `Damage` if it is not what was written."""
    stored = (parquet.metadata.metadata or {}).get(GROUPS.encode(), b"")
    crc, _, text = stored.partition(b":")
    if not text or crc != b"%08x" % google_crc32c.value(text):
        raise Damage(path, 0, "the table of its row groups is missing or does not match its checksum")
    groups = [Group(*map(int, one.split(b","))) for one in text.split(b";")]
    if len(groups) != parquet.metadata.num_row_groups:
        raise Damage(path, 0, f"it should have {len(groups)} row groups")
    return groups
