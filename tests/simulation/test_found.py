"""Scenarios that the simulation found, each in a few calls: what was wrong is in the docstrings."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.messages.delivery import Delivered, Retry
from tarry.core.messages.message import Message, MessageQuery
from tarry.core.rules.policy import Policy
from tarry.core.sets.seqset import SMALLEST_BLOCK_BITS
from tarry.engine.answer import Answer
from tarry.engine.settings import EngineSettings
from tarry.engine.topics.entries import NewEntry, Received
from tarry.index.manifest import BatchManifest, ManifestFile
from tarry.ledger.lanes import lane_of
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Put, encode
from tarry.testing.index import SimulatedView, StagedRow
from tarry.testing.world import World

SMALL = LedgerSettings(segment_bytes=4096 + 4096)
FIRST_LANE, LATER_LANE = sorted(("a", "b"), key=lambda owner: lane_of("public/default", owner, "http"))
"""Two owners, in the order of their lanes."""


def commit_all(world: World) -> None:
    while world.commit():
        pass


def schedule(world: World, *messages: Message) -> list[str]:
    """Have messages accepted; gives their ids."""
    answers = [world.engine.schedule(message) for message in messages]
    commit_all(world)
    return [answer.value().id for answer in answers]


def staged(world: World, *payloads: bytes, after_ms: int) -> BatchManifest:
    """A batch of messages for a receiver, all due at one instant, that is staged and can be adopted."""
    now_ms, owners = world.clock.now_ms(), {"ann": len(payloads)}
    due_ms, namespace = now_ms + after_ms, "public/default"
    puts = [
        Put(
            due_ms, due_ms, now_ms, namespace, "sim://h/1", None, "ann", "bulk", None, None, None, 0, False, payload,
            {}, now_ms, after_ms,
        )
        for payload in payloads
    ]  # fmt: skip
    rows = [StagedRow(due_ms, lane_of(namespace, "ann", "bulk"), encode(put).body) for put in puts]
    file = world.index.stage("batch", rows)
    return BatchManifest(
        ledger=world.ledger.ledger_id.hex(),
        files=[
            ManifestFile(
                path=file.path, size_bytes=file.size_bytes, rows=file.rows, slot=file.slot, low_ms=due_ms, high_ms=due_ms
            )
        ],
        owners=owners,
        held={namespace: owners},
        namespaces={namespace: due_ms},
    )  # fmt: skip


def tokens(world: World) -> list[bytes]:
    return [arrival.delivery.payload for arrival in world.outlet.arrivals]


def under_way(world: World) -> list[bytes]:
    return [attempt.delivery.payload for attempt in world.outlet.under_way]


def test_a_burst_makes_no_topic_that_it_puts_nothing_into() -> None:
    """A topic existed in memory only; a subscription to it was gone after a restart."""
    world = World()
    schedule(
        world, Message(destination="other", delay_ms=1), Message(destination="empty", delay_ms=1, ttl_ms=1)
    )
    world.clock.advance(1_000)
    world.tick()
    world.settle(world.engine.topics.subscribe("empty", "s"))
    world.kill()
    world.start()
    assert world.engine.topics.subscription("empty", "s").durable


def test_a_sibling_that_is_ended_while_it_waits_makes_room_in_its_chain() -> None:
    """The sibling stayed at the head of its chain for ever."""
    world = World(settings=EngineSettings(concurrency=1))
    *_, sibling = schedule(
        world,
        Message(destination="sim://h/1", payload=b"first", delay_ms=1),
        Message(destination="sim://h/1", payload=b"member", key="k", group="g", delay_ms=2),
        Message(destination="sim://h/1", payload=b"behind", key="k", delay_ms=3),
        Message(destination="t", group="g", delay_ms=60_000),
    )
    world.clock.advance(10)
    world.tick()
    assert under_way(world) == [b"first"]
    world.clock.jump(-9)
    world.outlet.under_way[0].answer(Delivered())
    commit_all(world)
    # The member is not due by this clock and waits for it; then its sibling is sent instead.
    sent = world.engine.send(sibling)
    commit_all(world)
    assert sent.value().id == sibling
    world.run(1_000)
    assert tokens(world) == [b"first", b"behind"]


def test_of_siblings_due_together_one_is_sent() -> None:
    """Both were in one batch, and who is dead was looked up before the first was sent."""
    for destination in ("sim://h/1", "t"):
        world = World()
        schedule(
            world,
            *(
                Message(destination=destination, payload=b"%d" % n, group="g", delay_ms=1, key=f"{n}")
                for n in range(3)
            ),
        )
        world.run(1_000)
        sent = world.engine.stats().counters["sent"]
        assert sent == 1, destination


def test_nothing_overtakes_a_chain_while_it_is_carried() -> None:
    """Its new versions were in no wheel until they were durable, and what came next went ahead."""
    world = World(settings=EngineSettings(carry_after_ms=0))
    schedule(
        world,
        Message(destination="sim://h/1", payload=b"first", key="k", delay_ms=1),
        Message(destination="sim://h/1", payload=b"second", key="k", delay_ms=500),
    )
    world.clock.advance(400)
    world.tick()
    world.outlet.under_way[0].answer(Retry("busy", 1))
    world.clock.advance(400)
    world.tick()
    assert not world.outlet.under_way
    world.run(10_000)
    assert tokens(world) == [b"first", b"second"]


def test_an_entry_can_be_read_while_it_is_carried_forward() -> None:
    """Its new record was not durable, so that it was taken for gone and acknowledged."""
    every_ms = {"reclaim_every_ms": 1, "snapshot_every_ms": 1, "flush_every_ms": 1}
    world = World(ledger_settings=SMALL, settings=EngineSettings(**every_ms))  # type: ignore[arg-type]
    world.settle(world.engine.topics.subscribe("t", "s"))
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"kept")]))
    got: list[Received] = []
    topic = world.engine.topics.find("t")
    for _ in range(200):
        schedule(world, Message(destination="sim://h/1", payload=b"x" * 200, delay_ms=0))
        world.clock.advance(1)
        world.tick()
        if topic.seq(0) > world.durable_seq:
            break
        for attempt in list(world.outlet.under_way):
            attempt.answer(Delivered())
        commit_all(world)
        while world.work():
            pass
    else:
        raise AssertionError("nothing was carried forward")
    world.engine.topics.subscription("t", "s").attach("c", got.extend).flow(1)
    assert [entry.payload for entry in got] == [b"kept"]


def test_a_delayed_entry_that_was_enqueued_before_a_mark_is_ready_after_a_restart() -> None:
    """The watermark had passed it before it was durable, so that nobody waited for it after the restart."""
    world = World(settings=EngineSettings(clock_slack_ms=0, mark_every_ms=1))
    world.settle(world.engine.topics.subscribe("t", "s", "shared"))
    now_ms = world.clock.now_ms()
    published = world.engine.topics.publish("t", [NewEntry(payload=b"later", deliver_at_ms=now_ms + 10)])
    world.clock.advance(60_000)
    world.tick()
    commit_all(world)
    assert published.value() == [0]
    while world.work():
        pass
    world.kill()
    world.start()
    got: list[Received] = []
    world.engine.topics.subscription("t", "s").attach("c", got.extend).flow(10)
    world.run(10)
    assert [entry.payload for entry in got] == [b"later"]


def test_a_subscription_that_changes_its_type_reads_anew() -> None:
    """A delayed entry that an exclusive consumer had came early to shared ones, and the other way round never."""
    world = World()
    world.settle(world.engine.topics.subscribe("t", "s", "exclusive"))
    due_at_ms = world.clock.now_ms() + 60_000
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"later", deliver_at_ms=due_at_ms)]))
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"now")]))
    for type_, expected in (
        ("exclusive", [b"later", b"now"]),
        ("shared", [b"now"]),
        ("failover", [b"later", b"now"]),
    ):
        got: list[Received] = []
        sub = world.settle(world.engine.topics.subscribe("t", "s", type_))  # type: ignore[arg-type]
        consumer = sub.attach("c", got.extend)
        consumer.flow(10)
        assert [entry.payload for entry in got] == expected, type_
        consumer.close()


def test_entries_whose_time_is_over_do_not_stop_a_subscription() -> None:
    """When all that was taken had expired, nobody looked further."""
    world = World()
    world.settle(world.engine.topics.subscribe("t", "s"))
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"old", ttl_ms=1)] * 3))
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"new")]))
    world.clock.advance(1_000)
    got: list[Received] = []
    world.engine.topics.subscription("t", "s").attach("c", got.extend).flow(1)
    assert [entry.payload for entry in got] == [b"new"]


def test_a_deleted_topics_delayed_entry_does_not_make_its_successors_ready() -> None:
    """The old entry of the same id became due, and the new one came early."""
    world = World()
    now_ms = world.clock.now_ms()
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"old", deliver_at_ms=now_ms + 10)]))
    world.settle(world.engine.topics.delete("t"))
    world.settle(world.engine.topics.subscribe("t", "s", "shared"))
    world.settle(world.engine.topics.publish("t", [NewEntry(payload=b"new", deliver_at_ms=now_ms + 60_000)]))
    got: list[Received] = []
    world.engine.topics.subscription("t", "s").attach("c", got.extend).flow(10)
    world.run(30_000)
    assert not got
    world.run(30_000)
    assert [entry.payload for entry in got] == [b"new"]


def test_large_messages_due_together_go_in_units_that_fit_a_segment() -> None:
    """One unit for all of them was larger than a segment, and the dispatcher stopped at it for ever."""
    world = World(ledger_settings=SMALL)
    for n in range(10):
        world.settle(
            world.engine.schedule(Message(destination="t", payload=bytes([n]) * 1000, delay_ms=60_000))
        )
    world.run(60_000)
    assert world.engine.topics.stats("t").next_entry == 10


def test_what_may_have_been_sent_stays_so_when_a_limit_puts_it_off() -> None:
    """After a crash its new version was not overdue, so that a cancel was answered although it had arrived."""
    world = World(settings=EngineSettings(carry_after_ms=0))
    *_, id_ = schedule(
        world,
        Message(destination="sim://h/1", payload=b"first", delay_ms=1),
        Message(destination="sim://h/1", payload=b"second", delay_ms=2),
    )
    world.clock.advance(10)
    world.tick()
    world.outlet.under_way[1].arrive()
    world.kill()
    world.start()
    limited = world.engine.set_policy("broker", "", Policy(send_per_second=1))
    commit_all(world)
    assert limited.settled
    world.tick()
    commit_all(world)
    assert under_way(world) == [b"first"]
    cancelled = world.engine.cancel(id_)
    commit_all(world)
    with pytest.raises(Conflict, match="may have been sent"):
        cancelled.value()


def test_a_command_that_waits_for_an_attempt_hears_of_a_carried_version() -> None:
    """The command waited for the old version, which was never tried again."""
    every_ms = {"reclaim_every_ms": 1, "snapshot_every_ms": 1, "flush_every_ms": 1}
    world = World(ledger_settings=SMALL, settings=EngineSettings(**every_ms))  # type: ignore[arg-type]
    (id_,) = schedule(world, Message(destination="sim://h/1", delay_ms=1_000))
    world.clock.advance(2_000)
    world.kill()
    world.start()
    # By this clock it is not due any more; it still counts as being sent.
    world.clock.jump(-1_500)
    waiting = world.engine.restart(id_, delay_ms=1)
    rounds = 0
    for _ in range(100):
        schedule(world, Message(destination="sim://h/2", payload=b"x" * 200, delay_ms=0))
        world.run(1)
        rounds += 1
        if waiting.settled:
            break
    assert rounds > 1
    assert waiting.value().id == id_
    assert world.clock.now_ms() < waiting.value().accepted_at_ms + 1_000


def test_a_chain_that_is_carried_after_the_clock_was_set_back_is_not_early() -> None:
    """All of the chain went on at the next attempt of its first, although the others were not due by this clock."""
    world = World(settings=EngineSettings(carry_after_ms=0))
    schedule(
        world,
        Message(destination="sim://h/1", payload=b"first", key="k", delay_ms=1),
        Message(destination="sim://h/1", payload=b"second", key="k", delay_ms=60_000),
    )
    world.clock.advance(60_000)
    world.tick()
    assert under_way(world) == [b"first"]
    world.clock.jump(-50_000)
    world.outlet.under_way[0].answer(Retry("busy", 1))
    world.run(49_999)
    assert tokens(world) == [b"first"]
    world.run(1)
    assert tokens(world) == [b"first", b"second"]


def test_a_message_that_may_have_been_sent_stays_so_when_its_chain_is_carried() -> None:
    """The message waited behind another owner's, was carried with it untried, and a cancel was answered though it had arrived."""
    world = World(settings=EngineSettings(carry_after_ms=0, batch=1))
    arrived, other = schedule(
        world,
        Message(destination="sim://h/1", payload=b"arrived", key="k", owner=LATER_LANE, delay_ms=1),
        Message(destination="sim://h/1", payload=b"other", key="k", owner=FIRST_LANE, delay_ms=2),
    )
    world.clock.advance(1)
    world.tick()
    world.outlet.under_way[0].arrive()
    world.kill()
    world.start()
    # Now both are due, and owners take turns for the one place in a batch.
    world.clock.advance(1)
    world.tick()
    world.tick()
    assert tokens(world) == [b"arrived"]
    assert under_way(world) == [b"other"]
    world.outlet.under_way[0].answer(Retry("busy", 60_000))
    commit_all(world)
    cancelled = world.engine.cancel(arrived)
    commit_all(world)
    with pytest.raises(Conflict, match="may have been sent"):
        cancelled.value()
    # The other one was tried in this life, and certainly did not arrive.
    assert world.settle(world.engine.cancel(other)).state == "cancelled"


