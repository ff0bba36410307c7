"""Read-ahead of messages due soon: within bounds, and with no effect but speed."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

import tarry.engine.bodies.readahead as module
from tarry.core.messages.message import Message
from tarry.engine.bodies.bodies import Body
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench, full


class Reads:
    """How many bodies were read, and when."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bodies = bench.bodies
        many: Callable[[NDArray[np.int64]], list[Body]] = bodies.many
        self.seqs: list[int] = []

        def spied(seqs: NDArray[np.int64]) -> list[Body]:
            self.seqs += seqs.tolist()
            return many(seqs)

        monkeypatch.setattr(bodies, "many", spied)


def test_what_is_due_soon_is_read_before_it_is_due_and_not_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(600):
        _ = bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=2_500))
    reader = bench.reader(bench.subscribe("orders"))
    reads = Reads(bench, monkeypatch)
    bench.wait(500)
    assert not reads.seqs
    bench.wait(1_999)
    assert len(reads.seqs) == 600
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"%d" % number for number in range(600)]
    assert len(reads.seqs) == 600


def test_what_was_scheduled_late_is_read_when_it_is_due() -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    bench.schedule(payload=b"early", delay_ms=900)
    bench.wait(600)
    bench.schedule(payload=b"late", delay_ms=300)
    bench.wait(300)
    assert reader.payloads == [b"early", b"late"]


def test_a_delayed_entry_stands_by_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    bench.publish("orders", b"later", deliver_at_ms=bench.now_ms + 800)
    reads = Reads(bench, monkeypatch)
    bench.wait(799)
    assert len(reads.seqs) == 1
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"later"]
    assert len(reads.seqs) == 1


def test_what_is_cancelled_while_it_stands_by_is_not_sent_and_not_kept() -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    gone = bench.schedule(payload=b"gone", delay_ms=900)
    bench.schedule(payload=b"stays", delay_ms=900)
    bench.wait(600)
    standby = bench.readahead
    assert len(standby) == 2
    bench.ask(bench.engine.cancel(gone.id))
    assert len(standby) == 1
    bench.wait(300)
    assert reader.payloads == [b"stays"]
    assert len(standby) == 0


def test_what_is_restarted_while_it_stands_by_waits_again() -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    asked = bench.schedule(payload=b"again", delay_ms=900)
    bench.wait(600)
    bench.ask(bench.engine.restart(asked.id))
    bench.wait(899)
    assert not reader.got
    bench.wait(1)
    assert reader.payloads == [b"again"]


def test_it_holds_only_so_many_and_the_rest_is_sent_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    for number in range(25):
        _ = bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=900))
    bench.wait(899)
    assert len(bench.readahead) == 10
    bench.wait(1)
    assert reader.payloads == [b"%d" % number for number in range(25)]


def test_a_later_look_goes_on_behind_what_stands_by_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 40)
    # Not all of them are read before the next look.
    monkeypatch.setattr(module, "PACE_MS", 30)
    monkeypatch.setattr(module, "READ_WITHIN_MS", 10_000)
    bench = Bench()
    for number in range(40):
        _ = bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=1_400))
    bench.wait(1)
    standby = bench.readahead
    stood_by: list[int] = []
    for _ in range(1_398):
        bench.clock.advance(1)
        bench.tick()
        stood_by.append(len(standby))
    assert 20 < stood_by[990] < 40
    assert stood_by[-1] == 40


def test_it_holds_only_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    for _ in range(25):
        _ = bench.engine.schedule(Message(destination="orders", payload=bytes(1_000), delay_ms=900))
    bench.wait(899)
    assert 5 <= len(bench.readahead) <= 10
    bench.wait(1)
    assert len(reader.got) == 25
    assert len(bench.readahead) == 0


