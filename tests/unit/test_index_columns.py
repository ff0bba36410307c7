"""From records to rows: what reaches the index and the history, as functions of columns."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.index import columns
from tarry.index.columns import RECORDS, index_rows, into_slots, seen_in
from tarry.index.history import history_rows
from tarry.index.merge import merged
from tarry.index.schema import DEL, ENTRY, HISTORY_SCHEMA, PUT
from tarry.index.state import Cancelled, CommitState, Seen
from tarry.ledger.record import (
    FIRST_BATCH_SEQ,
    NO_KEY,
    NO_PUT,
    CancelBatch,
    Entry,
    Finalise,
    Key,
    Lower,
    Mark,
    PolicySet,
    Put,
    Record,
    Spared,
    encode,
)
from tarry.ledger.watermark import Ceiling, Watermark

NOW_MS = 1_794_740_400_000
FIVE_MS = 300_000


def put(fire_at_ms: int, **fields: Any) -> Put:
    made = Put(
        fire_at_ms, fire_at_ms, NOW_MS, "public/default", "orders", "k", "o", "http", None, None, None, 2, False,
        b"payload", {}, NOW_MS, None,
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def end(key: Key, outcome: str = "cancelled") -> Finalise:
    return Finalise(
        key, Key(1, 1), outcome, NOW_MS + DAY_MS, "why", None, 3, NOW_MS + 7, NOW_MS, "public/default", "orders",
        "k", "o", "http", None, False,
    )  # fmt: skip


def batch(*records: Record, first_seq: int = 1) -> pa.RecordBatch:
    """Records as the ledger's columns."""
    encoded = [encode(one) for one in records]
    values: dict[str, list[Any]] = {
        "seq": list(range(first_seq, first_seq + len(encoded))),
        **{
            name: [getattr(one, name) for one in encoded]
            for name in ("kind", "lane", "crc", "fire_at_ms", "kills_seq", "kills_fire_at_ms", "body")
        },
    }
    return pa.RecordBatch.from_pydict(values, RECORDS)


