"""Settings of the engine. Every field has a default that is good for one small machine."""

from msgspec import Struct

from tarry.core.limits import (
    FINALISED_RETENTION_MS,
    FINALISED_RETENTION_ROWS,
    FINALISED_RETENTION_ROWS_PER_OWNER,
    HOUR_MS,
    IDEMPOTENCY_RETENTION_MS,
    MINUTE_MS,
    SECOND_MS,
)


class EngineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the engine dispatches, retries and forgets."""

    lead_ms: int = 10 * MINUTE_MS
    """How far ahead of the clock the wheel is filled."""
    wheel_entries: int = 4_000_000
    """When the wheel has so many, of 18 bytes each, it is filled only as they go out."""
    batch: int = 2048
    """Due messages taken in one turn of the dispatcher."""
    concurrency: int = 256
    """Calls of other systems at one time; a broker takes many messages in one."""
    concurrency_per_host: int = 64
    """Maximum number of these to one destination host, so that a slow one leaves room for the others."""
    attempts: int = 20
    """After so many failed attempts a message ends as failed, and goes to the dead-letter topic."""
    backoff_min_ms: int = SECOND_MS
    backoff_max_ms: int = HOUR_MS
    carry_after_ms: int = MINUTE_MS
    """A message still unsent this long after its due time is rewritten at the end of the ledger (R9)."""
    mark_every_ms: int = SECOND_MS
    clock_slack_ms: int = 5 * SECOND_MS
    """The watermark stays this far behind the clock, so that a small step back delays nothing."""
    flush_every_ms: int = 500
    """How often the registry is brought up to date."""
    reclaim_every_ms: int = 10 * SECOND_MS
    snapshot_every_ms: int = 5 * MINUTE_MS
    """How often a checksummed snapshot of the registry is made; two are kept."""
    finalised_retention_ms: int = FINALISED_RETENTION_MS
    finalised_retention_rows: int = FINALISED_RETENTION_ROWS
    finalised_retention_rows_per_owner: int = FINALISED_RETENTION_ROWS_PER_OWNER
    """Maximum number of these for one owner's listed messages."""
    unread_retention_ms: int = FINALISED_RETENTION_MS
    """How long a topic to which nobody subscribes keeps its entries."""
    idempotency_retention_ms: int = IDEMPOTENCY_RETENTION_MS
    dead_letter_topic: str = "dead-letters"
    """The topic, in the message's namespace, for messages that could not be sent; empty keeps none."""