def test_a_server_whose_disk_failed_shows_nothing_more_and_a_start_shows_everything() -> None:
    """An entry whose reschedule was lost with the disk was passed over by a consumer in order, and not found by a cancel."""
    world = World()
    world.settle(world.engine.topics.subscribe("t", "s", "exclusive"))
    later_ms = world.clock.now_ms() + 60_000
    entries = [NewEntry(payload=b"0"), NewEntry(payload=b"1", deliver_at_ms=later_ms), NewEntry(payload=b"2")]
    world.settle(world.engine.topics.publish("t", entries))
    (waiting,) = schedule(world, Message(destination="sim://h/1", delay_ms=60_000))
    lost = world.engine.delayed.reschedule("t", 1, later_ms + 1), world.engine.restart(waiting)
    world.disk.fail_next("sync", errno.EIO)
    commit_all(world)
    got: list[Received] = []
    consumer = world.engine.topics.subscription("t", "s").attach("c", got.extend)
    consumer.flow(10)
    delayed = world.engine.delayed
    answers: list[Answer[Any]] = [
        *lost, delayed.get("t", 1), delayed.list("t"), delayed.cancel("t", 1), delayed.reschedule("t", 1, later_ms), world.engine.get(waiting),
        world.engine.list_messages(MessageQuery()), world.engine.list_messages(MessageQuery(state="finalised")),
    ]  # fmt: skip
    assert [type(answer.error()) for answer in answers] == [Unavailable] * len(answers)
    assert not got
    world.kill()
    world.start()
    world.engine.topics.subscription("t", "s").attach("c", got.extend).flow(10)
    assert [entry.payload for entry in got] == [b"0", b"1", b"2"]
    assert world.settle(world.engine.get(waiting)).id == waiting
    entry = world.settle(world.engine.delayed.get("t", 1))
    listed = world.settle(world.engine.list_messages(MessageQuery())).messages
    assert {view.id for view in listed} == {waiting, entry.id}


