"""The engine with an index: what is indexed costs no memory, is found, listed, ended and delivered all the same."""

from typing import Any

import numpy as np
import pytest

from tarry.core.errors import Conflict, NotFound, Unavailable
from tarry.core.messages.delivery import Delivered
from tarry.core.messages.message import Message, MessageQuery, Scheduled
from tarry.engine.bodies import bodies as bodies_module
from tarry.engine.due import horizon as horizon_module
from tarry.engine.settings import EngineSettings
from tarry.index.index import IndexView, NoView
from tarry.ledger.ledger import LedgerSettings
from tarry.ledger.record import Key
from tarry.testing.index import SimulatedIndex
from tarry.testing.outlet import SCHEME
from tarry.testing.world import World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TO = f"{SCHEME}://shop/1"


def small_world() -> World:
    """Tiny segments, so that they are reclaimed soon."""
    settings = EngineSettings(snapshot_every_ms=100, reclaim_every_ms=100)
    return World(settings=settings, ledger_settings=LedgerSettings(segment_bytes=4096 + 8192))


def schedule(world: World, delay_ms: int, destination: str = TO, **fields: Any) -> Scheduled:
    return world.settle(world.engine.schedule(Message(destination=destination, delay_ms=delay_ms, **fields)))


def indexed(world: World) -> None:
    """The pipeline indexes what is there, and the server takes the new version."""
    world.index.flush(world.ledger)
    world.run(2 * horizon_module.FOLLOW_EVERY_MS)


def reclaimed(world: World) -> None:
    """Everything so far is indexed, and its segments are gone."""
    ledger = world.ledger
    upto = ledger.next_seq
    indexed(world)
    for n in range(400):
        schedule(world, 1, "noise", payload=b"%d" % n * 100)
        if n % 40 == 39:
            indexed(world)
        if ledger.first_seq > upto:
            return
    raise AssertionError(f"nothing is reclaimed: the ledger begins at {ledger.first_seq}")


def later(world: World, ms: int) -> None:
    """So much time passes at once, as over a night."""
    world.clock.advance(ms)
    world.run(3)


def arrived(world: World) -> list[str]:
    return [arrival.delivery.id for arrival in world.outlet.arrivals]


def test_what_is_indexed_is_neither_in_the_wheel_nor_in_the_tail_until_it_is_near() -> None:
    world = small_world()
    message = schedule(world, DAY_MS)
    indexed(world)
    assert world.engine.stats().pending == 1
    assert len(world.horizon) == 0
    later(world, DAY_MS - 5 * 60_000)
    assert len(world.horizon.wheel) == 1
    assert not arrived(world)
    later(world, 5 * 60_000)
    assert arrived(world) == [message.id]


def test_one_message_due_in_a_year_pins_nothing_and_arrives_from_the_index() -> None:
    world = small_world()
    message = schedule(world, 365 * DAY_MS, payload=b"see you")
    reclaimed(world)
    # It was not carried forward: the index has it.
    assert world.engine_state.current(origin_of(world, message)) == origin_of(world, message)
    world.crash()
    world.start()
    assert not arrived(world)
    later(world, 365 * DAY_MS)
    assert arrived(world) == [message.id]
    assert world.outlet.arrivals[0].delivery.payload == b"see you"
    view = world.settle(world.engine.get(message.id))
    assert view.state == "sent"


def origin_of(world: World, message: Scheduled) -> Key:
    place = world.ids.read(message.id)
    assert place is not None
    seq, fire_at_ms = place
    return Key(fire_at_ms, seq)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_commands_find_what_only_the_index_has(gone: bool, crash: bool) -> None:
    world = small_world()
    messages = [schedule(world, DAY_MS + n, payload=b"%d" % n) for n in range(4)]
    (reclaimed if gone else indexed)(world)
    if crash:
        world.crash()
        world.start()
        world.run()
    shown = world.settle(world.engine.get(messages[0].id))
    assert (shown.state, shown.payload) == ("scheduled", b"0")
    assert world.settle(world.engine.cancel(messages[0].id)).state == "cancelled"
    with pytest.raises(Conflict):
        world.settle(world.engine.cancel(messages[0].id))
    world.settle(world.engine.send(messages[1].id))
    world.settle(world.engine.restart(messages[2].id, delay_ms=2 * DAY_MS))
    world.run(1)
    assert arrived(world) == [messages[1].id]
    later(world, DAY_MS + HOUR_MS)
    assert arrived(world) == [messages[1].id, messages[3].id]
    later(world, DAY_MS)
    assert arrived(world) == [messages[1].id, messages[3].id, messages[2].id]


