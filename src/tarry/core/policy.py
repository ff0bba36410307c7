"""Policies at three levels: broker, namespace, topic. The nearest one that says anything wins.

Pure: a policy says what is allowed; the engine and its rate limits obey it.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, MAX_DELAY_MS, MAX_TOPICS, SECOND_MS

_MAX_NUMBER: Final = 1 << 53
"""The largest integer that every reader of JSON can read."""

_SLOWEST: Final = SECOND_MS / DAY_MS
"""The slowest rate in a second: one a day. Slower ones are no limit that anybody waits for."""

Scope = Literal["broker", "namespace", "topic"]

BacklogAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
"""The action on a backlog over its quota, in Pulsar's words: producers are refused, or the oldest entries go."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy of one level. A field that is None leaves its value to the level above."""

    delayed_delivery: bool | None = None
    """Whether messages may be delayed; if not, they are due at once."""
    tick_ms: int | None = None
    """Due instants are rounded up to a multiple of this."""
    slot_ms: int | None = None
    """The finest slot of the index: PIP-26's time-partition granularity."""
    max_delay_ms: int | None = None
    """The longest delay; 0 lifts the limit of the levels above."""
    max_pending_per_owner: int | None = None
    """Maximum number of one owner's pending messages; 0 lifts the limit of the levels above."""
    accept_per_second: float | None = None
    """Messages a second that one owner may schedule; 0 lifts the limit of the levels above."""
    send_per_second: float | None = None
    """Messages a second of one owner that go out; further ones go out later and are never lost. 0 lifts the limit."""
    message_ttl_ms: int | None = None
    """How long after its due instant an entry of a topic waits to be acknowledged; 0 lifts the limit of the levels above."""
    retention_ms: int | None = None
    """How long a topic keeps entries that every subscription has acknowledged; 0 not at all, -1 for ever."""
    retention_bytes: int | None = None
    """Maximum bytes of acknowledged entries that a topic keeps; -1 has no bound."""
    backlog_bytes: int | None = None
    """Maximum bytes that one subscription may have unacknowledged; 0 lifts the limit of the levels above."""
    backlog_ms: int | None = None
    """How long after its due instant the oldest entry of a backlog may lie there; 0 lifts the limit of the levels above."""
    backlog_action: BacklogAction | None = None
    """The action on a backlog over either quota."""
    command_per_second: float | None = None
    """Commands a second (cancel, send, restart) on one owner's messages; 0 lifts the limit of the levels above."""
    deduplication: bool | None = None
    """Whether a message that its producer sends again, as its sequence id says, is taken once; for clients of the Pulsar door."""
    max_topics: int | None = None
    """Maximum number of a namespace's topics, partitions included; 0 lifts the limit of the levels above."""

    def check(self) -> None:
        """Raise `Invalid` for a value that cannot be."""
        if self.tick_ms is not None and not 1 <= self.tick_ms <= DAY_MS:
            raise Invalid("tick_ms", "is not between 1 ms and a day")
        if self.slot_ms is not None and not SECOND_MS <= self.slot_ms <= 14 * DAY_MS:
            raise Invalid("slot_ms", "is not between a second and two weeks")
        if self.max_delay_ms is not None and not 0 <= self.max_delay_ms <= MAX_DELAY_MS:
            raise Invalid("max_delay_ms", "is negative or beyond a hundred years")
        for field in ("max_pending_per_owner", "max_topics", "message_ttl_ms", "backlog_bytes", "backlog_ms"):
            if not 0 <= (getattr(self, field) or 0) <= _MAX_NUMBER:
                raise Invalid(field, "is negative or absurdly large")
        for field in ("retention_ms", "retention_bytes"):
            if not -1 <= (getattr(self, field) or 0) <= _MAX_NUMBER:
                raise Invalid(field, "is below -1, which is for ever, or absurdly large")
        for field in ("accept_per_second", "send_per_second", "command_per_second"):
            rate = getattr(self, field)
            if rate is not None and rate != 0 and not _SLOWEST <= rate <= 1e9:
                raise Invalid(field, "is neither 0 nor between one a day (0.0000116) and a thousand million")

    def over(self, above: "Policy") -> "Policy":
        """The policy in force where this one is of the nearer level and `above` of the further one."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(above, **said)


class Effective(Struct, frozen=True, kw_only=True):
    """The policy in force at one place: every field is decided."""

    delayed_delivery: bool
    tick_ms: int
    slot_ms: int
    max_delay_ms: int
    max_pending_per_owner: int
    accept_per_second: float
    send_per_second: float
    message_ttl_ms: int
    retention_ms: int
    retention_bytes: int
    backlog_bytes: int
    backlog_ms: int
    backlog_action: BacklogAction
    command_per_second: float
    deduplication: bool
    max_topics: int

    @property
    def longest_ms(self) -> int:
        """The longest delay that is taken: the policy's own, or the engine's where it sets none."""
        return self.max_delay_ms or MAX_DELAY_MS

    def round_up(self, due_at_ms: int) -> int:
        """The first tick at or after an instant: never early."""
        return -(-due_at_ms // self.tick_ms) * self.tick_ms


BUILT_IN = Policy(
    delayed_delivery=True,
    tick_ms=1,
    slot_ms=300_000,
    max_delay_ms=0,
    max_pending_per_owner=0,
    accept_per_second=0.0,
    send_per_second=0.0,
    message_ttl_ms=0,
    retention_ms=0,
    retention_bytes=-1,
    backlog_bytes=0,
    backlog_ms=0,
    backlog_action="producer_request_hold",
    command_per_second=0.0,
    deduplication=False,
    max_topics=MAX_TOPICS,
)
"""The policy where no level says anything."""


def effective(*levels: Policy | None) -> Effective:
    """Resolve levels given from the furthest (broker) to the nearest (topic)."""
    policy = BUILT_IN
    for level in levels:
        if level is not None:
            policy = level.over(policy)
    return Effective(**{name: getattr(policy, name) for name in Effective.__struct_fields__})
