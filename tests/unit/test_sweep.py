"""Dead entries leave the wheel before their deadness is forgotten: else they would fire."""

import pytest

from tarry.core.messages.message import Message
from tarry.engine.upkeep import upkeep
from tarry.testing.world import World


def test_a_dead_entry_whose_segment_was_reclaimed_never_fires() -> None:
    world = World()
    first = world.settle(world.engine.schedule(Message(destination="t", delay_ms=60_000)))
    world.settle(world.engine.cancel(first.id))
    assert len(world.horizon) == 1
    # As after a reclaim of everything up to the end of the first block of seqs.
    world.pretend_reclaimed((1 << 16) - 1)
    world.run(1_000)
    assert len(world.dead) == 0
    assert len(world.horizon) == 0
    world.run(120_000)
    assert world.counters["damaged"] == 0
    assert world.counters["cancelled"] == 1


def test_many_dead_entries_are_swept_without_a_reclaim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SWEEP_DEAD", 10)
    world = World()
    scheduled = [
        world.settle(world.engine.schedule(Message(destination="t", delay_ms=3_600_000))) for _ in range(20)
    ]
    for message in scheduled[:11]:
        world.settle(world.engine.cancel(message.id))
    world.run(1_000)
    assert len(world.horizon) == 9
    assert [world.settle(world.engine.get(message.id)).state for message in scheduled] == (
        ["cancelled"] * 11 + ["scheduled"] * 9
    )
