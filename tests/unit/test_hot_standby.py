"""A standby whose engine follows the log has the state of an owner, and has little left to do when it becomes one."""

import pytest

from tarry.core.errors import Unavailable
from tarry.core.messages.message import Message, MessageView
from tarry.engine.settings import EngineSettings
from tarry.engine.state import recovery
from tarry.engine.state.aside import Unprocessable
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import NO_KEY
from tarry.ledger.replay import Frame
from tarry.testing.index import SimulatedIndex
from tarry.testing.insides import InsidesOf
from tarry.testing.log import SimulatedLog
from tarry.testing.world import World
from tests.unit.test_set_aside import POISON, poisoned

__all__ = ["poisoned"]


def standby(log: SimulatedLog, name: str, owner: World) -> World:
    world = World(log=log, node=name, start=False)
    world.clock = world.outlet.clock = owner.clock
    world.stand_by()
    return world


def message(number: int, delay_ms: int) -> Message:
    return Message(destination=f"sim://shop/{number}", delay_ms=delay_ms, owner=f"o{number % 3}")


def work(owner: World, turns: range) -> list[str]:
    """Schedule, cancel, restart, deliver."""
    ids: list[str] = []
    for turn in turns:
        ids += [
            owner.settle(owner.engine.schedule(message(turn, delay))).id for delay in (500, 60_000, 900_000)
        ]
        if turn % 3 == 0:
            owner.settle(owner.engine.cancel(ids[-1]))
        if turn % 4 == 0:
            owner.settle(owner.engine.restart(ids[-2], delay_ms=120_000))
        owner.run(400)
    return ids


def entries(world: World) -> list[tuple[int, int]]:
    """Whatever waits, in the order of keys."""
    fires, seqs, _ = world.horizon.entries(NO_KEY, 100_000)
    alive = ~world.dead.contains_many(seqs)
    return list(zip(fires[alive].tolist(), seqs[alive].tolist(), strict=True))


def test_it_takes_over_with_the_state_of_one_that_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small, so that the standby stops in the middle, and forgets dead keys on the way.
    monkeypatch.setattr(recovery, "FOLLOW_RECORDS", 3)
    monkeypatch.setattr(recovery, "DROP_DEAD_KEYS", 5)
    log = SimulatedLog()
    a = World(log=log, node="a")
    b, c = standby(log, "b", a), standby(log, "c", a)
    for turn in range(0, 40, 2):
        work(a, range(turn, turn + 2))
        b.follow()
        while b.work():
            pass
    work(a, range(40, 42))
    a.kill()
    b.start()
    hot_entries, hot = entries(b), b.engine.stats()
    b.kill()
    c.start()
    cold = c.engine.stats()
    # The claim between the two appends nothing.
    assert hot_entries == entries(c)
    assert (hot.pending, hot.owners, hot.counters, hot.watermark_ms) == (
        cold.pending,
        cold.owners,
        cold.counters,
        cold.watermark_ms,
    )
    assert hot.pending > 20
    c.run(1_000_000)
    assert c.engine.stats().pending == 0


def test_little_is_read_at_the_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    work(a, range(20))
    b.follow()
    behind = a.engine.ledger.durable_seq
    work(a, range(20, 21))
    a.kill()
    read: list[int] = []
    take = recovery.Recovery._take

    def noted(self: recovery.Recovery, frame: Frame) -> None:
        read.append(frame.first_seq)
        take(self, frame)

    monkeypatch.setattr(recovery.Recovery, "_take", noted)
    b.start()
    assert read
    assert min(read) > behind


def test_its_registry_follows_so_that_its_own_restart_is_short() -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    work(a, range(20))
    b.follow()
    a.clock.advance(1_000)
    b.follow()
    while b.work():
        pass
    b.kill()
    b.stand_by()
    b.follow()
    meta = b.following.registry.meta
    assert meta is not None
    assert meta.applied_seq == a.engine.ledger.durable_seq


def test_nothing_is_appended_while_it_follows() -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    work(a, range(3))
    b.follow()
    with pytest.raises(Unavailable, match="stands by"):
        b.following.engine.schedule(message(1, 10)).value()


def test_a_standby_lets_go_of_segments_that_the_log_was_trimmed_of() -> None:
    log = SimulatedLog()
    settings = EngineSettings(snapshot_every_ms=1_000, reclaim_every_ms=1_000)
    small = LedgerSettings(segment_bytes=1 << 13)
    a = World(log=log, node="a", ledger_settings=small, settings=settings)
    b = standby(log, "b", a)
    b.settings, b.ledger_settings = settings, small
    assert a.side is not None
    # Whatever snapshots there are were uploaded.
    a.side.trimmable_seq = 1 << 40
    for turn in range(40):
        work(a, range(turn, turn + 1))
        b.follow()
        assert b.side is not None
        b.side.lag()
        while b.work():
            pass
    ledger = b.following.ledger
    assert 1 < ledger.first_seq <= a.engine.ledger.first_seq
    assert len(ledger.segments()) < len(a.engine.ledger.segments()) + 3
    a.kill()
    b.start()
    assert b.engine.stats().pending > 20
    b.run(1_000_000)
    stats = b.engine.stats()
    assert stats.pending == 0
    assert "failed" not in stats.counters


