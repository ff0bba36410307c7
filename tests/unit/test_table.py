"""A write-behind table: changes are seen at once, whatever the flush is doing."""

import sqlite3

import pytest
from msgspec import Struct

from tarry.core.errors import Damage
from tarry.registry.table import Table


class Thing(Struct, array_like=True, frozen=True):
    number: int
    text: str = ""


@pytest.fixture
def connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE TABLE things (name TEXT, part INTEGER, size INTEGER, body BLOB, crc INTEGER, PRIMARY KEY (name, part))"
    )
    return connection


@pytest.fixture
def table(connection: sqlite3.Connection) -> Table[Thing]:
    table = Table("things", ("name", "part"), Thing, ("size",))
    table.attach(connection)
    return table


def flush(table: Table[Thing], connection: sqlite3.Connection) -> None:
    table.write(connection, table.take())
    table.flushed()


def test_a_change_is_seen_before_during_and_after_its_flush(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    assert table.get("a", 1) is None
    table.put(("a", 1), Thing(1), (10,))
    assert table.get("a", 1) == Thing(1)
    assert table.changed == 1
    changes = table.take()
    assert table.get("a", 1) == Thing(1)
    assert table.changed == 0
    table.write(connection, changes)
    assert table.get("a", 1) == Thing(1)
    table.flushed()
    assert table.get("a", 1) == Thing(1)
    assert list(table.rows()) == [(("a", 1), Thing(1))]


def test_a_removal_is_seen_before_during_and_after_its_flush(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    table.put(("a", 1), Thing(1), (10,))
    flush(table, connection)
    table.remove("a", 1)
    assert table.get("a", 1) is None
    changes = table.take()
    assert table.get("a", 1) is None
    table.write(connection, changes)
    table.flushed()
    assert table.get("a", 1) is None
    assert list(table.rows()) == []


def test_what_is_put_while_a_flush_is_under_way_outlives_it(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    table.put(("a", 1), Thing(1), (10,))
    changes = table.take()
    table.put(("a", 1), Thing(2), (10,))
    assert table.get("a", 1) == Thing(2)
    table.write(connection, changes)
    table.flushed()
    assert table.get("a", 1) == Thing(2)
    assert table.changed == 1
    flush(table, connection)
    assert list(table.rows()) == [(("a", 1), Thing(2))]


def test_a_failed_flush_gives_its_changes_back_under_newer_ones(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    table.put(("a", 1), Thing(1), (1,))
    table.put(("b", 1), Thing(1), (1,))
    table.take()
    table.put(("b", 1), Thing(2), (1,))
    table.undo()
    assert (table.get("a", 1), table.get("b", 1), table.changed) == (Thing(1), Thing(2), 2)
    flush(table, connection)
    assert dict(table.rows()) == {("a", 1): Thing(1), ("b", 1): Thing(2)}


def test_rows_are_selected_by_their_searched_columns(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    for part in range(5):
        table.put(("a", part), Thing(part), (part * 10,))
    flush(table, connection)
    found = table.select("size >= ? ORDER BY size DESC LIMIT ?", (20, 2))
    assert found == [(("a", 4), (40,), Thing(4)), (("a", 3), (30,), Thing(3))]


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_flipped_bit_in_any_byte_of_a_row_is_found(
    table: Table[Thing], connection: sqlite3.Connection, bit: int
) -> None:
    table.put(("a", 1), Thing(7, "text"), (10,))
    flush(table, connection)
    ((body,),) = connection.execute("SELECT body FROM things")
    for at in range(len(body)):
        flipped = bytearray(body)
        flipped[at] ^= 1 << bit
        connection.execute("UPDATE things SET body = ?", (bytes(flipped),))
        with pytest.raises(Damage, match="things"):
            table.get("a", 1)
        with pytest.raises(Damage, match="things"):
            list(table.rows())


def test_a_row_that_stands_at_another_key_is_damage(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    table.put(("a", 1), Thing(7), (10,))
    flush(table, connection)
    connection.execute("UPDATE things SET part = 2")
    with pytest.raises(Damage, match="another key"):
        table.get("a", 2)


def test_a_database_that_cannot_be_read_is_damage(
    table: Table[Thing], connection: sqlite3.Connection
) -> None:
    connection.execute("DROP TABLE things")
    with pytest.raises(Damage, match="things"):
        table.get("a", 1)
