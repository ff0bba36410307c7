"""The interface between the Dapr door and a broker: publish and subscribe.

A kind `pubsub.X` is the module `tarry.outlets.dapr.brokers.X`, and nothing else names it: adding a broker is
adding a file with a function `component(properties, surroundings) -> Component`. The module is imported when
a component of that kind is made, so that the libraries of the others need not be there.

Must not know: CloudEvents, applications, scopes, schedules. A component moves bytes and metadata.
"""

import asyncio
import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, StrEnum
from importlib import import_module
from typing import Final, Protocol

from msgspec import Struct

from tarry.core.time.clock import Clock
from tarry.outlets.dapr.errors import ComponentError, LibraryMissing, UnknownKind
from tarry.outlets.dapr.properties import Properties

KIND_PREFIX: Final = "pubsub."
MAX_AT_ONCE: Final = 10_000
"""Messages of a bulk that wait for their answers together, where the broker has no bound of its own."""
_BROKERS: Final = "tarry.outlets.dapr.brokers"


class Feature(StrEnum):
    """Features that a component has by itself, in Dapr's words."""

    MESSAGE_TTL = "MESSAGE_TTL"
    """The broker drops what is older than `ttlInSeconds`; elsewhere the door looks at the expiration."""
    SUBSCRIBE_WILDCARDS = "SUBSCRIBE_WILDCARDS"
    BULK_PUBSUB = "BULK_PUBSUB"


class Settlement(Enum):
    """The answer of a message's receiver."""

    ACK = "ack"
    NACK = "nack"
    """The message comes again; when and how often is the broker's and the component's business."""


class BrokerMessage(Struct, frozen=True, kw_only=True):
    """A message that the broker delivers."""

    topic: str
    data: bytes
    metadata: dict[str, str] = {}
    content_type: str | None = None
    position: str | None = None
    """The broker's own name for this message in its topic, the same at each delivery; None if it has none."""


ReceiveMessage = Callable[[BrokerMessage], Awaitable[Settlement]]
"""Called for each message, several at a time. Raising counts as NACK."""


class BulkEntry(Struct, frozen=True, kw_only=True):
    """One message of a bulk publish."""

    entry_id: str
    data: bytes
    content_type: str | None = None
    metadata: dict[str, str] = {}


class Subscribed(Protocol):
    """A subscription that is under way."""

    async def close(self) -> None:
        """Receive no more. What is with its receiver is given up and comes again; may be called twice."""


class Component(Protocol):
    """One broker, as one component file describes it. Made by `make`, then started, used and closed."""

    @property
    def features(self) -> frozenset[Feature]:
        """Features that the component has by itself."""

    async def start(self) -> None:
        """Connect. Raises `Unreachable` or `Denied`; may then be called again."""

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Give one message to the broker; returns once it has it. Connects again where needed.

        With `lasting` the broker keeps it through restarts and however many follow, whatever the component's
        metadata say of that.
        """

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Give several; the answer is what failed, by entry id, and empty if nothing did.

        `metadata` are the request's; those of an entry have been merged into the entry already.
        """

    async def subscribe(
        self,
        topic: str,
        group: str,
        receive: ReceiveMessage,
        metadata: Mapping[str, str],
        *,
        lasting: bool = False,
        hold: bool = False,
    ) -> Subscribed:
        """Receive a topic's messages as one of a consumer group: each message goes to one of the group.

        The subscription outlives lost connections. `metadata` are the subscription's.

        With `lasting` the group gets what was published while nobody was there and, where the broker keeps that,
        before it first came; and what was not acknowledged comes again until it is, whatever the component's
        metadata say of that.
        With `hold` a receiver may take days: any number of messages can be with receivers at a time, and the
        broker's deadline for acknowledgements is put off; where that cannot be, what has passed it is
        given out again, to this member or another, and its receiver is cancelled.
        """

    async def close(self) -> None:
        """End the subscriptions and the connections."""


async def publish_each(
    component: Component, topic: str, entries: Sequence[BulkEntry], at_once: int = MAX_AT_ONCE
) -> dict[str, ComponentError]:
    """A bulk publish to a broker that takes messages one by one: so many wait for their answers together."""
    failed: dict[str, ComponentError] = {}
    for start in range(0, len(entries), at_once):
        some = entries[start : start + at_once]
        done = await asyncio.gather(
            *(component.publish(topic, one.data, one.metadata, one.content_type) for one in some),
            return_exceptions=True,
        )
        for entry, outcome in zip(some, done, strict=True):
            if isinstance(outcome, ComponentError):
                failed[entry.entry_id] = outcome
            elif outcome is not None:
                raise outcome
    return failed


class ComponentSurroundings(Struct, frozen=True, kw_only=True):
    """The surroundings of a component, beside its metadata."""

    name: str
    """The component's name, for people."""
    clock: Clock
    topics: "OwnTopics | None" = None
    """Tarry's own topics, for `pubsub.tarry`."""


class OwnTopics(Protocol):
    """The part of the engine that `pubsub.tarry` needs."""

    async def publish(self, topic: str, messages: Sequence["OwnMessage"]) -> None:
        """Append messages to a topic, all or none; they are durable when it returns."""

    async def subscribe(
        self, topic: str, group: str, receive: ReceiveMessage, *, at_once: int, again_after_ms: int
    ) -> Subscribed:
        """Receive as one of a shared subscription from the topic's beginning, so many messages at a time."""


class OwnMessage(Struct, frozen=True, kw_only=True):
    """A message for one of Tarry's own topics."""

    data: bytes
    headers: dict[str, str] = {}
    key: str | None = None
    ttl_ms: int | None = None


def kinds() -> list[str]:
    """The kinds of components that there are."""
    package = import_module(_BROKERS)
    return sorted(KIND_PREFIX + one.name.replace("_", "-") for one in pkgutil.iter_modules(package.__path__))


def make(kind: str, properties: Mapping[str, str], surroundings: ComponentSurroundings) -> Component:
    """A component of a kind (`pubsub.redis`); raises `UnknownKind`, `Misconfigured` or `LibraryMissing`."""
    if kind not in kinds():
        raise UnknownKind(f"{kind} is not one of the kinds that are supported: {', '.join(kinds())}")
    broker = kind.removeprefix(KIND_PREFIX)
    try:
        module = import_module(f"{_BROKERS}.{broker.replace('-', '_')}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tarry"):
            raise
        raise LibraryMissing(
            f"{kind} needs the library {error.name}, which is not installed: pip install 'tarry[{broker}]'"
        ) from None
    made: Component = module.component(Properties(properties), surroundings)
    return made