@pytest.mark.parametrize("after_ms", [6_000, 7_000], ids=["due before that", "due later"])
def test_a_batch_enters_once_and_only_when_its_adoption_is_durable(after_ms: int) -> None:
    """A newer version of the index was taken while the adoption was enqueued: its messages went out undurable, or twice."""
    world = World(settings=EngineSettings(lead_ms=2_000))
    adopted = world.engine.batches.adopt("batch", staged(world, b"one", b"two", after_ms=after_ms))
    world.index.begin()
    for _ in range(3):
        world.clock.advance(2_000)
        world.tick()
        while world.work():
            world.tick()
    assert not adopted.settled
    assert not under_way(world)
    commit_all(world)
    assert adopted.value().count == 2
    world.run(10_000)
    assert tokens(world) == [b"one", b"two"]


@contextmanager
def unreadable_bodies() -> Iterator[None]:
    """An index that does not give bodies for some time."""

    def unreadable(*_: object) -> Any:
        raise Unavailable("the index takes its time")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedView, "bodies", unreadable)
        yield


def churn(world: World, messages: int) -> None:
    """Traffic that leaves nothing behind, and time in which its segments are reclaimed."""
    for _ in range(messages):
        schedule(world, Message(destination="sim://h/2", payload=b"x" * 200, delay_ms=0))
        world.run(100)


