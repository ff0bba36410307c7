"""The dispatcher: what is due goes out, once, whatever stands in its way."""

import errno

import pytest

from tarry.core import limits
from tarry.core.errors import Damage, Unavailable
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, Scheduled
from tarry.core.rules.policy import Policy
from tarry.engine.dispatch.dispatcher import APART_MS, BURST_MS
from tarry.engine.settings import EngineSettings
from tarry.engine.upkeep.upkeep import FLUSH_LATEST_MS
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Key
from tarry.registry.registry import Flush, Meta
from tests.unit.engine_kit import FOREIGN, Bench, fill, full_disk, use_up_space

LARGE = LedgerSettings(segment_bytes=16 << 20)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_consumers_see_nothing_before_it_is_durable(bench: Bench) -> None:
    reader = bench.drain("orders")
    bench.schedule(delay_ms=10)
    bench.clock.advance(10)
    bench.tick()
    assert not reader.got
    bench.commit()
    assert len(reader.got) == 1


def test_firing_into_a_topic_is_one_record(bench: Bench) -> None:
    """Publication, end and body together: a crash leaves all of it or nothing (R5)."""
    done = bench.schedule(payload=b"once", delay_ms=10)
    bench.rest()
    before = bench.next_seq
    bench.clock.advance(10)
    bench.dispatcher.turn(bench.now_ms)
    assert bench.next_seq == before + 1
    bench.crash()
    bench.start()
    bench.rest()
    assert bench.drain("orders").payloads == [b"once"]
    assert bench.state(done.id) == "sent"


def test_a_batch_of_everything_goes_out_in_order(bench: Bench) -> None:
    """Topics, foreign outlets, groups, times to live, delayed entries and dead versions in one turn."""
    at_ms = bench.now_ms + 100
    bench.publish("orders", b"entry", deliver_at_ms=at_ms)
    sent = []
    for n in range(20):
        sent.append(bench.schedule("orders", payload=b"t%02d" % n, due_at_ms=at_ms).id)
        sent.append(bench.schedule("orders", payload=b"l%02d" % n, due_at_ms=at_ms, ttl_ms=5).id)
        sent.append(bench.schedule("orders", payload=b"g%02d" % n, due_at_ms=at_ms, group=f"g{n}").id)
        sent.append(bench.schedule(FOREIGN, payload=b"f%02d" % n, due_at_ms=at_ms).id)
        bench.ask(bench.engine.cancel(bench.schedule("orders", due_at_ms=at_ms).id))
    expired = bench.schedule("orders", due_at_ms=at_ms - 50, ttl_ms=1)
    reader = bench.drain("orders")
    bench.clock.advance(100)
    bench.run()
    assert bench.state(expired.id) == "failed"
    assert {bench.state(id_) for id_ in sent} == {"sent"}
    payloads = reader.payloads
    assert payloads.count(b"entry") == 1
    for kind in (b"t", b"l", b"g"):
        assert [p for p in payloads if p[:1] == kind and p != b"entry"] == [
            kind + b"%02d" % n for n in range(20)
        ]
    assert bench.arrived() == [b"f%02d" % n for n in range(20)]
    assert len(payloads) == 61


def test_order_within_a_topic_is_the_order_of_due_time(bench: Bench) -> None:
    reader = bench.drain("orders")
    at_ms = bench.now_ms + 10
    for n in range(6):
        group = f"g{n}" if n % 2 else None
        bench.schedule("orders", payload=b"%d" % n, due_at_ms=at_ms, group=group)
    bench.leap(10)
    assert reader.payloads == [b"%d" % n for n in range(6)]


def test_more_than_a_batch_takes_several_turns_and_loses_nothing() -> None:
    bench = Bench(settings=EngineSettings(batch=16), ledger_settings=LARGE)
    reader = bench.drain("orders")
    many = [
        Message(destination="orders", payload=b"%d" % n, owner=str(n % 5), delay_ms=10) for n in range(1000)
    ]
    bench.ask(bench.engine.schedule_many(many))
    bench.clock.advance(10)
    assert bench.tick() == 0
    bench.rest()
    got = [int(payload) for payload in reader.payloads]
    assert sorted(got) == list(range(1000))
    for owner in range(5):
        assert [n for n in got if n % 5 == owner] == list(range(owner, 1000, 5))


