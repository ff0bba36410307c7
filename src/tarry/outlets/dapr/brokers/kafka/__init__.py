"""`pubsub.kafka`: a topic is a Kafka topic, written and read as Dapr's component does.

A record's value is the bytes, its key the metadata `partitionKey` (or `__key`), its headers are all metadata. Keys go to
partitions as Dapr's library sends them there (FNV-1a), so that both keep the same order. A consumer group is
`consumerGroup`, or else the application's.

What a receiver refuses is given to it again every `consumeRetryInterval`, and the partition waits, as in Dapr. A subscription
that must last does not wait: see `offsets`.
"""

from collections.abc import Mapping, Sequence

from tarry.outlets.dapr.brokers.kafka.member import KafkaMember
from tarry.outlets.dapr.brokers.kafka.producing import ProducerThread
from tarry.outlets.dapr.brokers.kafka.settings import KafkaSettings, read_settings
from tarry.outlets.dapr.component import (
    BulkEntry,
    Component,
    Feature,
    ReceiveMessage,
    Subscribed,
    Surroundings,
)
from tarry.outlets.dapr.errors import ComponentError
from tarry.outlets.dapr.members import Members
from tarry.outlets.dapr.properties import Properties


def component(properties: Properties, surroundings: Surroundings) -> Component:
    """Read the metadata; the names and defaults are those of Dapr's component."""
    del surroundings
    return Kafka(read_settings(properties))


class Kafka:
    """The component."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producing = ProducerThread(settings)
        self._members = Members()

    @property
    def features(self) -> frozenset[Feature]:
        """Bulks are one request, as in Dapr."""
        return frozenset((Feature.BULK_PUBSUB,))

    async def start(self) -> None:
        """Ask for the cluster."""
        await self._producing.start()

    async def publish(
        self,
        topic: str,
        data: bytes,
        metadata: Mapping[str, str],
        content_type: str | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Produce a record; all in-sync replicas have it when this returns."""
        await self._producing.start()
        await self._producing.send(topic, data, metadata)

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Produce all; each has an outcome of its own."""
        try:
            await self._producing.start()
        except ComponentError as error:
            return {entry.entry_id: error for entry in entries}
        return await self._producing.send_all(topic, entries)

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
        """Join the consumer group."""
        member = KafkaMember(self._settings, topic, group, receive, lasting=lasting, hold=hold)
        await member.start()
        return self._members.add(member)

    async def close(self) -> None:
        """Leave the groups and disconnect."""
        await self._members.close()
        await self._producing.close()
