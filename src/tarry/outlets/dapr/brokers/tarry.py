"""`pubsub.tarry`: Tarry's own durable topics. No broker is needed.

A topic T is `persistent://tenant/namespace/T`, by default in `public/default`, where the native API and
the Pulsar door find it too; a slash in T is written `%2F`. A publish's metadata are the message's headers;
`partitionKey` is its key, `ttlInSeconds` its time to live. A consumer group is a shared subscription.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tarry.core.delivery import Delivery
from tarry.core.errors import Rejected, TarryError
from tarry.core.message import Message
from tarry.core.names import TOPIC_SCHEME, TopicName, check_part
from tarry.outlets.dapr.component import (
    BulkEntry,
    Component,
    Feature,
    OwnMessage,
    OwnTopics,
    ReceiveMessage,
    Subscribed,
    Surroundings,
)
from tarry.outlets.dapr.delivery import CONTENT_TYPE, metadata_of
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Misconfigured, NeverTaken
from tarry.outlets.dapr.members import Members
from tarry.outlets.dapr.properties import Properties, ttl_ms_of

AT_ONCE: Final = 100
HELD_AT_ONCE: Final = 1_000_000_000
AGAIN_AFTER_MS: Final = 1_000


def component(properties: Properties, surroundings: Surroundings) -> Component:
    """`tenant`, `namespace`, `concurrency`, `redeliveryDelay`."""
    if surroundings.topics is None:
        raise Misconfigured("type", "pubsub.tarry works only inside a Tarry server")
    names = {}
    for field, default in (("tenant", "public"), ("namespace", "default")):
        names[field] = properties.text(field, default)
        try:
            check_part(names[field], field)
        except Rejected as error:
            raise Misconfigured(field, str(error).partition(": ")[2]) from None
    return OwnTopicsComponent(
        surroundings.topics,
        TopicName(names["tenant"], names["namespace"], ""),
        at_once=properties.number("concurrency", AT_ONCE, least=1, most=100_000),
        again_after_ms=properties.duration_ms("redeliveryDelay", AGAIN_AFTER_MS),
    )


class OwnTopicsComponent:
    """The component."""

    def __init__(self, topics: OwnTopics, home: TopicName, *, at_once: int, again_after_ms: int) -> None:
        self._topics = topics
        self.namespace = home.namespace_name
        self._at_once = at_once
        self._again_after_ms = again_after_ms
        self._members = Members()

    @property
    def features(self) -> frozenset[Feature]:
        """Messages expire by themselves; a bulk is one unit of the ledger."""
        return frozenset((Feature.MESSAGE_TTL, Feature.BULK_PUBSUB))

    def destination(self, topic: str) -> str:
        """The full name of a topic: what is scheduled straight to it arrives exactly once."""
        escaped = topic.replace("%", "%25").replace("/", "%2F")
        return f"{TOPIC_SCHEME}{self.namespace}/{escaped}"

    async def start(self) -> None:
        """Nothing to connect to."""

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Append to the topic; it is durable when this returns."""
        await self._append(topic, [own_message(data, metadata, content_type)])

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Append all or none."""
        try:
            await self._append(
                topic, [own_message(entry.data, entry.metadata, entry.content_type) for entry in entries]
            )
        except ComponentError as error:
            return {entry.entry_id: error for entry in entries}
        return {}

    async def _append(self, topic: str, messages: list[OwnMessage]) -> None:
        try:
            await self._topics.publish(self.destination(topic), messages)
        except Rejected as error:
            raise NeverTaken(str(error)) from error
        except TarryError as error:
            raise BrokerUnreachable(str(error)) from error

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
        """Receive as one of the shared subscription that is named like the group."""
        try:
            subscribed = await self._topics.subscribe(
                self.destination(topic),
                group,
                receive,
                at_once=HELD_AT_ONCE if hold else self._at_once,
                again_after_ms=self._again_after_ms,
            )
        except Rejected as error:
            raise NeverTaken(str(error)) from error
        except TarryError as error:
            raise BrokerUnreachable(str(error)) from error
        return self._members.add(subscribed)

    async def close(self) -> None:
        """End the subscriptions."""
        await self._members.close()


def handed_on(delivery: Delivery, destination: str) -> Message:
    """A message that was scheduled for this component and is due, on its way into the topic itself."""
    own = own_message(delivery.payload, metadata_of(delivery.headers), delivery.headers.get(CONTENT_TYPE))
    return Message(
        destination=destination,
        payload=own.data,
        headers=own.headers,
        key=own.key,
        owner=delivery.owner,
        door="dapr",
        due_at_ms=delivery.due_at_ms,
        ttl_ms=own.ttl_ms,
        idempotency_key=f"fired:{delivery.id}",
        follows=True,
    )


def own_message(data: bytes, metadata: Mapping[str, str], content_type: str | None) -> OwnMessage:
    """A publish as an entry of a topic."""
    headers = {name: value for name, value in metadata.items() if name and name != "ttlInSeconds"}
    if content_type:
        headers.setdefault("content-type", content_type)
    return OwnMessage(
        data=data, headers=headers, key=headers.pop("partitionKey", None), ttl_ms=ttl_ms_of(metadata)
    )
