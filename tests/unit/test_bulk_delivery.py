"""Messages of adopted batches on their way: near and far, past due, cancelled in every state, and across restarts.

The engine and its clock are simulated; the staged files and the index are real.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tarry.core.errors import NotFound
from tarry.core.limits import DAY_MS, FINALISED_RETENTION_MS, HOUR_MS, MINUTE_MS
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, MessageQuery
from tarry.core.rules.policy import Policy
from tarry.engine.admission.adoption import BatchView
from tarry.engine.due import horizon
from tarry.engine.engine import Engine
from tarry.engine.settings import EngineSettings
from tarry.index.delta import DeltaIndex
from tarry.index.incoming import Mapping
from tarry.index.manifest import new_token
from tarry.index.schema import INDEX
from tarry.index.staging import Stager, manifest_of
from tarry.index.table import GuardedTable
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import FOREIGN, Bench
from tests.unit.test_engine_traces import Told
from tests.unit.test_reclaim import QUICK, SEGMENT, churn, settle


class BulkBench(Bench):
    """A bench whose index lies in a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(start=False, **settings)
        self.folder = str(folder / "index")
        (folder / "index").mkdir()
        self.start()

    def start(self, set_aside: Sequence[int] = ()) -> Engine:
        self.index = DeltaIndex(self.folder, bytes(range(16)))  # type: ignore[assignment]
        return super().start(set_aside)

    def stage(self, dues_ms: list[int], destination: str = "orders", name: str = "letters") -> object:
        place = self.engine.batches.place(self.folder, lambda namespace: True)
        stager = Stager(place, Mapping(destination=destination), name, new_token(name))
        payloads = [b"%s %d" % (name.encode(), at) for at in range(len(dues_ms))]
        stager.add(pa.record_batch({"due": pa.array(dues_ms, pa.int64()), "payload": payloads}))
        return manifest_of(place, [stager.finish()])

    def bulk(self, dues_ms: list[int], destination: str = "orders", name: str = "letters") -> BatchView:
        """Stage messages with these due instants and have them adopted."""
        manifest = self.stage(dues_ms, destination, name)
        return self.ask(self.engine.batches.adopt(name, manifest))  # type: ignore[arg-type]

    def join(self, dues_ms: list[int]) -> None:
        """Have messages adopted, of which none is in the wheel yet."""
        adopted = self.engine.batches.adopt("letters", self.stage(dues_ms))  # type: ignore[arg-type]
        while not self.commit():
            self.tick()
            self.work()
        assert adopted.settled
        assert self.horizon.joining

    def batch(self, name: str = "letters") -> BatchView:
        return self.ask(self.engine.batches.batch(name))

    def in_topic(self, topic: str = "orders") -> list[str]:
        return [
            payload.decode() for payload in self.drain(topic, f"drain-{self.now_ms}-{id(object())}").payloads
        ]


@pytest.fixture
def bench(tmp_path: Path) -> BulkBench:
    return BulkBench(tmp_path)


def letters(*numbers: int) -> list[str]:
    return [f"letters {number}" for number in numbers]


def test_what_is_past_is_due_now_and_the_rest_when_it_is(bench: BulkBench) -> None:
    now = bench.now_ms
    bench.bulk([now + 2000, now - DAY_MS, now + 1000, now])
    bench.rest()
    assert bench.in_topic() == letters(1, 3)
    bench.wait(999)
    assert len(bench.in_topic()) == 2
    bench.wait(1)
    assert bench.in_topic() == letters(1, 3, 2)
    bench.wait(1000)
    assert bench.in_topic() == letters(1, 3, 2, 0)
    assert (bench.batch().remaining, bench.batch().count) == (0, 4)
    assert bench.engine.stats().pending == 0
    assert bench.engine.stats().counters["sent"] == 4


