"""Pulsar's binary protocol as far as a load needs it: frames that are built before the clock starts, answers that are counted."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import Frames, frame, with_checksum

READ_BYTES: Final = 1 << 18
FRAME_BYTES: Final = 1 << 24
WITHIN_S: Final = 120.0
TOGETHER: Final = 100
"""Frames that are sent in one piece."""


class Wire:
    """A connection that speaks frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        self._frames = Frames(FRAME_BYTES)
        self._commands = self._read()
        self.ask(
            type=wire.BaseCommand.CONNECT,
            connect=wire.CommandConnect(client_version="bench", protocol_version=20),
        )

    def _read(self) -> Iterator[wire.BaseCommand]:
        while data := self.socket.recv(READ_BYTES):
            for body, _ in self._frames.feed(data):
                yield wire.BaseCommand.FromString(body)

    def tell(self, **command: Any) -> None:
        """Send a command."""
        self.socket.sendall(frame(wire.BaseCommand(**command)))

    def ask(self, **command: Any) -> wire.BaseCommand:
        """Send a command, and give the next that comes."""
        self.tell(**command)
        answer = next(self._commands)
        assert answer.type != wire.BaseCommand.ERROR, answer
        return answer

    def produce(self, topic: str) -> None:
        """Become a producer."""
        producer = wire.CommandProducer(topic=topic, producer_id=1, request_id=1)
        self.ask(type=wire.BaseCommand.PRODUCER, producer=producer)

    def subscribe(self, topic: str, name: str) -> None:
        """Become a shared consumer, from the first message on."""
        subscribe = wire.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=wire.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=2,
            initialPosition=wire.CommandSubscribe.Earliest,
        )
        self.ask(type=wire.BaseCommand.SUBSCRIBE, subscribe=subscribe)

    def permit(self, count: int) -> None:
        """Let so many messages come."""
        self.tell(type=wire.BaseCommand.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=count))

    def close(self) -> None:
        """Go."""
        self.socket.close()


def sends(count: int, payload: bytes, deliver_at_ms: int | None) -> list[bytes]:
    """The frames of so many messages, all due at one instant or at once."""
    now_ms = time.time_ns() // 1_000_000
    frames: list[bytes] = []
    for sequence in range(count):
        metadata = wire.MessageMetadata(
            producer_name="bench", sequence_id=sequence, publish_time=now_ms, deliver_at_time=deliver_at_ms
        )
        command = wire.BaseCommand(
            type=wire.BaseCommand.SEND, send=wire.CommandSend(producer_id=1, sequence_id=sequence)
        )
        frames.append(frame(command, with_checksum(metadata.SerializeToString(), payload)))
    return frames


def send_all(connection: Wire, frames: Sequence[bytes], window: int) -> float:
    """Send frames, at most a window ahead of their receipts; gives the seconds until the last receipt."""
    chunks = [b"".join(frames[at : at + TOGETHER]) for at in range(0, len(frames), TOGETHER)]
    room = threading.Semaphore(window // TOGETHER)

    def send() -> None:
        for chunk in chunks:
            room.acquire()
            connection.socket.sendall(chunk)

    began = time.perf_counter()
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    _count_receipts(connection.socket, len(frames), room)
    seconds = time.perf_counter() - began
    sender.join()
    return seconds


def _count_receipts(incoming: socket.socket, count: int, room: threading.Semaphore) -> None:
    """Read until every message has its receipt. Frames are counted and not read: this is not what is measured."""
    rest = b""
    seen = 0
    while seen < count:
        data = rest + incoming.recv(READ_BYTES)
        at, before = 0, seen
        while at + 4 <= len(data):
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            at = stop
            seen += 1
        rest = data[at:]
        for _ in range(seen // TOGETHER - before // TOGETHER):
            room.release()


def acknowledged(ids: Sequence[tuple[int, int]]) -> bytes:
    """Acknowledge messages by ledger and entry, and let as many more come."""
    ack = wire.CommandAck(
        consumer_id=1,
        ack_type=wire.CommandAck.Individual,
        message_id=[wire.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids],
    )
    flow = wire.CommandFlow(consumer_id=1, messagePermits=len(ids))
    return frame(wire.BaseCommand(type=wire.BaseCommand.ACK, ack=ack)) + frame(
        wire.BaseCommand(type=wire.BaseCommand.FLOW, flow=flow)
    )
