"""A client of the protocol object without any I/O: commands in, commands out, on an engine that is stepped by hand."""

from collections.abc import Callable
from typing import Any

from tarry.config.pulsar import Pulsar
from tarry.core.rules.policy import Policy
from tarry.core.tenants.access import Access
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.connection import PulsarConnection
from tarry.doors.pulsar.frames import Frames, frame, with_checksum
from tarry.doors.pulsar.ids import EARLIER_LEDGER
from tarry.doors.pulsar.stored_schemas import StoredSchemas
from tarry.ledger.ledger import LedgerSettings
from tests.unit.engine_kit import Bench

TOPIC = "persistent://public/default/t"
Type = wire.BaseCommand
Sub = wire.CommandSubscribe
IN_ORDER = [Sub.Exclusive, Sub.Failover]
ALL = [*IN_ORDER, Sub.Shared, Sub.Key_Shared]


class Desk:
    """A broker on an engine of its own."""

    def __init__(self, access: Access | None = None, bench: Bench | None = None, **settings: Any) -> None:
        self.bench = bench or Bench(ledger_settings=LedgerSettings(segment_bytes=8 << 20))
        engine = self.bench.engine
        self.broker = Broker(engine, access or Access.open(), Pulsar(**settings), StoredSchemas(engine))

    def deduplicate(self, on: bool = True) -> None:
        """Set the topic's policy."""
        self.bench.ask(self.bench.engine.set_policy("topic", TOPIC, Policy(deduplication=on)))

    def client(self, version: str = "test", *, token: bytes = b"", connect: bool = True) -> "Client":
        client = Client(self, version)
        if connect:
            client.connect(token)
        return client


class Client:
    """One connection, and what came back on it."""

    def __init__(self, desk: Desk, version: str = "test") -> None:
        self.desk = desk
        self.version = version
        self.closed = False
        self.pauses: list[bool] = []
        self.later: list[tuple[int, Callable[[], None]]] = []
        self.got: list[tuple[wire.BaseCommand, bytes]] = []
        self._frames = Frames(1 << 24)
        self._request = 0
        self.connection = PulsarConnection(desk.broker, self, "127.0.0.1", "pulsar://127.0.0.1:6650")

    # What the connection writes to

    def write(self, data: bytes) -> None:
        assert not self.closed
        for body, message in self._frames.feed(data):
            self.got.append((wire.BaseCommand.FromString(body), message))

    def close(self) -> None:
        self.closed = True

    def pause(self) -> None:
        self.pauses.append(True)

    def resume(self) -> None:
        self.pauses.append(False)

    def after(self, wait_ms: int, work: Callable[[], None]) -> None:
        self.later.append((wait_ms, work))

    # What a client says

    def tell(self, message: bytes = b"", **command: Any) -> None:
        """Send a command, and let the engine do what follows."""
        self.connection.receive(frame(wire.BaseCommand(**command), message))
        self.desk.bench.rest()

    def ask(self, **command: Any) -> wire.BaseCommand:
        """Send a command; gives the last that came back."""
        before = len(self.got)
        self.tell(**command)
        assert len(self.got) > before, "no answer"
        return self.got[-1][0]

    def take(self, *types: int) -> list[wire.BaseCommand]:
        """The commands of some types that came so far, and are told of once."""
        found = [command for command, _ in self.got if not types or command.type in types]
        self.got = [pair for pair in self.got if types and pair[0].type not in types]
        return found

    def request(self) -> int:
        self._request += 1
        return self._request

    def connect(self, token: bytes = b"") -> wire.BaseCommand:
        connect = wire.CommandConnect(client_version=self.version, protocol_version=20, auth_data=token)
        return self.ask(type=Type.CONNECT, connect=connect)

    def produce(self, producer_id: int = 1, topic: str = TOPIC, **fields: Any) -> wire.BaseCommand:
        producer = wire.CommandProducer(
            topic=topic, producer_id=producer_id, request_id=self.request(), **fields
        )
        return self.ask(type=Type.PRODUCER, producer=producer)

    def send(self, sequence: int, payload: bytes = b"x", producer_id: int = 1, **metadata: Any) -> None:
        self.tell(
            message_of(payload, sequence, **metadata),
            type=Type.SEND,
            send=wire.CommandSend(
                producer_id=producer_id,
                sequence_id=sequence,
                num_messages=metadata.get("num_messages_in_batch", 1),
            ),
        )

    def send_batch(
        self, first: int, messages: int, highest: int = 0, payload: bytes = b"x", producer_id: int = 1
    ) -> None:
        """Send a batch as one entry; the C++ client does not state its highest sequence id."""
        send = wire.CommandSend(
            producer_id=producer_id, sequence_id=first, highest_sequence_id=highest, num_messages=messages
        )
        message = message_of(payload, first, num_messages_in_batch=messages)
        self.tell(message, type=Type.SEND, send=send)

    def subscribe(
        self, consumer_id: int = 1, type_: Any = Sub.Shared, permits: int = 1000, **fields: Any
    ) -> wire.BaseCommand:
        fields = {"topic": TOPIC, "subscription": "sub", "initialPosition": Sub.Earliest, **fields}
        asked = wire.CommandSubscribe(
            subType=type_, consumer_id=consumer_id, request_id=self.request(), **fields
        )
        answer = self.ask(type=Type.SUBSCRIBE, subscribe=asked)
        if permits:
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.tell(type=Type.FLOW, flow=wire.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    def ack(self, *entry_ids: int, consumer_id: int = 1, cumulative: bool = False, **fields: Any) -> None:
        ack = wire.CommandAck(
            consumer_id=consumer_id,
            ack_type=wire.CommandAck.Cumulative if cumulative else wire.CommandAck.Individual,
            message_id=[place(entry_id) for entry_id in entry_ids],
            **fields,
        )
        self.tell(type=Type.ACK, ack=ack)

    # What came

    def messages(self) -> list[tuple[int, bytes]]:
        """The entry ids and payloads that came, told of once."""
        found = [
            (command.message.message_id.entryId, payload_of(message))
            for command, message in self.got
            if command.type == Type.MESSAGE
        ]
        self.take(Type.MESSAGE)
        return found

    def receipts(self) -> list[tuple[int, int]]:
        """The sequence ids and entry ids of the receipts that came, told of once."""
        return [
            (command.send_receipt.sequence_id, command.send_receipt.message_id.entryId)
            for command in self.take(Type.SEND_RECEIPT)
        ]


def place(entry_id: int, **fields: Any) -> wire.MessageIdData:
    return wire.MessageIdData(ledgerId=EARLIER_LEDGER, entryId=entry_id, **fields)


def message_of(payload: bytes, sequence: int, **metadata: Any) -> bytes:
    fields = {"producer_name": "p", "publish_time": 1_000_000, **metadata}
    return with_checksum(wire.MessageMetadata(sequence_id=sequence, **fields).SerializeToString(), payload)


def payload_of(message: bytes) -> bytes:
    size = int.from_bytes(message[6:10], "big")
    return message[10 + size :]


def filled(desk: Desk, count: int, **metadata: Any) -> Client:
    writer = desk.client()
    writer.produce()
    for sequence in range(count):
        writer.send(sequence, b"%d" % sequence, **metadata)
    return writer


def ids(client: Client) -> list[int]:
    return [entry_id for entry_id, _ in client.messages()]
