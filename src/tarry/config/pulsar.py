"""Settings of the Pulsar door."""

from typing import Annotated

from msgspec import Meta

from tarry.config.listening import Listening
from tarry.core import limits
from tarry.core.rules.policy import Policy


class Pulsar(Listening, frozen=True, kw_only=True):
    """Apache Pulsar's binary protocol."""

    enabled: bool | None = None
    """Whether the door is open. If unset, `tarry up` opens it and `tarry serve` does not."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 6650
    """Port to listen on; 0 takes a free one and prints it."""
    advertised_url: str = ""
    """Address that lookups answer, as in pulsar://host:6650; empty: the address that the client has used."""
    keep_alive_ms: Annotated[int, Meta(ge=1_000, le=limits.HOUR_MS)] = 30_000
    """Time of silence after which a client is pinged; after as long again its connection is closed."""
    token_refresh_ms: Annotated[int, Meta(ge=0, le=limits.DAY_MS)] = 0
    """Interval at which a client is asked for its token again, and closed if it shows none; 0: never."""
    max_message_bytes: Annotated[int, Meta(ge=1_024, le=limits.MAX_PAYLOAD_BYTES)] = limits.MAX_PAYLOAD_BYTES
    """The largest message; clients are told, and cut larger ones into chunks if they are set to."""
    max_connection_bytes: Annotated[int, Meta(ge=65_536)] = 16 * 1024 * 1024
    """Maximum bytes of one connection that are unanswered, or unread by its client, before no more is taken from or given to it."""
    max_producers: Annotated[int, Meta(ge=1)] = 100_000
    """Maximum number of open producers, of about 3 KB each. With several tokens, none gets more than half."""
    max_consumers: Annotated[int, Meta(ge=1)] = 100_000
    """Maximum number of open consumers and readers, of about 2 KB each. With several tokens, none gets more than half."""
    max_unacked_messages: Annotated[int, Meta(ge=0)] = 50_000
    """Maximum unacknowledged entries of a shared or key-shared consumer; at it the consumer gets no more. 0: no bound."""
    measure_delay_by_server: bool = False
    """Whether the longest delay is counted from the server's clock; else from the publish time that the client states."""
    refuse_ignored_delay: bool = False
    """Whether a delayed message is refused where delaying is off; else it is delivered at once, counted and logged."""
    deduplicate: bool | None = None
    """Whether a message that its producer sends again is taken once; overrides `deduplication` of the broker's policy."""
    honour_delay_in_order: bool = False
    """Whether exclusive and failover subscriptions wait for delayed messages too, each for itself."""
    # As they are called in broker.conf, for whoever brings one along.
    delayedDeliveryEnabled: bool | None = None  # noqa: N815
    """Whether messages may be delayed; overrides `delayed_delivery` of the broker's policy."""
    delayedDeliveryTickTimeMillis: Annotated[int, Meta(ge=1, le=limits.DAY_MS)] | None = None  # noqa: N815
    """Due instants are rounded up to a multiple of this; overrides `tick_ms` of the broker's policy."""
    delayedDeliveryMaxDeliveryDelayInMillis: Annotated[int, Meta(ge=0, le=limits.MAX_DELAY_MS)] | None = None  # noqa: N815
    """The longest delay (PIP-315), 0 for the hundred years of every message; overrides `max_delay_ms` of the broker's policy."""
    delayedDeliveryMaxDelayInMillis: Annotated[int, Meta(ge=0, le=limits.MAX_DELAY_MS)] | None = None  # noqa: N815
    """`delayedDeliveryMaxDeliveryDelayInMillis`, as some versions of Pulsar spell it."""
    brokerDeduplicationEnabled: bool | None = None  # noqa: N815
    """Pulsar's name for `deduplicate`."""

    def __post_init__(self) -> None:
        """Refuse two spellings that say two things."""
        proposed, built = self.delayedDeliveryMaxDeliveryDelayInMillis, self.delayedDeliveryMaxDelayInMillis
        if proposed is not None and built is not None and proposed != built:
            raise ValueError(
                "delayedDeliveryMaxDeliveryDelayInMillis and delayedDeliveryMaxDelayInMillis differ"
            )
        if self.brokerDeduplicationEnabled is not None and self.deduplicate is not None:
            if self.brokerDeduplicationEnabled != self.deduplicate:
                raise ValueError("deduplicate and brokerDeduplicationEnabled differ")

    def policy(self, broker: Policy) -> Policy:
        """The broker's policy, with the fields set here over it."""
        proposed, built = self.delayedDeliveryMaxDeliveryDelayInMillis, self.delayedDeliveryMaxDelayInMillis
        return Policy(
            delayed_delivery=self.delayedDeliveryEnabled,
            tick_ms=self.delayedDeliveryTickTimeMillis,
            max_delay_ms=built if proposed is None else proposed,
            deduplication=(self.brokerDeduplicationEnabled if self.deduplicate is None else self.deduplicate),
        ).over(broker)
