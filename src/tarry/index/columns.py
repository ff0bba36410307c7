"""From records of the ledger to rows of the two tables: functions of columns, without Spark and without files.

Records come as Arrow batches with the columns of `RECORDS`. A put that is killed within the same batch leaves no row: short
delays never reach the index. Rows below the watermark are dead and left out (R6).
"""

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tarry.core.slots import sizes_for
from tarry.index.schema import DEL, HISTORY_SCHEMA, INDEX_SCHEMA
from tarry.ledger.record import (
    Entry,
    Finalise,
    Key,
    Kind,
    PutHead,
    decode,
    decode_head,
    decode_heads,
    decode_put,
)

RECORDS: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.int32(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("crc", pa.int64(), nullable=False),
        pa.field("fire_at_ms", pa.int64(), nullable=False),
        pa.field("kills_seq", pa.int64(), nullable=False),
        pa.field("kills_fire_at_ms", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""Records of the ledger as columns."""


def index_rows(
    records: pa.RecordBatch, watermark: Key, now_ms: int, granularity: dict[str, int], default_ms: int
) -> pa.Table:
    """The rows that records bring to the index, with their slots, in (slot, key) order."""
    kind, fire, seq, kills, kills_fire = (
        _numbers(records, name) for name in ("kind", "fire_at_ms", "seq", "kills_seq", "kills_fire_at_ms")
    )
    waits = ((kind == Kind.PUT) | (kind == Kind.ENTRY)) & (fire > 0)
    puts = np.flatnonzero(waits & ~np.isin(seq, kills[kills > 0]) & ~_below(fire, seq, watermark))
    # A version of this same batch has no row to kill.
    dels = np.flatnonzero((kills > 0) & ~np.isin(kills, seq) & ~_below(kills_fire, kills, watermark))
    put_table = _put_rows(records.take(pa.array(puts)))
    del_table = _del_rows(kills_fire[dels], kills[dels])
    rows = pa.concat_tables([put_table, del_table], promote_options="permissive")
    return into_slots(rows, now_ms, granularity, default_ms)


def _put_rows(records: pa.RecordBatch) -> pa.Table:
    heads = _heads(records)
    names = (
        "due_at_ms",
        "accepted_at_ms",
        "namespace",
        "destination",
        "owner",
        "door",
        "key",
        "group",
        "attempts",
    )
    columns: dict[str, Any] = {
        "fire_at_ms": records.column("fire_at_ms"),
        "seq": records.column("seq"),
        "op": records.column("kind"),
        "lane": records.column("lane"),
        "crc": records.column("crc"),
        "body": records.column("body"),
        "batch": pa.nulls(records.num_rows, pa.string()),
    }
    for name in names:
        columns[name] = pa.array([getattr(head, name) for head in heads], INDEX_SCHEMA.field(name).type)
    return pa.table(columns)


def _heads(records: pa.RecordBatch) -> list[Any]:
    bodies: list[bytes] = records.column("body").to_pylist()
    kinds = _numbers(records, "kind")
    if not (kinds == Kind.ENTRY).any():
        return list(decode_heads(bodies))
    return [
        _entry_head(body) if kind == Kind.ENTRY else decode_head(body)
        for kind, body in zip(kinds.tolist(), bodies, strict=True)
    ]


def _entry_head(body: bytes) -> PutHead:
    """A delayed entry of a topic, seen as a message for that topic."""
    entry = decode(body)
    assert isinstance(entry, Entry)
    namespace = "/".join(entry.topic.removeprefix("persistent://").split("/")[:2])
    return PutHead(
        entry.fire_at_ms, entry.due_at_ms, entry.published_at_ms, namespace, entry.topic, entry.key, entry.owner,
        entry.door, None, entry.ttl_ms, None, 0, False,
    )  # fmt: skip


def _del_rows(fire: NDArray[np.int64], seq: NDArray[np.int64]) -> pa.Table:
    count = len(seq)
    return pa.table(
        {
            "fire_at_ms": pa.array(fire),
            "seq": pa.array(seq),
            "op": pa.array(np.full(count, DEL, np.int32)),
            "lane": pa.array(np.zeros(count, np.int32)),
        }
    )


def into_slots(rows: pa.Table, now_ms: int, granularity: dict[str, int], default_ms: int) -> pa.Table:
    """Give each row its slot, and sort by slot and key.

    A del does not know its put's namespace. It goes into the slot of the default granularity: slots of all sizes are
    read by the range of their due times, so that it is found beside its put wherever that is.
    """
    fire = rows.column("fire_at_ms").to_numpy()
    if granularity:
        named = [granularity.get(name, default_ms) for name in rows.column("namespace").to_pylist()]
        finest = np.array(named, np.int64)
    else:
        finest = np.full(len(fire), default_ms, np.int64)
    sizes = sizes_for(fire, now_ms, finest)
    starts = fire // sizes * sizes
    order = np.lexsort((rows.column("seq").to_numpy(), fire, starts, sizes))
    slots = np.char.add(np.char.add(sizes[order].astype(str), "_"), starts[order].astype(str))
    taken = rows.take(pa.array(order))
    return taken.add_column(0, "slot", pa.array(slots.tolist(), pa.string()))


def history_rows(records: pa.RecordBatch, *, bodies: bool = False) -> pa.Table:
    """The rows that records bring to the history: one for each message that they finalise."""
    kind, kills = _numbers(records, "kind"), _numbers(records, "kills_seq")
    ends = np.flatnonzero((kind == Kind.FINALISE) | ((kind == Kind.ENTRY) & (kills > 0)))
    rows: list[dict[str, Any]] = []
    chosen = records.take(pa.array(ends))
    for seq, body in zip(chosen.column("seq").to_pylist(), chosen.column("body").to_pylist(), strict=True):
        record = decode(body)
        if isinstance(record, Finalise):
            rows.append(_ended(seq, record))
        elif isinstance(record, Entry) and record.fired is not None:
            rows.append(_fired(seq, record, record.fired, keep=bodies))
    return pa.Table.from_pylist(rows, HISTORY_SCHEMA)


def _ended(seq: int, end: Finalise) -> dict[str, Any]:
    sent = end.outcome == "sent"
    asked_ms = None if end.due_at_ms is None else max(end.due_at_ms, end.accepted_at_ms)
    return {
        "day": _day(end.finalised_at_ms), "seq": seq, "origin_seq": end.origin.seq, "outcome": end.outcome,
        "reason": end.reason, "door": end.door, "namespace": end.namespace, "destination": end.destination,
        "owner": end.owner, "key": end.key, "scheduled_at_ms": end.accepted_at_ms, "due_at_ms": end.due_at_ms,
        "finalised_at_ms": end.finalised_at_ms,
        "lateness_ms": end.finalised_at_ms - asked_ms if sent and asked_ms is not None else None,
        "attempts": end.attempts, "body": None, "messages": 1, "batch": None,
        "version_seq": end.kills.seq, "fire_at_ms": end.kills.fire_at_ms,
    }  # fmt: skip


def _fired(seq: int, entry: Entry, fired: Key, *, keep: bool) -> dict[str, Any]:
    put = decode_put(entry.put)
    asked_ms = None if put.due_at_ms is None else max(put.due_at_ms, put.accepted_at_ms)
    return {
        "day": _day(entry.published_at_ms), "seq": seq, "origin_seq": (put.origin or fired).seq, "outcome": "sent",
        "reason": None, "door": put.door, "namespace": put.namespace, "destination": put.destination,
        "owner": put.owner, "key": put.key, "scheduled_at_ms": put.accepted_at_ms, "due_at_ms": put.due_at_ms,
        "finalised_at_ms": entry.published_at_ms,
        "lateness_ms": None if asked_ms is None else entry.published_at_ms - asked_ms,
        "attempts": put.attempts + 1, "body": put.payload if keep else None, "messages": 1, "batch": None,
        "version_seq": fired.seq, "fire_at_ms": fired.fire_at_ms,
    }  # fmt: skip


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def _numbers(records: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    return records.column(name).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _below(fire: NDArray[np.int64], seq: NDArray[np.int64], key: Key) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = (fire < key.fire_at_ms) | ((fire == key.fire_at_ms) & (seq < key.seq))
    return below
