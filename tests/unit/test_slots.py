"""Slots: which one a message is in, now and as it comes nearer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.limits import DAY_MS, HOUR_MS, MAX_DELAY_MS, MINUTE_MS
from tarry.core.timers.slots import LEVELS, Slot, lead_of, parse_slot, sizes_for

FIVE_MINUTES_MS = 5 * MINUTE_MS
NOW_MS = 1_794_740_400_000
MIDNIGHT_MS = NOW_MS // DAY_MS * DAY_MS

instants = st.integers(NOW_MS, NOW_MS + MAX_DELAY_MS)
granularities = st.integers(1_000, 14 * DAY_MS)


def size_for(fire_at_ms: int, now_ms: int, granularity_ms: int) -> int:
    (size_ms,) = sizes_for(np.array([fire_at_ms]), now_ms, np.array([granularity_ms])).tolist()
    return int(size_ms)


@pytest.mark.parametrize(
    ("ahead_ms", "size_ms"),
    [
        (-DAY_MS, FIVE_MINUTES_MS),
        (0, FIVE_MINUTES_MS),
        (HOUR_MS - 1, FIVE_MINUTES_MS),
        (HOUR_MS, HOUR_MS),
        (DAY_MS - 1, HOUR_MS),
        (DAY_MS, DAY_MS),
        (40 * DAY_MS, 30 * DAY_MS),
        (2 * 365 * DAY_MS, 365 * DAY_MS),
    ],
)
def test_the_further_away_the_coarser_the_slot(ahead_ms: int, size_ms: int) -> None:
    assert size_for(MIDNIGHT_MS + ahead_ms, MIDNIGHT_MS, FIVE_MINUTES_MS) == size_ms


def test_a_slot_is_split_as_a_whole_a_quarter_before_it_starts() -> None:
    first, last = MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS + 2 * DAY_MS - 1
    for fire_at_ms in (first, last):
        assert size_for(fire_at_ms, first - DAY_MS // 4, FIVE_MINUTES_MS) == DAY_MS
        assert size_for(fire_at_ms, first - DAY_MS // 4 + 1, FIVE_MINUTES_MS) == HOUR_MS


def test_a_granularity_coarser_than_a_level_ends_the_cascade_there() -> None:
    assert size_for(MIDNIGHT_MS + 2 * HOUR_MS, MIDNIGHT_MS, 2 * HOUR_MS) == 2 * HOUR_MS
    assert size_for(MIDNIGHT_MS + DAY_MS, MIDNIGHT_MS, 2 * HOUR_MS) == DAY_MS
    assert size_for(MIDNIGHT_MS + 6 * DAY_MS, MIDNIGHT_MS, 14 * DAY_MS) == 14 * DAY_MS


@pytest.mark.parametrize("granularity_ms", [1_000, 10_000, MINUTE_MS, FIVE_MINUTES_MS, HOUR_MS, 14 * DAY_MS])
def test_what_waits_over_a_year_is_in_few_slots(granularity_ms: int) -> None:
    near, far = np.arange(0, 2 * HOUR_MS, 500), np.arange(0, 365 * DAY_MS, MINUTE_MS)
    fires = MIDNIGHT_MS + np.concatenate([near, far])
    sizes = sizes_for(fires, MIDNIGHT_MS, np.full(len(fires), granularity_ms))
    starts = fires // sizes * sizes
    assert len({*zip(sizes.tolist(), starts.tolist(), strict=True)}) <= 200


@given(instants, granularities)
def test_a_slot_holds_its_instant_and_can_be_read_back(fire_at_ms: int, granularity_ms: int) -> None:
    size_ms = size_for(fire_at_ms, NOW_MS, granularity_ms)
    slot = Slot(size_ms, fire_at_ms // size_ms * size_ms)
    assert slot.start_ms <= fire_at_ms < slot.end_ms
    assert parse_slot(slot.name) == slot


@given(st.lists(st.tuples(instants, granularities), min_size=1, max_size=50))
def test_each_is_in_the_coarsest_slot_that_need_not_be_split_yet(pairs: list[tuple[int, int]]) -> None:
    fires, granularity = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    sizes = sizes_for(fires, NOW_MS, granularity).tolist()
    for (fire_at_ms, granularity_ms), size_ms in zip(pairs, sizes, strict=True):
        whole = [
            level_ms
            for level_ms in LEVELS
            if level_ms > granularity_ms and fire_at_ms // level_ms * level_ms - NOW_MS >= lead_of(level_ms)
        ]
        assert size_ms == max(whole, default=granularity_ms)


@given(instants, granularities, st.integers(0, MAX_DELAY_MS))
def test_slots_only_get_finer_as_time_passes(fire_at_ms: int, granularity_ms: int, passed_ms: int) -> None:
    before = size_for(fire_at_ms, NOW_MS, granularity_ms)
    after = size_for(fire_at_ms, NOW_MS + passed_ms, granularity_ms)
    assert after <= before
    assert after in (*LEVELS, granularity_ms)


def test_a_name_that_is_none_is_refused() -> None:
    assert Slot(300_000, 0).name == "300000_0"
    with pytest.raises(ValueError, match="invalid literal"):
        parse_slot("today")
