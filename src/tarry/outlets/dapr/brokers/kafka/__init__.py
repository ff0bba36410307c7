"""`pubsub.kafka`: a topic is a Kafka topic, written and read as Dapr's component does.

A record's value is the bytes, its key the metadata `partitionKey` (or `__key`), its headers are all metadata. Keys go to
partitions as Dapr's library sends them there (FNV-1a), so that both keep the same order. A consumer group is
`consumerGroup`, or else the application's.

What a receiver refuses is given to it again every `consumeRetryInterval`, and the partition waits, as in Dapr. A subscription
that must last does not wait: see `offsets`.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send
from tarry.outlets.dapr.brokers.kafka.member import KafkaMember
from tarry.outlets.dapr.brokers.kafka.producing import ProducerThread
from tarry.outlets.dapr.brokers.kafka.settings import KafkaSettings, read_settings
from tarry.outlets.dapr.component import BulkEntry, Component, ComponentSurroundings, Feature, Subscribed
from tarry.outlets.dapr.errors import ComponentError
from tarry.outlets.dapr.properties import Properties


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """Read the metadata of a component, with the names and defaults of Dapr's."""
    del surroundings
    return Kafka(read_settings(properties))


class Kafka(BrokerComponent):
    """The component. Bulks are one request, as in Dapr. The library's failures come from its threads, translated already."""

    features = frozenset((Feature.BULK_PUBSUB,))

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__()
        self._settings = settings
        self._producing = ProducerThread(settings)

    async def connect(self) -> None:
        """Ask for the cluster."""
        await self._producing.start()

    async def sender(self, message: Outgoing) -> Send:
        """Produce a record; all in-sync replicas have it at the end."""
        await self._producing.start()
        return partial(self._producing.send, message.topic, message.data, message.metadata)

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Produce all; each has an outcome of its own."""
        try:
            await self._producing.start()
        except ComponentError as error:
            return {entry.entry_id: error for entry in entries}
        return await self._producing.send_all(topic, entries)

    async def join(self, joining: Joining) -> Subscribed:
        """Join the consumer group."""
        member = KafkaMember(self._settings, joining)
        await member.start()
        return member

    async def disconnect(self) -> None:
        """Leave the cluster."""
        await self._producing.close()
