"""The registry: a flush is one consistent cut or nothing, and what is damaged is said."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.record import Key
from tarry.registry.lines_row import LinesRow
from tarry.registry.registry import EndedRow, Flush, GroupRow, LiveRow, Meta, Registry, RepeatRow
from tarry.registry.snapshots import SNAPSHOTS, restore
from tarry.registry.table import WRITTEN_AT_ONCE

LEDGER = bytes(range(16))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "registry.db")


@pytest.fixture
def registry(path: str) -> Iterator[Registry]:
    registry = Registry(path)
    yield registry
    registry.close()


def cut(registry: Registry, seq: int) -> Flush:
    return registry.begin(Meta(LEDGER, seq, Key(5, 0), {"accepted": seq}))


def flush(registry: Registry, seq: int) -> None:
    flush = cut(registry, seq)
    registry.write(flush)
    registry.done(flush)


def ended(seq: int, at_ms: int) -> EndedRow:
    return EndedRow(Key(1, seq), "sent", at_ms, None, None, 1, 1, 1, "n", "d", None, "ann", "http", None)


def reopened(registry: Registry) -> Registry:
    registry.close()
    return Registry(registry.path)


def test_a_flush_and_the_seq_it_reached_come_back_together(registry: Registry) -> None:
    registry.live.put((1,), LiveRow(Key(5, 9), Key(2, 1)), ("ann", 5))
    registry.owners.put(("n", "ann"), 3)
    registry.groups.put(("n", "ann", "g"), GroupRow([], 7), (7,))
    dirty = registry.dirty
    flush(registry, 9)
    assert (dirty, registry.dirty) == (True, False)
    again = reopened(registry)
    assert again.meta == Meta(LEDGER, 9, Key(5, 0), {"accepted": 9})
    assert again.live.get(1) == LiveRow(Key(5, 9), Key(2, 1))
    assert list(again.owners.rows()) == [(("n", "ann"), 3)]
    assert again.groups.get("n", "ann", "g") == GroupRow([], 7)
    again.close()


def test_what_was_not_flushed_is_not_there(registry: Registry) -> None:
    registry.owners.put(("n", "ann"), 3)
    again = reopened(registry)
    assert again.meta is None
    assert list(again.owners.rows()) == []
    again.close()


def test_a_flush_that_fails_half_way_leaves_nothing_behind(registry: Registry, path: str) -> None:
    registry.owners.put(("n", "ann"), 1)
    flush(registry, 4)
    registry.owners.put(("n", "ann"), 2)
    registry.defer_ended(lambda: [((8,), (None, 3), ended(8, 3))])
    broken = cut(registry, 9)
    registry._writer.execute("PRAGMA max_page_count = 1")
    # Rows enough to need another page.
    broken.ended.append(lambda: [((n,), (None, n), ended(n, n)) for n in range(100, 5000)])
    with pytest.raises(Unavailable, match="registry"):
        registry.write(broken)
    registry.undo(broken)
    assert registry.owners.get("n", "ann") == 2
    assert registry.dirty
    other = Registry(path)
    assert other.meta is not None
    assert other.meta.applied_seq == 4
    assert list(other.owners.rows()) == [(("n", "ann"), 1)]
    other.close()
    registry._writer.execute("PRAGMA max_page_count = 1000000")
    flush(registry, 9)
    assert registry.finalised.get(8) == ended(8, 3)
    assert registry.finalised.get(4999) == ended(4999, 4999)


def test_rows_made_late_are_made_at_the_flush(registry: Registry) -> None:
    made = []

    def rows() -> list[object]:
        made.append(1)
        return [((8,), ("ann", 3), ended(8, 3))]

    registry.defer_ended(rows)  # type: ignore[arg-type]
    assert registry.dirty
    assert not made
    flush(registry, 1)
    assert registry.finalised.get(8) == ended(8, 3)
    assert not registry.dirty


@pytest.mark.parametrize("count", [WRITTEN_AT_ONCE - 1, WRITTEN_AT_ONCE, 3 * WRITTEN_AT_ONCE + 1])
def test_of_many_rows_in_a_flush_each_is_there(registry: Registry, path: str, count: int) -> None:
    rows = [((seq,), ("ann", 100 + seq), ended(seq, 100 + seq)) for seq in range(count)]
    registry.defer_ended(lambda: rows[: count // 2])
    registry.defer_ended(lambda: rows[count // 2 :])
    for seq in range(count):
        registry.owners.put(("n", f"owner {seq}"), seq)
    flush(registry, 7)
    again = Registry(path)
    assert sorted(again.finalised.select("owner = ?", ("ann",))) == sorted(rows)
    assert sorted(again.owners.rows()) == sorted((("n", f"owner {seq}"), seq) for seq in range(count))
    again.close()


def test_pruning_forgets_what_is_past_its_retention_and_no_more(registry: Registry) -> None:
    for seq in range(1, 11):
        registry.finalised.put((seq,), ended(seq, seq * 100), (None, seq * 100))
    registry.idempotency.put(("n", "ann", "old"), RepeatRow(b"", Key(1, 1), 1, False, 100), (100,))
    registry.idempotency.put(("n", "ann", "new"), RepeatRow(b"", Key(1, 1), 1, False, 900), (900,))
    registry.lines.put(("n", "ann", "night", 0), LinesRow(b"\0", bytes(48)), (100,))
    registry.lines.put(("n", "ann", "night", 1), LinesRow(b"\0", bytes(48)), (900,))
    registry.groups.put(("n", "ann", "closed"), GroupRow([], 100), (100,))
    registry.groups.put(("n", "ann", "open"), GroupRow([], None), (None,))
    flush(registry, 1)
    registry.prune(301, 1000, 500, 1000)
    registry.renew()
    assert [seq for (seq,), _ in registry.finalised.rows()] == [4, 5, 6, 7, 8, 9, 10]
    assert [key for (_, _, key), _ in registry.idempotency.rows()] == ["new"]
    assert [page for (*_, page), _ in registry.lines.rows()] == [1]
    assert [name for (_, _, name), _ in registry.groups.rows()] == ["open"]
    # Too many rows: the oldest go first.
    registry.prune(0, 3, 0, 1000)
    registry.renew()
    assert [seq for (seq,), _ in registry.finalised.rows()] == [8, 9, 10]


def test_of_one_owner_only_so_many_ended_messages_are_remembered(registry: Registry) -> None:
    owners = {1: "ann", 2: "bob", 3: None, 4: "ann", 5: "bob", 6: None, 7: "ann", 8: None}
    for seq, owner in owners.items():
        registry.finalised.put((seq,), ended(seq, seq * 100), (owner, seq * 100))
    flush(registry, 1)
    registry.prune(0, 1000, 0, 2)
    registry.renew()
    # Of ann's three the oldest goes; those that are not listed by owner do not count.
    assert [seq for (seq,), _ in registry.finalised.rows()] == [2, 3, 4, 5, 6, 7, 8]


def test_another_format_is_refused_by_name(registry: Registry, path: str) -> None:
    registry.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(Unavailable, match="another version of Tarry"):
        Registry(path)


def test_a_file_that_is_no_registry_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(Damage, match="not a database"):
        Registry(str(path))


def test_a_snapshot_takes_the_place_of_a_damaged_registry(
    registry: Registry, path: str, tmp_path: Path
) -> None:
    registry.owners.put(("n", "ann"), 7)
    flush(registry, 5)
    registry.snapshot(str(tmp_path / SNAPSHOTS[0]))
    registry.close()
    Path(path).write_bytes(b"garbage" * 1000)
    assert restore(str(tmp_path), path)
    again = Registry(path)
    assert again.meta is not None
    assert again.meta.applied_seq == 5
    assert again.owners.get("n", "ann") == 7
    again.close()
    assert os.path.exists(path + ".damaged")


@pytest.mark.parametrize("names", [SNAPSHOTS, SNAPSHOTS[::-1]])
def test_of_two_snapshots_the_newer_takes_the_place(
    registry: Registry, path: str, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for seq, name in enumerate(names, 5):
        flush(registry, seq)
        registry.snapshot(str(tmp_path / name))
        os.utime(tmp_path / name, (seq, seq))
    registry.close()
    assert restore(str(tmp_path), path)
    again = Registry(path)
    assert again.meta is not None
    assert again.meta.applied_seq == 6
    again.close()


def test_a_snapshot_with_a_flipped_bit_is_not_one(registry: Registry, path: str, tmp_path: Path) -> None:
    registry.owners.put(("n", "ann"), 7)
    flush(registry, 5)
    registry.snapshot(str(tmp_path / SNAPSHOTS[0]))
    registry.owners.put(("n", "ann"), 8)
    flush(registry, 6)
    registry.snapshot(str(tmp_path / SNAPSHOTS[1]))
    registry.close()
    newer = tmp_path / SNAPSHOTS[1]
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 1
    newer.write_bytes(data)
    assert restore(str(tmp_path), path)
    again = Registry(path)
    assert again.meta is not None
    assert again.meta.applied_seq == 5
    again.close()
    (tmp_path / SNAPSHOTS[0]).write_bytes(b"")
    assert not restore(str(tmp_path), path)


def test_a_registry_in_memory_can_be_had_again() -> None:
    one = Registry(":memory:")
    one.owners.put(("n", "ann"), 7)
    flush(one, 5)
    two = Registry(":memory:", one.serialize())
    assert two.meta == one.meta
    assert list(two.owners.rows()) == [(("n", "ann"), 7)]
    one.close()
    two.close()
