"""The JSON about the server as a whole, as types: what the dashboard shows."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from tarry.doors.http.operator.sent import RecentlySent
from tarry.doors.http.shapes import MAX_PAGE, Milliseconds, Taken
from tarry.engine.api import MAX_BUCKETS


class MeAnswer(Struct, kw_only=True):
    """The rights of a request's sender."""

    name: str
    roles: list[str]
    namespaces: list[str] | None
    """The namespaces within reach; null for all."""
    open: bool
    """Whether the server asks for no token: then everybody may do everything."""


class UpcomingQuery(Taken, kw_only=True):
    """Which stretch of due time to count, and in how many parts; by default the next hour, by the minute."""

    from_ms: Milliseconds | None = None
    to_ms: Milliseconds | None = None
    buckets: Annotated[int, Meta(ge=1, le=MAX_BUCKETS)] = 60


class BacklogsQuery(Taken, kw_only=True):
    """How many subscriptions to show."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class LedgerFigures(Struct, kw_only=True):
    """The ledger."""

    first_seq: int
    durable_seq: int
    next_seq: int
    segments: int
    used_bytes: int
    low_space: bool
    failed: bool


class PipelineFigures(Struct, kw_only=True):
    """How far the pipeline is, as it said last."""

    up: bool
    state: str
    cursor: int
    lag: int
    """Records that are durable and not indexed."""
    behind_ms: int
    """For how long there have been such records."""
    last_commit_at_ms: int
    commits: int
    failures: int


class StandbyFigures(Struct, kw_only=True):
    """A server that stands by."""

    name: str
    lag: int | None
    """Records of the log that it has not read; null if it has not said so."""


class ClusterFigures(Struct, kw_only=True):
    """The servers that share the ledger."""

    owner: str
    epoch: int
    """Rises by one with each takeover."""
    standbys: list[StandbyFigures]
    trouble: str | None
    """Why it is not known who stands by, while that is so."""


class OverviewAnswer(Struct, kw_only=True):
    """Figures of the whole server at one moment. Nothing in it is named by a client."""

    version: str
    now_ms: int
    ready: bool
    reasons: list[str]
    pending: int
    in_wheel: int
    in_tail: int
    sending: int
    owners: int
    topics: int
    sessions: int
    batches: int
    """Batch requests under way."""
    next_due_at_ms: int | None
    watermark_ms: int
    horizon_ms: int
    """Everything that is due before is in the wheel."""
    counters: dict[str, int]
    """accepted, sent, cancelled, failed, retried, damaged, isolated: since the ledger began."""
    recent: RecentlySent
    ledger: LedgerFigures
    pipeline: PipelineFigures | None
    """null if none ever ran on this data folder."""
    cluster: ClusterFigures | None
    """null if the ledger is on this server's disk alone."""


class SlotAnswer(Struct, kw_only=True):
    """A slot of the index, and how full it is."""

    start_ms: int
    size_ms: int
    files: int
    versions: int
    """Number of waiting versions, those included whose ends are among the dels."""
    dels: int
    size_bytes: int


class SlotsAnswer(Struct, kw_only=True):
    """The index, slot by slot, the coarse ones first."""

    cursor: int
    """The seq up to which it is complete."""
    files: int
    versions: int
    size_bytes: int
    slots: list[SlotAnswer]
    more: int
    """Slots that are left out here because there are too many."""


class BacklogAnswer(Struct, kw_only=True):
    """A subscription, and its backlog."""

    topic: str
    name: str
    figures: dict[str, Any]


class BacklogsAnswer(Struct, kw_only=True):
    """The subscriptions with the most to acknowledge, those first."""

    subscriptions: list[BacklogAnswer]
    total: int
    """How many subscriptions there are within reach."""