def rows_of(
    records: pa.RecordBatch, watermark: Key = NO_KEY, granularity: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = index_rows(
        records, NOW_MS, granularity or {}, FIVE_MS, Watermark(watermark)
    ).to_pylist()
    return found


def test_a_version_that_ends_in_the_same_batch_leaves_no_row() -> None:
    fire = NOW_MS + HOUR_MS
    assert rows_of(batch(put(fire), end(Key(fire, 1)))) == []


def test_an_end_of_an_earlier_version_is_a_del_in_the_slot_of_its_key() -> None:
    fire = NOW_MS + 3 * HOUR_MS
    [row] = rows_of(batch(end(Key(fire, 3)), first_seq=9))
    assert (row["op"], row["seq"], row["fire_at_ms"], row["body"]) == (DEL, 3, fire, None)
    assert row["slot"] == f"{HOUR_MS}_{fire // HOUR_MS * HOUR_MS}"


def test_what_is_below_the_watermark_reaches_nothing() -> None:
    fire = NOW_MS + HOUR_MS
    records = batch(
        put(fire), put(fire), put(fire + 1), end(Key(fire - 1, 1)), end(Key(fire, 2)), first_seq=5
    )
    assert [(row["op"], row["seq"]) for row in rows_of(records, Key(fire, 6))] == [(PUT, 6), (PUT, 7)]


def test_a_row_repeats_what_people_look_for_and_keeps_its_body() -> None:
    record = put(NOW_MS + 1, due_at_ms=NOW_MS, group="g")
    [row] = rows_of(batch(record))
    encoded = encode(record)
    assert (row["body"], row["crc"], row["lane"]) == (encoded.body, encoded.crc, encoded.lane)
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
    assert [row[name] for name in names] == [getattr(record, name) for name in names]


def test_many_bodies_are_read_in_pieces_that_begin_anywhere(monkeypatch: Any) -> None:
    monkeypatch.setattr(columns, "AT_ONCE", 3)
    records = batch(*(put(NOW_MS + HOUR_MS + n, owner=str(n)) for n in range(10)))
    rows = rows_of(records.slice(2, 7))
    assert [(row["seq"], row["owner"]) for row in rows] == [(n + 1, str(n)) for n in range(2, 9)]


def test_a_delayed_entry_of_a_topic_waits_by_its_key_and_one_at_once_does_not() -> None:
    topic = "persistent://a/b/c"
    delayed = Entry(topic, NOW_MS + HOUR_MS, NOW_MS, 1, None, NO_PUT, b"x", due_at_ms=NOW_MS + 5, owner="o")
    carried = msgspec.structs.replace(delayed, carries=Key(NOW_MS + HOUR_MS, 1))
    at_once = Entry(topic, 0, NOW_MS, 2, None, NO_PUT, b"y")
    [row] = rows_of(batch(delayed, at_once))
    assert (row["op"], row["seq"], row["destination"], row["namespace"]) == (ENTRY, 1, topic, "a/b")
    assert (row["fire_at_ms"], row["due_at_ms"], row["owner"]) == (NOW_MS + HOUR_MS, NOW_MS + 5, "o")
    # Carried forward later: a new row, and a del for the old one; in the history it is nothing.
    later = batch(carried, first_seq=8)
    assert [(row["op"], row["seq"]) for row in rows_of(later)] == [(DEL, 1), (ENTRY, 8)]
    assert history_rows(later).num_rows == 0


def test_each_namespace_has_its_granularity() -> None:
    fire = NOW_MS + 1
    records = batch(put(fire), put(fire, namespace="fine/one"), put(fire, namespace="coarse/one"))
    found = {
        row["namespace"]: row["slot"]
        for row in rows_of(records, granularity={"fine/one": 1_000, "coarse/one": 14 * DAY_MS})
    }
    assert {name: int(slot.split("_")[0]) for name, slot in found.items()} == {
        "public/default": FIVE_MS, "fine/one": 1_000, "coarse/one": 14 * DAY_MS,
    }  # fmt: skip


def test_rows_are_sorted_by_slot_and_key() -> None:
    fires = np.random.default_rng(1).integers(NOW_MS, NOW_MS + 40 * DAY_MS, 500)
    rows = pa.table({"fire_at_ms": fires, "seq": np.arange(500)[::-1]})
    found = into_slots(rows, NOW_MS, {}, FIVE_MS).to_pylist()
    slots = [tuple(map(int, row["slot"].split("_"))) for row in found]
    keys = [(*slot, row["fire_at_ms"], row["seq"]) for slot, row in zip(slots, found, strict=True)]
    assert keys == sorted(keys)
    assert all(
        start <= row["fire_at_ms"] < start + size for (size, start), row in zip(slots, found, strict=True)
    )


def test_every_end_is_a_row_of_the_history() -> None:
    version = put(NOW_MS + 5, origin=Key(NOW_MS, 2))
    fired = Entry("t", 0, NOW_MS + 9, 1, Key(NOW_MS + 5, 4), msgspec.Raw(encode(version).body))
    cancel = CancelBatch("b", 1 << 47, 10, NOW_MS, NOW_MS + 3, [Spared(Key(NOW_MS, 1 << 47), "o")])
    records = batch(
        end(Key(NOW_MS + 7, 3)), end(Key(NOW_MS + 7, 5), "sent"), fired, cancel, put(NOW_MS), first_seq=20
    )
    table = history_rows(records, bodies=True)
    assert {field.name for field in HISTORY_SCHEMA} == set(table.column_names)
    rows = {row["seq"]: row for row in table.to_pylist()}
    assert sorted(rows) == [20, 21, 22, 23]
    assert [rows[seq]["lateness_ms"] for seq in sorted(rows)] == [None, DAY_MS - 7, 4, None]
    assert [rows[seq]["messages"] for seq in sorted(rows)] == [1, 1, 1, 9]
    assert [rows[seq]["origin_seq"] for seq in sorted(rows)] == [1, 1, 2, 1 << 47]
    assert [rows[seq]["version_seq"] for seq in (20, 21, 22)] == [3, 5, 4]
    assert (rows[22]["body"], rows[22]["attempts"], rows[22]["outcome"]) == (b"payload", 3, "sent")
    assert len({row["day"] for row in rows.values()}) == 2
    assert [row["day"] for row in table.to_pylist()] == sorted(row["day"] for row in rows.values())
    assert history_rows(records).column("body").null_count == 4


def test_the_state_follows_what_records_say() -> None:
    slot: dict[str, Any] = {"slot_ms": 60_000}
    seen, adopted = seen_in(
        batch(
            PolicySet("namespace", "a/b", slot), PolicySet("broker", "", {"slot_ms": FIVE_MS}),
            PolicySet("topic", "a/b/c", {"slot_ms": 1_000}), Mark(Key(5, 1), 0), Mark(Key(7, 2), 0),
            CancelBatch("b", 1 << 47, 10, 99, 0),
        )
    )  # fmt: skip
    assert seen == Seen(
        [(5, Mark(Key(7, 2), 0))], [("a/b", 60_000), ("", FIVE_MS)], [Cancelled(1 << 47, 10, 99)]
    )
    assert adopted == []
    state = CommitState().after([seen], FIVE_MS, 1)
    assert (state.watermark, state.namespaces(), state.revised_at_ms) == ((7, 2), {"a/b": 60_000}, 1)
    # Growing, or the same again, is no reason to look at old files; shrinking is.
    grown = state.after([Seen(policies=[("a/b", HOUR_MS)])], FIVE_MS, 2)
    assert (grown.namespaces(), grown.revised_at_ms) == ({"a/b": HOUR_MS}, 1)
    assert grown.after([Seen(policies=[("a/b", None)])], FIVE_MS, 3).revised_at_ms == 3
    assert grown.after([Seen(marks=[(9, Mark(Key(100, 0), 0))])], FIVE_MS, 4).cancelled == []


def test_the_state_follows_a_watermark_that_is_lowered_within_a_batch_and_between_batches() -> None:
    records: list[Mark | Lower] = [
        Mark(Key(5, 0), 0), Mark(Key(90, 0), 0), Lower(Key(40, 0), 0, 7), Mark(Key(41, 0), 0), Mark(Key(60, 0), 0),
        Lower(Key(50, 0), 0, 7), Mark(Key(55, 0), 0),
    ]  # fmt: skip
    passed = Watermark()
    for seq, record in enumerate(records, 1):
        passed = passed.after(seq, record)
    assert passed == Watermark(Key(55, 0), (Ceiling(Key(90, 0), 3, 7), Ceiling(Key(60, 0), 6, 7)))
    for cut in range(1, len(records)):
        parts = [
            seen_in(batch(*records[:cut]))[0],
            seen_in(batch(*records[cut:], first_seq=cut + 1))[0],
        ]
        assert CommitState().after(parts, FIVE_MS, 1).passed == passed


def test_a_version_below_the_watermark_of_before_is_indexed_once_it_was_lowered() -> None:
    low, high = NOW_MS + HOUR_MS, NOW_MS + 5 * HOUR_MS
    state = CommitState().after([seen_in(batch(Mark(Key(high, 0), 0)))[0]], FIVE_MS, 1)
    records = batch(Lower(Key(low, 0), 0, FIRST_BATCH_SEQ), put(low + 1), first_seq=2)
    [row] = rows_of(records)
    after = state.after([seen_in(records)[0]], FIVE_MS, 1)
    assert not after.passed.has_passed(Key(row["fire_at_ms"], row["seq"]))
    assert after.passed.has_passed(Key(low + 1, 1))


def test_sorted_sources_are_merged_in_pieces_of_rising_keys() -> None:
    random = np.random.default_rng(2)
    expected: list[tuple[int, int]] = []
    sources = []
    for number in range(5):
        fires = np.sort(random.integers(0, 30, 100))
        keys = sorted(zip(fires.tolist(), random.permutation(100).tolist(), strict=True))
        keys = [(fire, seq * 5 + number) for fire, seq in keys]
        expected += keys
        groups = [keys[at : at + 9] for at in range(0, 100, 9)]
        sources.append(
            iter(
                [
                    pa.table({"fire_at_ms": [k[0] for k in part], "seq": [k[1] for k in part]})
                    for part in groups
                ]
            )
        )
    pieces = [
        sorted(zip(piece["fire_at_ms"].to_pylist(), piece["seq"].to_pylist(), strict=True))
        for piece in merged(sources, "fire_at_ms")
    ]
    assert [key for piece in pieces for key in piece] == sorted(expected)
    assert max(map(len, pieces)) <= 5 * 9
