"""The horizon: what is near is in the wheel, in bounded steps, and dispatch never passes it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tarry.core.sets.deadset import DeadSet
from tarry.engine.due import horizon as module
from tarry.engine.due.horizon import Horizon
from tarry.testing.index import SimulatedIndex

LEAD_MS = 600_000


def inline(work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
    work()
    done(None)


def filled(fires: list[int]) -> Horizon:
    horizon = Horizon(SimulatedIndex(), inline, DeadSet(), LEAD_MS)
    count = len(fires)
    horizon.add_many(
        np.array(fires, np.int64), np.arange(1, count + 1, dtype=np.int64), np.zeros(count, np.uint16)
    )
    return horizon


def test_what_is_due_within_the_lead_comes_into_the_wheel() -> None:
    horizon = filled([1_000, LEAD_MS - 1, LEAD_MS, 10 * LEAD_MS])
    horizon.advance(0)
    assert (len(horizon.wheel), len(horizon.tail)) == (2, 2)
    assert horizon.at == (LEAD_MS, 0)


def test_ten_times_a_step_due_in_one_millisecond_comes_in_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 10)
    horizon = filled([5_000] * 95)
    popped: list[int] = []
    for turn in range(1, 12):
        horizon.advance(5_000)
        assert len(horizon.wheel) <= 10
        # Nothing beyond the horizon is dispatched, even when it is late.
        popped += horizon.pop_due(5_000, 1_000).seqs.tolist()
        assert popped == list(range(1, len(popped) + 1)), turn
    assert popped == list(range(1, 96))


def test_dispatch_never_passes_the_horizon() -> None:
    horizon = filled([1_000, 2_000])
    horizon.advance(0)
    late = LEAD_MS + 50
    horizon.tail.add(LEAD_MS + 10, 3, 0)
    assert horizon.pop_due(late, 10).seqs.tolist() == [1, 2]
    assert horizon.pop_due(late, 10).seqs.tolist() == []
    horizon.advance(late)
    assert horizon.pop_due(late, 10).seqs.tolist() == [3]


def test_later_additions_go_to_their_side_of_the_horizon() -> None:
    horizon = filled([])
    horizon.advance(0)
    horizon.add(LEAD_MS - 1, 1, 0)
    horizon.add(LEAD_MS, 2, 0)
    assert (len(horizon.wheel), len(horizon.tail)) == (1, 1)
