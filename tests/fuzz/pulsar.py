"""The Pulsar door's binary protocol: every command, with anything in its fields, and frames that are none."""

import asyncio
import contextlib
import itertools
import json
from typing import Any, Final

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import frame, with_checksum
from tests.fuzz.messages import Known, filled
from tests.fuzz.values import TENANTS, Values

Type = wire.BaseCommand
LISTENS_S: Final = 0.3
MOST_BYTES: Final = (1 << 63) - 1
OTHERS: Final = (
    ("LOOKUP", "lookupTopic"), ("PARTITIONED_METADATA", "partitionMetadata"), ("GET_TOPICS_OF_NAMESPACE", "getTopicsOfNamespace"),
    ("GET_SCHEMA", "getSchema"), ("GET_OR_CREATE_SCHEMA", "getOrCreateSchema"), ("PING", "ping"), ("AUTH_RESPONSE", "authResponse"),
)  # fmt: skip
OF_CONSUMERS: Final = (
    ("FLOW", "flow"), ("ACK", "ack"), ("ACK", "ack"), ("SEEK", "seek"), ("REDELIVER_UNACKNOWLEDGED_MESSAGES", "redeliverUnacknowledgedMessages"),
    ("GET_LAST_MESSAGE_ID", "getLastMessageId"), ("CONSUMER_STATS", "consumerStats"), ("UNSUBSCRIBE", "unsubscribe"),
    ("CLOSE_CONSUMER", "close_consumer"), ("SUBSCRIBE", "subscribe"),
)  # fmt: skip
AVRO: Final = (
    {"type": "record", "name": "A", "fields": [{"name": "a", "type": "string"}]},
    {"type": "record", "name": "A", "fields": [{"name": "b", "type": ["null", "A"], "default": None}]},
    {"type": "map", "values": "A"}, {"type": "fixed", "name": "F", "size": 1 << 40}, {"type": "enum", "name": "E", "symbols": []},
    ["null", "string"], "int", {"type": "record", "name": "A", "fields": 1},
)  # fmt: skip


