"""Settings of the native HTTP door. Pure values; the composition root fills them."""

from msgspec import Struct

from tarry.core.limits import HOUR_MS, MAX_BATCH_BYTES, SECOND_MS


class HttpSettings(Struct, frozen=True, kw_only=True):
    """Bounds and switches of the door."""

    max_body_bytes: int = 8 * 1024 * 1024
    """One JSON body, and one line of NDJSON: a payload of 5 MiB in base64, with room for the rest."""
    max_arrow_bytes: int = MAX_BATCH_BYTES
    """One Arrow stream. NDJSON has no such bound, because it is taken line by line."""
    body_timeout_ms: int = 30 * SECOND_MS
    """A body must be complete within this; a stream must show its next piece, or take its answer, within it."""
    max_batches: int = 32
    """Batch requests under way at once; each may hold a few megabytes. Of several tokens none gets more than half."""
    batch_timeout_ms: int = HOUR_MS
    """How long a batch request may take as a whole, however its client keeps it going."""
    max_answer_bytes: int = 16 * 1024 * 1024
    """Answers kept for one batch request whose client sends without reading. About 200,000 lines."""
    max_sessions: int = 1_000
    """Consumer sessions at once, long poll and event streams together. Of several tokens none gets more than half."""
    session_idle_ms: int = 60 * SECOND_MS
    """A consumer session without a request, a stream or an unacknowledged entry closes after this."""
    ack_timeout_ms: int = 60 * SECOND_MS
    """Unacknowledged for so long, an entry is delivered again; a request may say otherwise."""
    max_ledger_readers: int = 8
    """Ranges of the ledger being read at once by programs elsewhere; one more is told to come again."""
    index: str = ""
    """Folder or address of the index, for batches that are staged there; empty where there is none."""
    keep_alive_ms: int = 15 * SECOND_MS
    """Between the comments that keep an event stream's connection from looking dead."""
    metrics_open: bool = False
    """`/metrics` without a token."""
    allowed_hosts: tuple[str, ...] = ()
    """Without tokens, further names under which browsers may reach the server; see `core.tenants.browser`."""
