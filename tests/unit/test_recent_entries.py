"""Recent entries are kept within a bound, and what is not kept is read as before."""

import numpy as np
import pytest

from tarry.engine.topics import recent_entries as module
from tarry.engine.topics.entries import Received
from tarry.engine.topics.recent_entries import EACH_BYTES, RecentEntries
from tests.unit.engine_kit import Bench


def entry(payload: bytes) -> Received:
    return Received(0, 0, payload, {}, None, 0, None)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """For ten entries of a hundred bytes."""
    monkeypatch.setattr(module, "MAX_BYTES", 10 * (100 + EACH_BYTES))
    return 10


def kept(of: RecentEntries, stop: int) -> list[int]:
    return [seq for seq, found in enumerate(of.find(np.arange(stop))) if found is not None]


def test_the_oldest_go_when_there_is_no_room_for_more(room: int) -> None:
    fresh = RecentEntries()
    fresh.add(range(room), [entry(b"x" * 100)] * room)
    assert kept(fresh, room) == list(range(room))
    fresh.add([room], [entry(b"x" * 100)])
    assert kept(fresh, room + 1) == list(range(1, room + 1))
    # A large one takes the place of as many as it is large.
    fresh.add([room + 1], [entry(b"x" * (3 * (100 + EACH_BYTES) - EACH_BYTES))])
    assert kept(fresh, room + 2) == list(range(4, room + 2))
    # Room that was given back is used again.
    fresh.add(range(room + 2, 2 * room + 2), [entry(b"x" * 100)] * room)
    assert kept(fresh, 2 * room + 2) == list(range(room + 2, 2 * room + 2))


def test_one_that_is_larger_than_all_there_is_room_for_is_not_kept(room: int) -> None:
    fresh = RecentEntries()
    fresh.add([0, 1], [entry(b"x"), entry(b"x" * 100_000)])
    assert kept(fresh, 2) == []
    fresh.add([2], [entry(b"x")])
    assert kept(fresh, 3) == [2]


def test_consumers_get_what_is_no_longer_kept_from_the_ledger(room: int) -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("t"), permits=0)
    bench.publish("t", *[b"%0100d" % n for n in range(3 * room)])
    assert len(kept(bench.recent_entries, bench.next_seq)) == room
    reader.handle.flow(1_000)
    bench.rest()
    assert reader.payloads == [b"%0100d" % n for n in range(3 * room)]