@pytest.mark.parametrize("payload_bytes", [60_000, 1_000_000])
def test_large_messages_due_together_do_not_have_to_fit_one_frame(payload_bytes: int) -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=2 << 20))
    reader = bench.drain("orders")
    ids = [bench.schedule(payload=bytes([n]) * payload_bytes, delay_ms=1000).id for n in range(20)]
    bench.leap(1000)
    assert [(payload[0], len(payload)) for payload in reader.payloads] == [
        (n, payload_bytes) for n in range(20)
    ]
    assert {bench.state(id_) for id_ in ids} == {"sent"}


def test_a_message_that_ends_while_it_waits_for_its_turn_does_not_fire() -> None:
    bench = Bench(settings=EngineSettings(batch=2))
    ids = [bench.schedule(payload=b"%d" % n, delay_ms=10).id for n in range(10)]
    bench.clock.advance(10)
    bench.tick()
    cancelled = bench.engine.cancel(ids[7])
    moved = bench.engine.restart(ids[8], delay_ms=1000)
    bench.rest()
    assert bench.ask(cancelled).state == "cancelled"
    assert bench.ask(moved).due_at_ms == bench.now_ms + 1000
    assert bench.drain("orders").payloads == [b"%d" % n for n in (0, 1, 2, 3, 4, 5, 6, 9)]


# Damage


def test_a_flipped_bit_in_a_body_is_never_delivered_and_its_place_is_named(bench: Bench) -> None:
    reader = bench.drain("orders")
    bad = bench.schedule(payload=b"DAMAGED-BODY", delay_ms=100)
    good = bench.schedule(payload=b"sound", delay_ms=100)
    bench.flip(b"DAMAGED-BODY")
    bench.refused(bench.engine.get(bad.id), Damage)
    bench.wait(100)
    assert reader.payloads == [b"sound"]
    assert bench.state(good.id) == "sent"
    view = bench.view(bad.id)
    assert view.state == "failed"
    assert "ledger/00000001.seg: damaged at byte" in (view.reason or "")
    assert bench.engine.stats().counters["damaged"] == 1


def test_a_flipped_bit_in_a_batch_costs_one_message(bench: Bench) -> None:
    reader = bench.drain("orders")
    messages = [Message(destination="orders", payload=b"BODY-%03d." % n, delay_ms=100) for n in range(100)]
    answers = bench.ask(bench.engine.schedule_many(messages))
    bench.flip(b"BODY-042.")
    bench.wait(100)
    assert reader.payloads == [b"BODY-%03d." % n for n in range(100) if n != 42]
    bad = answers[42]
    assert isinstance(bad, Scheduled)
    assert bench.state(bad.id) == "failed"


def test_a_flipped_bit_in_a_foreign_message(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"DAMAGED-BODY", delay_ms=100)
    bench.flip(b"DAMAGED-BODY")
    bench.wait(100)
    assert not bench.outlet.under_way
    assert bench.state(done.id) == "failed"


def test_a_bit_that_flips_between_two_attempts(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"DAMAGED-BODY", owner="ann", delay_ms=1)
    bench.wait(1)
    bench.verdict(Retry("no", after_ms=100))
    bench.flip(b"DAMAGED-BODY")
    bench.wait(100)
    assert not bench.outlet.under_way
    assert bench.state(done.id) == "failed"
    assert bench.engine.stats().counters["damaged"] == 1


def test_a_bit_that_flips_before_a_message_is_carried_or_waits_for_a_place() -> None:
    bench = Bench(settings=EngineSettings(concurrency=1))
    first = bench.schedule(FOREIGN, payload=b"DAMAGED-ONE", key="k", delay_ms=1)
    second = bench.schedule(FOREIGN, payload=b"sound", key="k", delay_ms=2)
    third = bench.schedule(FOREIGN, payload=b"DAMAGED-TWO", delay_ms=3)
    bench.wait(3)
    bench.flip(b"DAMAGED-ONE")
    bench.flip(b"DAMAGED-TWO")
    bench.verdict(Retry("no", after_ms=100_000))
    assert bench.state(first.id) == "failed"
    assert bench.state(third.id) == "failed"
    bench.run(100_000)
    assert bench.state(second.id) == "sent"
    assert bench.arrived() == [b"sound"]


