"""Settings at which boundaries are met often: tiny segments and batches, short intervals, few places."""

from random import Random

from tarry.core.sets.seqset import SMALLEST_BLOCK_BITS
from tarry.engine.settings import EngineSettings
from tarry.ledger.ledger import LedgerSettings
from tests.simulation.model import DEAD_LETTERS

DECADE_MS = 3_700 * 86_400_000
"""Nothing is forgotten for its age: the clock jumps by years, and the judge wants to see everything."""


def engine_settings(random: Random) -> EngineSettings:
    """How this run's engine is set."""
    backoff_ms = random.choice((1, 100, 1000))
    return EngineSettings(
        lead_ms=random.choice((2_000, 60_000, 600_000)),
        batch=random.choice((1, 2, 5, 1024)),
        concurrency=random.choice((1, 3, 256)),
        concurrency_per_host=random.choice((1, 2, 64)),
        attempts=random.choice((2, 4, 20)),
        backoff_min_ms=backoff_ms,
        backoff_max_ms=backoff_ms * random.choice((1, 16)),
        carry_after_ms=random.choice((0, 50, 2_000, 60_000)),
        mark_every_ms=random.choice((1, 50, 1_000)),
        clock_slack_ms=random.choice((0, 5, 5_000)),
        flush_every_ms=random.choice((1, 50, 500)),
        reclaim_every_ms=random.choice((1, 1, 1, 1, 100, 100, 10_000)),
        snapshot_every_ms=random.choice((1, 1, 1, 1, 100, 100, 300_000)),
        finalised_retention_ms=DECADE_MS,
        unread_retention_ms=DECADE_MS,
        idempotency_retention_ms=DECADE_MS,
        dead_letter_topic=random.choice(("", DEAD_LETTERS)),
    )


def ledger_settings(random: Random) -> LedgerSettings:
    """How this run's ledger is set."""
    return LedgerSettings(
        segment_bytes=4096 + random.choice((4096, 4096, 4096, 4096, 8192, 65536)),
        commit_max_records=random.choice((1, 3, 8192)),
        commit_max_bytes=random.choice((1024, 8 << 20)),
        spare_segments=random.choice((1, 2)),
    )


def dead_block_bits(random: Random) -> int:
    """How many dead seqs this run forgets at once: few, so that it does."""
    return random.choice((SMALLEST_BLOCK_BITS, SMALLEST_BLOCK_BITS, SMALLEST_BLOCK_BITS, 8))


def shared_by_tenants(seed: int) -> bool:
    """Whether several tenants share this run's server; told by a die of its own, so that earlier seeds mean what they meant."""
    return Random(f"{seed} shared").random() < 0.5


def index_piece(random: Random) -> int:
    """How much this run's index gives at once."""
    return random.choice((1, 3, 1 << 30))


OPERATIONS = {
    "tick": 25.0,
    "commit": 25.0,
    "work": 12.0,
    "wait": 15.0,
    "rest": 4.0,
    "index": 5.0,
    "verdict": 12.0,
    "schedule": 14.0,
    "batch": 2.0,
    "together": 2.0,
    "arrow": 1.0,
    "adopt": 1.5,
    "cancel_batch": 0.3,
    "reuse": 0.5,
    "name": 5.0,
    "by_name": 2.0,
    "command": 10.0,
    "look": 1.0,
    "policy": 0.5,
    "publish": 6.0,
    "reschedule": 1.0,
    "recall": 0.5,
    "hasten": 0.3,
    "inquire": 1.0,
    "repeat": 0.7,
    "pause_repeat": 0.3,
    "resume_repeat": 0.3,
    "remove_repeat": 0.2,
    "ask_bulk": 0.5,
    "follow_bulk": 3.0,
    "stop_bulk": 0.1,
    "retry": 2.0,
    "pause": 1.5,
    "resume": 1.5,
    "freeze": 0.5,
    "pause_place": 0.4,
    "resume_place": 0.6,
    "subscribe": 3.0,
    "watch": 0.5,
    "attach": 6.0,
    "flow": 5.0,
    "ack": 8.0,
    "ack_part": 6.0,
    "honour": 4.0,
    "nack": 6.0,
    "seek": 0.5,
    "close": 1.0,
    "retype": 0.5,
    "unsubscribe": 0.3,
    "delete": 0.5,
}
"""How often each step comes on average, beside the others."""
BESIDE = ("repeat", "pause_repeat", "resume_repeat", "remove_repeat", "ask_bulk", "follow_bulk", "stop_bulk")
"""Steps that say nothing of rules that are not about them."""
MOVING = ("tick", "commit", "work")
"""Where one of these is missing, next to nothing happens before the end."""
FAULTS = {"jump": 2.0, "fault": 2.0, "crash": 3.0, "flip": 0.3, "rot": 0.2}


LOCAL_FAULTS = ("flip", "rot")
"""Faults of a disk that has the only copy."""
LOG_FAULTS = {
    "follow": 6.0,
    "arrive": 12.0,
    "take_over": 8.0,
    "wake": 25.0,
    "cut_off": 1.0,
    "sever": 0.7,
    "foreign": 1.0,
    "spoil": 0.5,
    "replace": 0.7,
}
"""Rates of the events that a replicated log adds."""


THEMES = (
    {"ask_bulk": 25.0, "follow_bulk": 90.0, "rest": 50.0, "crash": 6.0},
    {"retry": 60.0, "verdict": 60.0, "schedule": 25.0, "attach": 15.0, "flow": 15.0},
    {
        "freeze": 25.0,
        "reschedule": 15.0,
        "recall": 6.0,
        "hasten": 6.0,
        "publish": 25.0,
        "inquire": 12.0,
        "look": 12.0,
    },
    {"jump": 25.0, "wait": 50.0, "schedule": 25.0},
)
"""Steps that say something only together: in two of five runs those of one theme come often."""
TAKEOVERS = {"take_over": 30.0, "wake": 60.0, "schedule": 30.0, "publish": 20.0}
"""The theme of half of those runs where there are several servers."""


def weights(random: Random, *, replicated: bool) -> dict[str, float]:
    """How often each kind of step comes in this run, drawn anew from a wide range for every seed.

    What is rare in a mixture of everything is common in some runs, and what gets in the way of it is missing there.
    """
    usual = random.random() < 0.7
    drawn = {name: _weight(random, odds if usual else 4.0, 0.15) for name, odds in OPERATIONS.items()}
    drawn |= {name: _weight(random, odds, 0.35) for name, odds in FAULTS.items()}
    if replicated:
        drawn |= dict.fromkeys(LOCAL_FAULTS, 0.0)
        drawn |= {name: _weight(random, odds, 0.2) for name, odds in LOG_FAULTS.items()}
    if random.random() < 0.4:
        theme = TAKEOVERS if replicated and random.random() < 0.5 else random.choice(THEMES)
        drawn |= {name: odds * 2 ** random.uniform(-1, 1) for name, odds in theme.items()}
    return drawn


def _weight(random: Random, usual: float, never: float) -> float:
    """An eighth to eight times what is usual, or nothing."""
    return 0.0 if random.random() < never else usual * 2 ** random.uniform(-3, 3)
