"""Reclaiming: old segments go, while what little lives in them is carried forward (R12)."""

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from tarry.core import limits
from tarry.core.errors import Conflict, Unavailable
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message
from tarry.core.rules.policy import Policy
from tarry.engine.settings import EngineSettings
from tarry.engine.topics import topic_records
from tarry.engine.upkeep import reclaim
from tarry.index.index import IndexView
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Entry, decode
from tests.unit.engine_kit import FOREIGN, Bench, NoSpace

SEGMENT = 1 << 16
QUICK = EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=1000)


@pytest.fixture(autouse=True, params=["one step", "many steps"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all that lives is found in one step, or other things happen in between."""
    if request.param == "many steps":
        monkeypatch.setattr(reclaim, "WAITING_TOGETHER", 20)
        monkeypatch.setattr(topic_records, "LOOKED_AT_TOGETHER", 1)


@pytest.fixture
def bench() -> Bench:
    return Bench(settings=QUICK, ledger_settings=LedgerSettings(segment_bytes=SEGMENT))


def churn(bench: Bench, segments: int = 10, topic: str = "churn") -> None:
    """Traffic that leaves nothing behind: published, read and acknowledged."""
    name = f"churn-{topic}"
    reader = bench.reader(bench.subscribe(topic, name))
    for _ in range(segments * 8):
        ids = bench.publish(topic, *[bytes(900)] * 8)
        reader.ack(*ids)
    reader.handle.close()


def search(bench: Bench) -> None:
    """Look for what lives in old segments to the end, and do what follows, at once."""
    going = bench.upkeep.reclaim
    going.turn(bench.now_ms)
    assert going.searching
    while going.searching:
        going.step()


def settle(bench: Bench) -> None:
    """Time for snapshots, carrying forward and reclaiming."""
    for _ in range(8):
        bench.wait(1100)


def size(bench: Bench) -> int:
    return len(bench.ledger.segments())


def test_segments_that_nobody_needs_go(bench: Bench) -> None:
    churn(bench, 12)
    assert size(bench) >= 10
    settle(bench)
    assert size(bench) <= 3
    assert bench.first_seq > 1


def test_without_snapshots_nothing_goes() -> None:
    bench = Bench(
        settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=10 * limits.DAY_MS),
        ledger_settings=LedgerSettings(segment_bytes=SEGMENT),
    )
    churn(bench, 6)
    before = size(bench)
    settle(bench)
    # Two snapshots are needed, and there was one at most.
    assert size(bench) == before


def test_while_a_backup_reads_nothing_goes(bench: Bench) -> None:
    bench.upkeep.reclaim.held += 1
    churn(bench, 6)
    before = size(bench)
    settle(bench)
    assert size(bench) == before
    bench.upkeep.reclaim.held -= 1
    settle(bench)
    assert size(bench) < before


def test_one_message_due_in_a_year_pins_nothing(bench: Bench) -> None:
    done = bench.schedule("orders", payload=b"in a year", owner="ann", key="k", delay_ms=limits.YEAR_MS)
    churn(bench)
    settle(bench)
    assert size(bench) <= 3
    view = bench.view(done.id)
    assert (view.state, view.payload, view.due_at_ms) == ("scheduled", b"in a year", done.due_at_ms)
    assert bench.engine.stats().pending == 1
    bench.crash()
    bench.start()
    assert bench.view(done.id) == view
    churn(bench)
    settle(bench)
    bench.leap(done.due_at_ms - bench.now_ms - 1)  # type: ignore[operator]
    assert bench.state(done.id) == "scheduled"
    bench.leap(1)
    (entry,) = bench.drain("orders").got
    assert (entry.payload, entry.message_id) == (b"in a year", done.id)


def test_groups_idempotency_keys_and_ended_messages_outlive_their_segments(bench: Bench) -> None:
    timed = bench.schedule(group="g", delay_ms=limits.DAY_MS, idempotency_key="once")
    untimed = bench.schedule(group="g", payload=b"by command")
    cancelled = bench.schedule(delay_ms=limits.DAY_MS)
    bench.ask(bench.engine.cancel(cancelled.id))
    churn(bench)
    settle(bench)
    assert size(bench) <= 3
    bench.reopen()
    assert bench.state(cancelled.id) == "cancelled"
    again = Message(destination="orders", group="g", delay_ms=limits.DAY_MS, idempotency_key="once")
    assert bench.ask(bench.engine.schedule(again)).id == timed.id
    bench.ask(bench.engine.send(untimed.id))
    assert bench.state(timed.id) == "cancelled"
    assert bench.drain("orders").payloads == [b"by command"]


def test_one_subscription_that_is_never_read_does_not_pin_storage(bench: Bench) -> None:
    """Its entries are carried forward, and arrive later with the same entry ids."""
    sub = bench.subscribe("t", "never")
    for n in range(40):
        bench.publish("t", b"kept-%d" % n, key=f"k{n}", headers={"n": str(n)})
        churn(bench, 1)
    settle(bench)
    assert size(bench) <= 4
    published = [entry.published_at_ms for entry in bench.drain("t", "other").got]
    bench.crash()
    bench.start()
    sub = bench.engine.topics.subscription("t", "never")
    assert sub.backlog == 40
    reader = bench.reader(sub)
    assert reader.ids == list(range(40))
    assert reader.payloads == [b"kept-%d" % n for n in range(40)]
    assert [entry.key for entry in reader.got] == [f"k{n}" for n in range(40)]
    assert [entry.headers for entry in reader.got] == [{"n": str(n)} for n in range(40)]
    assert [entry.published_at_ms for entry in reader.got] == published


def test_a_busy_topic_with_one_subscription_that_is_never_read_does_not_pin_the_others(bench: Bench) -> None:
    """More than half of the oldest segments lives; the hundred behind them are empty and must go."""
    bench.subscribe("t", "never")
    for _ in range(20):
        bench.publish("t", *[b"kept".ljust(900, b".")] * 8)
    churn(bench, 20)
    settle(bench)
    assert size(bench) <= 8
    assert bench.reader(bench.engine.topics.subscription("t", "never")).ids == list(range(160))


def test_fired_messages_keep_their_id_when_carried(bench: Bench) -> None:
    done = bench.schedule("t", payload=b"fired", delay_ms=10)
    bench.subscribe("t", "never")
    bench.wait(10)
    churn(bench)
    settle(bench)
    assert size(bench) <= 3
    bench.reopen()
    (entry,) = bench.reader(bench.engine.topics.subscription("t", "never")).got
    assert (entry.entry_id, entry.payload, entry.message_id) == (0, b"fired", done.id)
    assert bench.state(done.id) == "sent"
    assert bench.engine.stats().pending == 0


@pytest.mark.parametrize("reopen", [False, True])
def test_delayed_entries_are_carried_with_their_instant(bench: Bench, reopen: bool) -> None:
    bench.subscribe("t", "s")
    at_ms = bench.now_ms + limits.HOUR_MS
    bench.publish("t", b"late", deliver_at_ms=at_ms)
    churn(bench)
    settle(bench)
    assert size(bench) <= 3
    if reopen:
        bench.reopen()
    reader = bench.reader(bench.engine.topics.subscription("t", "s"))
    bench.leap(at_ms - bench.now_ms - 1)
    assert not reader.got
    bench.leap(1)
    assert reader.payloads == [b"late"]


def test_an_entry_that_was_ready_when_it_was_carried_is_ready_after_a_restart(bench: Bench) -> None:
    """The registry has not heard of it: the new record says so, by having no instant."""
    going = bench.upkeep.reclaim
    bench.subscribe("t", "s")
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + limits.HOUR_MS)
    going.held += 1
    churn(bench)
    settle(bench)
    bench.registry_disk.failing = 1 << 60
    bench.leap(limits.HOUR_MS)
    before = bench.durable_seq
    going.held -= 1
    search(bench)
    bench.commit()
    carried = decode(bench.bodies.one(before + 1))
    assert isinstance(carried, Entry)
    assert carried.carries is not None
    bench.kill()
    bench.registry_disk.failing = 0
    bench.start()
    bench.wait(1)
    assert bench.reader(bench.engine.topics.subscription("t", "s")).payloads == [b"late"]


def test_the_end_of_a_moved_entry_that_was_carried_once_it_was_ready_is_found_after_a_restart(
    bench: Bench,
) -> None:
    """The registry has not heard of its end, and the record that moved it is gone from under the row of where it was."""
    going = bench.upkeep.reclaim
    bench.subscribe("t", "s")
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + limits.MINUTE_MS)
    moved = bench.ask(bench.engine.delayed.reschedule("t", 0, bench.now_ms + limits.HOUR_MS))
    going.held += 1
    churn(bench)
    settle(bench)
    bench.registry_disk.failing = 1 << 60
    bench.leap(limits.HOUR_MS)
    before = bench.durable_seq
    going.held -= 1
    search(bench)
    bench.commit()
    carried = decode(bench.bodies.one(before + 1))
    assert isinstance(carried, Entry)
    assert (carried.entry_id, carried.fire_at_ms) == (0, 0)
    bench.kill()
    bench.registry_disk.failing = 0
    bench.start()
    assert bench.state(moved.id) == "sent"
    assert bench.view(moved.id).due_at_ms == moved.due_at_ms


def test_acknowledged_entries_are_not_carried(bench: Bench) -> None:
    sub = bench.subscribe("t", "s")
    reader = bench.reader(sub)
    bench.publish("t", *[b"x" * 900] * 20)
    reader.ack(*range(1, 20))
    churn(bench)
    settle(bench)
    bench.reopen()
    topic, first_seq = bench.engine.topics.find("t"), bench.first_seq
    assert [topic.seq(entry_id) >= first_seq for entry_id in range(20)] == [True] + [False] * 19
    again = bench.reader(bench.engine.topics.subscription("t", "s"))
    assert again.ids == [0]


def test_what_is_on_its_way_stays_where_it_is_and_is_sent_once(bench: Bench) -> None:
    done = bench.schedule(FOREIGN, payload=b"slow", delay_ms=1)
    bench.wait(1)
    churn(bench)
    settle(bench)
    assert size(bench) > 3
    bench.verdict(Retry("no", after_ms=10))
    settle(bench)
    bench.verdict(Delivered())
    settle(bench)
    assert size(bench) <= 3
    assert bench.state(done.id) == "sent"
    assert bench.arrived() == [b"slow"]


def test_many_versions_are_carried_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "CARRY_LIMIT", 50)
    units: list[int] = []
    append = bench.journal.append

    def counted(records: Sequence[Any], *args: Any, **options: Any) -> int:
        units.append(len(records))
        return append(records, *args, **options)

    monkeypatch.setattr(bench.journal, "append", counted)
    ids = [bench.schedule(payload=b"%d" % n, delay_ms=limits.DAY_MS + n).id for n in range(300)]
    churn(bench, 30)
    settle(bench)
    assert size(bench) <= 5
    assert max(units) == 50
    bench.reopen()
    assert bench.engine.stats().pending == 300
    assert bench.view(ids[123]).payload == b"123"
    bench.leap(limits.DAY_MS + 300)
    assert bench.drain("orders").payloads == [b"%d" % n for n in range(300)]


def test_large_records_are_carried_in_units_that_fit() -> None:
    bench = Bench(settings=QUICK, ledger_settings=LedgerSettings(segment_bytes=1 << 20))
    for n in range(8):
        bench.schedule(payload=bytes([n]) * 100_000, delay_ms=limits.DAY_MS)
        churn(bench, 8)
    settle(bench)
    bench.leap(limits.DAY_MS)
    assert [payload[0] for payload in bench.drain("orders").payloads] == list(range(8))


def test_bytes_go_only_once_what_killed_them_is_durable(bench: Bench) -> None:
    """A restart is enqueued, and reclaiming comes before its commit; then the power fails."""
    done = bench.schedule(payload=b"kept", delay_ms=limits.DAY_MS)
    bench.upkeep.reclaim.held += 1
    churn(bench)
    settle(bench)
    bench.upkeep.reclaim.held -= 1
    first = bench.first_seq
    _ = bench.engine.restart(done.id)
    search(bench)
    assert bench.first_seq == first
    bench.crash()
    bench.start()
    assert bench.view(done.id).payload == b"kept"


def test_a_message_that_is_carried_after_a_crash_stays_uncertain(bench: Bench) -> None:
    """R11: its new version is not of the last life, and has to say itself that it may have been sent then."""
    bench.schedule(FOREIGN, payload=b"first", delay_ms=10)
    second = bench.schedule(FOREIGN, payload=b"second", delay_ms=11)
    bench.wait(20)
    assert len(bench.outlet.under_way) == 2
    bench.ask(bench.engine.set_policy("broker", "", Policy(send_per_second=0.02)))
    bench.crash()
    bench.start()
    bench.rest()
    bench.verdict(Delivered())
    place = bench.ids.read(second.id)
    assert place is not None
    churn(bench)
    settle(bench)
    assert bench.first_seq > place[0], "it was carried"
    assert not bench.outlet.under_way
    assert bench.refused(bench.engine.cancel(second.id), Conflict).state == "uncertain"


def test_nothing_goes_while_an_end_waits_for_room(bench: Bench) -> None:
    """A version that is to be carried by its flight is in no wheel: it must not be taken for unneeded."""
    done = bench.schedule(FOREIGN, payload=b"kept", delay_ms=1)
    bench.wait(1)
    churn(bench)
    settle(bench)
    shortage = NoSpace(bench)
    bench.attempt().answer(Retry("no", after_ms=100_000))
    settle(bench)
    shortage.end()
    settle(bench)
    bench.run(100_000)
    assert bench.state(done.id) == "sent"
    assert bench.arrived() == [b"kept"]


def test_a_damaged_record_is_not_carried_and_stops_nothing(bench: Bench) -> None:
    bench.schedule(payload=b"DAMAGED-BODY", delay_ms=limits.DAY_MS)
    good = bench.schedule(payload=b"sound", delay_ms=limits.DAY_MS)
    bench.flip(b"DAMAGED-BODY")
    churn(bench)
    settle(bench)
    assert bench.view(good.id).payload == b"sound"
    bench.leap(limits.DAY_MS)
    assert bench.drain("orders").payloads == [b"sound"]


def test_a_deleted_topic_frees_its_storage(bench: Bench) -> None:
    bench.subscribe("t", "never")
    bench.publish("t", *[bytes(900)] * 40)
    bench.publish("t", b"late", deliver_at_ms=bench.now_ms + limits.YEAR_MS)
    bench.ask(bench.engine.topics.delete("t"))
    churn(bench)
    settle(bench)
    assert size(bench) <= 3


def test_a_topic_that_nobody_reads_forgets_in_time() -> None:
    settings = EngineSettings(
        reclaim_every_ms=1000, snapshot_every_ms=1000, unread_retention_ms=limits.HOUR_MS
    )
    bench = Bench(settings=settings, ledger_settings=LedgerSettings(segment_bytes=SEGMENT))
    bench.publish("unread", *[b"old" + bytes(900)] * 40)
    bench.leap(limits.HOUR_MS // 2)
    bench.publish("unread", b"new")
    bench.leap(limits.HOUR_MS // 2 + 1)
    churn(bench)
    settle(bench)
    assert size(bench) <= 3
    reader = bench.drain("unread")
    assert reader.payloads == [b"new"]
    assert reader.ids == [40]


def test_a_damaged_entry_in_a_topic_that_nobody_reads_stops_nothing() -> None:
    settings = EngineSettings(
        reclaim_every_ms=1000, snapshot_every_ms=1000, unread_retention_ms=limits.HOUR_MS
    )
    bench = Bench(settings=settings, ledger_settings=LedgerSettings(segment_bytes=SEGMENT))
    for _ in range(9):
        bench.publish("unread", b"DAMAGED-BODY")
    bench.reopen()
    bench.flip(b"DAMAGED-BODY")
    bench.leap(limits.HOUR_MS + 1)
    settle(bench)
    bench.schedule(payload=b"goes on", delay_ms=1)
    bench.wait(1)
    assert bench.drain("orders").payloads == [b"goes on"]


def test_a_failed_removal_is_tried_again_and_loses_nothing(bench: Bench) -> None:
    done = bench.schedule(payload=b"kept", delay_ms=limits.DAY_MS)
    churn(bench)
    bench.disk.fail_next("remove", errno.EIO, times=2)
    settle(bench)
    settle(bench)
    assert size(bench) <= 3
    bench.reopen()
    assert bench.view(done.id).payload == b"kept"


def test_the_registry_can_be_had_again_from_either_snapshot(bench: Bench) -> None:
    """Segments are kept as far back as the older of two snapshots."""
    done = bench.schedule(payload=b"kept", delay_ms=limits.DAY_MS)
    sub = bench.subscribe("t", "s")
    for _ in range(5):
        bench.publish("t", b"entry")
        churn(bench, 3)
        settle(bench)
    assert sub.backlog == 5
    assert bench.first_seq > 1
    for path in sorted(bench.registry_disk.snapshots):
        bench.kill()
        bench.registry_disk.restore(path)
        bench.start()
        assert bench.view(done.id).payload == b"kept"
        again = bench.engine.topics.subscription("t", "s")
        assert again.backlog == 5
        assert bench.reader(again).ids == [0, 1, 2, 3, 4]


def test_segments_stay_as_long_as_the_older_snapshot_needs_them() -> None:
    """R12: the newer one may turn out to be damaged."""
    bench = Bench(
        settings=EngineSettings(reclaim_every_ms=1000, snapshot_every_ms=60_000),
        ledger_settings=LedgerSettings(segment_bytes=SEGMENT),
    )
    churn(bench, 3)
    bench.wait(130_000)
    before = dict(bench.registry_disk.snapshots)
    assert len(before) == 2
    churn(bench, 12)
    newer: list[str] = []
    for _ in range(70):
        bench.wait(1_000)
        snapshots = bench.registry_disk.snapshots
        newer = [path for path in snapshots if snapshots[path] is not before[path]]
        if newer:
            break
    bench.wait(5_000)
    assert len(newer) == 1
    for path in before:
        bench.kill()
        bench.registry_disk.restore(path)
        bench.start()


def test_a_pipeline_that_begins_just_before_segments_go_finds_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn(bench, 6)
    before = size(bench)
    reclaim = bench.upkeep.reclaim
    rely = reclaim._rely

    def begins_now(upto_seq: int) -> None:
        bench.index.begin()
        rely(upto_seq)

    monkeypatch.setattr(reclaim, "_rely", begins_now)
    settle(bench)
    assert (size(bench), bench.first_seq) == (before, 1)
    # Nor do they go while the index has not reached them; then they do.
    settle(bench)
    assert size(bench) == before
    bench.index.flush(bench.ledger)
    settle(bench)
    assert size(bench) < before


def test_an_index_that_cannot_be_seen_keeps_what_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn(bench, 6)
    before = size(bench)
    reclaim, newest = bench.upkeep.reclaim, bench.index.newest
    rely = reclaim._rely

    def unreachable() -> IndexView:
        raise Unavailable("no answer")

    def fails_now(upto_seq: int) -> None:
        monkeypatch.setattr(bench.index, "newest", unreachable)
        rely(upto_seq)

    monkeypatch.setattr(reclaim, "_rely", fails_now)
    settle(bench)
    assert size(bench) == before
    monkeypatch.undo()
    assert bench.index.newest == newest
    settle(bench)
    assert size(bench) < before


def test_a_new_index_begins_with_the_ledger_that_has_let_go_of_its_beginning(bench: Bench) -> None:
    kept = bench.schedule(delay_ms=limits.DAY_MS, payload=b"kept")
    churn(bench, 6)
    settle(bench)
    assert bench.first_seq > 1
    bench.index.begin()
    bench.reopen()
    assert bench.horizon.trouble is None
    assert bench.horizon.followed
    bench.index.flush(bench.ledger)
    churn(bench, 6, "more")
    settle(bench)
    assert len(bench.horizon) == 0
    bench.leap(limits.DAY_MS)
    assert bench.drain("orders").payloads == [b"kept"], kept


def test_of_each_snapshot_is_told_what_the_ledger_had_before_it_was_made(bench: Bench) -> None:
    """Segments that are reclaimed while it is made may be needed by it."""
    told: list[tuple[str, int, int]] = []
    going = bench.upkeep.reclaim
    going._on_snapshot = lambda *snapshot: told.append(snapshot)
    churn(bench)
    before = bench.first_seq
    going.turn(bench.now_ms)
    assert told == []
    assert bench.ledger.reclaim(bench.ledger.segments()[-2].last_seq) > 0
    bench.rest()
    ((path, _, first_seq),) = told
    assert path.startswith("snapshots/registry-")
    assert first_seq == before < bench.first_seq
