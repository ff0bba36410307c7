"""The view `ledger`: the records that have not been reclaimed, decoded as far as is safe to show."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from tarry.ledger.aside import SET_ASIDE
from tarry.ledger.record import (
    Ack,
    Adopt,
    CancelBatch,
    Catalogued,
    Claim,
    Entry,
    Finalise,
    Kind,
    Lower,
    Mark,
    PolicySet,
    Put,
    Record,
    Seek,
    Subscribe,
    TopicSet,
    Unsubscribe,
    decode,
    decode_put,
)
from tarry.pipeline.ledger_parts import PARTITION_ROWS, SeqRange, ranges, read_range
from tarry.pipeline.views.filters import Wanted
from tarry.pipeline.views.masking import masked_address, masked_headers
from tarry.pipeline.views.place import LedgerPart, Whereabouts
from tarry.pipeline.views.shape import DataView, shaped

LEDGER: Final = DataView(
    "ledger",
    "seq long not null, kind string not null, at timestamp, at_ms long, fire_at_ms long, kills_seq long,"
    " origin_seq long, outcome string, reason string, namespace string, destination string, owner string, door string,"
    " key string, group string, due_at timestamp, due_at_ms long, accepted_at timestamp, accepted_at_ms long,"
    " attempts int, entry_id long, subscription string, batch string, messages long, body_bytes int not null",
    "payload binary, headers map<string,string>",
)

KIND_NAMES: Final = {int(kind): kind.name.lower() for kind in Kind} | {
    kind | SET_ASIDE: "set_aside" for kind in Kind
}


class Records(Struct, frozen=True):
    """The facts that every part needs. They travel to the executors."""

    schema: pa.Schema
    wanted: Wanted

    def read(self, part: LedgerPart) -> Iterator[pa.RecordBatch]:
        """The records of one part."""
        names = self.wanted.values.get("kind")
        kinds = None if names is None else [kind for kind, name in KIND_NAMES.items() if name in names]
        rest = Wanted(self.wanted.ranges)
        for records in read_range(part.ledger, SeqRange(part.first_seq, part.last_seq)):
            if kinds is not None:
                records = records.filter(pc.is_in(records.column("kind"), pa.array(kinds, pa.int32())))
            found = rest.rows(_shown(records))
            if found.num_rows:
                yield self._batch(found)

    def _batch(self, rows: pa.Table) -> pa.RecordBatch:
        wanted = zip(*(rows.column(name).to_pylist() for name in ("seq", "kind", "body")), strict=True)
        told = [{} if kind & SET_ASIDE else _told(seq, decode(body)) for seq, kind, body in wanted]
        asked = {*self.wanted.ranges, *self.wanted.values} - {"seq", "kind", "fire_at_ms", "kills_seq"}
        if asked:
            keep = [self.wanted.holds({name: one.get(name) for name in asked}) for one in told]
            rows, told = (
                rows.filter(pa.array(keep)),
                [one for one, wanted in zip(told, keep, strict=True) if wanted],
            )
        columns: dict[str, Any] = {name: [one.get(name) for one in told] for name in self.schema.names}
        for name in ("due_at_ms", "accepted_at_ms", "at_ms"):
            columns[name] = [one.get(name) for one in told]
        columns["seq"] = rows.column("seq")
        columns["kind"] = [KIND_NAMES[kind] for kind in rows.column("kind").to_pylist()]
        columns["body_bytes"] = pc.binary_length(rows.column("body"))
        columns |= {name: rows.column(name) for name in ("fire_at_ms", "kills_seq")}
        return shaped(columns, self.schema, rows.num_rows)


def _shown(records: pa.RecordBatch) -> pa.Table:
    """The columns of records that are shown as they are, and their bodies. What is 0 in the ledger is nothing."""
    columns: dict[str, Any] = {name: records.column(name) for name in ("seq", "kind", "body")}
    for name in ("fire_at_ms", "kills_seq"):
        values = records.column(name)
        columns[name] = pc.if_else(pc.equal(values, 0), pa.scalar(None, pa.int64()), values)
    return pa.table(columns)


def _told(seq: int, record: Record) -> dict[str, Any]:
    """The fields of a record that may be shown. Idempotency keys, fingerprints and references are not."""
    match record:
        case Put():
            return _put(seq, record)
        case Finalise():
            return _plain(record) | {
                "at_ms": record.finalised_at_ms, "origin_seq": record.origin.seq, "outcome": record.outcome,
                "reason": record.reason,
            }  # fmt: skip
        case Entry():
            return _entry(seq, record)
        case Claim():
            return {
                "at_ms": record.claimed_at_ms, "namespace": record.namespace or None, "group": record.group,
                "owner": record.owner,
            }  # fmt: skip
        case Ack() | Subscribe() | Unsubscribe() | Seek():
            name = record.subscription if isinstance(record, Ack) else record.name
            return {"destination": record.topic, "subscription": name}
        case PolicySet():
            return {"namespace": record.name if record.scope == "namespace" else None}
        case Mark():
            return {"at_ms": record.marked_at_ms}
        case Lower():
            return {"at_ms": record.lowered_at_ms}
        case TopicSet():
            return {"destination": record.name, "outcome": "deleted" if record.deleted else None}
        case Adopt():
            return {"at_ms": record.adopted_at_ms, "batch": record.name, "messages": record.count}
        case Catalogued():
            return {"namespace": record.name if record.sort == "namespace" else None}
        case CancelBatch():
            return {"at_ms": record.cancelled_at_ms, "batch": record.name, "messages": record.count}


def _plain(record: Put | Finalise) -> dict[str, Any]:
    return {
        "namespace": record.namespace, "destination": masked_address(record.destination), "owner": record.owner,
        "door": record.door, "key": record.key, "group": record.group, "due_at_ms": record.due_at_ms,
        "accepted_at_ms": record.accepted_at_ms, "attempts": record.attempts,
    }  # fmt: skip


def _put(seq: int, put: Put) -> dict[str, Any]:
    return _plain(put) | {
        "at_ms": put.delayed_since_ms if put.origin is None else None,
        "origin_seq": put.origin.seq if put.origin else seq,
        "payload": put.payload, "headers": list(masked_headers(put.headers).items()),
    }  # fmt: skip


def _entry(seq: int, entry: Entry) -> dict[str, Any]:
    delayed = seq if entry.fire_at_ms else None
    own: dict[str, Any] = {
        "origin_seq": entry.origin.seq if entry.origin else delayed,
        "at_ms": entry.published_at_ms, "destination": entry.topic, "entry_id": entry.entry_id, "key": entry.key,
        "owner": entry.owner, "door": entry.door, "due_at_ms": entry.due_at_ms, "payload": entry.payload,
        "headers": list(masked_headers(entry.headers).items()),
    }  # fmt: skip
    if entry.fired is None:
        return own
    put = decode_put(entry.put)
    fired = _put(entry.fired.seq, put) | {"outcome": "sent", "attempts": put.attempts + 1}
    return (
        own | fired | {"at_ms": entry.published_at_ms, "destination": entry.topic, "entry_id": entry.entry_id}
    )


def plan(place: Whereabouts, wanted: Wanted) -> list[LedgerPart]:
    """The parts that can hold wanted records."""
    if place.ledger is None:
        return []
    follower = place.ledger.follower()
    low, high = wanted.ranges.get("seq", (None, None))
    first = max(low or 0, follower.first_seq())
    head = follower.durable_seq() if place.moment is None else place.moment.upto_seq
    last = head if high is None else min(high, head)
    if first > last:
        return []
    parts = ranges(first, last, follower.bounds(), PARTITION_ROWS)
    return [LedgerPart(place.ledger, part.first_seq, part.last_seq) for part in parts]
