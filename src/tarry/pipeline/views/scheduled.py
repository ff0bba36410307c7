"""The view `scheduled`: what waits, as of the durable head.

It is the index's puts, without those that a del, the cancellation of their batch, the deletion of their topic or the watermark
has ended, and with the records above the index's cursor applied: its puts, its ends, the files of its adopted batches.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Damage, Unavailable
from tarry.index.adopted import files_of
from tarry.index.columns import index_rows
from tarry.index.files import Folder
from tarry.index.schema import DEL, ENTRY, INDEX_SCHEMA
from tarry.index.state import CommitState
from tarry.index.table import IndexFile
from tarry.ledger.read_record import PutHead, decode_heads
from tarry.ledger.record import Entry, Key, Put, decode, decode_entry
from tarry.ledger.watermark import Watermark
from tarry.pipeline.ledger_parts import PARTITION_ROWS, SeqRange, ranges, read_range
from tarry.pipeline.views.filters import Wanted
from tarry.pipeline.views.masking import masked_address, masked_headers
from tarry.pipeline.views.place import (
    LedgerPart,
    TableState,
    Whereabouts,
    table_state,
    tail_of,
)
from tarry.pipeline.views.shape import DataView, shaped

SCHEDULED: Final = DataView(
    "scheduled",
    "seq long not null, due_at timestamp, due_at_ms long, fire_at timestamp not null, fire_at_ms long not null,"
    " accepted_at timestamp, accepted_at_ms long, namespace string, destination string, owner string, door string,"
    " key string, group string, attempts int, batch string, entry boolean not null,"
    " as_of timestamp not null, as_of_seq long not null",
    "payload binary, headers map<string,string>",
    "origin_seq long, origin_fire_at_ms long",
)

_STORED: Final = (
    "fire_at_ms", "seq", "op", "due_at_ms", "accepted_at_ms", "namespace", "destination", "owner", "door", "key",
    "group", "attempts", "batch",
)  # fmt: skip
_ORIGIN: Final = frozenset({"origin_seq", "origin_fire_at_ms"})
_IN_BODY: Final = frozenset({"payload", "headers"}) | _ORIGIN


class EndedVersions(Struct, frozen=True):
    """The ended versions, as far as one part of the view needs to know them."""

    seqs: NDArray[np.int64]
    passed: Watermark
    batches: list[tuple[int, int, list[int]]]
    """Cancelled: first seq, count, and the seqs that were spared because they were being sent."""
    topics: dict[str, int]
    """Deleted: name and the seq of the deletion."""

    def waits(
        self, fire: NDArray[np.int64], seq: NDArray[np.int64], op: NDArray[Any], destination: Any
    ) -> NDArray[np.bool_]:
        """Which rows still wait."""
        keep: NDArray[np.bool_] = (op != DEL) & ~np.isin(seq, self.seqs) & ~self.passed.passed(fire, seq)
        for first, count, spared in self.batches:
            keep &= (seq < first) | (seq >= first + count) | np.isin(seq, spared)
        for at in np.flatnonzero(keep & (op == ENTRY)).tolist() if self.topics else ():
            keep[at] = seq[at] > self.topics.get(destination[at].as_py(), 0)
        return keep


class FilePart(Struct, frozen=True):
    """One file of the index, and those beside it whose dels may concern it."""

    uri: str
    file: IndexFile
    beside: list[IndexFile]
    ended: EndedVersions

    @property
    def size_bytes(self) -> int:
        """The cost of reading it, about."""
        return self.file.size


class TailPart(LedgerPart, frozen=True):
    """A range of the ledger above the cursor."""

    ended: EndedVersions


class ScheduledViewFacts(Struct, frozen=True):
    """The facts that every part needs. They travel to the executors."""

    schema: pa.Schema
    wanted: Wanted
    as_of_seq: int
    as_of_ms: int

    def read(self, part: FilePart | TailPart) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        tables = self._file(part) if isinstance(part, FilePart) else self._tail(part)
        for rows in tables:
            if (found := self.wanted.rows(rows)).num_rows:
                yield self._batch(found)

    def _tail(self, part: TailPart) -> Iterator[pa.Table]:
        for records in read_range(part.ledger, SeqRange(part.first_seq, part.last_seq)):
            # Slots do not matter here.
            rows = index_rows(records, 0, {}, 1)
            yield _waiting(rows, part.ended, 0, 0)

    def _file(self, part: FilePart) -> Iterator[pa.Table]:
        ended = with_dels(part)
        columns = [*_STORED, "body"] if _IN_BODY & set(self.schema.names) else list(_STORED)
        with _open(part.uri, part.file) as file:
            for number in self.wanted.row_groups(file, part.file.base, part.file.floor_ms):
                rows = _read(file, number, columns, part)
                yield _waiting(rows, ended, part.file.base, part.file.floor_ms)

    def _batch(self, rows: pa.Table) -> pa.RecordBatch:
        columns: dict[str, Any] = {name: rows.column(name) for name in rows.column_names if name != "body"}
        columns["entry"] = pa.array(rows.column("op").to_numpy() == ENTRY)
        columns["destination"] = [masked_address(one) for one in rows.column("destination").to_pylist()]
        columns["as_of_ms"] = pa.array(np.full(rows.num_rows, self.as_of_ms))
        columns["as_of_seq"] = pa.array(np.full(rows.num_rows, self.as_of_seq))
        asked = _IN_BODY & set(self.schema.names)
        if asked and asked <= _ORIGIN:
            columns |= _origins(rows)
        elif asked:
            columns |= _in_bodies(rows)
        return shaped(columns, self.schema, rows.num_rows)


def _waiting(rows: pa.Table, ended: EndedVersions, base: int, floor_ms: int) -> pa.Table:
    """The rows that wait, with their keys as they are."""
    fire = np.maximum(rows.column("fire_at_ms").to_numpy(), floor_ms)
    seq = rows.column("seq").to_numpy() + base
    keep = ended.waits(fire, seq, rows.column("op").to_numpy(), rows.column("destination"))
    for name, values in (("fire_at_ms", fire), ("seq", seq)):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
    return rows.filter(pa.array(keep))


def _origins(rows: pa.Table) -> dict[str, NDArray[np.int64]]:
    """The keys of the first versions, from bodies: of a message the beginning is enough."""
    origins: NDArray[np.int64] = rows.column("seq").to_numpy().copy()
    fires: NDArray[np.int64] = rows.column("fire_at_ms").to_numpy().copy()
    entry = rows.column("op").to_numpy() == ENTRY
    puts, entries = (rows.filter(pa.array(chosen)).column("body").to_pylist() for chosen in (~entry, entry))
    records: list[PutHead | Entry] = [*decode_heads(puts), *map(decode_entry, entries)]
    places = np.concatenate([np.flatnonzero(~entry), np.flatnonzero(entry)])
    for at, record in zip(places.tolist(), records, strict=True):
        if record.origin is not None:
            fires[at], origins[at] = record.origin
    return {"origin_seq": origins, "origin_fire_at_ms": fires}


def _in_bodies(rows: pa.Table) -> dict[str, list[Any]]:
    payloads: list[bytes] = []
    headers: list[list[tuple[str, str]]] = []
    origins: list[Key] = []
    names = ("fire_at_ms", "seq", "body")
    for fire_at_ms, seq, body in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        record = decode(body)
        assert isinstance(record, Put | Entry)
        payloads.append(record.payload)
        headers.append(list(masked_headers(record.headers).items()))
        origins.append(record.origin or Key(fire_at_ms, seq))
    return {
        "payload": payloads,
        "headers": headers,
        "origin_seq": [origin.seq for origin in origins],
        "origin_fire_at_ms": [origin.fire_at_ms for origin in origins],
    }


def with_dels(part: FilePart) -> EndedVersions:
    """The ended versions, with the dels of the index that lie in a file's range of fire instants."""
    dels = Wanted({"fire_at_ms": (part.file.first_ms, part.file.last_ms), "op": (DEL, DEL)})
    found = [part.ended.seqs]
    for beside in part.beside:
        with _open(part.uri, beside) as file:
            for number in dels.row_groups(file):
                rows = dels.rows(_read(file, number, ["seq", "op", "fire_at_ms"], part))
                found.append(rows.column("seq").to_numpy())
    ended = part.ended
    return EndedVersions(np.concatenate(found), ended.passed, ended.batches, ended.topics)


