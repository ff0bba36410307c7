"""From records of the ledger to rows of the index: functions of columns, without Spark and without files.

Records come as Arrow batches with the columns of `RECORDS`. A put that is killed within the same batch leaves no row: short
delays never reach the index. Rows that the watermark has passed are dead, and left out where it is known (R6).
"""

from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.msgpack import Decoder
from numpy.typing import NDArray

from tarry.core.timers.slots import Slot, sizes_for
from tarry.index.schema import DEL, INDEX_SCHEMA
from tarry.index.state import Cancelled, Seen
from tarry.ledger.aside import SET_ASIDE
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Adopt, CancelBatch, Entry, Kind, Lower, Mark, PolicySet, decode
from tarry.ledger.watermark import NOTHING_PASSED, Watermark

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


HEAD_COLUMNS: Final = (
    "due_at_ms", "accepted_at_ms", "namespace", "destination", "owner", "door", "key", "group", "attempts",
)  # fmt: skip
"""Columns of a row that repeat the beginning of its body."""
AT_ONCE: Final = 8192
_heads_decoder: Final = Decoder(list[PutHead])
_of_head: Final = attrgetter(*HEAD_COLUMNS)


def index_rows(
    records: pa.RecordBatch,
    now_ms: int,
    granularity: dict[str, int],
    default_ms: int,
    passed: Watermark = NOTHING_PASSED,
) -> pa.Table:
    """The rows that records bring to the index, with their slots, in (slot, key) order.

    Versions that a later watermark has passed are left out, where the caller knows one: who reads the ledger as it grows does
    not, for the watermark of before says nothing of new versions once it has been lowered.
    """
    kind, fire, seq, kills, kills_fire = (
        _numbers(records, name) for name in ("kind", "fire_at_ms", "seq", "kills_seq", "kills_fire_at_ms")
    )
    waits = ((kind == Kind.PUT) | (kind == Kind.ENTRY)) & (fire > 0)
    puts = np.flatnonzero(waits & ~np.isin(seq, kills[kills > 0]) & ~passed.passed(fire, seq))
    # A version of this same batch has no row to kill.
    dels = np.flatnonzero((kills > 0) & ~np.isin(kills, seq) & ~passed.passed(kills_fire, kills))
    # Entries of topics are rarely delayed, and are read apart.
    parts = [_put_rows(taken(records, puts[kind[puts] == one]), one) for one in (Kind.PUT, Kind.ENTRY)]
    rows = pa.concat_tables([*parts, _del_rows(kills_fire[dels], kills[dels])], promote_options="permissive")
    return into_slots(rows, now_ms, granularity, default_ms)