def test_what_ended_is_not_found_again_though_the_index_still_has_its_rows() -> None:
    world = small_world()
    kept, gone = schedule(world, DAY_MS), schedule(world, DAY_MS)
    indexed(world)
    world.settle(world.engine.cancel(gone.id))
    world.crash()
    world.start()
    with pytest.raises(Conflict, match="cancelled"):
        world.settle(world.engine.send(gone.id))
    indexed(world)
    world.crash()
    world.start()
    with pytest.raises(Conflict, match="cancelled"):
        world.settle(world.engine.send(gone.id))
    later(world, DAY_MS)
    assert arrived(world) == [kept.id]
    with pytest.raises(NotFound):
        world.settle(world.engine.get("0" * 32))


def test_pages_walk_the_wheel_the_tail_and_the_index_in_one_order() -> None:
    world = small_world()
    ids = [schedule(world, HOUR_MS * (n + 1), payload=b"i%d" % n).id for n in range(12)]
    near = [schedule(world, 60_000 + n).id for n in range(2)]
    reclaimed(world)
    ids += [schedule(world, HOUR_MS * (n + 1)).id for n in range(12, 20)]
    listed: list[str] = []
    query = MessageQuery(limit=3, destination=TO)
    while True:
        page = world.settle(world.engine.list_messages(query))
        listed += [view.id for view in page.messages]
        if page.next_page is None:
            break
        query = MessageQuery(limit=3, destination=TO, page=page.next_page)
    assert [one for one in listed if one in ids] == ids
    assert sorted(listed) == sorted([*ids, *(one for one in near if one not in arrived(world))])


def test_a_restart_reads_only_what_is_not_indexed() -> None:
    world = small_world()
    for n in range(30):
        schedule(world, DAY_MS + n)
    indexed(world)
    cursor = world.index.cursor
    late = schedule(world, DAY_MS)
    world.run(1_000)
    world.crash()
    world.start()
    assert world.engine_state.replayed_from == cursor + 1
    assert len(world.horizon.tail) == 1
    later(world, DAY_MS + HOUR_MS)
    assert len(arrived(world)) == 31
    assert late.id in arrived(world)


class Unreadable(SimulatedIndex):
    """An index that cannot be read for some time."""

    broken = False

    def newest(self) -> IndexView:
        if self.broken:
            raise Unavailable("the store does not answer")
        return super().newest()


def test_while_the_index_cannot_be_read_messages_are_accepted_and_what_it_has_is_late() -> None:
    world = small_world()
    world.index = Unreadable()
    world.crash()
    world.start()
    message = schedule(world, HOUR_MS)
    reclaimed(world)
    Unreadable.broken = True
    try:
        world.crash()
        world.start()
        assert "does not answer" in str(world.engine.trouble)
        other = schedule(world, HOUR_MS)
        later(world, 2 * HOUR_MS)
        # Dispatch never passes the horizon, and nobody can say what else is due before it.
        assert not arrived(world)
    finally:
        Unreadable.broken = False
    world.run(2 * horizon_module.FOLLOW_EVERY_MS)
    assert not world.engine.trouble
    assert arrived(world) == [message.id, other.id]


class Other(SimulatedIndex):
    """Another index in the same place."""

    def newest(self) -> IndexView:
        view = super().newest()
        if not isinstance(view, NoView):
            view.identity = "another"  # type: ignore[misc]
        return view


