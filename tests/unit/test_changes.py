"""Changes that whoever lays out a unit says along are those that a start finds in its records."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tarry.core.messages.message import Message
from tarry.core.tenants.holder import Holder
from tarry.engine.records.changes import (
    Change,
    FiredVersions,
    NewEntries,
    Single,
    Versions,
    Written,
    changes_of,
)
from tarry.engine.topics.entries import NewEntry
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import NO_PUT, Entry, Key, Mark, Record, decode_many
from tests.unit.engine_kit import FOREIGN, Bench, full, schedule_arrow


@pytest.fixture
def bench() -> Bench:
    return Bench()


def appended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """Everything that is appended from now on with its changes, and not as records."""
    units: list[Written] = []
    append = bench.journal.append

    def noted(records: Written | Sequence[Record], *args: Any, **options: Any) -> int:
        if isinstance(records, Written):
            units.append(records)
        return append(records, *args, **options)

    monkeypatch.setattr(bench.journal, "append", noted)
    return units


def plain(changes: Iterable[Change]) -> Iterator[Any]:
    """Changes in a form that can be compared, whatever their columns are made of."""
    for change in changes:
        if isinstance(change, NewEntries):
            columns = {name: list(getattr(change, name)) for name in ("places", "sizes", "waiting", "sent")}
            yield msgspec.structs.replace(change, **columns)
        elif isinstance(change, FiredVersions):
            ended = [
                ([getattr(head, name) for name in PutHead.__struct_fields__], key, at_ms)
                for head, key, at_ms in change.ended()
            ]
            yield change.seqs.tolist(), ended, change.holders
        else:
            yield change


def check(unit: Written) -> None:
    records = decode_many([unit.unit.body(place) for place in range(len(unit))])
    assert list(plain(unit.changes)) == list(plain(changes_of(records)))


def test_a_burst_says_of_itself_what_its_records_say(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    units = appended(bench, monkeypatch)
    for number in range(40):
        topic, owner = ("orders", "returns")[number % 5 == 4], ("ann", "bob")[number % 3 == 2]
        bench.schedule(topic, payload=bytes(number), owner=owner, delay_ms=1_000)
    bench.wait(1_000)
    (unit,) = units
    assert [type(change) for change in unit.changes] == [NewEntries, NewEntries, FiredVersions]
    assert unit.changes[-1].holders  # type: ignore[union-attr]
    check(unit)


def test_a_burst_with_messages_that_have_rows_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    units = appended(bench, monkeypatch)
    bench.schedule("orders", delay_ms=1_000)
    bench.schedule("orders", delay_ms=1_000, owner="ann", listed=True)
    bench.wait(1_000)
    (unit,) = units
    assert unit.changes[-1].holders is None  # type: ignore[union-attr]
    check(unit)


def test_a_publication_says_of_itself_what_its_records_say(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = appended(bench, monkeypatch)
    now_ms = bench.now_ms
    bench.ask(
        bench.engine.topics.publish(
            "orders",
            [
                NewEntry(payload=b"", producer="p", producer_sequence=1),
                NewEntry(payload=b"later", deliver_at_ms=now_ms + 5_000, owner="ann"),
                NewEntry(payload=b"many", producer="q", producer_first=3, producer_sequence=7, messages=5),
                NewEntry(payload=b"x" * 70_000, key="k"),
            ],
        )
    )
    (unit,) = units
    check(unit)


def test_columns_say_of_themselves_what_their_records_say(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = appended(bench, monkeypatch)
    columns = {"destination": ["orders", FOREIGN, "orders"], "delay_ms": [1, 2, 3], "owner": ["a", "b", "a"]}
    bench.ask(schedule_arrow(bench.engine, pa.record_batch(columns), Message(destination="")))
    (unit,) = units
    check(unit)


def entry(entry_id: int, topic: str = "orders", **changes: Any) -> Entry:
    made = Entry(full(topic), 0, 5, entry_id, None, NO_PUT, b"x" * entry_id)
    return msgspec.structs.replace(made, **changes)


def test_entries_of_a_topic_that_lie_apart_in_a_frame_are_one_change() -> None:
    orders, returns = changes_of([entry(7), entry(0, "returns"), entry(8), entry(9)])
    assert list(plain([orders])) == [NewEntries(full("orders"), 7, [0, 2, 3], 5, [7, 8, 9], [], [])]
    assert isinstance(orders, NewEntries)
    assert orders.seqs(100).tolist() == [100, 102, 103]
    assert isinstance(returns, NewEntries)
    assert returns.seqs(100).tolist() == [101]


def test_a_record_that_is_passed_over_leaves_a_gap() -> None:
    changes = changes_of([entry(7), None, entry(9)])
    assert [(one.first_id, one.seqs(1).tolist()) for one in changes if isinstance(one, NewEntries)] == [
        (7, [1]),
        (9, [3]),
    ]


def test_an_entry_that_is_carried_forward_keeps_its_place_among_the_others() -> None:
    carried = entry(7, carries=Key(0, 3))
    changes = changes_of([entry(7), carried, entry(8), Mark(Key(1, 1), 1)])
    assert [type(change) for change in changes] == [NewEntries, Single, NewEntries, Single]
    assert changes[1] == Single(1, carried)


def test_of_a_plain_version_only_a_count_is_kept(bench: Bench) -> None:
    ids = [bench.schedule(delay_ms=1_000, owner="ann", listed=listed).id for listed in (False, True, False)]
    keys = [Key(place[1], place[0]) for place in map(bench.ids.read, ids) if place is not None]
    puts = [bench.bodies.version(key.seq) for key in keys]
    holder = Holder("public/default", "ann")
    assert changes_of(puts) == [Versions({holder: 3}, ((1, puts[1]),))]
    # One by itself takes another way to the same change.
    assert changes_of(puts[:1]) == [Versions({holder: 1})]
    assert changes_of(puts[1:2]) == [Versions({holder: 1}, ((0, puts[1]),))]
    again = msgspec.structs.replace(puts[0], origin=keys[0], kills=keys[0])
    assert changes_of([again]) == [Versions({}, ((0, again),))]
    assert changes_of([again, puts[2]]) == [Versions({holder: 1}, ((0, again),))]
