"""Settings at which boundaries are met often: tiny segments and batches, short intervals, few places."""

from random import Random

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
        reclaim_every_ms=random.choice((1, 100, 10_000)),
        snapshot_every_ms=random.choice((1, 100, 300_000)),
        finalised_retention_ms=DECADE_MS,
        unread_retention_ms=DECADE_MS,
        idempotency_retention_ms=DECADE_MS,
        dead_letter_topic=random.choice(("", DEAD_LETTERS)),
    )


def ledger_settings(random: Random) -> LedgerSettings:
    """How this run's ledger is set."""
    return LedgerSettings(
        segment_bytes=4096 + random.choice((4096, 8192, 65536)),
        commit_max_records=random.choice((1, 3, 8192)),
        commit_max_bytes=random.choice((1024, 8 << 20)),
        spare_segments=random.choice((1, 2)),
    )


def index_piece(random: Random) -> int:
    """How much this run's index gives at once."""
    return random.choice((1, 3, 1 << 30))


def weights(random: Random) -> dict[str, int]:
    """How often each kind of step comes in this run."""
    return {
        "tick": 25,
        "commit": 25,
        "work": random.choice((3, 12)),
        "wait": 15,
        "index": random.choice((0, 2, 8)),
        "verdict": random.choice((2, 12)),
        "schedule": 14,
        "batch": 2,
        "arrow": random.choice((0, 1)),
        "reuse": random.choice((0, 1)),
        "command": 10,
        "look": 2,
        "policy": random.choice((0, 1)),
        "publish": 6,
        "subscribe": 3,
        "watch": random.choice((0, 1)),
        "attach": 4,
        "flow": 5,
        "ack": 8,
        "nack": 3,
        "seek": random.choice((0, 1)),
        "close": 1,
        "retype": random.choice((0, 1)),
        "unsubscribe": random.choice((0, 0, 1)),
        "delete": random.choice((0, 1)),
        "jump": random.choice((0, 0, 1)),
        "fault": random.choice((0, 0, 1)),
        "crash": random.choice((0, 1, 3)),
        "flip": random.choice((0, 0, 0, 0, 1)),
        "rot": random.choice((0, 0, 0, 0, 0, 0, 1)),
        "together": random.choice((0, 3)),
    }