class Pulsar:
    """A client that says what it likes over bare connections."""

    def __init__(self, port: int, values: Values) -> None:
        self._port = port
        self.values = values
        self.accepted: list[str] = []
        self._numbers = itertools.count(1)
        self._known: Known = {
            "topic": self._topic, "namespace": lambda: values.one(*TENANTS), "subscription": values.name,
            "producer_id": lambda: 1, "consumer_id": lambda: 1, "request_id": lambda: next(self._numbers),
            "producer_name": lambda: values.one(values.name(), ""), "initial_subscription_name": values.name,
            "schema_data": self._schema, "messagePermits": lambda: values.one(1, 1_000, (1 << 32) - 1),
            "start_message_rollback_duration_sec": lambda: values.one(0, 1, 10**6),
        }  # fmt: skip
        self._of_messages: Known = {
            "deliver_at_time": lambda: max(-MOST_BYTES, min(values.instant_ms(), MOST_BYTES)), "num_messages_in_batch": lambda: 1,
            "compression": lambda: 0, "marker_type": lambda: 0, "chunk_id": lambda: values.one(0, 0, 1, 2),
            "num_chunks_from_msg": lambda: values.one(1, 2, 3), "uuid": lambda: values.one("u1", "u2"),
            "total_chunk_msg_size": lambda: values.one(10, 30), "partition_key": lambda: values.text(20),
        }  # fmt: skip

    async def step(self) -> None:
        """Connect, produce, consume or ask, and go."""
        values = self.values
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            connect = wire.CommandConnect(
                client_version="fuzz", protocol_version=values.one(19, 20, 0, 6, (1 << 31) - 1)
            )
            said = [frame(Type(type=Type.CONNECT, connect=connect))]
            said += values.one(
                self._produce, self._produce, self._produce, self._consume, self._consume, self._ask
            )()
            if values.chance(0.15):
                at = values.random.randrange(len(said))
                said[at] = values.mutated(said[at])
            writer.write(b"".join(said))
            # What comes back, if anything, within a moment.
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(LISTENS_S):
                    await writer.drain()
                    while await reader.read(1 << 16):
                        pass
        finally:
            writer.transport.abort()

    def _topic(self) -> str:
        values = self.values
        part = f"-partition-{values.one(0, 1, 2, 99)}" if values.chance(0.2) else ""
        kind = "persistent" if values.chance(0.95) else "non-persistent"
        return f"{kind}://{values.one(*TENANTS)}/{values.name()}{part}"

    def _schema(self) -> bytes:
        values = self.values
        return bytes(
            values.one(
                json.dumps(values.one(*AVRO)).encode(), values.document(), b"x" * values.one(0, 10, 100_000)
            )
        )

    def _command(self, name: str, field: str, message: bytes = b"", **fixed: Any) -> bytes:
        """The frame of a command, filled with anything but for what is fixed."""
        command = Type(type=Type.Type.Value(name))
        part: Any = getattr(command, field)
        part.SetInParent()
        filled(self.values, part, self._known)
        for place, value in fixed.items():
            setattr(part, place, value)
        return frame(command, message)

    def _ask(self) -> list[bytes]:
        return [self._command(*self.values.one(*OTHERS)) for _ in range(self.values.one(1, 3, 10))]

    def _consume(self) -> list[bytes]:
        values = self.values
        said = [
            self._command("SUBSCRIBE", "subscribe", consumer_id=1),
            self._command("FLOW", "flow", consumer_id=1),
        ]
        return said + [self._command(*values.one(*OF_CONSUMERS)) for _ in range(values.one(0, 2, 10))]

    def _produce(self) -> list[bytes]:
        values = self.values
        plain = values.chance(0.6)
        if plain:
            producer = wire.CommandProducer(
                topic=self._topic(), producer_id=1, request_id=1, producer_name=values.name()
            )
            said = [frame(Type(type=Type.PRODUCER, producer=producer))]
        else:
            said = [self._command("PRODUCER", "producer", producer_id=1)]
        said += [self._send(n) for n in range(values.one(1, 5, 50))]
        if values.chance(0.2):
            said.append(self._command("CLOSE_PRODUCER", "close_producer"))
        return said

    def _send(self, number: int) -> bytes:
        """A message: as clients send it, a batch, a piece of a large one, or with anything in any field."""
        values = self.values
        metadata = wire.MessageMetadata(
            producer_name="p",
            sequence_id=abs(values.integer()) % (1 << 63),
            publish_time=abs(values.integer()) % (1 << 63),
        )
        payload = values.payload().encode("utf-8", "replace")
        send = wire.CommandSend(
            producer_id=1, sequence_id=number, num_messages=values.one(1, 1, 1, 1_000, (1 << 31) - 1)
        )
        if values.chance(0.7):
            metadata.deliver_at_time = max(-(1 << 63), min(values.instant_ms(), MOST_BYTES))
        match values.random.randrange(5):
            case 0:
                payload, count = self._batch()
                metadata.num_messages_in_batch = (
                    count if values.chance(0.7) else values.one(0, 1_000, (1 << 31) - 1, -1)
                )
                send.num_messages = count
            case 1:
                filled(values, metadata, self._of_messages)
            case 2:
                metadata.uuid, metadata.chunk_id = values.one("u1", "u2"), number % 3
                metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = (
                    values.one(3, 3, 0, -1, (1 << 31) - 1),
                    30,
                )
                send.is_chunk = True
            case 3:
                for name in range(values.one(0, 3, 200)):
                    metadata.properties.add(key=f"k{name}", value="v" * 20)
        message = with_checksum(metadata.SerializeToString(), payload)
        return frame(
            Type(type=Type.SEND, send=send), values.mutated(message) if values.chance(0.05) else message
        )

    def _batch(self) -> tuple[bytes, int]:
        """Messages as they stand in a batch, whose sizes may be wrong, and their number."""
        values = self.values
        count = values.one(1, 2, 10)
        said = b""
        for _ in range(count):
            payload = values.data(30)
            size = len(payload) if values.chance(0.9) else values.one(0, -1, 1 << 20, (1 << 31) - 1)
            single = filled(values, wire.SingleMessageMetadata(), {"payload_size": lambda size=size: size})  # type: ignore[misc]
            data = single.SerializeToString()
            said += len(data).to_bytes(4, "big") + data + payload
        return said, count
