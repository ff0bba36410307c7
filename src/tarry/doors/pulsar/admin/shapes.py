"""Policies as Pulsar's administration writes them in JSON, and as Tarry's.

Each of them is said and taken back as a whole; what else a level says stays as it is. Pure.
"""

from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from tarry.core.limits import MINUTE_MS, SECOND_MS
from tarry.core.rules.policy import BacklogAction, Effective, Policy
from tarry.doors.pulsar.admin.refusals import RestError

MIB: Final = 1 << 20

STORAGE: Final = "destination_storage"
AGE: Final = "message_age"


class DelayedDeliveryPolicies(Struct, frozen=True, kw_only=True):
    """PIP-26's policy with PIP-315's limit. The granularity of slots is PIP-26's too, and Pulsar does not know it."""

    tickTime: int = SECOND_MS  # noqa: N815 - these are Pulsar's names
    active: bool = False
    maxDeliveryDelayInMillis: int = 0  # noqa: N815
    timePartitionGranularityInMillis: int | UnsetType = UNSET  # noqa: N815


class RetentionPolicies(Struct, frozen=True, kw_only=True):
    """How much of what everybody has acknowledged is kept; -1 is for ever, or without a bound."""

    retentionTimeInMinutes: int = 0  # noqa: N815
    retentionSizeInMB: int = 0  # noqa: N815


class BacklogQuota(Struct, frozen=True, kw_only=True):
    """How much, or for how long, may lie unacknowledged. `limit` is the older name of `limitSize`."""

    limit: int | None = None
    limitSize: int = -1  # noqa: N815
    limitTime: int = -1  # noqa: N815
    policy: BacklogAction = "producer_request_hold"


class Facet(Protocol):
    """One of the things that a level may say."""

    kind: Any
    """The type of its JSON."""

    def said(self, value: Any, policy: Policy) -> Policy:
        """A level's policy with these fields set; raises a 412 for impossible values."""

    def gone(self, policy: Policy) -> Policy:
        """A level's policy with nothing said of this."""

    def shown(self, policy: Policy, applied: Effective) -> Any:
        """The level's own value, in JSON; None if it has none. Parts that it leaves open are shown as they are applied there."""


class DelayedDeliveryFacet:
    """Delays: whether, how exactly, and how long."""

    kind = DelayedDeliveryPolicies

    def said(self, value: DelayedDeliveryPolicies, policy: Policy) -> Policy:
        """See `Facet`."""
        if value.maxDeliveryDelayInMillis < 0:
            raise RestError(412, "maxDeliveryDelayInMillis must be >= 0")
        if value.tickTime <= 0:
            raise RestError(412, "tickTime must be > 0")
        slot_ms = value.timePartitionGranularityInMillis
        return replace(
            policy,
            delayed_delivery=value.active,
            tick_ms=value.tickTime,
            max_delay_ms=value.maxDeliveryDelayInMillis,
            slot_ms=policy.slot_ms if slot_ms is UNSET else slot_ms,
        )

    def gone(self, policy: Policy) -> Policy:
        """See `Facet`."""
        return replace(policy, delayed_delivery=None, tick_ms=None, max_delay_ms=None, slot_ms=None)

    def shown(self, policy: Policy, applied: Effective) -> DelayedDeliveryPolicies | None:
        """See `Facet`."""
        if policy.delayed_delivery is policy.tick_ms is policy.max_delay_ms is None:
            return None
        return DelayedDeliveryPolicies(
            tickTime=applied.tick_ms,
            active=applied.delayed_delivery,
            maxDeliveryDelayInMillis=applied.max_delay_ms,
            timePartitionGranularityInMillis=UNSET if policy.slot_ms is None else policy.slot_ms,
        )


