"""Leases that are given and handed over, entered late, against plain dicts that have everything at once."""

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tarry.core.sets.lazy_id_map import LazyIdMap
from tarry.doors.http.topics.handed import Handed
from tarry.engine.topics.consumer import Leases


class Holder:
    """As much of a consumer as holdings know."""

    def __init__(self) -> None:
        self.unacked = 0
        self.holds: LazyIdMap[None] = LazyIdMap()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("give", "give few", "release", "below", "ask", "clear")),
        st.integers(0, 60),
        st.integers(0, 20),
        st.integers(0, 2),
    ),
    max_size=40,
)


def _some(kind: str, start: int, count: int, taken: dict[int, Any]) -> Sequence[int]:
    """Entries that nobody has: a range if there is one, or a list with gaps."""
    free = [one for one in range(start, start + count) if one not in taken]
    return range(start, start + count) if kind == "give" and len(free) == count else free[::2]


@given(OPERATIONS)
def test_holdings_are_those_of_a_dict(operations: list[tuple[str, int, int, int]]) -> None:
    holdings, model = Leases(), dict[int, Holder]()
    holders = [Holder() for _ in range(3)]
    for kind, at, count, which in operations:
        holder = holders[which]
        match kind:
            case "give" | "give few":
                ids = _some(kind, at, count, model)
                holdings.give(ids, cast(Any, holder))
                model |= dict.fromkeys(ids, holder)
            case "release":
                some = [at, at + 3, at]
                assert holdings.release(some) == [one for one in some[:2] if model.pop(one, None)]
            case "below":
                holdings.release_below(at)
                model = {one: held for one, held in model.items() if one >= at}
            case "ask":
                assert holdings.holder(at) is cast(Any, model.get(at))
                assert sorted(holdings.below(at)) == sorted(one for one in model if one < at)
                assert (at in holdings) == (at in model)
            case "clear":
                holdings.clear()
                model = {}
        assert len(holdings) == len(model)
        for one in holders:
            assert one.unacked == sum(held is one for held in model.values())
    for one in holders:
        assert set(one.holds.each()) == {entry_id for entry_id, held in model.items() if held is one}


@given(OPERATIONS)
def test_what_is_handed_over_is_late_as_in_a_dict(operations: list[tuple[str, int, int, int]]) -> None:
    handed, model = Handed(), dict[int, float]()
    for now, (kind, at, count, which) in enumerate(operations):
        match kind:
            case "give" | "give few":
                # Perhaps again: then the later instant counts, or the earlier, whichever was said last.
                ids = _some(kind, at, count, {})
                handed.add(ids, now + which * 3)
                model |= dict.fromkeys(ids, now + which * 3)
            case "release":
                handed.remove([at, at + 1])
                model.pop(at, None), model.pop(at + 1, None)
            case "below":
                handed.remove_upto(at)
                model = {one: late for one, late in model.items() if one > at}
            case "ask":
                held = {one for one in model if one % 5}
                late = {one for one, late_at in model.items() if late_at <= now}
                assert handed.is_any_late(now) or not late
                assert set(handed.take_late(now, held)) == late
                model = {one: late_at for one, late_at in model.items() if one in held - late}
            case "clear":
                handed.clear()
                model = {}
        assert bool(handed) == bool(model)
