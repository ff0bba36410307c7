"""The broker that all connections of the Pulsar door share: the engine behind it, who may do what, and who produces where."""

import secrets
from collections import Counter
from typing import Final

from tarry.config.pulsar import Pulsar
from tarry.core.tenants.access import Access
from tarry.core.tenants.shares import Shares
from tarry.doors.pulsar.exclusivity import Producing
from tarry.doors.pulsar.rules import RuleBook
from tarry.doors.pulsar.schema import Schemas
from tarry.engine.api import Topic
from tarry.engine.engine import Engine

DOOR: Final = "pulsar"
"""The name of this door, in messages and entries that came through it."""


class Broker:
    """The server as its Pulsar clients see it."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        settings: Pulsar,
        schemas: Schemas,
        max_connections: int = 1_000,
    ) -> None:
        self.engine = engine
        self.access = access
        self.settings = settings
        self.schemas = schemas
        self.rules = RuleBook(engine)
        self.connection_places = Shares(max_connections, "connections", access)
        self.producer_places = Shares(settings.max_producers, "producers", access)
        self.consumer_places = Shares(settings.max_consumers, "consumers", access)
        self.delays_refused = Counter(too_long=0, off=0)
        """Messages that were refused because their delay is too long, or because delaying is off, by choice."""
        self.connections_failed = 0
        """Connections that were ended with a reason: what came was no frame, or nothing came."""
        self.producing: dict[str, Producing] = {}
        """By the full name of a topic: who produces to it."""
        self.stopping = False
        engine.topics.tell_of_deleted(self._deleted)

    def producing_to(self, topic: str) -> Producing:
        """The producers of a topic."""
        found = self.producing.get(topic)
        if found is None:
            found = self.producing[topic] = Producing(topic, self.engine.topics.epoch(topic))
        return found

    def forget_idle(self, topic: str) -> None:
        """Forget the state of topics to which nobody produces."""
        found = self.producing.get(topic)
        if found is not None and found.idle:
            del self.producing[topic]

    async def disconnect(self, topic: Topic) -> None:
        """Close the producers and consumers of a topic; their clients connect them again. Readers begin where they were."""
        producing = self.producing.get(topic.name)
        if producing is not None:
            producing.evict_all()
            self.forget_idle(topic.name)
        for sub in list(topic.subscriptions.values()):
            if sub.durable:
                sub.disconnect()
            else:
                await self.engine.topics.end(sub)

    def _deleted(self, topic: Topic) -> None:
        """Close the producers of a topic that is gone: clients connect them again, to whatever has its name then."""
        found = self.producing.pop(topic.name, None)
        if found is not None:
            found.lose_topic()

    @staticmethod
    def new_name(prefix: str) -> str:
        """A name for a producer or consumer that has none; no other has it, not even after a restart."""
        return f"{prefix}-{secrets.token_hex(8)}"
