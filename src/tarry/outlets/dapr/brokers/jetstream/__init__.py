"""`pubsub.jetstream`: a topic is a subject of a NATS JetStream stream, used as Dapr's component does.

Streams are the operator's: a topic that no stream has is refused, and so is a delayed topic. A message is the
bytes; a CloudEvent's id goes along as `Nats-Msg-Id`, so that the stream drops repetitions. A subscription is a push
consumer, durable by `durableName` and shared by `queueGroupName`: NATS knows no other consumer group here.

Unlike Dapr's component, several members of a queue group share the consumer that is there already.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from nats.js import JetStreamContext
from nats.js.errors import NoStreamResponseError, NotFoundError

from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send
from tarry.outlets.dapr.brokers.jetstream.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.jetstream.link import NatsLink
from tarry.outlets.dapr.brokers.jetstream.member import NatsMember
from tarry.outlets.dapr.brokers.jetstream.settings import NatsSettings, read_settings
from tarry.outlets.dapr.component import BulkEntry, Component, ComponentSurroundings, Subscribed, publish_each
from tarry.outlets.dapr.errors import ComponentError, TopicMissing
from tarry.outlets.dapr.events import event_id
from tarry.outlets.dapr.properties import Properties

AT_ONCE: Final = 500
"""Publishes of a bulk that wait for their answers together."""


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """Read the metadata of a component, with the names and defaults of Dapr's."""
    del surroundings
    return JetStream(NatsLink(properties), read_settings(properties))


class JetStream(BrokerComponent):
    """The component. It has no features of its own, as in Dapr."""

    failures = FAILURES

    def __init__(self, link: NatsLink, settings: NatsSettings) -> None:
        super().__init__()
        self._link = link
        self._settings = settings

    def error_of(self, failure: Exception, topic: str, *, sent: bool) -> ComponentError:
        """The meaning of a failure."""
        return component_error(failure, sent=sent)

    async def connect(self) -> None:
        """Connect."""
        await self._link.connection()

    async def sender(self, message: Outgoing) -> Send:
        """Publish to the subject and wait for the stream's answer."""
        stream = self._link.stream(await self._link.connection())
        return partial(_publish, stream, message, event_id(message.data))

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Publish all, many at a time."""
        return await publish_each(self, topic, entries, AT_ONCE)

    async def join(self, joining: Joining) -> Subscribed:
        """Make the consumer, or find it, and receive from it."""
        member = NatsMember(self._link, self._settings, joining)
        try:
            await member.start()
        except NotFoundError:
            raise _no_stream(joining.topic) from None
        return member

    async def disconnect(self) -> None:
        """Close the connection."""
        await self._link.close()


async def _publish(stream: JetStreamContext, message: Outgoing, id_: str | None) -> None:
    try:
        await stream.publish(message.topic, message.data, headers={"Nats-Msg-Id": id_} if id_ else None)
    except NoStreamResponseError:
        raise _no_stream(message.topic) from None


def _no_stream(topic: str) -> TopicMissing:
    return TopicMissing(f"JetStream: no stream has the subject {topic}; make one, or add it to one")
