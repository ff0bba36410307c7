"""The doors of Pulsar, Dapr and Matrix, each in its own words."""

import asyncio
import contextlib
import json
from typing import Any
from urllib.parse import quote

import httpx

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import frame, with_checksum
from tests.fuzz.values import Values

ROOM = "!room:example.org"


class Pulsar:
    """A client that says what it likes over a bare connection."""

    def __init__(self, port: int, values: Values) -> None:
        self._port = port
        self.values = values

    async def step(self) -> None:
        """Connect, produce or consume with extremes, and go."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        type_ = wire.BaseCommand
        try:
            connect = wire.CommandConnect(client_version="fuzz", protocol_version=19)
            writer.write(frame(type_(type=type_.CONNECT, connect=connect)))
            topic = f"persistent://public/default/{self.values.name()}"
            for data in self._produce(topic) if self.values.chance(0.6) else self._consume(topic):
                writer.write(data)
            # What comes back, if anything, within a moment.
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.3):
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.transport.abort()

    def _produce(self, topic: str) -> list[bytes]:
        values, type_ = self.values, wire.BaseCommand
        schema = wire.Schema(
            name="s", schema_data=b"x" * values.one(0, 10, 100_000), type=values.one(0, 1, 2, 4)
        )
        producer = wire.CommandProducer(
            topic=topic,
            producer_id=1,
            request_id=1,
            producer_name=values.name(),
            schema=schema if values.chance(0.2) else None,
        )
        frames = [frame(type_(type=type_.PRODUCER, producer=producer))]
        for n in range(values.one(1, 5, 50)):
            metadata = wire.MessageMetadata(
                producer_name="p",
                sequence_id=abs(values.integer()) % (1 << 63),
                publish_time=abs(values.integer()) % (1 << 63),
            )
            if values.chance(0.7):
                metadata.deliver_at_time = max(-(1 << 63), min(values.instant_ms(), (1 << 63) - 1))
            if values.chance(0.2):
                metadata.num_messages_in_batch = values.one(0, 1, 1_000, (1 << 31) - 1, -1)
            for name in range(values.one(0, 0, 3, 200)):
                metadata.properties.add(key=f"k{name}", value="v" * 20)
            send = wire.CommandSend(
                producer_id=1, sequence_id=n, num_messages=values.one(1, 1, 1, 1_000, (1 << 31) - 1)
            )
            message = with_checksum(metadata.SerializeToString(), values.payload().encode("utf-8", "replace"))
            frames.append(frame(type_(type=type_.SEND, send=send), message))
        return frames

    def _consume(self, topic: str) -> list[bytes]:
        values, type_ = self.values, wire.BaseCommand
        subscribe = wire.CommandSubscribe(
            topic=topic, subscription=values.name(), subType=values.one(0, 1, 2, 3), consumer_id=1, request_id=1,
            initialPosition=values.one(0, 1), durable=values.chance(0.8),
        )  # fmt: skip
        ids = [
            wire.MessageIdData(
                ledgerId=abs(values.integer()) % (1 << 63), entryId=abs(values.integer()) % (1 << 63)
            )
            for _ in range(values.one(1, 100))
        ]
        ack = wire.CommandAck(consumer_id=1, ack_type=values.one(0, 1), message_id=ids)
        permits = values.one(1, 1_000, (1 << 32) - 1)
        return [
            frame(type_(type=type_.SUBSCRIBE, subscribe=subscribe)),
            frame(type_(type=type_.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=permits))),
            frame(type_(type=type_.ACK, ack=ack)),
        ]


class Dapr:
    """An application that publishes with whatever metadata comes to its mind."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values

    async def step(self) -> None:
        """Publish once, or in bulk."""
        values = self.values
        metadata = values.some(
            scheduledSendTime=lambda: values.one(
                "1970-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
                "2026-02-30T00:00:00Z",
                str(values.instant_ms()),
                "0001-01-01T00:00:00+14:00",
                values.text(30),
                "P1D",
                "PT0.5S",
                "1s",
            ),
            scheduledRepeat=lambda: values.one(
                "P0MT1S",
                "R1/PT1S",
                "R999999999/PT0.001S",
                "P1Y",
                "P999999999Y",
                "* * * * * *",
                "0 0 0 29 2 1",
                "@every 1ms",
                "@every 1s",
                "@yearly",
                values.text(30),
                "R2/P0DT1S",
            ),
            ttlInSeconds=lambda: str(values.integer()),
            rawPayload=lambda: values.one("true", "false", values.text(5)),
            partitionKey=lambda: values.text(300),
        )
        query = "&".join(f"metadata.{name}={quote(str(value), safe='')}" for name, value in metadata.items())
        type_ = values.one(
            "application/json", "text/plain", "application/cloudevents+json", values.one("a/", "+/") * 2_000
        )
        content: Any = json.dumps(
            values.one({"a": values.text(50)}, values.payload(), [], {"specversion": "1.0"})
        ).encode()
        bulk = values.chance(0.3)
        if bulk:
            entries = [
                {"entryId": str(n), "event": "x", "contentType": "text/plain"}
                for n in range(values.one(1, 100))
            ]
            content, type_ = json.dumps(entries).encode(), "application/json"
        path = f"/v1.0{'-alpha1' if bulk else ''}/publish/{'bulk/' if bulk else ''}pubsub/{values.name()}?{query}"
        await self.client.post(path, content=content, headers={"content-type": type_})


class Matrix:
    """A user who delays events."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self._sent = 0

    async def step(self) -> None:
        """Delay an event, list, or act on one."""
        values = self.values
        headers = {"authorization": f"Bearer {values.one('ann-token', 'bob-token')}"}
        self._sent += 1
        content = values.one(
            {}, {"body": values.text(1_000)}, {"n": values.integer() % (1 << 53)}, {"a": {"b": [1] * 1_000}}
        )
        delay = values.one(values.delay_ms(), values.integer(), values.text(5))
        path = f"/_matrix/client/v3/rooms/{quote(ROOM)}/send/m.x/{self._sent}?org.matrix.msc4140.delay={quote(str(delay))}"
        answer = await self.client.put(path, json=content, headers=headers)
        assert answer.status_code != 500, answer.text
        root = "/_matrix/client/unstable/org.matrix.msc4140/delayed_events"
        if answer.status_code == 200 and values.chance(0.5):
            action = values.one("cancel", "restart", "send", values.text(10))
            said = await self.client.post(
                f"{root}/{answer.json().get('delay_id', 'x')}", json={"action": action}, headers=headers
            )
            assert said.status_code != 500, said.text
        if values.chance(0.2):
            listed = await self.client.get(
                f"{root}?limit={values.integer()}&from={quote(values.text(20))}", headers=headers
            )
            assert listed.status_code != 500, listed.text
