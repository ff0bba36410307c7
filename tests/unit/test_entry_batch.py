"""A batch is the entries of its bursts, however it is looked at."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from tarry.core.messages.ids import KEY_BYTES, Ids
from tarry.core.messages.message import Message
from tarry.doors.http.topics.entries import EntryJson
from tarry.engine.due.due_batch import DueBatch, dispatch_classes
from tarry.engine.topics import recent_entries as module
from tarry.engine.topics.entries import Received
from tarry.engine.topics.entry_batch import EntryBatch, about_bytes, ids_of, messages_in
from tarry.engine.topics.recent_entries import EACH_BYTES, RecentEntries
from tarry.ledger.read_record import ReadPut
from tarry.ledger.record import Key
from tests.unit.engine_kit import Bench, full

IDS = Ids(bytes(KEY_BYTES))
JSON = EntryJson()
show_each, show_all = JSON.show_each, JSON.show_all


def put(payload: bytes, number: int) -> ReadPut:
    origin = Key(5, 6) if number % 2 else None
    return ReadPut(
        2000 + number, 1999 + number, 1000, "public/default", full("orders"), f"key {number}", "ann", "http", None, None,
        origin, 0, False, payload, {"number": str(number)},
    )  # fmt: skip


def entry_batch(
    first_id: int, count: int, at_ms: int = 7, payload: bytes = b"x", *, prepared: bool = False
) -> EntryBatch:
    """An entry batch of the numbers from one on, read together with one before and one behind."""
    numbers = range(first_id - 1, first_id + count + 1)
    puts = [put(payload, number) for number in numbers]
    batch = DueBatch()
    for number, one, alike in zip(numbers, puts, dispatch_classes(puts), strict=True):
        batch.add(one, bytes(100), alike, Key(2000 + number, 100 + number))
    if prepared:
        JSON.prepare(batch)
    batch.fire(numbers.start, at_ms)
    return EntryBatch([(batch, slice(1, 1 + count))], IDS)


def prepared_in(entries: Sequence[Received]) -> list[int]:
    """How many entries of each due batch are prepared."""
    return (
        [len(JSON.prepared(*rows) or ()) for rows in entries.rows] if isinstance(entries, EntryBatch) else []
    )


def one(number: int, at_ms: int = 7) -> Received:
    origin = (5, 6) if number % 2 else (2000 + number, 100 + number)
    return Received(
        number, 0, b"x", {"number": str(number)}, f"key {number}", at_ms, 1999 + number, origin, IDS
    )


def test_it_is_its_entries() -> None:
    entries = [one(number) for number in range(3, 8)]
    bound = entry_batch(3, 5)
    assert list(bound) == entries
    assert [bound[at] for at in (0, 4, -1)] == [entries[0], entries[4], entries[-1]]
    assert list(bound[1:3]) == entries[1:3]
    assert list(bound[4:9]) == entries[4:]
    assert bound[0].message_id == IDS.make(6, 5)
    assert bound[1].message_id == IDS.make(104, 2004)
    with pytest.raises(IndexError):
        bound[5]
    assert list(bound[5:]) == list(bound[5:][:3]) == []


def test_two_that_follow_one_another_are_one() -> None:
    assert list(entry_batch(3, 2, 7) + entry_batch(5, 3, 9)) == [
        *(one(number, 7) for number in (3, 4)),
        *(one(number, 9) for number in (5, 6, 7)),
    ]


@pytest.mark.parametrize("made", [list, lambda bound: bound])
def test_what_is_asked_of_it_as_a_whole_is_what_its_entries_say(made) -> None:  # type: ignore[no-untyped-def]
    entries = made(entry_batch(3, 5, payload=b"four"))
    assert list(ids_of(entries)) == [3, 4, 5, 6, 7]
    assert messages_in(entries) == 5


def test_how_large_it_is_is_known_without_a_look_at_each() -> None:
    bound = entry_batch(3, 5) + entry_batch(8, 2)
    assert about_bytes(bound) == 700
    assert about_bytes(bound[1:6]) == 500
    assert about_bytes(list(bound)) == 7


@pytest.mark.parametrize("payload", [b"text", "späte".encode(), b"\xff\0", b'"\n', b""])
@pytest.mark.parametrize("prepared", [False, True])
def test_it_is_shown_as_its_entries_are(payload: bytes, prepared: bool) -> None:
    bound = entry_batch(3, 5, prepared=prepared) + entry_batch(8, 2, 9, payload, prepared=prepared)
    assert prepared_in(bound) == ([5, 2] if prepared else [0, 0])
    for some in (bound, bound[4:6], bound[5:], bound[1:2]):
        assert show_each(some) == show_each(list(some))
        assert show_all([some]) == show_all([list(some)])
    batches = [bound[:1], list(bound[1:3]), [], bound[3:3], bound[3:]]
    assert json.loads(show_all(batches)) == {"messages": [json.loads(shown) for shown in show_each(bound)]}


def test_some_of_it_may_be_prepared() -> None:
    for bound in (
        entry_batch(3, 5, prepared=True) + entry_batch(8, 2, 9),
        entry_batch(3, 5) + entry_batch(8, 2, 9, prepared=True),
    ):
        assert show_each(bound) == show_each(list(bound))
        assert show_all([bound]) == show_all([list(bound)])
    assert show_all([]) == b'{"messages":[]}\n'


def received(bench: Bench, *orders: str) -> list[Sequence[Received]]:
    """The entries that a preparing consumer gets when messages for these topics are due at one instant."""
    bench.subscribe("orders", "s")
    got: list[Sequence[Received]] = []
    consumer = bench.engine.topics.subscription(full("orders"), "s").attach(
        "c", got.append, prepare=JSON.prepare
    )
    consumer.flow(100)
    due_at_ms = bench.now_ms + 1_000
    for number, topic in enumerate(orders):
        bench.schedule(topic, payload=b"%d" % number, due_at_ms=due_at_ms)
    bench.wait(1_000)
    return got


def test_what_is_read_ahead_is_prepared_if_a_consumer_wants_that() -> None:
    (bound,) = received(Bench(), *["orders"] * 5)
    assert isinstance(bound, EntryBatch)
    assert sum(prepared_in(bound)) == 5
    assert show_each(bound) == show_each(list(bound))


def test_what_is_not_all_for_one_topic_is_not_prepared() -> None:
    (bound,) = received(Bench(), "orders", "others", "orders")
    assert [entry.payload for entry in bound] == [b"0", b"2"]
    assert not any(prepared_in(bound))


def found(fresh: RecentEntries, *seqs: int) -> list[int | None]:
    return [None if entry is None else entry.entry_id for entry in fresh.find(np.array(seqs))]


def test_what_follows_one_another_is_found_as_a_sheaf_and_the_rest_one_by_one() -> None:
    fresh = RecentEntries()
    fresh.add_batch(1000, entry_batch(0, 4), 4)
    fresh.add_batch(1004, entry_batch(4, 4), 4)
    fresh.add([1008], [one(8)])
    fresh.add_batch(1010, entry_batch(10, 2), 2)
    # Of another topic, whose entries have numbers of their own.
    fresh.add_batch(1012, entry_batch(0, 2), 2)
    part = fresh.find(np.arange(1001, 1007))
    assert isinstance(part, EntryBatch)
    assert list(part) == [one(number) for number in range(1, 7)]
    assert found(fresh, 1001, 1003) == [1, 3]
    assert found(fresh, 1003, 1002) == [3, 2]
    assert found(fresh, *range(1006, 1012)) == [6, 7, 8, None, 10, 11]
    assert found(fresh, *range(998, 1002)) == [None, None, 0, 1]
    assert found(fresh, *range(1010, 1014)) == [10, 11, 0, 1]
    assert found(fresh, *range(1010, 1016)) == [10, 11, 0, 1, None, None]
    assert found(fresh) == []


def test_a_batch_may_have_other_records_between_its_entries() -> None:
    fresh = RecentEntries()
    fresh.add_batch(1000, entry_batch(0, 4), 4)
    fresh.add_batch(1006, entry_batch(4, 4), 4)
    bound = fresh.find(np.array([1001, 1002, 1003, 1006, 1007]))
    assert isinstance(bound, EntryBatch)
    assert list(bound) == [one(number) for number in (1, 2, 3, 4, 5)]
    # One that nobody wants is left out: these do not follow one another in the topic.
    assert found(fresh, 1001, 1003, 1006) == [1, 3, 4]
    # In so many places it is one by one.
    assert len(list(fresh.find(np.arange(1000, 1200, 2)))) == 100


EACH = 1 + EACH_BYTES


def kept(fresh: RecentEntries, *first_ids: int) -> list[int]:
    """Which of the batches that begin with these are there."""
    return [first for first in first_ids if found(fresh, 1000 + first) == [first]]


def test_the_oldest_sheaves_go_when_there_is_no_room_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_BYTES", 18 * EACH)
    monkeypatch.setattr(module, "AGED_BYTES", 8 * EACH)
    fresh = RecentEntries()
    for number in range(5):
        fresh.add_batch(1000 + 4 * number, entry_batch(4 * number, 4), 4)
    assert [seq for seq in range(1000, 1020) if found(fresh, seq) != [None]] == list(range(1012, 1020))
    fresh.add_batch(1020, entry_batch(20, 10), 10)
    assert kept(fresh, 12, 16, 20) == [12, 16, 20]
    fresh.add_batch(1030, entry_batch(30, 19), 19)
    assert kept(fresh, 20, 30) == []


def test_sheaves_that_were_there_a_second_ago_go_little_by_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 10 * EACH)
    monkeypatch.setattr(module, "AGED_BYTES", 6 * EACH)
    fresh = RecentEntries()
    for number in range(5):
        fresh.add_batch(1000 + 4 * number, entry_batch(4 * number, 4), 4)
    firsts = (0, 4, 8, 12, 16, 20)
    fresh.age()
    assert kept(fresh, *firsts) == [0, 4, 8, 12, 16]
    fresh.add_batch(1020, entry_batch(20, 4), 4)
    fresh.age()
    assert kept(fresh, *firsts) == [8, 12, 16, 20]
    fresh.age()
    assert kept(fresh, *firsts) == [16, 20]
    fresh.age()
    assert kept(fresh, *firsts) == [16, 20]
    # However much there is, what is young stays.
    fresh.add_batch(1024, entry_batch(24, 30), 30)
    fresh.age()
    assert kept(fresh, *firsts, 24) == [24]


def test_the_engine_lets_go_of_a_burst_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    bench.schedule(delay_ms=900)
    bench.wait(900)
    assert len(reader.got) == 1
    assert bench.recent_entries.batches_bytes > 0
    bench.wait(3_000)
    assert bench.recent_entries.batches_bytes == 0


def test_a_consumer_gets_the_same_from_a_burst_as_from_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    first = bench.reader(bench.subscribe("orders", "first"))
    later = bench.subscribe("orders", "later")
    asked = [
        bench.engine.schedule(
            Message(destination="orders", payload=b"%d" % number, key=f"k{number}", delay_ms=9)
        )
        for number in range(50)
    ]
    bench.rest()
    ids = {answer.value().id for answer in asked}
    # Its present version is not its first.
    bench.ask(bench.engine.restart(asked[3].value().id))
    bench.wait(9)
    assert len(first.got) == 50
    assert {entry.message_id for entry in first.got} == ids
    bench.recent_entries.__init__()  # type: ignore[misc]
    assert bench.reader(later).got == first.got