@pytest.mark.parametrize("replaced", [False, True])
def test_an_index_that_was_relied_on_and_is_gone_is_said_and_not_passed_over(replaced: bool) -> None:
    world = small_world()
    schedule(world, DAY_MS)
    reclaimed(world)
    kept = world.index
    world.index = Other()
    if replaced:
        world.index.flush(world.ledger)
    world.crash()
    world.start()
    assert "removed or replaced" in str(world.engine.trouble)
    later(world, 2 * DAY_MS)
    assert not arrived(world)
    # Nor is anything reclaimed meanwhile that the index was to have.
    first_seq = world.first_seq
    for n in range(100):
        schedule(world, 1, "noise", payload=b"%d" % n * 100)
    world.run(1_000)
    assert world.first_seq == first_seq
    # It is brought back.
    world.index = kept
    world.crash()
    world.start()
    later(world, 2 * DAY_MS)
    assert len(arrived(world)) == 1


def test_an_index_that_nothing_relies_on_may_be_unreadable_and_nothing_is_late() -> None:
    world = small_world()
    world.index = Unreadable()
    world.crash()
    world.start()
    message = schedule(world, HOUR_MS)
    indexed(world)
    Unreadable.broken = True
    try:
        world.crash()
        world.start()
        later(world, HOUR_MS)
        assert arrived(world) == [message.id]
        assert world.engine.trouble is None
    finally:
        Unreadable.broken = False


def test_an_index_ahead_of_the_ledger_is_refused() -> None:
    world = small_world()
    schedule(world, DAY_MS)
    indexed(world)
    kept = world.index
    fresh = World()
    fresh.index = kept
    fresh.crash()
    with pytest.raises(Unavailable, match="older than the index"):
        fresh.start()


def test_a_file_that_was_replaced_while_it_was_read_is_read_from_the_newer_version() -> None:
    world = small_world()
    message = schedule(world, HOUR_MS)
    reclaimed(world)
    world.index.flush(world.ledger)
    world.index.compact()
    world.index.vacuum()
    later(world, HOUR_MS)
    assert arrived(world) == [message.id]


def test_members_of_a_group_stay_in_the_ledger_so_that_their_end_can_be_written_at_once() -> None:
    world = small_world()
    first = schedule(world, DAY_MS, group="g", owner="ann")
    second = schedule(world, 2 * DAY_MS, group="g", owner="ann")
    reclaimed(world)
    later(world, DAY_MS)
    assert arrived(world) == [first.id]
    assert world.settle(world.engine.get(second.id)).state == "cancelled"


def test_bodies_are_fetched_ahead_and_those_of_the_dead_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies_module, "AHEAD_BYTES", 1)
    world = small_world()
    first, second = schedule(world, HOUR_MS), schedule(world, HOUR_MS + 8_000)
    reclaimed(world)
    now_ms = world.clock.now_ms()
    later(world, origin_of(world, first).fire_at_ms - now_ms - 2_000)
    world.run(600)
    seqs = np.array([origin_of(world, one).seq for one in (first, second)])
    assert world.bodies.absent(seqs).tolist() == [False, True]
    # As a batch ends that is cancelled: many at once, and nobody names them.
    world.dead.add_range(int(seqs[0]), 1)
    world.run(7_500)
    assert not arrived(world)
    assert world.bodies.absent(seqs).tolist() == [True, False]


def test_a_cancelled_message_stays_dead_until_the_index_knows_of_its_end() -> None:
    """R8: its end is in the ledger, its row in the index, and the memory of who is dead is about to be given back."""
    world = small_world()
    message = schedule(world, DAY_MS)
    indexed(world)
    world.settle(world.engine.cancel(message.id))
    # As after a reclaim of everything up to the end of the first block of seqs.
    world.pretend_reclaimed((1 << 16) - 1)
    world.run(1_000)
    later(world, DAY_MS + HOUR_MS)
    assert arrived(world) == []
    assert world.settle(world.engine.get(message.id)).state == "cancelled"


