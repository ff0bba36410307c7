"""Kinds of brokers, as the contract needs to know them: its component's metadata, and what must be there beforehand."""

from typing import ClassVar
from uuid import uuid4

import nats

from tarry.outlets.dapr.component import Component
from tests.conformance.dapr.brokers.apache_pulsar import PulsarServer
from tests.conformance.dapr.brokers.servers import (
    KafkaServer,
    NatsServer,
    RabbitServer,
    RedisServer,
    Server,
    TarryServer,
)
from tests.processes import free_port
from tests.unit.broker_kit import made


class Broker:
    """A running broker and how Dapr's component file describes it."""

    kind: str
    numbered = True
    """Whether the broker gives each message a position of its own."""

    keeps_for_nobody = True
    """Whether a topic keeps messages to which nobody has subscribed."""
    puts_deadlines_off = True
    """Whether a message is kept past the broker's deadline although another member is there to take it."""
    deadline_s: float
    """How long the broker, or what stands in for it, waits for an acknowledgement where a test waits for that."""
    patience: ClassVar[dict[str, str]] = {}
    """The setting of that deadline: long enough for a busy machine to put it off in time."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def properties(self) -> dict[str, str]:
        """Metadata with short deadlines, and with whatever makes messages outlive the broker's process."""
        raise NotImplementedError

    def wrong_credentials(self) -> dict[str, str]:
        raise NotImplementedError

    def elsewhere(self) -> dict[str, str]:
        """An address where nobody listens."""
        raise NotImplementedError

    def component(self, **changes: str) -> Component:
        return made(self.kind, self.properties() | changes)

    async def topic(self, name: str = "") -> str:
        """The name of a new topic, with what the operator has to make for it."""
        return name or f"orders-{uuid4().hex[:8]}"


class RedisBroker(Broker):
    kind = "pubsub.redis"
    deadline_s = 2.0
    patience: ClassVar[dict[str, str]] = {"processingTimeout": "2s"}

    def properties(self) -> dict[str, str]:
        return {
            "redisHost": f"127.0.0.1:{self.server.port}",
            "redisPassword": RedisServer.PASSWORD,
            "processingTimeout": "600ms",
            "redeliverInterval": "100ms",
        }

    def wrong_credentials(self) -> dict[str, str]:
        return {"redisPassword": "guess"}

    def elsewhere(self) -> dict[str, str]:
        return {"redisHost": f"127.0.0.1:{free_port()}"}


class RabbitBroker(Broker):
    kind = "pubsub.rabbitmq"
    numbered = False
    keeps_for_nobody = False
    puts_deadlines_off = False
    deadline_s = 4.5

    def _address(self, password: str, port: int) -> dict[str, str]:
        return {"connectionString": f"amqp://{RabbitServer.USER}:{password}@127.0.0.1:{port}"}

    def properties(self) -> dict[str, str]:
        return self._address(RabbitServer.PASSWORD, self.server.port) | {
            "deliveryMode": "2",
            "requeueInFailure": "true",
            "reconnectWaitSeconds": "0.1s",
        }

    def wrong_credentials(self) -> dict[str, str]:
        return self._address("guess", self.server.port)

    def elsewhere(self) -> dict[str, str]:
        return self._address("any", free_port())


class NatsBroker(Broker):
    kind = "pubsub.jetstream"
    deadline_s = 2.0
    patience: ClassVar[dict[str, str]] = {"ackWait": "2s"}

    def _address(self, token: str, port: int) -> dict[str, str]:
        return {"natsURL": f"nats://127.0.0.1:{port}", "token": token}

    def properties(self) -> dict[str, str]:
        return self._address(NatsServer.TOKEN, self.server.port) | {"ackWait": "1s"}

    def wrong_credentials(self) -> dict[str, str]:
        return {"token": "guess"}

    def elsewhere(self) -> dict[str, str]:
        return self._address("any", free_port())

    async def topic(self, name: str = "") -> str:
        """Streams are made by operators: Dapr's component does not."""
        topic = await super().topic(name)
        client = await nats.connect(f"nats://127.0.0.1:{self.server.port}", token=NatsServer.TOKEN)
        await client.jetstream().add_stream(name=topic, subjects=[topic])
        await client.close()
        return topic


class KafkaBroker(Broker):
    kind = "pubsub.kafka"
    puts_deadlines_off = False
    """A member that joins gets its share of the partitions, with what others held of them."""
    deadline_s = 2.0

    def properties(self) -> dict[str, str]:
        return {
            "brokers": f"127.0.0.1:{self.server.port}",
            "authType": "password",
            "disableTls": "true",
            "saslUsername": KafkaServer.USER,
            "saslPassword": KafkaServer.PASSWORD,
            "sessionTimeout": "2s",
            "heartbeatInterval": "300ms",
        }

    def wrong_credentials(self) -> dict[str, str]:
        return {"saslPassword": "guess"}

    def elsewhere(self) -> dict[str, str]:
        return {"brokers": f"127.0.0.1:{free_port()}"}


class PulsarBroker(Broker):
    kind = "pubsub.pulsar"
    deadline_s = 1.0
    """There is none."""
    token = TarryServer.TOKEN

    def properties(self) -> dict[str, str]:
        return {
            "host": f"127.0.0.1:{self.server.port}",
            "token": self.token,
            "redeliveryDelay": "200ms",
        }

    def wrong_credentials(self) -> dict[str, str]:
        return {"token": "guess"}

    def elsewhere(self) -> dict[str, str]:
        return {"host": f"127.0.0.1:{free_port()}"}


class ApachePulsarBroker(PulsarBroker):
    token = PulsarServer.TOKEN
