"""A blocking client that speaks frames, for what the real one hides: receipts and acknowledgements one by one."""

import socket
from collections.abc import Iterator
from typing import Any

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import Frames, frame, with_checksum
from tarry.doors.pulsar.ids import EARLIER_LEDGER

Type = wire.BaseCommand
Sub = wire.CommandSubscribe


class Raw:
    """One connection."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("pulsar://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._frames = Frames(1 << 24)
        self._commands = self._read()
        connect = wire.CommandConnect(client_version="raw", protocol_version=20)
        self.ask(type=Type.CONNECT, connect=connect)

    def _read(self) -> Iterator[tuple[wire.BaseCommand, bytes]]:
        while data := self._socket.recv(1 << 16):
            for body, message in self._frames.feed(data):
                yield wire.BaseCommand.FromString(body), message
        raise ConnectionError("the server is gone")

    def tell(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self) -> tuple[wire.BaseCommand, bytes]:
        """The next command; raises `OSError` once the server is gone."""
        command, message = next(self._commands)
        if command.type == Type.PING:
            self.tell(frame(wire.BaseCommand(type=Type.PONG, pong=wire.CommandPong())))
            return self.hear()
        return command, message

    def ask(self, **command: Any) -> wire.BaseCommand:
        self.tell(frame(wire.BaseCommand(**command)))
        answer, _ = self.hear()
        assert answer.type != Type.ERROR, answer
        return answer

    def produce(self, topic: str, name: str) -> int:
        """Become producer 1; gives the last sequence id that is known of it."""
        asked = wire.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name=name)
        return self.ask(type=Type.PRODUCER, producer=asked).producer_success.last_sequence_id

    def subscribe(self, topic: str, name: str, type_: Any) -> None:
        """Become consumer 1, from the first message on."""
        asked = Sub(
            topic=topic,
            subscription=name,
            subType=type_,
            consumer_id=1,
            request_id=1,
            initialPosition=Sub.Earliest,
        )
        self.ask(type=Type.SUBSCRIBE, subscribe=asked)

    def close(self) -> None:
        self._socket.close()


def send_frame(sequence: int, payload: bytes, publish_ms: int, deliver_at_ms: int | None, key: str) -> bytes:
    metadata = wire.MessageMetadata(
        producer_name="raw",
        sequence_id=sequence,
        publish_time=publish_ms,
        deliver_at_time=deliver_at_ms,
        partition_key=key,
    )
    command = wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=sequence))
    return frame(command, with_checksum(metadata.SerializeToString(), payload))


def flow_frame(permits: int) -> bytes:
    return frame(
        wire.BaseCommand(type=Type.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=permits))
    )


def ack_frame(entry_ids: list[int], request_id: int) -> bytes:
    ack = wire.CommandAck(
        consumer_id=1,
        ack_type=wire.CommandAck.Individual,
        message_id=[wire.MessageIdData(ledgerId=EARLIER_LEDGER, entryId=entry_id) for entry_id in entry_ids],
        request_id=request_id,
    )
    return frame(wire.BaseCommand(type=Type.ACK, ack=ack))