def test_a_cancelled_message_that_the_index_brings_after_the_dead_were_swept_stays_dead() -> None:
    """R8: the sweep waits for the index to know; what comes in meanwhile it does not look at again."""
    world = small_world()
    message = schedule(world, DAY_MS)
    indexed(world)
    world.settle(world.engine.cancel(message.id))
    world.pretend_reclaimed((1 << 16) - 1)
    world.run(1_000)
    later(world, DAY_MS - 60_000)
    assert world.horizon.at.fire_at_ms > world.clock.now_ms() + 60_000, "its slot was read"
    indexed(world)
    assert len(world.dead) == 0, "it is forgotten who was dead"
    later(world, HOUR_MS)
    assert arrived(world) == []


# A due message whose body only the index has: it is out of the wheel while the body is fetched


def fetching(world: World, destination: str = TO) -> Scheduled:
    """A message that is due, and whose body is being fetched: the next work that is done is the fetch."""
    message = schedule(world, DAY_MS, destination, payload=b"from the index")
    reclaimed(world)
    world.clock.advance(DAY_MS)
    for _ in range(100):
        world.tick()
        if world.awaited:
            return message
        world.work()
    raise AssertionError("its body is not fetched")


@pytest.mark.parametrize("destination", [TO, "own-topic"])
def test_the_clock_is_set_back_while_a_body_is_fetched_and_its_message_is_neither_early_nor_lost(
    destination: str,
) -> None:
    world = small_world()
    message = fetching(world, destination)
    world.clock.jump(-HOUR_MS)
    world.run(HOUR_MS - 60_000)
    assert world.settle(world.engine.get(message.id)).state == "scheduled", "it went out before its instant"
    world.run(60_000)
    assert world.settle(world.engine.get(message.id)).state == "sent"


def test_the_watermark_stays_below_a_message_whose_body_is_fetched() -> None:
    """R9: else a crash meanwhile would lose it, since a start begins at the watermark."""
    world = small_world()
    message = fetching(world)
    assert message.due_at_ms is not None
    # An idle server marks once a minute.
    for _ in range(80):
        world.clock.advance(1_000)
        world.tick()
        world.commit()
    assert world.watermark.fire_at_ms <= message.due_at_ms
    world.crash()
    world.start()
    world.run(1_000)
    assert arrived(world) == [message.id]


def test_a_message_that_becomes_due_while_its_segment_is_about_to_go_is_sent() -> None:
    """R12: it waits for its place, and is read when it leaves."""
    settings = EngineSettings(snapshot_every_ms=100, reclaim_every_ms=100, concurrency=1, lead_ms=2 * HOUR_MS)
    world = World(settings=settings, ledger_settings=LedgerSettings(segment_bytes=4096 + 8192))
    ids = [schedule(world, HOUR_MS, payload=b"%d" % n).id for n in range(2)]
    indexed(world)
    about_to_go(world)
    world.clock.advance(HOUR_MS)
    world.tick()
    # Its body may have to be read first.
    while not world.outlet.under_way and world.work():
        world.tick()
        world.commit()
    (first,) = world.outlet.under_way
    while world.work():
        world.tick()
        world.commit()
    first.answer(Delivered())
    world.run(10_000)
    assert arrived(world) == ids
    assert [arrival.delivery.payload for arrival in world.outlet.arrivals] == [b"0", b"1"]


def about_to_go(world: World) -> None:
    """The first segment is to be deleted, as soon as the registry has said so."""
    ledger = world.ledger
    for n in range(4_000):
        _ = world.engine.schedule(Message(destination="noise", delay_ms=1, payload=b"%d" % n * 100))
        world.clock.advance(5)
        if n % 50 == 49:
            world.index.flush(ledger)
            world.clock.advance(2 * horizon_module.FOLLOW_EVERY_MS)
        world.tick()
        world.commit()
        if world.engine_state.reliance.relied.seq:
            assert ledger.first_seq == 1
            return
        while world.work():
            pass
    raise AssertionError("nothing is to be deleted")
