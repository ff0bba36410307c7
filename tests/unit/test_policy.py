from typing import Any

import msgspec
import pytest

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, MAX_DELAY_MS
from tarry.core.rules.policy import Effective, Policy, effective


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tick_ms": 1},
        {"tick_ms": DAY_MS},
        {"slot_ms": 1000},
        {"slot_ms": 14 * DAY_MS},
        {"max_delay_ms": 0},
        {"max_delay_ms": MAX_DELAY_MS},
        {"max_pending_per_owner": 0},
        {"accept_per_second": 0.001},
        {"send_per_second": 1e9},
        {"send_per_second": 0.0},
        {"send_per_second": 1 / 86_400},
        {"delayed_delivery": False},
    ],
)
def test_what_a_policy_may_say(fields: dict[str, Any]) -> None:
    Policy(**fields).check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tick_ms", 0),
        ("tick_ms", -1),
        ("tick_ms", DAY_MS + 1),
        ("slot_ms", 999),
        ("slot_ms", 14 * DAY_MS + 1),
        ("max_delay_ms", -1),
        ("max_delay_ms", MAX_DELAY_MS + 1),
        ("max_pending_per_owner", -1),
        ("accept_per_second", -0.1),
        ("accept_per_second", float("nan")),
        ("send_per_second", float("inf")),
        ("send_per_second", 2e9),
        ("send_per_second", 1e-300),
        ("accept_per_second", 1e-5),
        ("command_per_second", 5e-324),
    ],
)
def test_what_it_may_not_say_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as caught:
        Policy(**{field: value}).check()
    assert caught.value.field == field


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tick": 5}', type=Policy)


def test_the_nearest_level_that_says_anything_wins() -> None:
    broker = Policy(tick_ms=10, max_delay_ms=1000, accept_per_second=5.0)
    namespace = Policy(tick_ms=20, delayed_delivery=False)
    topic = Policy(delayed_delivery=True)
    found = effective(broker, namespace, topic)
    assert (found.tick_ms, found.max_delay_ms, found.accept_per_second) == (20, 1000, 5.0)
    assert found.delayed_delivery
    assert not effective(broker, namespace).delayed_delivery


def test_zero_lifts_the_limit_of_the_levels_above() -> None:
    broker = Policy(max_delay_ms=1000, max_pending_per_owner=3, accept_per_second=1.0, send_per_second=2.0)
    lifted = effective(
        broker, Policy(max_delay_ms=0, max_pending_per_owner=0, accept_per_second=0.0, send_per_second=0.0)
    )
    assert (lifted.max_delay_ms, lifted.max_pending_per_owner) == (0, 0)
    assert (lifted.accept_per_second, lifted.send_per_second) == (0.0, 0.0)


def test_where_nothing_is_said_the_built_in_holds() -> None:
    assert effective(None, None) == Effective()
    assert effective(None, None).tick_ms == 1


def test_only_what_was_said_is_written_down() -> None:
    assert msgspec.to_builtins(Policy(tick_ms=5)) == {"tick_ms": 5}