def test_a_restarted_message_whose_body_is_damaged_is_still_found(bench: Bench) -> None:
    done = bench.schedule(payload=b"DAMAGED-BODY", delay_ms=100)
    bench.ask(bench.engine.restart(done.id, delay_ms=200))
    bench.flip(b"DAMAGED-BODY")
    bench.wait(200)
    assert bench.state(done.id) == "failed"
    assert not bench.drain("orders").got


# The disk


def test_after_a_failed_sync_new_work_is_refused_and_what_was_answered_is_kept(bench: Bench) -> None:
    reader = bench.drain("orders")
    done = bench.schedule(payload=b"kept", delay_ms=100)
    due = bench.schedule(payload=b"due", delay_ms=10)
    bench.disk.fail_next("sync", errno.EIO)
    lost = bench.engine.schedule(Message(destination="orders", payload=b"lost", delay_ms=10))
    assert "disk failed" in str(bench.refused(lost, Unavailable))
    assert bench.engine.stats().failed is not None
    for answer in (
        bench.engine.schedule(Message(destination="orders", delay_ms=10)),
        bench.engine.schedule_many([]),
        bench.engine.cancel(done.id),
        bench.engine.send(done.id),
        bench.engine.restart(done.id),
        bench.engine.set_policy("broker", "", Policy(tick_ms=5)),
        bench.engine.topics.create("new"),
    ):
        bench.rest()
        assert answer.settled
    many = bench.ask(bench.engine.schedule_many([Message(destination="orders", delay_ms=10)]))
    assert isinstance(many[0], Unavailable)
    # Nothing is dispatched any more.
    bench.wait(1000)
    assert not reader.got
    bench.crash()
    bench.start()
    bench.rest()
    again = bench.drain("orders", "again")
    assert {b"kept", b"due"} <= set(again.payloads) <= {b"kept", b"due", b"lost"}
    assert bench.state(due.id) == "sent"


def test_every_command_and_look_is_answered_after_a_failed_sync(bench: Bench) -> None:
    """Nobody waits for ever: a door that got no answer would hang."""
    waiting = bench.schedule(FOREIGN, delay_ms=1)
    sent = bench.schedule("orders", delay_ms=1)
    bench.wait(1)
    assert bench.state(sent.id) == "sent"
    cancel = bench.engine.cancel(waiting.id)
    bench.disk.fail_next("sync", errno.EIO)
    bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=10)), Unavailable)
    bench.attempt().answer(Delivered())
    answers = [
        cancel, bench.engine.get(sent.id), bench.engine.get(waiting.id), bench.engine.cancel(sent.id),
        bench.engine.cancel(waiting.id), bench.engine.send(waiting.id),
    ]  # fmt: skip
    bench.wait(5000)
    assert [answer.settled for answer in answers] == [True] * len(answers)


def test_a_failed_disk_does_not_keep_the_server_busy(bench: Bench) -> None:
    bench.schedule("orders", delay_ms=10)
    bench.disk.fail_next("sync", errno.EIO)
    bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=10)), Unavailable)
    bench.clock.advance(10_000)
    bench.rest()
    assert bench.tick() > bench.now_ms


def test_with_little_space_new_work_is_refused_and_ends_still_work() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    due = bench.schedule(FOREIGN, payload=b"due", delay_ms=limits.MINUTE_MS)
    bench.publish("orders", b"entry")
    sub = bench.subscribe("orders")
    full_disk(bench)
    ids = fill(bench)
    assert ids
    assert bench.engine.stats().low_space
    error = bench.refused(bench.engine.schedule(Message(destination="orders", delay_ms=1)), Unavailable)
    assert "space" in str(error)
    # What ends things has its own reserve.
    reader = bench.reader(sub)
    reader.ack(0)
    for id_ in ids[:20]:
        assert bench.ask(bench.engine.cancel(id_)).state == "cancelled"
    bench.run(limits.MINUTE_MS)
    assert bench.state(due.id) == "sent"
    # With space again everything goes on by itself.
    bench.disk.capacity_bytes = None
    bench.wait(2000)
    bench.schedule("orders", delay_ms=1)
    bench.leap(limits.HOUR_MS)
    bench.run()
    assert bench.state(ids[-1]) == "sent"
    bench.reopen()
    assert bench.state(ids[0]) == "cancelled"
    assert sub.topic.first >= 0


