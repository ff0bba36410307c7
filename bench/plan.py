"""How much is measured: the sizes of a quick, a normal and a full run."""

from dataclasses import dataclass
from typing import Final

PAYLOAD_BYTES: Final = 200
"""Of every message, unless a row says otherwise."""

SMALL_BYTES: Final = 20
CONNECTIONS: Final = 64
PEER_BATCH: Final = 256
"""Messages in one request of a peer's batched form."""


@dataclass(frozen=True)
class Plan:
    """Sizes and durations."""

    repeats: int
    load_s: float
    """How long each load lasts."""
    bursts: tuple[int, ...]
    """How many messages are due at one instant, for Tarry; peers get the first of these."""
    steady_s: float
    steady_per_s: int
    pending: tuple[int, ...]
    """How many messages are pending when memory is measured."""
    restart_pending: int
    indexed: int
    """How many messages the pipeline indexes and cascades."""
    waiting: tuple[int, ...]
    """How many messages wait in the index when the server is looked at."""
    bulk: int
    """How many messages one job schedules."""
    pulsar: int
    """How many messages go through the Pulsar door in one measurement."""
    pulsar_bursts: tuple[int, ...]
    pulsar_delayed: int
    """How many are delayed when the memory of subscriptions is measured."""


QUICK: Final = Plan(
    repeats=1,
    load_s=1.0,
    bursts=(10_000,),
    steady_s=3.0,
    steady_per_s=2_000,
    pending=(1_000_000,),
    restart_pending=1_000_000,
    indexed=1_000_000,
    waiting=(1_000_000,),
    bulk=1_000_000,
    pulsar=40_000,
    pulsar_bursts=(10_000,),
    pulsar_delayed=200_000,
)
NORMAL: Final = Plan(
    repeats=3,
    load_s=3.0,
    bursts=(10_000, 100_000),
    steady_s=10.0,
    steady_per_s=2_000,
    pending=(1_000_000,),
    restart_pending=1_000_000,
    indexed=3_000_000,
    waiting=(10_000_000,),
    bulk=10_000_000,
    pulsar=100_000,
    pulsar_bursts=(10_000, 50_000),
    pulsar_delayed=1_000_000,
)
FULL: Final = Plan(
    repeats=5,
    load_s=5.0,
    bursts=(10_000, 100_000),
    steady_s=30.0,
    steady_per_s=2_000,
    pending=(1_000_000, 10_000_000),
    restart_pending=1_000_000,
    indexed=3_000_000,
    waiting=(10_000_000, 100_000_000),
    bulk=10_000_000,
    pulsar=200_000,
    pulsar_bursts=(10_000, 50_000),
    pulsar_delayed=1_000_000,
)
TINY: Final = Plan(
    repeats=1,
    load_s=0.3,
    bursts=(1_000,),
    steady_s=1.0,
    steady_per_s=500,
    pending=(100_000,),
    restart_pending=20_000,
    indexed=50_000,
    waiting=(50_000,),
    bulk=50_000,
    pulsar=4_000,
    pulsar_bursts=(1_000,),
    pulsar_delayed=5_000,
)
"""To see that everything works; its figures say nothing."""
