"""Damage in a registry that is in use: it is told, and never copied over a good snapshot."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.core.errors import Damage, Unavailable
from tarry.ledger.record import Key
from tarry.registry.registry import GroupRow, LiveRow, Meta, Registry
from tarry.registry.snapshots import SNAPSHOTS, mark_damaged, marked_damaged, unmark
from tarry.registry.table import RegistryDamage, trouble


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry(str(tmp_path / "registry.db"))
    for seq in range(1, 200):
        registry.live.put((seq,), LiveRow(Key(5, seq), Key(5, seq)), ("ann", 5))
        registry.groups.put(("n", "ann", f"g{seq}"), GroupRow([], 7), (7,))
    flush = registry.begin(Meta(bytes(16), 9, Key(5, 0), {}))
    registry.write(flush)
    registry.done(flush)
    yield registry
    registry.close()


def change(registry: Registry, statement: str) -> None:
    other = sqlite3.connect(registry.path)
    with other:
        assert other.execute(statement).rowcount == 1
    other.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE groups SET crc = crc + 1 WHERE name = 'g7'", "fails its checksum"),
        ("UPDATE groups SET name = 'g7000' WHERE name = 'g7'", "columns of a row are not what they were"),
        ("UPDATE live SET origin_seq = 7000 WHERE origin_seq = 7", "columns of a row"),
        ("UPDATE live SET owner = 'bob' WHERE origin_seq = 7", "columns of a row"),
    ],
)
def test_damage_is_not_copied_over_a_good_snapshot(
    registry: Registry, tmp_path: Path, statement: str, said: str
) -> None:
    path = tmp_path / SNAPSHOTS[0]
    registry.snapshot(str(path))
    good = path.read_bytes()
    told: list[RegistryDamage] = []
    registry.on_damage = told.append
    change(registry, statement)
    with pytest.raises(Damage, match=said):
        registry.snapshot(str(path))
    assert path.read_bytes() == good
    assert len(told) == 1


def test_damage_to_an_index_is_found_at_the_next_snapshot(registry: Registry, tmp_path: Path) -> None:
    """A list by owner would miss rows; no row of the table is wrong."""
    registry.close()
    file = Path(registry.path)
    with sqlite3.connect(file) as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'live_by_owner'"
        ).fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray(file.read_bytes())
    at = data.find(b"ann", (root - 1) * page, root * page)
    data[at] ^= 1
    file.write_bytes(data)
    registry.__init__(str(file))  # type: ignore[misc]
    with pytest.raises(Damage, match="live_by_owner"):
        registry.snapshot(str(tmp_path / SNAPSHOTS[0]))
    assert not (tmp_path / SNAPSHOTS[0]).exists()


def test_a_look_up_tells_of_damage(registry: Registry) -> None:
    told: list[RegistryDamage] = []
    registry.on_damage = told.append
    change(registry, "UPDATE groups SET crc = crc + 1 WHERE name = 'g7'")
    assert registry.groups.get("n", "ann", "g8") is not None
    with pytest.raises(RegistryDamage):
        registry.groups.get("n", "ann", "g7")
    assert len(told) == 1


def test_a_full_disk_is_no_damage() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA max_page_count = 2")
    with pytest.raises(sqlite3.OperationalError) as full:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    with pytest.raises(sqlite3.OperationalError) as missing:
        connection.execute("SELECT * FROM gone")
    connection.close()
    assert isinstance(trouble("t", full.value), Unavailable)
    assert isinstance(trouble("t", missing.value), RegistryDamage)


def test_the_mark_for_the_next_start(tmp_path: Path) -> None:
    assert marked_damaged(str(tmp_path)) is None
    mark_damaged(str(tmp_path), "a row")
    assert marked_damaged(str(tmp_path)) == "a row"
    unmark(str(tmp_path))
    unmark(str(tmp_path))
    assert marked_damaged(str(tmp_path)) is None
