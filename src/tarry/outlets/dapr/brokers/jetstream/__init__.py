"""`pubsub.jetstream`: a topic is a subject of a NATS JetStream stream, used as Dapr's component does.

Streams are the operator's: a topic that no stream has is refused, and so is a delayed topic. A message is the
bytes; a CloudEvent's id goes along as `Nats-Msg-Id`, so that the stream drops repetitions. A subscription is a push
consumer, durable by `durableName` and shared by `queueGroupName`: NATS knows no other consumer group here.

Unlike Dapr's component, several members of a queue group share the consumer that is there already.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from nats.js.errors import NoStreamResponseError, NotFoundError

from tarry.outlets.dapr.brokers.jetstream.failures import FAILURES, component_error
from tarry.outlets.dapr.brokers.jetstream.link import NatsLink
from tarry.outlets.dapr.brokers.jetstream.member import NatsMember
from tarry.outlets.dapr.brokers.jetstream.settings import NatsSettings, read_settings
from tarry.outlets.dapr.component import (
    BulkEntry,
    Component,
    Feature,
    ReceiveMessage,
    Subscribed,
    Surroundings,
    publish_each,
)
from tarry.outlets.dapr.errors import ComponentError, TopicMissing
from tarry.outlets.dapr.events import event_id
from tarry.outlets.dapr.members import Members
from tarry.outlets.dapr.properties import Properties

AT_ONCE: Final = 500
"""Publishes of a bulk that wait for their answers together."""


def component(properties: Properties, surroundings: Surroundings) -> Component:
    """Read the metadata; the names and defaults are those of Dapr's component."""
    del surroundings
    return JetStream(NatsLink(properties), read_settings(properties))


class JetStream:
    """The component."""

    def __init__(self, link: NatsLink, settings: NatsSettings) -> None:
        self._link = link
        self._settings = settings
        self._members = Members()

    @property
    def features(self) -> frozenset[Feature]:
        """None, as in Dapr."""
        return frozenset()

    async def start(self) -> None:
        """Connect."""
        try:
            await self._link.connection()
        except FAILURES as error:
            raise component_error(error) from error

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Publish to the subject and wait for the stream's answer."""
        sent = False
        try:
            stream = self._link.stream(await self._link.connection())
            id_ = event_id(data)
            sent = True
            await stream.publish(topic, data, headers={"Nats-Msg-Id": id_} if id_ else None)
        except NoStreamResponseError:
            raise _no_stream(topic) from None
        except FAILURES as error:
            raise component_error(error, sent=sent) from error

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Publish all, many at a time."""
        return await publish_each(self, topic, entries, AT_ONCE)

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
        """Make the consumer, or find it, and receive from it."""
        member = NatsMember(self._link, self._settings, topic, group, receive, lasting=lasting, hold=hold)
        try:
            await member.start()
        except NotFoundError:
            raise _no_stream(topic) from None
        except FAILURES as error:
            raise component_error(error) from error
        return self._members.add(member)

    async def close(self) -> None:
        """End the subscriptions and disconnect."""
        await self._members.close()
        await self._link.close()


def _no_stream(topic: str) -> TopicMissing:
    return TopicMissing(f"JetStream: no stream has the subject {topic}; make one, or add it to one")
