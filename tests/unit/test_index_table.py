"""The guarded table: ranges once and without gaps, replacements under the fence."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tarry.core.errors import Conflict, Unavailable
from tarry.index.files import write_partitions
from tarry.index.schema import INDEX
from tarry.index.table import GuardedTable, IndexFile

LEDGER = b"a" * 16


def table(folder: Path, ledger_id: bytes = LEDGER) -> GuardedTable:
    return GuardedTable.open(str(folder / "index"), INDEX, ledger_id)


def files(at: GuardedTable, slot: str, fires: list[int], first_seq: int = 1) -> list[IndexFile]:
    count = len(fires)
    columns = {
        "slot": pa.array([slot] * count),
        "fire_at_ms": pa.array(fires, pa.int64()),
        "seq": pa.array(range(first_seq, first_seq + count), pa.int64()),
        "op": pa.array([1] * count, pa.int32()),
        "lane": pa.array([0] * count, pa.int32()),
    }
    return write_partitions(pa.table(columns), at.uri, INDEX, "test")


def test_a_new_table_is_complete_up_to_nothing(tmp_path: Path) -> None:
    opened = table(tmp_path)
    assert (opened.cursor(), opened.files(), opened.state()) == (0, [], {})


def test_a_new_table_is_for_nobody_else(tmp_path: Path) -> None:
    table(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "index").stat().st_mode & 0o777 == 0o700


def test_appends_move_the_cursor_and_are_seen_by_others(tmp_path: Path) -> None:
    first = table(tmp_path)
    written = files(first, "300000_0", [5, 7])
    first.append(written, 1, 10, {"granularity": {"": 1}})
    other = table(tmp_path)
    assert other.cursor() == 10
    assert [msgspec.structs.replace(file, written_ms=0) for file in other.files()] == written
    assert other.files()[0].written_ms > 0
    assert (other.files()[0].low, other.files()[0].high, other.files()[0].rows) == (5, 7, 2)
    assert other.state() == {"granularity": {"": 1}}


def test_a_file_of_a_batch_keeps_its_base_and_its_floor(tmp_path: Path) -> None:
    opened = table(tmp_path)
    [written] = files(opened, "300000_0", [5, 7])
    staged = msgspec.structs.replace(written, base=1 << 47, floor_ms=6, written_ms=77)
    opened.append([staged], 1, 1, {})
    other = table(tmp_path)
    assert other.files() == [staged]
    assert (other.files()[0].first_ms, other.files()[0].last_ms) == (6, 7)
    other.replace([staged], [], {})
    assert table(tmp_path).files() == []


def test_an_append_without_files_moves_the_cursor(tmp_path: Path) -> None:
    opened = table(tmp_path)
    opened.append([], 1, 4, {})
    opened.append([], 5, 9, {"seen": 1})
    assert (opened.cursor(), opened.state()) == (9, {"seen": 1})


@pytest.mark.parametrize("first_seq", [1, 5, 10, 12])
def test_a_range_that_does_not_follow_the_cursor_is_refused(tmp_path: Path, first_seq: int) -> None:
    opened = table(tmp_path)
    opened.append([], 1, 10, {})
    with pytest.raises(Conflict, match="does not follow"):
        opened.append(files(opened, "300000_0", [1]), first_seq, 20, {})
    assert (opened.cursor(), opened.files()) == (10, [])


def test_of_two_appends_from_one_version_one_fails(tmp_path: Path) -> None:
    one, two = table(tmp_path), table(tmp_path)
    one.append(files(one, "300000_0", [1]), 1, 10, {})
    with pytest.raises(Conflict, match="came first"):
        two.append(files(two, "300000_0", [1]), 1, 10, {})
    assert sum(file.rows for file in table(tmp_path).files()) == 1


def test_of_two_replacements_of_the_same_file_one_fails(tmp_path: Path) -> None:
    one = table(tmp_path)
    old = files(one, "3600000_0", [1, 2, 3])
    one.append(old, 1, 3, {})
    two = table(tmp_path)
    one.replace(old, files(one, "300000_0", [1, 2, 3]), {})
    with pytest.raises(Conflict):
        two.replace(old, files(two, "300000_0", [1, 2, 3]), {})
    two.refresh()
    with pytest.raises(Conflict, match="not there any more"):
        two.replace(old, files(two, "300000_0", [1, 2, 3]), {})
    assert sum(file.rows for file in table(tmp_path).files()) == 3
    assert table(tmp_path).cursor() == 3


def test_an_append_and_a_replacement_from_one_version_do_not_both_commit(tmp_path: Path) -> None:
    one = table(tmp_path)
    old = files(one, "3600000_0", [1])
    one.append(old, 1, 1, {})
    two = table(tmp_path)
    one.append(files(one, "3600000_0", [2], 2), 2, 2, {})
    with pytest.raises(Conflict, match="came first"):
        two.replace(old, [], {})
    assert sum(file.rows for file in table(tmp_path).files()) == 2


def test_a_table_of_another_ledger_is_refused(tmp_path: Path) -> None:
    table(tmp_path)
    with pytest.raises(Unavailable, match="another ledger"):
        table(tmp_path, b"b" * 16)


def test_rows_go_into_one_file_for_each_slot(tmp_path: Path) -> None:
    opened = table(tmp_path)
    columns = {
        "slot": pa.array(["1000_0", "1000_0", "1000_1000"]),
        "fire_at_ms": pa.array([1, 999, 1000], pa.int64()),
        "seq": pa.array([1, 2, 3], pa.int64()),
    }
    written = write_partitions(pa.table(columns), opened.uri, INDEX, "x")
    assert [(file.partition, file.rows, file.low, file.high) for file in written] == [
        ("1000_0", 2, 1, 999),
        ("1000_1000", 1, 1000, 1000),
    ]
