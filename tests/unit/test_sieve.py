"""Filters that save SQLite look-ups: rows written of late, and a sieve for keys that were never there. Neither may be wrong."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.ledger.record import Key
from tarry.registry import table
from tarry.registry.registry import LiveRow, Meta, Registry, RepeatRow
from tarry.registry.sieve import LEARNED_AT_ONCE, Sieve

REPEAT = RepeatRow(b"", Key(5, 1), 5, False, 5)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(str(tmp_path / "registry.db"))
    yield registry
    registry.close()


def flush(registry: Registry) -> None:
    cut = registry.begin(Meta(bytes(16), 1, Key(5, 0), {}))
    registry.write(cut)
    registry.done(cut)


def put_keys(registry: Registry, start: int, count: int) -> None:
    for number in range(start, start + count):
        registry.idempotency.put(("n", "ann", f"key {number}"), REPEAT, (5,))


def asked(registry: Registry) -> list[str]:
    """The queries that look-ups make of SQLite from now on."""
    statements: list[str] = []
    registry._reader.set_trace_callback(statements.append)
    return statements


def test_a_key_that_was_never_put_is_not_looked_up(registry: Registry) -> None:
    put_keys(registry, 0, 10)
    flush(registry)
    statements = asked(registry)
    assert registry.idempotency.get("n", "ann", "another") is None
    assert statements == []
    assert registry.idempotency.get("n", "ann", "key 3") == REPEAT
    assert len(statements) == 1


def test_keys_from_before_a_start_are_found_while_the_sieve_still_learns_them_and_after(
    registry: Registry,
) -> None:
    count = 2 * LEARNED_AT_ONCE + 10
    put_keys(registry, 0, count)
    flush(registry)
    again = Registry(registry.path)
    statements = asked(again)
    try:
        for flushes in range(4):
            some = range(flushes, count, 97)
            assert all(again.idempotency.get("n", "ann", f"key {number}") == REPEAT for number in some)
            put_keys(again, count + flushes, 1)
            flush(again)
        statements.clear()
        assert again.idempotency.get("n", "ann", "another") is None
        assert statements == []
        # Those of before, and those that came while it learned and afterwards.
        all_ = (*range(0, count, 13), *range(count, count + 4))
        assert all(again.idempotency.get("n", "ann", f"key {number}") == REPEAT for number in all_)
    finally:
        again.close()


def test_a_sieve_that_begins_anew_has_the_keys_in_sqlite_and_those_on_their_way() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a TEXT, b TEXT, PRIMARY KEY (a, b))")
    sieve = Sieve("t", ("a", "b"), enough_keys=3)
    sieve.learn(connection)
    sieve.flushed(())
    stored = [("ann", str(number)) for number in range(3)]
    for key in stored:
        sieve.add(key)
        connection.execute("INSERT INTO t VALUES (?, ?)", key)
    forgotten, on_its_way = ("bob", "pruned"), ("ann", "on its way")
    sieve.add(forgotten)
    sieve.add(on_its_way)
    sieve.flushed([on_its_way])
    assert not sieve.lacks(("ann", "unknown yet"))
    sieve.learn(connection)
    sieve.flushed(())
    assert not any(sieve.lacks(key) for key in (*stored, on_its_way))
    assert sieve.lacks(forgotten)
    connection.close()


def live(fire_at_ms: int) -> LiveRow:
    return LiveRow(Key(fire_at_ms, 9), Key(2, 1))


def test_a_row_that_was_written_of_late_is_not_looked_up_and_is_always_the_newest(registry: Registry) -> None:
    statements = asked(registry)
    for fire_at_ms in (5, 6):
        registry.live.put((1,), live(fire_at_ms), ("ann", 5))
        assert registry.live.get(1) == live(fire_at_ms)
        flush(registry)
        statements.clear()
        assert registry.live.get(1) == live(fire_at_ms)
        assert statements == []
    registry.live.remove(1)
    assert registry.live.get(1) is None
    flush(registry)
    assert registry.live.get(1) is None


def test_only_so_many_rows_are_kept_and_the_others_are_still_found(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "RECENT_ROWS", 10)
    for round_ in range(8):
        # The first is written again and again: it is among the older rows and the recent ones.
        for seq in (1, *range(100 + round_ * 5, 105 + round_ * 5)):
            registry.live.put((seq,), live(round_ + 5), ("ann", 5))
        flush(registry)
        assert registry.live.get(1) == live(round_ + 5)
        assert len(registry.live._recent) + len(registry.live._older) <= 2 * (10 + 6)
    assert [registry.live.get(100 + round_ * 5) for round_ in range(8)] == [live(at + 5) for at in range(8)]


def test_a_flush_that_fails_leaves_the_newest_row_visible(registry: Registry) -> None:
    registry.live.put((1,), live(5), ("ann", 5))
    flush(registry)
    registry.live.put((1,), live(6), ("ann", 6))
    cut = registry.begin(Meta(bytes(16), 1, Key(5, 0), {}))
    registry.undo(cut)
    assert registry.live.get(1) == live(6)
    flush(registry)
    assert registry.live.get(1) == live(6)
