"""The view `history`: what became of each message that has ended, as of the durable head.

It is the history table, and with the records above its cursor what they end. As a stream it is the table alone, by seq: each
row once, whatever is done to its files.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from tarry.core.errors import Damage, Unavailable
from tarry.index.files import Folder
from tarry.index.history import history_rows
from tarry.index.table import IndexFile
from tarry.pipeline.ledger_parts import PARTITION_ROWS, SeqRange, ranges, read_range
from tarry.pipeline.views.filters import Wanted
from tarry.pipeline.views.masking import masked_address
from tarry.pipeline.views.place import (
    LedgerPart,
    TableState,
    Whereabouts,
    table_state,
    tail_of,
)
from tarry.pipeline.views.shape import DataView, shaped

HISTORY_VIEW: Final = DataView(
    "history",
    "seq long not null, origin_seq long not null, outcome string not null, reason string, door string,"
    " namespace string, destination string, owner string, key string, scheduled_at timestamp, scheduled_at_ms long,"
    " due_at timestamp, due_at_ms long, finalised_at timestamp not null, finalised_at_ms long not null,"
    " lateness_ms long, attempts int, messages long not null, batch string, version_seq long, fire_at_ms long,"
    " day string not null",
    "payload binary",
)


class HistoryFile(Struct, frozen=True):
    """One file of the table."""

    uri: str
    path: str
    day: str
    size_bytes: int


class History(Struct, frozen=True):
    """The facts that every part needs. They travel to the executors."""

    schema: pa.Schema
    wanted: Wanted

    def read(self, part: HistoryFile | LedgerPart) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        tables = self._file(part) if isinstance(part, HistoryFile) else self._tail(part)
        for rows in tables:
            if (found := self.wanted.rows(rows)).num_rows:
                yield self._batch(found)

    def _tail(self, part: LedgerPart) -> Iterator[pa.Table]:
        for records in read_range(part.ledger, SeqRange(part.first_seq, part.last_seq)):
            yield history_rows(records, bodies="payload" in self.schema.names)

    def _file(self, part: HistoryFile) -> Iterator[pa.Table]:
        folder = Folder(part.uri)
        path = folder.path(part.path)
        try:
            with pq.ParquetFile(path, filesystem=folder.filesystem, page_checksum_verification=True) as file:
                for number in self.wanted.row_groups(file):
                    rows = file.read_row_group(number)
                    yield rows.append_column("day", pa.array([part.day] * rows.num_rows))
        except FileNotFoundError:
            raise Unavailable(f"{path} was replaced while it was read; read again") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise Damage(path, 0, str(error)) from error

    def _batch(self, rows: pa.Table) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: rows.column(name) for name in rows.column_names if name != "body"}
        columns["destination"] = [masked_address(one) for one in rows.column("destination").to_pylist()]
        columns["payload"] = rows.column("body")
        return shaped(columns, self.schema, rows.num_rows)


def plan(place: Whereabouts, wanted: Wanted) -> list[HistoryFile | LedgerPart]:
    """The parts that can hold wanted rows."""
    table = table_state(place, "history") or TableState("", 0, 0, {}, [])
    parts: list[HistoryFile | LedgerPart] = [*files_of(table, wanted)]
    tail = tail_of(place, table.cursor)
    if place.ledger is not None and tail.head >= tail.first_seq:
        parts += [
            LedgerPart(place.ledger, part.first_seq, part.last_seq)
            for part in ranges(tail.first_seq, tail.head, [], PARTITION_ROWS)
        ]
    return parts


def files_of(table: TableState, wanted: Wanted) -> list[HistoryFile]:
    """The files of a table that can hold wanted rows."""
    return [
        HistoryFile(table.uri, file.path, file.partition, file.size)
        for file in table.files
        if _may_match(file, wanted)
    ]


def _may_match(file: IndexFile, wanted: Wanted) -> bool:
    if not wanted.overlaps("finalised_at_ms", file.low, file.high):
        return False
    if file.partition not in wanted.values.get("day", [file.partition]):
        return False
    return wanted.overlaps("seq", file.low_seq, file.high_seq)
