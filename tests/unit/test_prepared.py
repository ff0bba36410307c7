"""JSON that the native door writes ahead is a cache of that door, whoever else prepares entries of the same topic."""

import gc
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import pytest

from tarry.doors.http.topics.entries import EntryJson
from tarry.engine.api import DueBatch, EntryBatch, Received
from tarry.engine.topics.subscription import Subscription
from tests.unit.engine_kit import Bench


class OtherDoor:
    """A door that prepares something else than JSON, of which a byte costs as much."""

    def __init__(self) -> None:
        self.prepared: WeakKeyDictionary[DueBatch, bytes] = WeakKeyDictionary()

    def prepare(self, batch: DueBatch) -> int:
        self.prepared[batch] = b"another door's"
        return 1_000 * len(batch)


class Taker:
    """A consumer of a door, that keeps what it was given as it was given."""

    def __init__(self, sub: Subscription, door: EntryJson | OtherDoor) -> None:
        self.batches: list[Sequence[Received]] = []
        self.consumer = sub.attach(f"of {door}", self.batches.append, prepare=door.prepare)
        self.consumer.flow(100)


def burst(bench: Bench, count: int = 5, cancelled: int | None = None) -> None:
    """Messages that are due at one instant are read ahead, and then due; one of them may end before."""
    due_at_ms = bench.now_ms + 1_000
    asked = [bench.schedule(payload=b"%d" % number, due_at_ms=due_at_ms) for number in range(count)]
    bench.wait(900)
    if cancelled is not None:
        bench.ask(bench.engine.cancel(asked[cancelled].id))
    bench.wait(100)


def prepared(json: EntryJson, entries: Sequence[Received]) -> int:
    """How many entries of a burst were written ahead."""
    assert isinstance(entries, EntryBatch)
    return sum(len(json.prepared(*rows) or ()) for rows in entries.rows)


@pytest.mark.parametrize("other_first", [True, False])
def test_no_door_gets_what_another_one_prepared(other_first: bool) -> None:
    bench, json, other = Bench(), EntryJson(), OtherDoor()
    doors: list[EntryJson | OtherDoor] = [other, json] if other_first else [json, other]
    first, second = bench.subscribe("orders", "first"), bench.subscribe("orders", "second")
    takers = [Taker(first, doors[0]), Taker(second, doors[1])]
    burst(bench)
    for taker in takers:
        (entries,) = taker.batches
        assert prepared(json, entries) == 5
        assert json.show_each(entries) == json.show_each(list(entries))
        assert json.show_all([entries]) == json.show_all([list(entries)])
    assert [*other.prepared.values()] == [b"another door's"] * len(json._prepared)


def test_consumers_of_one_door_share_what_it_prepared() -> None:
    batches: list[int] = []

    class Counted(EntryJson):
        def prepare(self, batch: DueBatch) -> int:
            batches.append(len(batch))
            return super().prepare(batch)

    bench, json = Bench(), Counted()
    sub = bench.subscribe("orders")
    takers = [Taker(sub, json), Taker(sub, json)]
    burst(bench, 6)
    assert sum(batches) == 6
    assert sum(prepared(json, entries) for taker in takers for entries in taker.batches) == 6


def test_what_was_prepared_stays_with_those_of_a_batch_that_are_left() -> None:
    bench, json = Bench(), EntryJson()
    taker = Taker(bench.subscribe("orders"), json)
    burst(bench, 5, cancelled=2)
    entries = [entry for entries in taker.batches for entry in entries]
    assert [entry.payload for entry in entries] == [b"0", b"1", b"3", b"4"]
    assert sum(prepared(json, entries) for entries in taker.batches) == 4
    assert [one for entries in taker.batches for one in json.show_each(entries)] == json.show_each(entries)


def test_a_cache_goes_with_the_entries() -> None:
    bench, json = Bench(), EntryJson()
    taker = Taker(bench.subscribe("orders"), json)
    burst(bench)
    assert len(json._prepared) > 0
    taker.batches.clear()
    bench.recent_entries.__init__()  # type: ignore[misc]
    gc.collect()
    assert len(json._prepared) == 0


def test_recent_entries_count_what_doors_hold_for_them() -> None:
    sizes = []
    several: list[list[EntryJson | OtherDoor]] = [[], [OtherDoor()], [OtherDoor(), EntryJson()]]
    for doors in several:
        bench = Bench()
        for number, door in enumerate(doors):
            Taker(bench.subscribe("orders", str(number)), door)
        bench.reader(bench.subscribe("orders", "reader"))
        burst(bench)
        sizes.append(bench.recent_entries.batches_bytes)
    assert sizes[1] - sizes[0] == 5_000
    assert sizes[2] > sizes[1]