def test_what_is_due_with_a_full_disk_goes_out_when_there_is_space() -> None:
    """Nothing is dispatched unless its end has room: later, but not lost, and not twice."""
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 16))
    reader = bench.drain("orders")
    ids = [bench.schedule("orders", payload=b"%d" % n + bytes(1000), delay_ms=1000).id for n in range(30)]
    full_disk(bench)
    fill(bench)
    bench.wait(5000)
    before = len(reader.got)
    assert before < 30
    bench.disk.capacity_bytes = None
    bench.wait(5000)
    assert {bench.state(id_) for id_ in ids} == {"sent"}
    assert sorted(reader.ids) == list(range(30))


def test_nothing_more_is_sent_while_an_end_has_no_room() -> None:
    """R2: the reserve is used up too. What is sent then could not be known to have been sent."""
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 14))
    # A listed message is remembered with its body, so that its end takes more room than a cancel.
    first = bench.schedule(FOREIGN, payload=bytes(8_000), owner="ann", listed=True, delay_ms=10)
    second = bench.schedule(FOREIGN, payload=b"second", delay_ms=limits.MINUTE_MS)
    bench.wait(10)
    use_up_space(bench)
    bench.verdict(Delivered())
    bench.leap(limits.MINUTE_MS)
    assert bench.outlet.under_way == []
    bench.disk.capacity_bytes = None
    bench.wait(2_000)
    bench.verdict(Delivered())
    assert (bench.state(first.id), bench.state(second.id)) == ("sent", "sent")


def test_a_registry_that_cannot_be_written_loses_nothing(bench: Bench) -> None:
    bench.registry_disk.failing = 5
    done = bench.schedule(payload=b"kept", delay_ms=100, owner="ann", idempotency_key="i")
    cancelled = bench.schedule(delay_ms=100)
    bench.ask(bench.engine.cancel(cancelled.id))
    bench.refused(bench.engine.get(cancelled.id), Unavailable)
    bench.wait(4000)
    assert bench.registry_disk.failing == 0
    assert bench.state(cancelled.id) == "cancelled"
    assert bench.state(done.id) == "sent"
    bench.registry_disk.failing = 10**6
    later = bench.schedule(payload=b"later", delay_ms=100, owner="ann")
    bench.wait(5000)
    bench.crash()
    bench.registry_disk.failing = 0
    bench.start()
    assert (bench.state(later.id), bench.state(done.id)) == ("sent", "sent")
    assert bench.engine.stats().pending == 0
    assert bench.drain("orders").payloads == [b"kept", b"later"]


def test_what_became_durable_late_is_not_passed_by_the_watermark() -> None:
    """R9: it is due before the messages that were taken from the wheel meanwhile, and waits for the turn of its owner."""
    bench = Bench(settings=EngineSettings(batch=1, clock_slack_ms=0, mark_every_ms=1))
    for owner in "bcdef":
        bench.schedule(owner=owner, delay_ms=7)
    late = bench.engine.schedule(Message(destination="orders", owner="ann", delay_ms=0))
    bench.clock.advance(800)
    bench.tick()
    bench.commit()
    for _ in range(2):
        bench.tick()
        bench.commit()
        bench.clock.advance(1)
    id_ = late.value().id
    assert bench.state(id_) == "scheduled"
    bench.crash()
    bench.start()
    bench.wait(2000)
    assert bench.state(id_) == "sent"


def test_a_message_that_enters_late_goes_before_its_owners_later_ones() -> None:
    """A message becomes durable, or is carried forward, while more than a batch of its owner's messages wait for their turn."""
    bench = Bench(settings=EngineSettings(batch=1))
    for n in range(4):
        bench.schedule(FOREIGN, payload=b"%d" % n, owner="ann", key="k", delay_ms=7)
    late = bench.engine.schedule(
        Message(destination=FOREIGN, payload=b"late", owner="ann", key="k", delay_ms=1)
    )
    bench.clock.advance(800)
    bench.tick()
    bench.commit()
    assert late.settled
    bench.run()
    assert bench.arrived() == [b"0", b"late", b"1", b"2", b"3"]