def _open(uri: str, file: IndexFile) -> pq.ParquetFile:
    folder = Folder(uri)
    path = folder.path(file.path)
    try:
        return pq.ParquetFile(path, filesystem=folder.filesystem, page_checksum_verification=True)
    except FileNotFoundError:
        raise Unavailable(f"{path} was replaced while it was read; read again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise Damage(path, 0, str(error)) from error


def _read(file: pq.ParquetFile, number: int, columns: Sequence[str], part: FilePart) -> pa.Table:
    """The rows of a row group; a column that the file has not got is null."""
    try:
        rows = file.read_row_group(
            number, columns=[name for name in columns if name in file.schema_arrow.names]
        )
        for name in columns:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, INDEX_SCHEMA.field(name).type))
        return rows
    except (pa.ArrowInvalid, OSError) as error:
        raise Damage(f"{part.uri}/{part.file.path}", 0, str(error)) from error


def plan(place: Whereabouts, wanted: Wanted) -> tuple[list[FilePart | TailPart], int]:
    """The parts that can hold wanted rows, and the seq as of which they are."""
    index = table_state(place, "index") or TableState("", 0, 0, {}, [])
    tail = tail_of(place, index.cursor, msgspec.convert(index.state, CommitState).passed)
    batches = [
        (one.first_seq, one.count, [spared.key.seq for spared in one.spared]) for one in tail.cancelled
    ]
    batches += [(one[0], one[1], one[3] if len(one) > 3 else []) for one in index.state.get("cancelled", ())]
    parts: list[FilePart | TailPart] = []
    files = [*index.files, *(file for batch in tail.adopted for file in files_of(batch))]
    for file in files:
        if file.last_ms < tail.passed.key.fire_at_ms or not _may_match(file, wanted):
            continue
        beside = [
            one for one in index.files if one.dels and one.low <= file.last_ms and one.high >= file.first_ms
        ]
        near = (tail.kills_fire_at_ms >= file.first_ms) & (tail.kills_fire_at_ms <= file.last_ms)
        ended = EndedVersions(tail.kills_seq[near], tail.passed, batches, tail.deleted)
        parts.append(FilePart(index.uri or f"{place.tables}/index", file, beside, ended))
    if place.ledger is not None:
        for part in (
            ranges(tail.first_seq, tail.head, [], PARTITION_ROWS) if tail.head >= tail.first_seq else ()
        ):
            near = (tail.kills_seq >= part.first_seq) & (tail.kills_seq <= part.last_seq)
            ended = EndedVersions(tail.kills_seq[near], tail.passed, batches, tail.deleted)
            parts.append(TailPart(place.ledger, part.first_seq, part.last_seq, ended))
    return parts, tail.head


def _may_match(file: IndexFile, wanted: Wanted) -> bool:
    # Nothing fires before it is due, but by command.
    return wanted.overlaps("fire_at_ms", file.first_ms, file.last_ms)