class MessageTtlFacet:
    """The time to live, in seconds."""

    kind = int

    def said(self, value: int, policy: Policy) -> Policy:
        """See `Facet`."""
        if not 0 <= value < 1 << 31:
            raise RestError(412, "Invalid value for message TTL")
        return replace(policy, message_ttl_ms=value * SECOND_MS)

    def gone(self, policy: Policy) -> Policy:
        """See `Facet`."""
        return replace(policy, message_ttl_ms=None)

    def shown(self, policy: Policy, applied: Effective) -> int | None:
        """See `Facet`."""
        # Seconds that are not whole were set through the native API: what is over is over.
        return None if policy.message_ttl_ms is None else -(-policy.message_ttl_ms // SECOND_MS)


class RetentionFacet:
    """Retention of entries that every subscription has acknowledged."""

    kind = RetentionPolicies

    def said(self, value: RetentionPolicies, policy: Policy) -> Policy:
        """See `Facet`."""
        minutes, mebibytes = value.retentionTimeInMinutes, value.retentionSizeInMB
        if min(minutes, mebibytes) < -1 or (minutes == 0) != (mebibytes == 0):
            raise RestError(
                412, "Invalid retention policy: time and size are both 0, or each is -1 or above 0"
            )
        return replace(
            policy,
            retention_ms=minutes * MINUTE_MS if minutes > 0 else minutes,
            retention_bytes=mebibytes * MIB if mebibytes > 0 else -1,
        )

    def gone(self, policy: Policy) -> Policy:
        """See `Facet`."""
        return replace(policy, retention_ms=None, retention_bytes=None)

    def shown(self, policy: Policy, applied: Effective) -> RetentionPolicies | None:
        """See `Facet`."""
        if policy.retention_ms is policy.retention_bytes is None:
            return None
        time_ms, size_bytes = applied.retention_ms, applied.retention_bytes
        if time_ms == 0:
            return RetentionPolicies()
        return RetentionPolicies(
            retentionTimeInMinutes=-(-time_ms // MINUTE_MS) if time_ms > 0 else -1,
            retentionSizeInMB=-(-size_bytes // MIB) if size_bytes > 0 else -1,
        )


class DeduplicationFacet:
    """Whether what a producer sends again is taken once."""

    kind = bool

    def said(self, value: bool, policy: Policy) -> Policy:
        """See `Facet`."""
        return replace(policy, deduplication=value)

    def gone(self, policy: Policy) -> Policy:
        """See `Facet`."""
        return replace(policy, deduplication=None)

    def shown(self, policy: Policy, applied: Effective) -> bool | None:
        """See `Facet`."""
        return policy.deduplication


class QuotaFacet:
    """One of the two bounds on a backlog. Both have one action: what was said last."""

    kind = BacklogQuota

    def __init__(self, by_age: bool) -> None:
        self._by_age = by_age

    def said(self, value: BacklogQuota, policy: Policy) -> Policy:
        """See `Facet`."""
        if self._by_age:
            if value.limitTime <= 0:
                raise RestError(412, "limitTime must be > 0")
            return replace(policy, backlog_ms=value.limitTime * SECOND_MS, backlog_action=value.policy)
        size = value.limitSize if value.limitSize > 0 else value.limit or -1
        if size <= 0:
            raise RestError(412, "limitSize must be > 0")
        return replace(policy, backlog_bytes=size, backlog_action=value.policy)

    def gone(self, policy: Policy) -> Policy:
        """See `Facet`."""
        left = replace(policy, backlog_ms=None) if self._by_age else replace(policy, backlog_bytes=None)
        return replace(left, backlog_action=None) if left.backlog_ms is left.backlog_bytes is None else left

    def shown(self, policy: Policy, applied: Effective) -> dict[str, Any] | None:
        """See `Facet`."""
        bound = policy.backlog_ms if self._by_age else policy.backlog_bytes
        if not bound:
            return None
        size, seconds = (-1, -(-bound // SECOND_MS)) if self._by_age else (bound, -1)
        return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": applied.backlog_action}


DELAYED_DELIVERY: Final = DelayedDeliveryFacet()
MESSAGE_TTL: Final = MessageTtlFacet()
RETENTION: Final = RetentionFacet()
DEDUPLICATION: Final = DeduplicationFacet()
QUOTAS: Final[dict[str, Facet]] = {STORAGE: QuotaFacet(by_age=False), AGE: QuotaFacet(by_age=True)}


def as_policy(applied: Effective) -> Policy:
    """The policy in force, as if one level had set every field."""
    return msgspec.convert(msgspec.to_builtins(applied), Policy)