def test_what_waits_for_a_body_is_not_forgotten_to_be_dead() -> None:
    """A cancelled message had its turn behind one that was fetched; its seq was forgotten, and in the end it failed."""
    every_ms = {"reclaim_every_ms": 1, "snapshot_every_ms": 1, "flush_every_ms": 1}
    world = World(
        ledger_settings=SMALL,
        settings=EngineSettings(**every_ms),  # type: ignore[arg-type]
        dead_block_bits=SMALLEST_BLOCK_BITS,
    )
    world.index.begin()
    world.run(3_000)
    due_at_ms = world.clock.now_ms() + 30_000
    (far,) = schedule(world, Message(destination="sim://h/1", payload=b"far", due_at_ms=due_at_ms))
    churn(world, 15)
    world.index.flush(world.ledger)
    world.run(3_000)
    reclaimed_seq = world.first_seq
    (near,) = schedule(world, Message(destination="sim://h/1", payload=b"near", due_at_ms=due_at_ms))
    assert 1 < reclaimed_seq < world.next_seq < 1 << SMALLEST_BLOCK_BITS
    with unreadable_bodies():
        world.run(30_000)
        assert len(world.awaited) == 1
        assert world.settle(world.engine.cancel(near)).state == "cancelled"
        churn(world, 30)
        world.index.flush(world.ledger)
        world.run(3_000)
    churn(world, 30)
    assert world.settle(world.engine.get(near)).state == "cancelled"
    assert world.settle(world.engine.get(far)).state == "sent"
    world.index.flush(world.ledger)
    world.run(3_000)
    assert world.forgotten_seq > reclaimed_seq