def test_a_batch_that_is_brought_in_piece_by_piece_is_sent_meanwhile(
    bench: BulkBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pieces were due before the last was read, had no bodies yet, and ended as failed."""
    monkeypatch.setattr(horizon, "STEP", 10)
    now = bench.now_ms
    bench.bulk([now - at for at in range(25)])
    for _ in range(10):
        bench.tick()
        bench.rest()
    assert sorted(bench.in_topic()) == sorted(letters(*range(25)))
    assert bench.batch().remaining == 0
    assert "failed" not in bench.engine.stats().counters


def test_a_slot_that_is_loaded_already_takes_more(bench: BulkBench) -> None:
    bench.schedule(delay_ms=5 * MINUTE_MS, payload=b"single")
    bench.wait(MINUTE_MS)
    assert bench.horizon.at.fire_at_ms > bench.now_ms + 4 * MINUTE_MS
    now = bench.now_ms
    bench.bulk([now + 3 * MINUTE_MS, now + 5 * MINUTE_MS])
    bench.wait(5 * MINUTE_MS)
    assert bench.in_topic() == ["letters 0", "single", "letters 1"]


def test_a_slot_far_ahead_costs_no_memory_and_is_loaded_in_time(bench: BulkBench) -> None:
    now = bench.now_ms
    bench.bulk([now + 3 * HOUR_MS + n for n in range(1000)])
    bench.rest()
    assert len(bench.horizon) == 0
    bench.wait(3 * HOUR_MS)
    assert bench.in_topic() == letters(0)
    bench.wait(1000)
    assert bench.in_topic() == letters(*range(1000))


@pytest.mark.parametrize("end", ["kill", "crash"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_restart_loses_none_and_doubles_none(bench: BulkBench, end: str, flushed: bool) -> None:
    now = bench.now_ms
    bench.bulk([now + n * MINUTE_MS for n in range(60)])
    for _ in range(6):
        bench.wait(10 * MINUTE_MS)
        if flushed:
            bench.ask(bench.engine.flush())
        getattr(bench, end)()
        bench.start()
        bench.rest()
    assert bench.in_topic() == letters(*range(60))
    assert bench.batch().remaining == 0
    assert not bench.pending.by_holder


def test_a_crash_before_the_adoption_is_durable_leaves_nothing_and_the_job_is_run_again(
    bench: BulkBench,
) -> None:
    manifest = bench.stage([bench.now_ms + 1000])
    _ = bench.engine.batches.adopt("letters", manifest)  # type: ignore[arg-type]
    bench.crash()
    bench.start()
    bench.wait(2000)
    assert bench.in_topic() == []
    assert not bench.bulk([bench.now_ms + 1000]).repeated
    bench.wait(1000)
    assert bench.in_topic() == letters(0)


def test_the_watermark_stays_below_a_batch_that_is_not_in_the_wheel_yet(bench: BulkBench) -> None:
    """R9: a start begins at the watermark, and would not look for what is below it."""
    bench.join([bench.now_ms, bench.now_ms + 1])
    for _ in range(30):
        bench.clock.advance(1000)
        _ = bench.engine.schedule(Message(destination="other", delay_ms=HOUR_MS))
        bench.tick()
        bench.commit()
    bench.kill()
    bench.start()
    bench.rest()
    assert bench.in_topic() == letters(0, 1)


def test_an_index_that_is_taken_while_a_batch_joins_has_the_batch_once(bench: BulkBench) -> None:
    bench.publish("other", b"before it")
    cursor = bench.durable_seq
    bench.wait(horizon.FOLLOW_EVERY_MS)
    bench.clock.advance(horizon.FOLLOW_EVERY_MS)
    bench.tick()
    GuardedTable.open(bench.folder, INDEX, bytes(range(16))).append([], 1, cursor, {})
    bench.join([bench.now_ms + 2 * HOUR_MS + n for n in range(3)])
    assert bench.work(), "the newest version was asked for"
    assert bench.horizon.joining
    assert bench.horizon.view.cursor == cursor
    bench.wait(3 * HOUR_MS)
    assert bench.in_topic() == letters(0, 1, 2)


@pytest.mark.parametrize("restart", [False, True])
def test_a_cancelled_batch_never_goes_out(bench: BulkBench, restart: bool) -> None:
    now = bench.now_ms
    bench.bulk([now + n * MINUTE_MS for n in range(60)])
    bench.bulk([now + 30 * MINUTE_MS], name="other")
    bench.wait(10 * MINUTE_MS)
    view = bench.ask(bench.engine.batches.cancel("letters"))
    assert (view.count, view.cancelled, view.remaining) == (60, 49, 0)
    if restart:
        bench.reopen()
    bench.wait(2 * HOUR_MS)
    assert bench.in_topic() == [*letters(*range(11)), "other 0"]
    assert bench.engine.stats().counters["cancelled"] == 49
    assert not bench.pending.by_holder


def test_what_is_being_sent_when_the_batch_is_cancelled_has_its_verdict_first(bench: BulkBench) -> None:
    now = bench.now_ms
    manifest = bench.stage([now - 1000, now, now + 500, now + HOUR_MS], FOREIGN)
    # What was due in the meantime is due at the floor.
    bench.leap(1000)
    bench.ask(bench.engine.batches.adopt("letters", manifest))  # type: ignore[arg-type]
    bench.rest()
    first, second, third = bench.outlet.under_way
    answer = bench.engine.batches.cancel("letters")
    bench.rest()
    assert not answer.settled
    assert bench.batch().remaining == 3
    first.answer(Delivered())
    second.answer(Retry("not now"))
    bench.rest()
    assert not answer.settled
    third.answer(Retry("no reply", uncertain=True))
    bench.rest()
    view = answer.value()
    # Of one it is not known whether it was sent: it remains, until that is known.
    assert (view.cancelled, view.remaining, view.count) == (1, 1, 4)
    bench.wait(MINUTE_MS)
    bench.verdict(Delivered())
    bench.wait(2 * HOUR_MS)
    assert bench.batch().remaining == 0
    assert not bench.outlet.under_way
    assert not bench.pending.by_holder
    counters = bench.engine.stats().counters
    assert (counters["sent"], counters["cancelled"]) == (2, 2)


def test_a_message_that_stands_apart_is_cancelled_with_its_batch(bench: BulkBench) -> None:
    bench.ask(bench.engine.set_policy("namespace", "public/default", Policy(send_per_second=0.01)))
    now = bench.now_ms
    bench.bulk([now, now, now])
    bench.wait(MINUTE_MS // 2)
    # Over the rate: put off by versions of their own, which the ledger has.
    batch = bench.batches.by_name["letters"]
    assert (batch.waiting.total(), batch.apart.total()) == (0, 2)
    view = bench.ask(bench.engine.batches.cancel("letters"))
    assert (view.remaining, view.cancelled) == (0, 0)
    bench.wait(HOUR_MS)
    assert len(bench.in_topic()) == 1
    assert bench.engine.stats().counters["cancelled"] == 2
    assert not bench.pending.by_holder


def test_a_message_of_a_batch_is_found_by_its_id_and_has_its_own_life(bench: BulkBench) -> None:
    now = bench.now_ms
    bench.bulk([now + HOUR_MS, now + 2 * HOUR_MS, now + 3 * HOUR_MS])
    ids = {message.payload: message.id for message in bench.listed()}
    assert set(ids) == {b"letters 0", b"letters 1", b"letters 2"}
    shown = bench.view(ids[b"letters 0"])
    assert (shown.door, shown.due_at_ms, shown.state) == ("bulk", now + HOUR_MS, "scheduled")
    bench.ask(bench.engine.cancel(ids[b"letters 0"]))
    bench.ask(bench.engine.restart(ids[b"letters 2"], delay_ms=HOUR_MS))
    batch = bench.batches.by_name["letters"]
    assert (batch.waiting.total(), batch.apart.total()) == (1, 1)
    bench.reopen()
    bench.wait(4 * HOUR_MS)
    assert bench.in_topic() == letters(2, 1)
    assert bench.batch().remaining == 0


def test_what_was_overdue_at_a_restart_may_have_been_sent_and_is_not_cancelled_unheard(
    bench: BulkBench,
) -> None:
    bench.bulk([bench.now_ms, bench.now_ms + HOUR_MS], FOREIGN)
    bench.rest()
    assert len(bench.outlet.under_way) == 1
    bench.reopen()
    answer = bench.engine.batches.cancel("letters")
    bench.rest()
    assert not answer.settled
    bench.verdict(Delivered())
    bench.wait(1)
    assert (answer.value().cancelled, answer.value().remaining) == (1, 0)
    assert bench.engine.stats().counters["sent"] == 1


@pytest.mark.parametrize("others", ["wait for their turn", "are tried again", "wait for a place"])
def test_after_a_restart_a_batch_is_cancelled_whatever_others_wait_for(tmp_path: Path, others: str) -> None:
    """Overdue messages of the batch itself have to be tried before, but not those of anybody else."""
    bench = BulkBench(tmp_path, settings=EngineSettings(concurrency=1))
    bench.bulk([bench.now_ms + HOUR_MS, bench.now_ms + 2 * HOUR_MS])
    if others == "wait for their turn":
        bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=0.1)))
    for _ in range(3):
        bench.schedule(FOREIGN, owner="ann", delay_ms=0)
    bench.reopen()
    bench.wait(10)
    if others == "are tried again":
        bench.verdict(Retry("no", after_ms=50_000))
    answer = bench.engine.batches.cancel("letters")
    bench.wait(10)
    assert (answer.value().cancelled, answer.value().remaining) == (2, 0)
    bench.wait(3 * HOUR_MS)
    assert bench.in_topic() == []


def test_after_a_restart_a_batch_is_cancelled_once_its_own_overdue_messages_were_tried(
    tmp_path: Path,
) -> None:
    bench = BulkBench(tmp_path, settings=EngineSettings(concurrency=1))
    bench.bulk([bench.now_ms, bench.now_ms, bench.now_ms + HOUR_MS], FOREIGN)
    bench.reopen()
    bench.wait(10)
    answer = bench.engine.batches.cancel("letters")
    # One is under way, and one that may have arrived before waits for its place.
    bench.verdict(Retry("no", after_ms=1000))
    assert not answer.settled
    bench.verdict(Delivered())
    bench.wait(10)
    assert (answer.value().cancelled, answer.value().remaining) == (2, 0)
    bench.wait(2 * HOUR_MS)
    assert len(bench.outlet.arrivals) == 1
    assert bench.engine.stats().counters["sent"] == 1


def test_what_is_sent_of_a_batch_is_told_with_the_trace_of_its_acceptance(bench: BulkBench) -> None:
    told = Told()
    bench.tracer = told
    bench.reopen()
    now = bench.now_ms
    bench.bulk([now + 1000, now + 1000, now + 5000])
    bench.bulk([now + 1000], FOREIGN, "cards")
    assert told.accepts == [("adopt", "bulk", 3, [], None), ("adopt", "bulk", 1, [], None)]
    # The same again is another acceptance of nothing: the first one's trace stays.
    bench.bulk([now + 1000], FOREIGN, "cards")
    bench.reopen()
    bench.wait(1000)
    bench.verdict(Retry("busy", after_ms=70_000))
    # That is so late that it has a version of its own.
    bench.reopen()
    bench.wait(70_000)
    bench.verdict(Delivered())
    assert sorted((context, facts["outlet"], outcome) for context, facts, outcome in told.sends) == [
        (b"context 0", "persistent", "sent"),
        (b"context 0", "persistent", "sent"),
        (b"context 0", "persistent", "sent"),
        (b"context 1", "sim", "retried"),
        (b"context 1", "sim", "sent"),
    ]
    assert {facts["door"] for _, facts, _ in told.sends} == {"bulk"}


def test_while_there_is_no_index_the_ledger_keeps_what_became_of_a_batch(tmp_path: Path) -> None:
    """The staged files have every message of it, also those that have ended: only the ledger tells them apart."""
    bench = BulkBench(tmp_path, settings=QUICK, ledger_settings=LedgerSettings(segment_bytes=SEGMENT))
    bench.bulk([bench.now_ms + HOUR_MS + n for n in range(3)])
    ids = {message.payload: message.id for message in bench.listed()}
    bench.ask(bench.engine.cancel(ids[b"letters 1"]))
    churn(bench)
    settle(bench)
    bench.reopen()
    bench.leap(2 * HOUR_MS)
    assert bench.in_topic() == letters(0, 2)
    # Until nothing is known of the batch any more.
    bench.leap(FINALISED_RETENTION_MS + DAY_MS)
    settle(bench)
    assert bench.first_seq > 1


def test_the_end_of_a_batchs_message_is_found_for_as_long_as_outcomes_are_kept(tmp_path: Path) -> None:
    """After a week it was not found any more, however long outcomes were to be kept."""
    bench = BulkBench(tmp_path, settings=replace(QUICK, finalised_retention_ms=30 * DAY_MS))
    bench.bulk([bench.now_ms + 10])
    (id_,) = [view.id for view in bench.ask(bench.engine.list_messages(MessageQuery())).messages]
    bench.wait(10)
    assert bench.state(id_) == "sent"
    bench.clock.advance(8 * DAY_MS)
    settle(bench)
    assert bench.state(id_) == "sent"
    bench.clock.advance(30 * DAY_MS)
    settle(bench)
    bench.refused(bench.engine.get(id_), NotFound)


def test_a_batch_that_is_adopted_after_the_watermark_was_taken_back_is_sent(bench: BulkBench) -> None:
    """Messages due before the watermark of the start were taken for dead, though adopted later, and were lost."""
    bench.clock.jump(HOUR_MS)
    for _ in range(20):
        # A clock that stays ahead is believed in the end.
        bench.schedule("other", delay_ms=1)
        bench.wait(MINUTE_MS)
    bench.kill()
    bench.start()
    began = bench.watermark
    bench.clock.jump(-HOUR_MS)
    bench.schedule("other", delay_ms=1)
    bench.wait(5 * MINUTE_MS)
    now = bench.now_ms
    assert bench.watermark.fire_at_ms <= now < began.fire_at_ms - MINUTE_MS
    bench.bulk([now + 1000, now + 2000])
    bench.wait(2000)
    assert bench.in_topic() == letters(0, 1)


def test_what_is_accepted_at_the_watermark_of_a_batchs_message_is_not_lost(bench: BulkBench) -> None:
    """The watermark stood at a batch's message, whose seq is above all others: what fired at its instant was taken for dead."""
    bench.bulk([bench.now_ms + 1000], FOREIGN)
    for _ in range(10):
        # The batch's message is under way all the time, and holds the watermark back.
        bench.clock.advance(1000)
        assert not bench.engine.schedule(Message(destination="other", delay_ms=HOUR_MS)).settled
        bench.tick()
        bench.commit()
        bench.work()
    assert len(bench.outlet.under_way) == 1
    watermark = bench.watermark
    assert watermark.fire_at_ms == bench.outlet.under_way[0].delivery.due_at_ms, watermark
    bench.clock.set(watermark.fire_at_ms - 1)
    scheduled = bench.engine.schedule(Message(destination="orders", delay_ms=0))
    bench.commit()
    assert bench.state(scheduled.value().id) == "scheduled"


def test_an_outcome_is_kept_although_the_retry_that_was_waited_for_comes_long_after_it(
    tmp_path: Path,
) -> None:
    """The seqs of a batch were forgotten to be dead while the wheel had one of them still, at the instant of a retry."""
    bench = BulkBench(tmp_path, settings=EngineSettings(carry_after_ms=DAY_MS))
    bench.bulk([bench.now_ms + 10], FOREIGN)
    (message,) = bench.listed()
    bench.clock.jump(5 * HOUR_MS)
    bench.rest()
    bench.verdict(Retry("busy", after_ms=30_000))
    for _ in range(20):
        # A clock that stays ahead is believed in the end.
        bench.clock.advance(1_000)
        bench.rest()
    bench.clock.jump(-HOUR_MS)
    bench.ask(bench.engine.send(message.id))
    bench.verdict(Delivered())
    bench.rest()
    for _ in range(150):
        bench.leap(MINUTE_MS)
    assert bench.state(message.id) == "sent"
    assert bench.engine.stats().counters.get("damaged", 0) == 0
    assert not bench.outlet.under_way, "it does not go out again"
