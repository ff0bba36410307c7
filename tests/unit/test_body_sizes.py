"""Large bodies are read a few at a time, small ones all together."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tarry.core.messages.message import Message
from tarry.engine.bodies import body_sizes as module
from tarry.engine.bodies.bodies import Body
from tarry.engine.bodies.body_sizes import SMALL_BYTES, STRETCH_BITS, TOGETHER_BYTES, BodySizes
from tarry.testing.world import World


def test_small_bodies_are_read_all_together() -> None:
    sizes = BodySizes()
    sizes.add_many(1, np.full(5_000, SMALL_BYTES, np.int64))
    assert sizes.together(np.arange(1, 1_025)) == 1_024


def test_a_large_body_slows_down_only_its_neighbours() -> None:
    sizes = BodySizes()
    sizes.add(5, 8 * 1024 * 1024)
    assert sizes.together(np.arange(1, 1_025)) == TOGETHER_BYTES // (8 * 1024 * 1024)
    far = 1 << STRETCH_BITS
    assert sizes.together(np.arange(far, far + 1_000)) == 1_000


def test_one_is_always_read_and_the_past_is_forgotten() -> None:
    sizes = BodySizes()
    sizes.add(5, 2 * TOGETHER_BYTES)
    assert sizes.together(np.array([4, 5, 6])) == 1
    sizes.forget_upto((1 << STRETCH_BITS) - 2)
    assert sizes.together(np.array([4, 5, 6])) == 1
    sizes.forget_upto((1 << STRETCH_BITS) - 1)
    assert sizes.together(np.array([4, 5, 6])) == 3


def test_many_large_messages_due_at_once_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOGETHER_BYTES", 1_000_000)
    world = World()
    payload = bytes(100_000)
    for _ in range(50):
        world.settle(world.engine.schedule(Message(destination="t", payload=payload, delay_ms=5_000)))
    sub = world.settle(world.engine.topics.subscribe("t", "s"))
    read: list[int] = []
    many, entries = world.bodies.many, world.bodies.entries

    def spied(seqs: NDArray[np.int64]) -> list[Body]:
        read.append(len(seqs))
        return many(seqs)

    def spied_entries(seqs: NDArray[np.int64]) -> list[Body]:
        read.append(len(seqs))
        return entries(seqs)

    monkeypatch.setattr(world.bodies, "many", spied)
    monkeypatch.setattr(world.bodies, "entries", spied_entries)
    got: list[int] = []
    consumer = sub.attach("c", lambda entries: got.extend(entry.entry_id for entry in entries))
    consumer.flow(1_000)
    world.run(10_000)
    assert got == list(range(50))
    assert max(read) <= 10
