"""Pulsar's own names for the broker's delays."""

from typing import Any

import pytest

from tarry.config import ConfigError, load
from tarry.core.rules.policy import Policy

PROPOSED = "doors.pulsar.delayedDeliveryMaxDeliveryDelayInMillis"
BUILT = "doors.pulsar.delayedDeliveryMaxDelayInMillis"


def broker(**given: Any) -> Policy:
    config = load(overrides=given).config
    return config.doors.pulsar.policy(config.policies.broker)


def test_they_stand_over_the_brokers_policy() -> None:
    given = {
        "policies.broker.tick_ms": 5,
        "policies.broker.slot_ms": 60_000,
        "doors.pulsar.delayedDeliveryEnabled": False,
        "doors.pulsar.delayedDeliveryTickTimeMillis": 1000,
        PROPOSED: 0,
    }
    assert broker(**given) == Policy(delayed_delivery=False, tick_ms=1000, slot_ms=60_000, max_delay_ms=0)
    assert broker(**{"policies.broker.tick_ms": 5}) == Policy(tick_ms=5)


@pytest.mark.parametrize("name", [PROPOSED, BUILT])
def test_both_spellings_of_the_longest_delay(name: str) -> None:
    assert broker(**{name: 5000}).max_delay_ms == 5000
    assert broker(**{PROPOSED: 7, BUILT: 7}).max_delay_ms == 7
    with pytest.raises(ConfigError, match="differ"):
        broker(**{PROPOSED: 7, BUILT: 8})


@pytest.mark.parametrize(
    ("name", "value"), [(PROPOSED, -1), ("doors.pulsar.delayedDeliveryTickTimeMillis", 0)]
)
def test_what_cannot_be(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        broker(**{name: value})


def test_in_a_file_and_in_the_environment(tmp_path: Any) -> None:
    file = tmp_path / "tarry.toml"
    file.write_text("[doors.pulsar]\ndelayedDeliveryEnabled = false\n")
    environment = {"TARRY_DOORS__PULSAR__DELAYEDDELIVERYTICKTIMEMILLIS": "250"}
    config = load(str(file), environment).config
    assert config.doors.pulsar.policy(Policy()) == Policy(delayed_delivery=False, tick_ms=250)