def taken(records: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Some rows of a record batch, in the order given; the batch itself if it has no others."""
    return records if len(rows) == records.num_rows else records.take(pa.array(rows))


def _put_rows(records: pa.RecordBatch, kind: Kind) -> pa.Table:
    """The rows of versions. Bodies are read some thousand at a time: what is read of them stays in the processor's cache."""
    parts = [
        _some_rows(records.slice(at, AT_ONCE), kind) for at in range(0, max(1, records.num_rows), AT_ONCE)
    ]
    return pa.concat_tables(parts)


def _some_rows(records: pa.RecordBatch, kind: Kind) -> pa.Table:
    bodies = records.column("body")
    heads = _heads(bodies) if kind is Kind.PUT else [_entry_head(body) for body in bodies.to_pylist()]
    columns: dict[str, Any] = {
        name: records.column(name) for name in ("fire_at_ms", "seq", "kind", "lane", "crc", "body")
    }
    columns["op"] = columns.pop("kind")
    columns["batch"] = pa.nulls(records.num_rows, pa.string())
    # One call for each row and none for each value.
    values = zip(*map(_of_head, heads), strict=True) if heads else ((),) * len(HEAD_COLUMNS)
    for name, column in zip(HEAD_COLUMNS, values, strict=True):
        columns[name] = pa.array(column, INDEX_SCHEMA.field(name).type)
    return pa.table(columns)


def _heads(bodies: pa.BinaryArray) -> list[PutHead]:
    """The beginnings of bodies, which lie one after another in the column as in a msgpack array of them."""
    if not len(bodies):
        return []
    ends = np.frombuffer(bodies.buffers()[1], np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    # 0xdd: an array whose length follows in four bytes.
    data = memoryview(bodies.buffers()[2])[int(ends[0]) : int(ends[-1])]
    return _heads_decoder.decode(b"".join((b"\xdd" + len(bodies).to_bytes(4, "big"), data)))


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
    fire, seq = rows.column("fire_at_ms").to_numpy(), rows.column("seq").to_numpy()
    finest = np.full(len(fire), default_ms, np.int64)
    if granularity:
        codes = rows.column("namespace").combine_chunks().dictionary_encode()
        known = [granularity.get(name, default_ms) for name in codes.dictionary.to_pylist()]
        of = codes.indices.fill_null(len(known)).to_numpy(zero_copy_only=False)
        finest = np.array([*known, default_ms], np.int64)[of]
    sizes = sizes_for(fire, now_ms, finest)
    # Within one size, the order of fire instants is that of the slots too.
    order = np.lexsort((seq, fire, sizes))
    sizes, starts = sizes[order], fire[order]
    starts = starts // sizes * sizes
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(sizes) != 0) | (np.diff(starts) != 0)
    first = np.flatnonzero(begins)
    names = [Slot(*pair).name for pair in zip(sizes[first].tolist(), starts[first].tolist(), strict=True)]
    slots = pa.DictionaryArray.from_arrays(
        pa.array(np.cumsum(begins) - 1, pa.int32()), pa.array(names, pa.string())
    )
    return rows.take(pa.array(order)).add_column(0, "slot", slots)


def seen_in(records: pa.RecordBatch, began: int = 0) -> tuple[Seen, list[Adopt]]:
    """Facts that records state beside their rows: the watermark, granularities, batches cancelled; and batches adopted.

    The index has never heard of versions up to the seq `began`.
    """
    kind = _numbers(records, "kind")
    changes: list[tuple[int, Mark | Lower]] = []
    policies: list[tuple[str, int | None]] = []
    cancelled: list[Cancelled] = []
    adopted: list[Adopt] = []
    marks = np.flatnonzero(kind == Kind.MARK)
    rare = np.flatnonzero(np.isin(kind, [Kind.POLICY, Kind.ADOPT, Kind.CANCEL_BATCH]))
    chosen = taken(records, np.union1d(rare, _telling(marks, np.flatnonzero(kind == Kind.LOWER))))
    for seq, body in zip(*(chosen.column(name).to_pylist() for name in ("seq", "body")), strict=True):
        record = decode(body)
        if isinstance(record, Mark | Lower):
            changes.append((seq, record))
        elif isinstance(record, PolicySet) and record.scope in ("broker", "namespace"):
            size = None if record.policy is None else record.policy.get("slot_ms")
            name = "" if record.scope == "broker" else record.name
            policies.append((name, None if size is None else int(size)))
        elif isinstance(record, CancelBatch):
            spared = [one.key.seq for one in record.spared]
            cancelled.append(Cancelled(record.first_seq, record.count, record.high_ms, spared))
        elif isinstance(record, Adopt):
            adopted.append(record)
    # A version that replaces none is the first of its message.
    kills = _numbers(records, "kills_seq")
    # One that is set aside is accepted too: its end follows, as failed.
    first = int(((kind & ~SET_ASIDE == Kind.PUT) & (kills == 0)).sum())
    accepted = first + sum(batch.count for batch in adopted)
    if began:
        accepted += _older(taken(records, np.flatnonzero((kills > 0) & (kills <= began))))
    return Seen(changes, policies, cancelled, accepted), adopted


def set_aside_in(records: pa.RecordBatch) -> list[int]:
    """The seqs of records that are set aside."""
    aside = (_numbers(records, "kind") & SET_ASIDE) > 0
    seqs: list[int] = _numbers(records, "seq")[aside].tolist()
    return seqs


def _telling(marks: NDArray[np.int64], lowers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that are marks and say where the watermark was when it was lowered, and where it is in the end."""
    before = np.searchsorted(marks, lowers) - 1
    return np.concatenate([marks[before[before >= 0]], lowers, marks[-1:]])


def _older(records: pa.RecordBatch) -> int:
    """How many messages there are among records that end or replace something; the others are entries of topics."""
    kind = _numbers(records, "kind")
    entries = taken(records, np.flatnonzero(kind == Kind.ENTRY)).column("body").to_pylist()
    fired = sum(isinstance(entry := decode(body), Entry) and entry.fired is not None for body in entries)
    return int((kind & ~SET_ASIDE != Kind.ENTRY).sum()) + fired


def _numbers(records: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    return records.column(name).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
