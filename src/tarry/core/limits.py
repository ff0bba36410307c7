"""Bounds that several parts share, and the defaults of those that an operator may change.

A bound that is the business of one module stands at its top, and what a stranger can make grow is on one page with the test of
each bound (`docs/operations/limits.md`).

Sizes are bytes, durations milliseconds.
"""

from typing import Final

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
YEAR_MS: Final = 366 * DAY_MS
"""A leap year, so that «a hundred years» is never refused for its leap days."""

MAX_DELAY_MS: Final = 100 * YEAR_MS
"""No message waits longer, whatever its policy says."""

NEVER_MS: Final = (1 << 47) - 1
"""The fire instant of a group member that goes out only by command; later than any due instant."""

STRANDED_MS: Final = NEVER_MS - 1
"""The fire instant of a message that waits for a part which a start did not have; later than any due instant."""

PAUSED_MS: Final = NEVER_MS - 2
"""The fire instant of a message that was paused by itself: what is left of its delay is frozen."""

HELD_MS: Final = NEVER_MS - 3
"""The fire instant of a due message whose place is paused."""

MAX_PAYLOAD_BYTES: Final = 5 * 1024 * 1024
MAX_ENTRY_BYTES: Final = MAX_PAYLOAD_BYTES + 64 * 1024
"""An entry of a topic: a payload with what a door keeps beside it."""
MAX_HEADERS: Final = 64
MAX_HEADERS_BYTES: Final = 16 * 1024
MAX_DESTINATION_BYTES: Final = 2048
MAX_KEY_BYTES: Final = 1024
MAX_OWNER_BYTES: Final = 255
MAX_GROUP_BYTES: Final = 255
MAX_IDEMPOTENCY_KEY_BYTES: Final = 255
MAX_NAME_BYTES: Final = 255
"""One part of a topic name, or the name of a subscription or consumer."""
MAX_PRODUCER_BYTES: Final = 2048
"""The name of a producer: clients put whole topic names into those of their retry and dead-letter producers."""
MAX_PRODUCERS: Final = 10_000
"""Maximum number of a topic's producers whose last sequence number is known: beyond it, the one silent for longest is forgotten."""

MAX_TOPICS: Final = 250_000
"""Topics of one namespace, unless a policy says otherwise. A topic costs up to two kibibytes of memory and as much of the registry."""

MAX_GROUP_MEMBERS: Final = 100
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024

IDEMPOTENCY_RETENTION_MS: Final = DAY_MS
FINALISED_RETENTION_MS: Final = 7 * DAY_MS
FINALISED_RETENTION_ROWS: Final = 1_000_000
FINALISED_RETENTION_ROWS_PER_OWNER: Final = 1_000
