"""Policies against what they say of themselves: the nearest level wins, rounding goes up, 0 lifts."""

from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from tarry.core.rules.policy import (
    POLICY_FIELDS,
    SLOWEST,
    BacklogAction,
    Effective,
    Policy,
    PolicyChanges,
    PolicyField,
    effective,
)


def values_of(name: str, field: PolicyField) -> st.SearchStrategy[Any]:
    """Values that a field may have, by its description."""
    match field.kind:
        case "switch":
            return st.booleans()
        case "choice":
            return st.sampled_from(get_args(BacklogAction))
        case "rate":
            return st.just(0.0) | st.floats(SLOWEST, field.most)
        case _:
            return st.integers(int(field.least), int(field.most))


VALUES = {name: values_of(name, field) for name, field in POLICY_FIELDS.items()}
policies = st.builds(Policy, **{name: st.none() | values for name, values in VALUES.items()})
levels = st.lists(st.none() | policies, max_size=4)


@given(levels)
def test_the_nearest_level_that_says_anything_wins(given: list[Policy | None]) -> None:
    found = effective(*given)
    for name in VALUES:
        said = [value for level in given if level and (value := getattr(level, name)) is not None]
        assert getattr(found, name) == (said[-1] if said else getattr(Effective(), name))


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


@given(policies, st.dictionaries(st.sampled_from(sorted(VALUES)), st.none() | st.just(True)), st.data())
def test_changing_a_policy_changes_what_was_given_and_nothing_else(
    before: Policy, given: dict[str, Any], data: Any
) -> None:
    changes = {name: None if value is None else data.draw(VALUES[name]) for name, value in given.items()}
    after = before.changed(PolicyChanges(**changes))
    for name in VALUES:
        assert getattr(after, name) == (changes[name] if name in changes else getattr(before, name))
