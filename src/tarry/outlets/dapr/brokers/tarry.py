"""`pubsub.tarry`: Tarry's own durable topics. No broker is needed.

A topic T is `persistent://tenant/namespace/T`, by default in `public/default`, where the native API and
the Pulsar door find it too; a slash in T is written `%2F`. A publish's metadata are the message's headers;
`partitionKey` is its key, `ttlInSeconds` its time to live. A consumer group is a shared subscription.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from tarry.core.errors import Rejected, TarryError
from tarry.core.messages.delivery import Delivery
from tarry.core.messages.message import Message
from tarry.core.names import TOPIC_SCHEME, TopicName, check_part
from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send
from tarry.outlets.dapr.component import (
    BulkEntry,
    Component,
    ComponentSurroundings,
    Feature,
    OwnMessage,
    OwnTopics,
    Subscribed,
)
from tarry.outlets.dapr.delivery import CONTENT_TYPE, metadata_of
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Misconfigured, NeverTaken
from tarry.outlets.dapr.properties import Properties, ttl_ms_of

AT_ONCE: Final = 100
HELD_AT_ONCE: Final = 1_000_000_000
AGAIN_AFTER_MS: Final = 1_000


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
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


class OwnTopicsComponent(BrokerComponent):
    """The component. Messages expire by themselves; a bulk is one unit of the ledger."""

    features = frozenset((Feature.MESSAGE_TTL, Feature.BULK_PUBSUB))
    failures = (TarryError,)

    def __init__(self, topics: OwnTopics, home: TopicName, *, at_once: int, again_after_ms: int) -> None:
        super().__init__()
        self._topics = topics
        self.namespace = home.namespace_name
        self._at_once = at_once
        self._again_after_ms = again_after_ms

    def destination(self, topic: str) -> str:
        """The full name of a topic: what is scheduled straight to it arrives exactly once."""
        escaped = topic.replace("%", "%25").replace("/", "%2F")
        return f"{TOPIC_SCHEME}{self.namespace}/{escaped}"

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The meaning of an error of the engine; a refused message is not in the topic."""
        kind = NeverTaken if isinstance(failure, Rejected) else BrokerUnreachable
        return kind(str(failure))

    async def sender(self, message: Outgoing) -> Send:
        """Append to the topic."""
        own = own_message(message.data, message.metadata, message.content_type)
        return partial(self._topics.publish, self.destination(message.topic), [own])

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Append all or none."""
        try:
            own = [own_message(entry.data, entry.metadata, entry.content_type) for entry in entries]
            with self.translated(topic):
                await self._topics.publish(self.destination(topic), own)
        except ComponentError as error:
            return {entry.entry_id: error for entry in entries}
        return {}

    async def join(self, joining: Joining) -> Subscribed:
        """Receive as one of the shared subscription that is named like the group."""
        return await self._topics.subscribe(
            self.destination(joining.topic),
            joining.group,
            joining.receive,
            at_once=HELD_AT_ONCE if joining.hold else self._at_once,
            again_after_ms=self._again_after_ms,
        )


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
