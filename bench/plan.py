"""How much is measured: the sizes of a run."""

from dataclasses import dataclass, replace
from typing import Any, Final, Self

PAYLOAD_BYTES: Final = 200
"""Bytes of every message's payload, unless a row says otherwise."""

SMALL_BYTES: Final = 20
CONNECTIONS: Final = 64
PEER_BATCH: Final = 256
"""Messages in one request of a peer's batched form."""


@dataclass(frozen=True)
class Plan:
    """Sizes and durations."""

    size: str
    """Its name."""
    repeats: int
    load_s: float
    """How long each load lasts."""
    bursts: tuple[int, ...]
    """How many messages are due at one instant, for Tarry; peers get the first of these."""
    steady_s: float
    steady_per_s: int
    pending: int
    """How many messages are pending when memory is measured."""
    restart_pending: int
    indexed: int
    """How many messages the pipeline indexes and cascades."""
    bulk: int
    """How many messages one job schedules."""
    waiting: int
    """How many messages wait in the index when the server is looked at."""
    many: int
    """How many messages wait in the part that takes long."""
    waiting_turns: int
    """How often a server with many that wait and an empty one take turns."""
    idle_s: float
    """How long an idle pipeline is looked at, each time."""
    pulsar: int
    """How many messages go through the Pulsar door in one measurement."""
    pulsar_bursts: tuple[int, ...]
    pulsar_delayed: int
    """How many are delayed when the memory of subscriptions is measured."""
    rooms: int
    """How many Matrix rooms have an event due at one instant."""
    dapr_burst: int
    """How many messages due at one instant go to Redis."""
    participants: int
    """How many participants the conference on the Matrix door has."""
    conference_min: float
    named: int = 1_000_000
    """How many of the pending messages have names when names are measured."""
    named_operations: int = 1_000
    """How often each operation by name is timed."""
    trick_turns: int = 15
    layer_turns: int = 15
    """Turns in which the ways to serve HTTP alternate."""
    """How often each trick for speed is measured on and off."""
    topics: int = 100_000
    """How many topics there are, each with an entry, when the longest wait for the server is measured."""
    subscriptions: int = 10_000
    owners: int = 1_000_000

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """From what was kept as JSON."""
        found: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**found)


NORMAL: Final = Plan(
    size="normal",
    repeats=3,
    load_s=2.0,
    bursts=(10_000, 100_000),
    steady_s=8.0,
    steady_per_s=2_000,
    pending=10_000_000,
    restart_pending=1_000_000,
    indexed=3_000_000,
    bulk=10_000_000,
    waiting=10_000_000,
    many=100_000_000,
    waiting_turns=5,
    idle_s=20.0,
    pulsar=100_000,
    pulsar_bursts=(10_000, 50_000),
    pulsar_delayed=1_000_000,
    rooms=200,
    dapr_burst=10_000,
    participants=10_000,
    conference_min=10.0,
)
FULL: Final = replace(NORMAL, size="full", repeats=5, load_s=5.0, steady_s=30.0, idle_s=60.0)
QUICK: Final = replace(
    NORMAL,
    size="quick",
    repeats=1,
    load_s=1.0,
    bursts=(10_000,),
    steady_s=3.0,
    pending=1_000_000,
    indexed=1_000_000,
    bulk=1_000_000,
    waiting=1_000_000,
    many=10_000_000,
    waiting_turns=2,
    idle_s=10.0,
    pulsar=40_000,
    pulsar_bursts=(10_000,),
    pulsar_delayed=200_000,
    rooms=50,
    participants=1_000,
    conference_min=1.0,
    trick_turns=5,
    layer_turns=5,
    named=100_000,
    topics=20_000,
    subscriptions=1_000,
    owners=100_000,
)
TINY: Final = replace(
    QUICK,
    size="tiny",
    load_s=0.3,
    bursts=(1_000,),
    steady_s=1.0,
    steady_per_s=500,
    pending=100_000,
    restart_pending=20_000,
    indexed=50_000,
    bulk=50_000,
    waiting=50_000,
    many=60_000,
    waiting_turns=1,
    idle_s=2.0,
    pulsar=4_000,
    pulsar_bursts=(1_000,),
    pulsar_delayed=5_000,
    rooms=5,
    dapr_burst=500,
    participants=100,
    trick_turns=1,
    layer_turns=1,
    named=5_000,
    named_operations=50,
    topics=1_000,
    subscriptions=50,
    owners=2_000,
    conference_min=0.5,
)
"""To see that everything works; its figures say nothing."""

SIZES: Final = {plan.size: plan for plan in (NORMAL, FULL, QUICK, TINY)}
