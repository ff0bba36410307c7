"""The index as the server reads it: files of any slot side by side, in pieces, proved."""

from pathlib import Path
from random import Random

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarry.core.errors import Damage, Unavailable
from tarry.index.adopted import with_keys
from tarry.index.census import CensusFile
from tarry.index.delta import DeltaIndex, DeltaView, TableFolder
from tarry.index.index import IndexMoved
from tarry.index.row_groups import groups_of, written
from tarry.index.schema import DEL, INDEX, PUT
from tarry.index.table import GuardedTable, IndexFile
from tarry.ledger.record import Key, Put, decode_put, encode

ALL = Key(0, 0), Key(1 << 47, 0)
Row = tuple[int, int, int]
"""Fire instant, seq, op."""


def put_body(fire_at_ms: int, seq: int) -> bytes:
    put = Put(
        fire_at_ms, fire_at_ms, 1, "a/b", "t", None, "ann", "http", None, None, None, 0, False, b"%d" % seq, {}, 0, None
    )  # fmt: skip
    return encode(put).body


def write(
    folder: Path,
    name: str,
    rows: list[Row],
    *,
    base: int = 0,
    floor_ms: int = 0,
    group: int = 4,
    lie: bool = False,
) -> CensusFile:
    """A file of the index, in small row groups."""
    rows = sorted(rows)
    bodies = [None if op == DEL else put_body(fire, seq) for fire, seq, op in rows]
    table = pa.table(
        {
            "fire_at_ms": pa.array([row[0] for row in rows], pa.int64()),
            "seq": pa.array([row[1] for row in rows], pa.int64()),
            "op": pa.array([row[2] for row in rows], pa.int32()),
            "lane": pa.array([row[1] % 7 for row in rows], pa.int32()),
            "crc": pa.array(
                [None if body is None else google_crc32c.value(body) + lie for body in bodies], pa.int64()
            ),
            "body": pa.array(bodies, pa.binary()),
        }
    )
    with pq.ParquetWriter(folder / name, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table, row_group_size=group)
        writer.add_key_value_metadata(written(list(groups_of(table, "fire_at_ms", group))))
    return CensusFile(name, rows[0][0], rows[-1][0], base, floor_ms)


def view_of(folder: Path, *files: CensusFile) -> DeltaView:
    return DeltaView(TableFolder(str(folder)), 1, "table", 99, list(files))


