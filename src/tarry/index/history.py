"""From records of the ledger to rows of the history: one for each message that they finalise."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.msgpack import Decoder

from tarry.core.limits import DAY_MS
from tarry.core.time.times import format_day
from tarry.index.columns import taken
from tarry.index.schema import HISTORY_SCHEMA
from tarry.ledger.read_record import PutHead, ReadPut
from tarry.ledger.record import CancelBatch, Finalise, Key, Kind, decode


class FiredHead(Struct, tag=int(Kind.ENTRY), array_like=True, frozen=True, gc=False):
    """The beginning of an `Entry`: whether it fired a version, and what the history needs of that one."""

    topic: str
    fire_at_ms: int
    published_at_ms: int
    entry_id: int
    fired: Key | None
    put: PutHead | None


class FiredWhole(Struct, tag=int(Kind.ENTRY), array_like=True, frozen=True, gc=False):
    """A fired entry with its payload."""

    topic: str
    fire_at_ms: int
    published_at_ms: int
    entry_id: int
    fired: Key | None
    put: ReadPut | None


_heads: Final = Decoder(list[FiredHead])
_wholes: Final = Decoder(list[FiredWhole])
_ends: Final = Decoder(list[Finalise])


def history_rows(records: pa.RecordBatch, *, bodies: bool = False) -> pa.Table:
    """The rows that records bring to the history, sorted by day and instant."""
    kind, kills = (records.column(name).to_numpy() for name in ("kind", "kills_seq"))
    parts = [
        _ended(taken(records, np.flatnonzero(kind == Kind.FINALISE))),
        _fired(taken(records, np.flatnonzero((kind == Kind.ENTRY) & (kills > 0))), keep=bodies),
        _cancelled(taken(records, np.flatnonzero(kind == Kind.CANCEL_BATCH))),
    ]
    rows = pa.concat_tables(parts)
    at_ms = rows.column("finalised_at_ms").to_numpy()
    order = np.lexsort((rows.column("seq").to_numpy(), at_ms))
    days, numbers = np.unique(at_ms[order] // DAY_MS, return_inverse=True)
    names = [format_day(day) for day in days.tolist()]
    day = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names, pa.string()))
    return rows.take(pa.array(order)).add_column(0, "day", day)


def _table(columns: dict[str, list[Any]], count: int) -> pa.Table:
    """A table of these columns; the others are empty, and every row is one message unless it says otherwise."""
    columns.setdefault("messages", [1] * count)
    return pa.table(
        {
            field.name: pa.array(columns.get(field.name) or [None] * count, field.type)
            for field in HISTORY_SCHEMA
            if field.name != "day"
        }
    )


def _decoded(decoder: Decoder[Any], bodies: list[bytes]) -> list[Any]:
    """Many bodies in one call. 0xdd: an array whose length follows in four bytes."""
    decoded: list[Any] = decoder.decode(b"".join((b"\xdd" + len(bodies).to_bytes(4, "big"), *bodies)))
    return decoded


def _ended(records: pa.RecordBatch) -> pa.Table:
    ends: list[Finalise] = _decoded(_ends, records.column("body").to_pylist())
    columns: dict[str, list[Any]] = {
        name: [getattr(end, name) for end in ends]
        for name in (
            "outcome", "reason", "door", "namespace", "destination", "owner", "key", "due_at_ms",
            "finalised_at_ms", "attempts",
        )
    }  # fmt: skip
    columns["seq"] = records.column("seq").to_pylist()
    columns["origin_seq"] = [end.origin.seq for end in ends]
    columns["scheduled_at_ms"] = [end.accepted_at_ms for end in ends]
    columns["version_seq"] = [end.kills.seq for end in ends]
    columns["fire_at_ms"] = [end.kills.fire_at_ms for end in ends]
    columns["lateness_ms"] = [
        _late(end.finalised_at_ms, end.due_at_ms, end.accepted_at_ms) if end.outcome == "sent" else None
        for end in ends
    ]
    return _table(columns, len(ends))


def _fired(records: pa.RecordBatch, *, keep: bool) -> pa.Table:
    entries = _decoded(_wholes if keep else _heads, records.column("body").to_pylist())
    # An entry that was carried forward kills too, and ends nothing.
    fired = [
        (seq, entry, entry.put)
        for seq, entry in zip(records.column("seq").to_pylist(), entries, strict=True)
        if entry.fired is not None and entry.put is not None
    ]
    puts = [put for _, _, put in fired]
    columns: dict[str, list[Any]] = {
        name: [getattr(put, name) for put in puts]
        for name in ("door", "namespace", "destination", "owner", "key", "due_at_ms")
    }
    columns["seq"] = [seq for seq, _, _ in fired]
    columns["outcome"] = ["sent"] * len(fired)
    columns["origin_seq"] = [(put.origin or entry.fired).seq for _, entry, put in fired]
    columns["scheduled_at_ms"] = [put.accepted_at_ms for put in puts]
    columns["finalised_at_ms"] = [entry.published_at_ms for _, entry, _ in fired]
    columns["attempts"] = [put.attempts + 1 for put in puts]
    columns["version_seq"] = [entry.fired.seq for _, entry, _ in fired]
    columns["fire_at_ms"] = [entry.fired.fire_at_ms for _, entry, _ in fired]
    columns["lateness_ms"] = [
        _late(entry.published_at_ms, put.due_at_ms, put.accepted_at_ms) for _, entry, put in fired
    ]
    if keep:
        columns["body"] = [put.payload for put in puts]
    return _table(columns, len(fired))


def _cancelled(records: pa.RecordBatch) -> pa.Table:
    """A batch that is cancelled is one row, however many messages it has; those that are spared have their own."""
    cancels = [
        record
        for body in records.column("body").to_pylist()
        if isinstance(record := decode(body), CancelBatch)
    ]
    count = len(cancels)
    columns: dict[str, list[Any]] = {
        "seq": records.column("seq").to_pylist(),
        "origin_seq": [cancel.first_seq for cancel in cancels],
        "outcome": ["cancelled"] * count,
        "reason": ["its batch was cancelled"] * count,
        "finalised_at_ms": [cancel.cancelled_at_ms for cancel in cancels],
        "messages": [cancel.count - len(cancel.spared) for cancel in cancels],
        "batch": [cancel.name for cancel in cancels],
        "version_seq": [cancel.first_seq + cancel.count - 1 for cancel in cancels],
    }
    return _table(columns, count)


def _late(finalised_at_ms: int, due_at_ms: int | None, accepted_at_ms: int) -> int | None:
    return None if due_at_ms is None else finalised_at_ms - max(due_at_ms, accepted_at_ms)
