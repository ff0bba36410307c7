"""Counts of upcoming messages, from the wheel, the tail and the index: each message once, wherever it is."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pytest

from tarry.core.errors import Invalid
from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.core.messages.message import Message
from tarry.core.sets.deadset import DeadSet
from tarry.engine.queries.upcoming import STEP_ENTRIES, Upcoming
from tarry.index.census import CensusFile, slots_of, tallies
from tarry.index.delta import TableFolder
from tarry.index.files import write_file
from tarry.index.index import SlotFigures
from tarry.index.row_groups import RowGroup
from tarry.index.schema import DEL, PUT
from tarry.ledger.lanes import DOORS, lane_of
from tests.unit.engine_kit import Bench

HTTP, PULSAR = DOORS.index("http"), DOORS.index("pulsar")


def counted(bench: Bench, hours: int = 3) -> Upcoming:
    now_ms = bench.now_ms
    return bench.ask(bench.engine.upcoming(now_ms, now_ms + hours * HOUR_MS, hours))


def schedule(bench: Bench, delay_ms: int, door: str = "http") -> str:
    message = Message(destination="orders", payload=b"x", delay_ms=delay_ms, door=door)
    return bench.ask(bench.engine.schedule(message)).id


def test_each_message_is_counted_once_in_its_bucket_by_its_door() -> None:
    bench = Bench()
    for minutes, door in ((1, "http"), (59, "http"), (61, "pulsar"), (121, "matrix"), (500, "http")):
        schedule(bench, minutes * MINUTE_MS, door)
    found = counted(bench)
    assert found.doors == {"http": [2, 0, 0], "pulsar": [0, 1, 0], "matrix": [0, 0, 1]}
    assert (found.total, found.estimated) == (4, 0)
    assert found.last_at_ms == bench.now_ms + 500 * MINUTE_MS


def test_what_is_due_soon_is_counted_for_one_door_without_who_is_dead() -> None:
    bench = Bench()
    assert bench.engine.due_soon("matrix", 2_000) == 0
    ids = [schedule(bench, delay_ms, "matrix") for delay_ms in (100, 1_000, 1_500, 3_000)]
    schedule(bench, 100, "http")
    assert bench.engine.due_soon("matrix", 2_000) == 3
    bench.ask(bench.engine.cancel(ids[0]))
    bench.ask(bench.engine.restart(ids[1], delay_ms=5_000))
    assert bench.engine.due_soon("matrix", 2_000) == 1
    assert bench.engine.due_soon("matrix", 50) == 0


def test_what_is_cancelled_or_indexed_counts_as_it_is() -> None:
    bench = Bench()
    ids = [schedule(bench, minutes * MINUTE_MS) for minutes in (5, 70, 80, 130)]
    bench.ask(bench.engine.cancel(ids[1]))
    assert counted(bench).doors == {"http": [1, 1, 1]}
    # The index has them now; below the horizon they are in the wheel as well.
    bench.index.flush(bench.ledger)
    bench.wait(5_000)
    assert bench.horizon.view.cursor > 0
    assert counted(bench).estimated == 2
    assert counted(bench).doors == {"http": [1, 1, 1]}
    # What came since is in the tail.
    schedule(bench, 80 * MINUTE_MS)
    assert counted(bench).doors == {"http": [1, 2, 1]}


def test_more_than_one_step_of_entries() -> None:
    bench = Bench()
    tail, now_ms = bench.horizon.tail, bench.now_ms
    count = 2 * STEP_ENTRIES + 7
    fires = now_ms + HOUR_MS + np.arange(count, dtype=np.int64)
    tail.add_many(fires, np.arange(1, count + 1), np.full(count, lane_of("t/n", "", "dapr"), np.uint16))
    assert counted(bench).doors == {"dapr": [0, count, 0]}


@pytest.mark.parametrize(
    ("span", "buckets", "field"), [(10, 0, "buckets"), (10, 1001, "buckets"), (10, 11, "to_ms"), (-5, 1, "to_ms")]
)  # fmt: skip
def test_windows_that_cannot_be_are_refused(span: int, buckets: int, field: str) -> None:
    bench = Bench()
    answer = bench.engine.upcoming(1_000, 1_000 + span, buckets)
    with pytest.raises(Invalid) as refused:
        answer.value()
    assert refused.value.field == field


def test_the_dead_of_one_moment_can_be_asked_about_later() -> None:
    dead = DeadSet()
    old, young = [3, 70_000, 70_001], [5, (1 << 47) + 9, (1 << 47) + (1 << 34)]
    dead.add_many(np.array(old))
    dead.age()
    dead.add_many(np.array(young))
    frozen = dead.frozen()
    dead.add(4)
    asked = np.array([*young, 4, 6, 69_999, 1 << 40, (1 << 47) + 8, *old, 1 << 50])
    assert asked[frozen.contains_many(asked)].tolist() == [*young, *old]
    assert 4 in dead
    assert not DeadSet().frozen().contains_many(asked).any()


# The files of the index


def test_a_group_is_spread_over_its_instants_and_dels_take_away() -> None:
    doors = tuple(80 if number == HTTP else 20 if number == PULSAR else 0 for number in range(len(DOORS)))
    group = RowGroup(110, 1_000, 1_999, doors)
    edges = np.array([0, 1_000, 1_500, 2_000, 3_000], np.int64)
    (counts,) = tallies([CensusFile("f", 1_000, 1_999, 0, 0, 110, 10)], lambda _: [group], 0, edges)
    assert counts[:, HTTP].tolist() == [0, 36, 36, 0]
    assert counts[:, PULSAR].tolist() == [0, 9, 9, 0]
    # What is below the horizon is in the wheel, and not counted here.
    (counts,) = tallies([CensusFile("f", 1_000, 1_999, 0, 0)], lambda _: [group], 1_250, edges)
    assert counts[:, HTTP].tolist() == [0, 18, 36, 0]


def test_a_floor_raises_what_fires_before_it() -> None:
    group = RowGroup(10, 1_000, 1_000, (10,))
    (counts,) = tallies(
        [CensusFile("f", 1_000, 1_000, 1, 5_000)], lambda _: [group], 0, np.array([0, 2_000, 6_000])
    )
    assert counts[:, 0].tolist() == [0, 10]


def test_written_files_say_what_waits_by_door(tmp_path: Path) -> None:
    lanes = [lane_of("t/n", "ann", door) for door in ("http", "http", "pulsar", "http")]
    rows = pa.table(
        {
            "fire_at_ms": pa.array([10, 20, 30, 30], pa.int64()),
            "seq": pa.array([1, 2, 3, 3], pa.int64()),
            "op": pa.array([PUT, PUT, PUT, DEL], pa.int32()),
            "lane": pa.array(lanes, pa.int32()),
        }
    )
    write_file(pyarrow.fs.LocalFileSystem(), str(tmp_path / "f.parquet"), rows)
    (group,) = TableFolder(str(tmp_path)).groups_of(CensusFile("f.parquet", 10, 30, 0, 0))
    assert (group.rows, group.doors[HTTP], group.doors[PULSAR]) == (4, 2, 1)


def test_a_file_that_is_gone_is_counted_by_the_log(tmp_path: Path) -> None:
    gone = CensusFile("gone.parquet", 10, 19, 0, 0, 30, 10)
    (counts,) = tallies([gone], TableFolder(str(tmp_path)).groups_of, 0, np.array([0, 100]))
    assert counts.tolist() == [[10, *(0,) * (len(DOORS) - 1)]]


def test_slots_add_up_their_files() -> None:
    files = [CensusFile(str(n), 0, 1, 0, 0, 100 * n, n, 1_000, "300000_600000") for n in (1, 2)]
    files.append(CensusFile("day", 0, 1, 0, 0, 5, 0, 10, "86400000_86400000"))
    assert slots_of(files) == [
        SlotFigures(86_400_000, 86_400_000, 1, 5, 0, 10),
        SlotFigures(300_000, 600_000, 2, 297, 3, 2_000),
    ]