def all_of(view: DeltaView, limit: int) -> list[tuple[int, int]]:
    """Everything, in as many pieces as it takes."""
    found: list[tuple[int, int]] = []
    low = ALL[0]
    for _ in range(10_000):
        due, upto = view.load(low, ALL[1], limit)
        found += zip(due.fire_at_ms.tolist(), due.seqs.tolist(), strict=True)
        assert all(
            lane == seq % (1 << 47) % 7
            for seq, lane in zip(due.seqs.tolist(), due.lanes.tolist(), strict=True)
        )
        if upto == ALL[1]:
            return found
        assert upto > low, "a piece must bring it forward"
        low = upto
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(12))
def test_pieces_of_any_size_give_each_living_version_once_and_in_order(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    puts = [(random.choice((50, 60, 70)) + random.randrange(3), seq) for seq in range(1, 60)]
    dead = random.sample(puts, 15)
    rows: list[Row] = [(*key, PUT) for key in puts] + [(*key, DEL) for key in dead]
    # A del may be in the same file as its put, or in any other.
    shares: list[list[Row]] = [[] for _ in range(4)]
    for row in rows:
        random.choice(shares).append(row)
    view = view_of(tmp_path, *(write(tmp_path, f"{at}.parquet", share) for at, share in enumerate(shares)))
    expected = sorted(set(puts) - set(dead))
    for limit in (1, 3, 10, 1_000):
        assert all_of(view, limit) == expected, limit


def test_only_files_that_touch_the_range_are_opened(tmp_path: Path) -> None:
    near = write(tmp_path, "near.parquet", [(10, 1, PUT)])
    view = view_of(tmp_path, near, CensusFile("gone.parquet", 1_000, 2_000, 0, 0))
    assert view.load(Key(0, 0), Key(999, 0), 10).due.seqs.tolist() == [1]
    assert view.may_hold(Key(11, 0), Key(1_000, 0))
    assert not view.may_hold(Key(11, 0), Key(999, 0))
    with pytest.raises(IndexMoved, match="gone"):
        view.load(*ALL, 10)


def test_a_batch_is_numbered_from_its_base_and_fires_at_its_floor_at_the_earliest(tmp_path: Path) -> None:
    base = 1 << 47
    rows = [(fire, at, PUT) for at, fire in enumerate((10, 20, 30, 40, 50, 60))]
    staged = write(tmp_path, "staged.parquet", rows, base=base, floor_ms=35, group=2)
    ended = write(tmp_path, "dels.parquet", [(35, base + 1, DEL), (50, base + 4, DEL)])
    view = view_of(tmp_path, staged, ended)
    expected = [(35, base), (35, base + 2), (40, base + 3), (60, base + 5)]
    for limit in (1, 2, 100):
        assert all_of(view, limit) == expected
    early, late = view.bodies([Key(35, base), Key(60, base + 5)], 1 << 20)
    assert isinstance(early, bytes)
    assert isinstance(late, bytes)
    # Its key says when it was accepted and when it fires; when it was asked for stays.
    put = decode_put(early)
    assert (put.fire_at_ms, put.accepted_at_ms, put.due_at_ms, put.payload) == (35, 35, 10, b"0")
    assert decode_put(late).fire_at_ms == 60


def test_a_row_of_a_batch_that_is_written_anew_says_itself_when_it_fires(tmp_path: Path) -> None:
    """Its file says it no more once the cascade has put its rows into another."""
    staged = write(tmp_path, "staged.parquet", [(10, 0, PUT), (20, 1, PUT), (40, 2, PUT)])
    rows = pq.read_table(tmp_path / staged.path).append_column(
        "accepted_at_ms", pa.array([1, 1, 1], pa.int64())
    )
    anew = with_keys(
        rows, IndexFile(staged.path, 1, 3, "300000_0", 10, 40, base=100, floor_ms=35)
    ).to_pydict()
    assert (anew["seq"], anew["fire_at_ms"], anew["accepted_at_ms"]) == (
        [100, 101, 102],
        [35, 35, 40],
        [35, 35, 1],
    )
    puts = [decode_put(body) for body in anew["body"]]
    assert [(put.fire_at_ms, put.due_at_ms) for put in puts] == [(35, 10), (35, 20), (40, 40)]
    assert anew["crc"] == [google_crc32c.value(body) for body in anew["body"]]


def test_the_index_of_another_ledger_is_not_read(tmp_path: Path) -> None:
    uri, ours = str(tmp_path / "index"), bytes(16)
    GuardedTable.open(uri, INDEX, ours)
    assert DeltaIndex(uri, ours).newest().identity
    with pytest.raises(Unavailable, match="another ledger"):
        DeltaIndex(uri, b"b" * 16).newest()


def test_bodies_come_as_many_as_fit_and_none_for_the_dead_or_unknown(tmp_path: Path) -> None:
    puts = [(100 + seq, seq, PUT) for seq in range(1, 20)]
    view = view_of(tmp_path, write(tmp_path, "a.parquet", [*puts, (103, 3, DEL)]))
    keys = [Key(101, 1), Key(103, 3), Key(104, 4), Key(104, 77)]
    assert view.bodies(keys, 1 << 20) == [put_body(101, 1), None, put_body(104, 4), None]
    assert len(view.bodies([Key(101, 1)] * 9_000, 10)) == 4_096


def test_a_body_that_is_not_what_was_accepted_is_damage(tmp_path: Path) -> None:
    wrong = write(tmp_path, "wrong.parquet", [(5, 1, PUT)], lie=True)
    right = write(tmp_path, "right.parquet", [(5, 2, PUT)])
    damage, fine = view_of(tmp_path, wrong, right).bodies([Key(5, 1), Key(5, 2)], 1 << 20)
    assert isinstance(damage, Damage)
    assert "seq 1" in str(damage)
    assert fine == put_body(5, 2)


def test_no_flipped_bit_is_read_as_something_else(tmp_path: Path) -> None:
    """R3: page checksums. A flip is damage, or in a place that says nothing."""
    random = Random(3)
    rows = [(1_000 + seq, seq, PUT) for seq in range(1, 40)]
    file = write(tmp_path, "a.parquet", rows, group=40)
    path = tmp_path / "a.parquet"
    sound = path.read_bytes()
    keys = [Key(fire, seq) for fire, seq, _ in rows]
    expected = [put_body(fire, seq) for fire, seq, _ in rows]
    noticed = 0
    for _ in range(150):
        flipped = bytearray(sound)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        path.write_bytes(flipped)
        view = view_of(tmp_path, file)
        try:
            loaded = view.load(*ALL, 1_000).due
            bodies = view.bodies(keys, 1 << 20)
        except Damage as damage:
            noticed += "a.parquet" in str(damage)
            continue
        noticed += any(isinstance(body, Damage) for body in bodies)
        assert np.array_equal(loaded.seqs, [seq for _, seq, _ in rows]) or any(map(_is_damage, bodies))
        assert all(body == right or _is_damage(body) for body, right in zip(bodies, expected, strict=True))
    assert noticed > 50


def _is_damage(body: object) -> bool:
    return isinstance(body, Damage)