def test_what_waits_behind_a_body_keeps_its_segment() -> None:
    """Its segment was reclaimed, since it was found in no wheel, and after a crash it was nowhere."""
    every_ms = {"reclaim_every_ms": 5_000, "snapshot_every_ms": 1, "flush_every_ms": 1}
    world = World(ledger_settings=SMALL, settings=EngineSettings(**every_ms))  # type: ignore[arg-type]
    (behind,) = schedule(world, Message(destination="sim://h/1", payload=b"behind", delay_ms=9_001))
    for _ in range(30):
        schedule(world, Message(destination="sim://h/2", payload=b"x" * 200, delay_ms=0))
    adopted = world.engine.batches.adopt("batch", staged(world, b"first", after_ms=9_000))
    commit_all(world)
    assert adopted.settled
    with unreadable_bodies():
        world.run(8_000)
        world.clock.advance(2_000)
        world.run(30_000)
        assert len(world.awaited) == 1
    world.kill()
    world.start()
    world.run(30_000)
    assert world.settle(world.engine.get(behind)).state == "sent"
    assert tokens(world)[-2:] == [b"first", b"behind"]


def test_a_command_that_waits_for_a_verdict_hears_that_its_batch_was_cancelled() -> None:
    """The command waited for a message that may have been sent, by a clock that was ahead; the batch ended it, and nobody said so."""
    world = World(settings=EngineSettings(clock_slack_ms=0))
    adopted = world.engine.batches.adopt("batch", staged(world, b"one", after_ms=10_000))
    commit_all(world)
    assert adopted.settled
    id_ = world.ids.make(world.batches.by_name["batch"].first_seq, world.clock.now_ms() + 10_000)
    world.run(8_000)
    schedule(world, Message(destination="t", delay_ms=0))
    world.run(1_000)
    world.kill()
    # Before this clock showed what it did, it may have shown more.
    world.clock.jump(-8_000)
    world.start()
    world.run(10)
    waiting = world.engine.cancel(id_)
    world.run(10)
    assert not waiting.settled
    assert world.settle(world.engine.batches.cancel("batch")).remaining == 0
    world.run(10)
    assert isinstance(waiting.error(), NotFound)


def test_a_cancelled_batch_is_told_with_ends_that_are_on_disk() -> None:
    """The answer counted an end that a crash undid, so that a message went out after nothing remained to go."""
    world = World(settings=EngineSettings(clock_slack_ms=0))
    adopted = world.engine.batches.adopt("batch", staged(world, b"one", after_ms=1_000))
    commit_all(world)
    assert adopted.settled
    world.clock.advance(1_500)
    while not world.outlet.under_way:
        world.tick()
        commit_all(world)
        world.work()
    (attempt,) = world.outlet.under_way
    cancelled = world.engine.batches.cancel("batch")
    commit_all(world)
    assert not cancelled.settled
    world.outlet.answer([(attempt, Delivered())])
    shown = world.engine.batches.batch("batch")
    for _ in range(3):
        world.tick()
    assert not cancelled.settled
    assert not shown.settled
    commit_all(world)
    assert world.settle(cancelled).remaining == 0
