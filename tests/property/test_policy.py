"""Policies against what they say of themselves: the nearest level wins, rounding goes up, 0 lifts."""

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from tarry.core.policy import BUILT_IN, BacklogAction, Policy, effective

VALUES: dict[str, Any] = {
    "delayed_delivery": st.booleans(),
    "tick_ms": st.integers(1, 86_400_000),
    "slot_ms": st.integers(1_000, 1_209_600_000),
    "max_delay_ms": st.integers(0, 10**12),
    "max_pending_per_owner": st.integers(0, 10**9),
    "accept_per_second": st.just(0.0) | st.floats(1 / 86_400, 1e9),
    "send_per_second": st.just(0.0) | st.floats(1 / 86_400, 1e9),
    "message_ttl_ms": st.integers(0, 10**12),
    "retention_ms": st.integers(-1, 10**12),
    "retention_bytes": st.integers(-1, 10**12),
    "backlog_bytes": st.integers(0, 10**12),
    "backlog_ms": st.integers(0, 10**12),
    "backlog_action": st.sampled_from(get_args(BacklogAction)),
}
policies = st.builds(Policy, **{name: st.none() | values for name, values in VALUES.items()})
levels = st.lists(st.none() | policies, max_size=4)


@given(levels)
def test_the_nearest_level_that_says_anything_wins(given: list[Policy | None]) -> None:
    found = effective(*given)
    for name in VALUES:
        said = [value for level in given if level and (value := getattr(level, name)) is not None]
        assert getattr(found, name) == (said[-1] if said else getattr(BUILT_IN, name))


@given(
    levels, st.sampled_from(["max_delay_ms", "max_pending_per_owner", "accept_per_second", "send_per_second"])
)
def test_zero_at_the_nearest_level_lifts(given: list[Policy | None], limit: str) -> None:
    fields: dict[str, Any] = {limit: 0}
    assert getattr(effective(*given, Policy(**fields)), limit) == 0


@given(policies, policies, policies)
def test_levels_can_be_taken_together_in_any_grouping(one: Policy, two: Policy, three: Policy) -> None:
    assert three.over(two).over(one) == three.over(two.over(one))
    assert effective(one, two, three) == effective(one, three.over(two))


@given(st.integers(0, 1 << 47), st.integers(1, 86_400_000))
def test_rounding_goes_up_to_the_next_tick_and_no_further(due_at_ms: int, tick_ms: int) -> None:
    rounded = effective(Policy(tick_ms=tick_ms)).round_up(due_at_ms)
    assert 0 <= rounded - due_at_ms < tick_ms
    assert rounded % tick_ms == 0


@given(policies)
def test_every_policy_drawn_here_is_one(policy: Policy) -> None:
    policy.check()