def test_the_registry_waits_while_a_burst_goes_on_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(settings=EngineSettings(batch=4, flush_every_ms=100))
    bench.wait(1_000)
    flushed: list[int] = []
    begin, began_ms = bench.registry.begin, bench.now_ms

    def spied(meta: Meta) -> Flush:
        flushed.append(bench.now_ms - began_ms)
        return begin(meta)

    monkeypatch.setattr(bench.registry, "begin", spied)
    # Single messages, and then a whole batch, again and again: the next before the last is taken.
    for delay_ms in (*range(100, 1_000, 100), *[ms for ms in range(1_000, 8_000, 100) for _ in range(4)]):
        _ = bench.engine.schedule(Message(destination="orders", delay_ms=delay_ms, listed=True, owner="ann"))
    bench.wait(10_000)
    before, during, after = (
        [at for at in flushed if low <= at < high]
        for low, high in ((0, 1_000), (1_000, 7_900), (7_900, 10_000))
    )
    assert len(before) >= 9
    assert [at for at in during if at - before[-1] < FLUSH_LATEST_MS] == []
    assert len(during) == 1
    assert after[0] <= 7_900 + BURST_MS + 2 * 100


def test_what_is_due_while_a_burst_is_written_gathers_and_goes_in_one_turn(bench: Bench) -> None:
    reader = bench.reader(bench.subscribe("orders"))
    for number in range(5):
        bench.schedule(payload=b"%d" % number, delay_ms=100 + number)
    bench.wait(99)
    bench.clock.advance(1)
    bench.tick()
    woken: list[int] = []
    bench.horizon.on_earlier = woken.append
    for _ in range(4):
        bench.clock.advance(1)
        # Nothing is to be done before the burst is durable, also for the driver's timer.
        assert bench.tick() > bench.now_ms
    before = bench.next_seq
    assert not reader.got
    assert not woken
    bench.commit()
    assert reader.payloads == [b"0"]
    assert woken == [0]
    bench.tick()
    assert bench.next_seq == before + 4
    bench.commit()
    assert reader.payloads == [b"0", b"1", b"2", b"3", b"4"]


def test_watermark_stays_below_messages_waiting_for_a_burst() -> None:
    bench = Bench(ledger_settings=LedgerSettings(segment_bytes=1 << 20, commit_max_records=1))
    bench.schedule(delay_ms=103)
    bench.wait(100)
    accepted_at_ms = bench.now_ms
    late = bench.engine.schedule(Message(destination="orders", payload=b"late", delay_ms=0))
    for _ in range(3):
        bench.clock.advance(1)
        bench.tick()
    # Its acceptance is durable only now, after later instants had their turn; a burst is still being written.
    bench.commit()
    assert late.settled
    bench.tick()
    assert bench.dispatcher.gathering
    assert bench.dispatcher.lowest_open(bench.now_ms) <= Key(accepted_at_ms, 0)


def test_turns_that_send_lie_apart_but_nobody_waits_who_is_due_alone(bench: Bench) -> None:
    began_ms = bench.now_ms
    for delay_ms in (1_000, 1_001, 1_500):
        bench.schedule(delay_ms=delay_ms)
    bench.leap(997)
    assert bench.tick() == began_ms + 1_000
    bench.leap(3)
    # What is due in the next millisecond goes with what is due in the one after.
    assert bench.tick() == began_ms + 1_000 + APART_MS
    bench.leap(APART_MS)
    assert len(bench.drain("orders").got) == 2
    bench.clock.set(began_ms + 1_498)
    assert bench.rest() == began_ms + 1_500


def test_a_clock_that_was_set_back_keeps_nobody_waiting_for_the_turn_after_the_last(bench: Bench) -> None:
    bench.schedule(delay_ms=1_000)
    bench.leap(1_000)
    bench.clock.jump(-2_000)
    bench.schedule(delay_ms=100)
    assert bench.rest() == bench.now_ms + 100
    bench.leap(100)
    assert len(bench.drain("orders").got) == 2
