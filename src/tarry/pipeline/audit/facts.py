"""Facts in the records of the ledger, as rows: the audit's own reading, beside nobody else's.

A fact is one of: `put` (a version), `end` (a message is finalised), `entry` (a delayed entry of a topic, or the end of its
delay), `stray` (an entry that should have ended a message), `claim`, `adopt` and `cancel_batch`, `mark`, `subscribe` and `ack`.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from tarry.ledger.aside import SET_ASIDE
from tarry.ledger.read_record import decode_head
from tarry.ledger.record import (
    NO_PUT,
    Ack,
    Adopt,
    CancelBatch,
    Claim,
    Entry,
    Finalise,
    Kind,
    Lower,
    Mark,
    Put,
    Record,
    Subscribe,
    decode,
    decode_put,
)

_COLUMNS: Final[dict[str, DataType]] = {
    "fact": StringType(),
    "seq": LongType(),
    "origin_seq": LongType(),
    "version_seq": LongType(),
    "kills_seq": LongType(),
    "fire_at_ms": LongType(),
    "due_at_ms": LongType(),
    "at_ms": LongType(),
    "outcome": StringType(),
    "messages": LongType(),
    "spared": ArrayType(LongType()),
    "topic": StringType(),
    "subscription": StringType(),
    "entry_id": LongType(),
    "below": LongType(),
    "entries": ArrayType(LongType()),
}
FACTS: Final = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])


def facts_of(records: DataFrame) -> DataFrame:
    """The facts in records, which have the columns of the data source `tarry-ledger`."""
    return records.mapInArrow(_facts, FACTS)


def _facts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(FACTS, timezone="UTC")
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for seq, kind, kills_seq, fire_at_ms, body in zip(
            *(batch.column(name).to_pylist() for name in ("seq", "kind", "kills_seq", "fire_at_ms", "body")),
            strict=True,
        ):
            if kind & SET_ASIDE:
                fact = _aside(seq, kind & ~SET_ASIDE, kills_seq, fire_at_ms)
            else:
                # Of a version only its beginning is looked at: there are more of these than of anything else.
                fact = _version(seq, kills_seq, body) if kind == Kind.PUT else _fact(decode(body))
            if fact is not None:
                rows.append(fact | {"seq": seq})
        yield pa.RecordBatch.from_pylist(rows, schema)


def _aside(seq: int, kind: int, kills_seq: int, fire_at_ms: int) -> dict[str, Any] | None:
    """The fact in a record that is set aside: a version is there, whatever it says; it is ended by a record of its own."""
    if kind != Kind.PUT:
        return None
    return {
        "fact": "put", "version_seq": seq, "origin_seq": seq, "kills_seq": kills_seq or None, "fire_at_ms": fire_at_ms,
        "due_at_ms": fire_at_ms,
    }  # fmt: skip


def _version(seq: int, kills_seq: int, body: bytes) -> dict[str, Any]:
    head = decode_head(body)
    return {
        "fact": "put", "version_seq": seq, "origin_seq": head.origin.seq if head.origin else seq,
        "kills_seq": kills_seq or None, "fire_at_ms": head.fire_at_ms, "due_at_ms": head.due_at_ms,
    }  # fmt: skip


def _fact(record: Record) -> dict[str, Any] | None:
    match record:
        case Finalise():
            return {
                "fact": "end", "origin_seq": record.origin.seq, "version_seq": record.kills.seq,
                "kills_seq": record.kills.seq, "fire_at_ms": record.kills.fire_at_ms, "due_at_ms": record.due_at_ms,
                "at_ms": record.finalised_at_ms, "outcome": record.outcome,
            }  # fmt: skip
        case Entry(fired=None):
            return _delayed(record)
        case Entry():
            return _fired(record, decode_put(record.put))
        case Claim():
            return {"fact": "claim", "version_seq": record.seq, "at_ms": record.claimed_at_ms}
        case Adopt():
            return {
                "fact": "adopt", "origin_seq": record.first_seq, "messages": record.count,
                "at_ms": record.adopted_at_ms,
            }  # fmt: skip
        case CancelBatch():
            return {
                "fact": "cancel_batch", "origin_seq": record.first_seq, "messages": record.count,
                "at_ms": record.cancelled_at_ms, "spared": [one.key.seq for one in record.spared],
            }  # fmt: skip
        case Mark():
            return {"fact": "mark", "at_ms": record.marked_at_ms}
        case Lower():
            return {"fact": "mark", "at_ms": record.lowered_at_ms}
        case Subscribe():
            return {
                "fact": "subscribe", "topic": record.topic, "subscription": record.name,
                "outcome": record.subscription_type,
            }  # fmt: skip
        case Ack():
            return {
                "fact": "ack", "topic": record.topic, "subscription": record.subscription, "below": record.below,
                "entries": record.entries,
            }  # fmt: skip
    return None


def _fired(entry: Entry, put: Put) -> dict[str, Any]:
    assert entry.fired is not None
    return {
        "fact": "end", "origin_seq": put.origin.seq if put.origin else entry.fired.seq,
        "version_seq": entry.fired.seq, "kills_seq": entry.fired.seq, "fire_at_ms": entry.fired.fire_at_ms,
        "due_at_ms": put.due_at_ms, "at_ms": entry.published_at_ms, "outcome": "sent",
    }  # fmt: skip


def _delayed(entry: Entry) -> dict[str, Any] | None:
    if entry.carries is None and bytes(entry.put) != bytes(NO_PUT):
        # A message was put into a topic, and nothing says that it has ended.
        return {"fact": "stray", "topic": entry.topic, "entry_id": entry.entry_id}
    if not entry.fire_at_ms and entry.carries is None:
        return None
    return {
        "fact": "entry", "topic": entry.topic, "entry_id": entry.entry_id, "fire_at_ms": entry.fire_at_ms,
        "due_at_ms": entry.due_at_ms, "at_ms": entry.published_at_ms,
        "kills_seq": entry.carries.seq if entry.carries else None, "outcome": "cancelled" if entry.cancelled else None,
    }  # fmt: skip