def test_an_index_that_is_ahead_of_the_copy_is_waited_for() -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    assert b.side is not None
    work(a, range(3))
    while b.side.follow(0.001):
        pass
    work(a, range(3, 6))
    a.index.flush(a.engine.ledger)
    b.index = a.index
    ledger = Ledger.follow(b.disk, "ledger", b.ledger_settings, b.clock, b.side)
    engine = b._engine_on(ledger)
    assert ledger.durable_seq < a.index.cursor
    assert not engine.follow()
    while b.side.follow(0.001):
        pass
    ledger.look()
    while engine.follow():
        pass
    assert InsidesOf(engine).journal.effective_seq == a.engine.ledger.durable_seq
    InsidesOf(engine).registry.close()


def indexed(owner: World, other: World) -> str:
    """A message that the index of both has, and that the other server has not read in the ledger; it is due in a minute."""
    id_ = owner.settle(owner.engine.schedule(message(1, 60_000))).id
    owner.run(1_000)
    owner.index.flush(owner.engine.ledger)
    other.index = owner.index
    other.follow()
    owner.kill()
    return id_


def test_messages_that_only_the_index_has_wait_if_it_cannot_be_read_at_the_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    id_ = indexed(a, b)

    def unreadable() -> None:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(b.index, "newest", unreadable)
        b.start()
        b.run(120_000)
        assert b.outlet.arrivals == []
    b.run(60_000)
    assert [arrival.delivery.id for arrival in b.outlet.arrivals] == [id_]


def test_an_index_that_was_removed_before_the_takeover_is_not_taken_for_a_new_one() -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    id_ = indexed(a, b)
    kept, b.following.horizon.index = b.index, SimulatedIndex()
    b.start()
    b.run(120_000)
    assert b.outlet.arrivals == []
    assert not b.horizon.followed
    b.horizon.index = kept
    b.run(60_000)
    assert [arrival.delivery.id for arrival in b.outlet.arrivals] == [id_]


# Records that are set aside


def poison(owner: World) -> tuple[str, int, str]:
    """A message whose record cannot be decided in a replay, with its seq, and one that is well."""
    bad = Message(destination="sim://shop/bad", payload=POISON, owner="ann", delay_ms=60_000)
    id_ = owner.settle(owner.engine.schedule(bad)).id
    good = owner.settle(owner.engine.schedule(message(1, 60_000))).id
    place = owner.ids.read(id_)
    assert place is not None
    return id_, place[0], good


def looked(world: World, id_: str) -> MessageView:
    return world.settle(world.engine.get(id_))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("owner_ended_it", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_record_that_stops_the_owner_stops_the_standby_and_each_is_told_to_go_on_without_it(
    owner_ended_it: bool, restarted: bool
) -> None:
    log = SimulatedLog()
    a = World(log=log, node="a")
    b = standby(log, "b", a)
    bad, seq, good = poison(a)
    # The owner that took it goes on. Whoever replays it ends, at the same record and with the same word.
    told = f"seq {seq} .*--set-aside {seq}"
    with pytest.raises(Unprocessable, match=told):
        b.follow()
    a.crash(lose_transactions=1_000)
    with pytest.raises(Unprocessable, match=told):
        a.start()
    if owner_ended_it:
        a.start([seq])
        a.run(100)
        assert str(looked(a, bad).state) == "failed"
    # What the owner was told the standby does not know.
    b.kill()
    b.stand_by()
    with pytest.raises(Unprocessable, match=told):
        b.follow()
    b.kill()
    b.stand_by()
    b.follow([seq])
    assert b.following.engine.set_aside == [seq]
    if restarted:
        # Its own registry remembers it, as an owner's does.
        b.clock.advance(1_000)
        b.follow()
        while b.work():
            pass
        b.kill()
        b.stand_by()
        b.follow()
    a.kill()
    b.start([] if restarted else [seq])
    b.run(61_000)
    view = looked(b, bad)
    assert (str(view.state), str(looked(b, good).state)) == ("failed", "sent")
    assert "set aside" in (view.reason or "")
    assert b.engine.stats().counters["failed"] == 1
    assert b.engine.set_aside == [seq]