def test_what_died_without_a_word_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    bench = Bench()
    for _ in range(3):
        bench.publish("doomed", b"x", deliver_at_ms=bench.now_ms + 1_400)
    bench.wait(600)
    standby = bench.readahead
    assert len(standby) == 3
    bench.ask(bench.engine.topics.delete(full("doomed")))
    bench.schedule(delay_ms=790)
    bench.wait(450)
    assert len(standby) == 1


def test_between_two_slices_there_is_time_for_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    for number in range(640):
        _ = bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=2_500))
    bench.wait(900)
    reads = Reads(bench, monkeypatch)
    read: list[int] = []
    for _ in range(800):
        bench.clock.advance(1)
        bench.tick()
        read.append(len(reads.seqs))
    slices = [after - before for before, after in pairwise(read) if after > before]
    assert len(slices) >= module.SLICES - 1
    assert set(slices) == {640 // module.SLICES}
    assert read[-1] == 640
    first = next(at for at, count in enumerate(read) if count)
    assert read[first + module.PACE_MS - 1] == read[first]


@pytest.mark.parametrize("gone", [0, 7, 19])
def test_what_was_read_with_one_that_died_is_not_read_again(
    gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    reader = bench.reader(bench.subscribe("orders"))
    asked = [
        bench.engine.schedule(Message(destination="orders", payload=b"%d" % number, delay_ms=900))
        for number in range(20)
    ]
    monkeypatch.setattr(module, "SLICES", 2)
    reads = Reads(bench, monkeypatch)
    bench.wait(890)
    assert len(reads.seqs) == 20
    bench.ask(bench.engine.cancel(asked[gone].value().id))
    bench.wait(10)
    assert reader.payloads == [b"%d" % number for number in range(20) if number != gone]
    assert len(reads.seqs) == 20
    assert len(bench.readahead) == 0


@pytest.mark.parametrize("first", [0, 1])
def test_where_owners_take_turns_nothing_is_read_again(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setattr(module, "WHOLE", 4)
    monkeypatch.setattr(module, "SLICES", 2)
    bench = Bench()
    for number in range(20):
        bench.schedule(payload=b"%d" % number, delay_ms=900)
    bench.wait(899)
    reads = Reads(bench, monkeypatch)
    standby = bench.readahead
    seqs = bench.horizon.wheel.entries((0, 0), 20).seqs
    for start in (first, 1 - first):
        taken = [read.payload for part in standby.take(seqs[start::2]) for read in part.read]  # type: ignore[union-attr]
        assert taken == [b"%d" % number for number in range(start, 20, 2)]
    assert (len(standby), reads.seqs) == (0, [])


# Batches as they were read


def fired_and_read(bench: Bench) -> list[bytes]:
    """Entries of messages due in a moment, read from the ledger: no consumer was there when they were fired."""
    bench.wait(1)
    return bench.reader(bench.subscribe("orders", start="earliest")).payloads


@pytest.mark.parametrize("sizes", [1, 5, 40])
def test_what_was_read_ahead_is_in_the_ledger_as_everything_else(sizes: int) -> None:
    """The reader checks the CRC of each."""
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=4 << 20))
    payloads = [b"%d %s" % (number, b"x" * (number % sizes)) for number in range(1_000, 6_000)]
    for payload in payloads:
        _ = bench.engine.schedule(Message(destination="orders", payload=payload, delay_ms=900))
    bench.wait(899)
    assert fired_and_read(bench) == payloads


def test_what_was_read_ahead_goes_with_what_is_read_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE", 4)
    monkeypatch.setattr(module, "SLICES", 5)
    bench = Bench()
    asked = [bench.schedule(payload=b"%d" % number, delay_ms=900) for number in range(25)]
    bench.wait(700)
    # The second slice is not whole any more; and what is scheduled now was not read ahead.
    bench.ask(bench.engine.cancel(asked[7].id))
    bench.schedule(payload=b"late", delay_ms=200)
    bench.wait(199)
    expected = [b"%d" % number for number in range(25) if number != 7]
    assert fired_and_read(bench) == [*expected, b"late"]
