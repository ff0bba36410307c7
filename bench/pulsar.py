"""The Pulsar door under load: frames replayed as they are, and the real client.

A replay is what a client would send, built before the clock starts: it shows the server's part. The real client shows what its
users get; on two cores it is mostly the client that is measured.
"""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.figures import Figures, Lateness
from bench.plan import PAYLOAD_BYTES, Plan
from bench.processes import free_port
from bench.tarry_server import TarryServer
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import LEDGER_ID, Frames, frame, with_checksum

TOPIC: Final = "persistent://public/default/bench"
HOUR_MS: Final = 3_600_000
WINDOW: Final = 2_000
"""Messages under way, as a client that does not wait for each has them."""
READ_BYTES: Final = 1 << 18
WITHIN_S: Final = 120.0


@dataclass(frozen=True)
class Rate:
    """How fast it went, and the processor time of the server for each."""

    per_s: float
    cpu_us: float


def serving(folder: Path) -> tuple[TarryServer, int]:
    """A server with the door open, and the door's port."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tarry.toml").write_text(f"[doors.pulsar]\nenabled = true\nport = {port}\n")
    return TarryServer(folder), port


class Wire:
    """A connection that speaks frames."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        self._frames = Frames(1 << 24)
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

    def produce(self) -> None:
        """Become a producer."""
        producer = wire.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        self.ask(type=wire.BaseCommand.PRODUCER, producer=producer)

    def subscribe(self, name: str) -> None:
        """Become a shared consumer, from the first message on."""
        subscribe = wire.CommandSubscribe(
            topic=TOPIC,
            subscription=name,
            subType=wire.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=2,
            initialPosition=wire.CommandSubscribe.Earliest,
        )
        self.ask(type=wire.BaseCommand.SUBSCRIBE, subscribe=subscribe)

    def close(self) -> None:
        """Go."""
        self.socket.close()


def sends(count: int, payload: bytes, delay_ms: int | None) -> list[bytes]:
    """The frames of so many messages."""
    now_ms = time.time_ns() // 1_000_000
    frames: list[bytes] = []
    for sequence in range(count):
        metadata = wire.MessageMetadata(
            producer_name="bench",
            sequence_id=sequence,
            publish_time=now_ms,
            deliver_at_time=None if delay_ms is None else now_ms + delay_ms,
        )
        command = wire.BaseCommand(
            type=wire.BaseCommand.SEND, send=wire.CommandSend(producer_id=1, sequence_id=sequence)
        )
        frames.append(frame(command, with_checksum(metadata.SerializeToString(), payload)))
    return frames


def replay(server: TarryServer, port: int, count: int, payload: bytes, delay_ms: int | None) -> Rate:
    """Send frames built before, a window ahead of the receipts, which come once they are durable."""
    frames = sends(count, payload, delay_ms)
    chunks = [b"".join(frames[at : at + 100]) for at in range(0, count, 100)]
    connection = Wire(port)
    connection.produce()
    room = threading.Semaphore(WINDOW // 100)
    cpu_s = server.cpu_s()
    began = time.perf_counter()

    def send() -> None:
        for chunk in chunks:
            room.acquire()
            connection.socket.sendall(chunk)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    _count_receipts(connection.socket, count, room)
    seconds = time.perf_counter() - began
    cpu_us = (server.cpu_s() - cpu_s) / count * 1e6
    sender.join()
    connection.close()
    return Rate(count / seconds, cpu_us)


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
        for _ in range(seen // 100 - before // 100):
            room.release()


def consume(server: TarryServer, port: int, count: int, name: str) -> Rate:
    """Receive so many messages that are there, and acknowledge them, as a client's queue of a thousand does."""
    connection = Wire(port)
    connection.subscribe(name)
    cpu_s = server.cpu_s()
    began = time.perf_counter()
    connection.tell(type=wire.BaseCommand.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=WINDOW))
    got: list[int] = []
    seen = 0
    frames = Frames(1 << 24)
    while seen < count:
        for body, _ in frames.feed(connection.socket.recv(READ_BYTES)):
            got.append(wire.BaseCommand.FromString(body).message.message_id.entryId)
        if len(got) >= WINDOW // 2 or seen + len(got) >= count:
            connection.socket.sendall(_acknowledged(got))
            seen += len(got)
            got = []
    seconds = time.perf_counter() - began
    cpu_us = (server.cpu_s() - cpu_s) / count * 1e6
    connection.close()
    return Rate(count / seconds, cpu_us)


def _acknowledged(entry_ids: list[int]) -> bytes:
    ack = wire.CommandAck(
        consumer_id=1,
        ack_type=wire.CommandAck.Individual,
        message_id=[wire.MessageIdData(ledgerId=LEDGER_ID, entryId=entry_id) for entry_id in entry_ids],
    )
    flow = wire.CommandFlow(consumer_id=1, messagePermits=len(entry_ids))
    return frame(wire.BaseCommand(type=wire.BaseCommand.ACK, ack=ack)) + frame(
        wire.BaseCommand(type=wire.BaseCommand.FLOW, flow=flow)
    )


# The real client


def real_sends(port: int, count: int, payload: bytes) -> float:
    """Delayed messages a second from the real client, which does not wait for each; until the last receipt."""
    import pulsar

    client = pulsar.Client(f"pulsar://127.0.0.1:{port}", logger=_quiet())
    producer = client.create_producer(
        TOPIC, max_pending_messages=WINDOW, block_if_queue_full=True, batching_enabled=False
    )
    left = threading.Semaphore(0)
    due_ms = time.time_ns() // 1_000_000 + HOUR_MS
    began = time.perf_counter()
    for _ in range(count):
        producer.send_async(payload, lambda *_: left.release(), deliver_at=due_ms)
    producer.flush()
    for _ in range(count):
        left.acquire()
    seconds = time.perf_counter() - began
    client.close()
    return count / seconds


def real_burst(port: int, count: int, payload: bytes, lead_ms: int) -> Lateness:
    """How late a real client's listener gets messages that are all due at one instant."""
    import pulsar

    client = pulsar.Client(f"pulsar://127.0.0.1:{port}", logger=_quiet())
    arrived = np.zeros(count, np.float64)
    seen = 0
    done = threading.Event()

    def listen(consumer: Any, message: Any) -> None:
        nonlocal seen
        arrived[seen] = time.time() * 1e3
        seen += 1
        consumer.acknowledge(message)
        if seen == count:
            done.set()

    client.subscribe(
        TOPIC,
        "burst",
        pulsar.ConsumerType.Shared,
        message_listener=listen,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    due_ms = _send_due(port, count, payload, lead_ms)
    assert done.wait(WITHIN_S), f"{count - seen} messages did not come"
    client.close()
    return Lateness.of(arrived - due_ms)


def own_burst(port: int, count: int, payload: bytes, lead_ms: int) -> Lateness:
    """The same as frames that are only counted: the server's own part."""
    connection = Wire(port)
    connection.subscribe("burst")
    connection.tell(
        type=wire.BaseCommand.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=2 * count)
    )
    due_ms = _send_due(port, count, payload, lead_ms)
    arrived: list[float] = []
    frames = Frames(1 << 24)
    while len(arrived) < count:
        data = connection.socket.recv(READ_BYTES)
        at_ms = time.time() * 1e3
        arrived += [at_ms for _ in frames.feed(data)]
    connection.close()
    return Lateness.of(np.array(arrived) - due_ms)


def _send_due(port: int, count: int, payload: bytes, lead_ms: int) -> int:
    """Send messages that are all due at one instant; all have their receipts long before it."""
    due_ms = time.time_ns() // 1_000_000 + lead_ms
    frames = [
        frame(
            wire.BaseCommand(type=wire.BaseCommand.SEND, send=wire.CommandSend(producer_id=1, sequence_id=n)),
            _due_message(n, payload, due_ms),
        )
        for n in range(count)
    ]
    connection = Wire(port)
    connection.produce()
    room = threading.Semaphore(0)
    sender = threading.Thread(target=connection.socket.sendall, args=(b"".join(frames),), daemon=True)
    sender.start()
    _count_receipts(connection.socket, count, room)
    sender.join()
    connection.close()
    assert time.time() * 1e3 < due_ms, "sending took longer than the delay; choose a longer one"
    return due_ms


def _due_message(sequence: int, payload: bytes, due_ms: int) -> bytes:
    metadata = wire.MessageMetadata(
        producer_name="bench", sequence_id=sequence, publish_time=due_ms - 1, deliver_at_time=due_ms
    )
    return with_checksum(metadata.SerializeToString(), payload)


def subscriptions_memory(folder: Path, count: int, payload: bytes) -> tuple[int, int]:
    """The server's memory with so many delayed messages and one subscription, and with ten."""
    server, port = serving(folder)
    with server:
        Wire(port).subscribe("first")
        replay(server, port, count, payload, HOUR_MS)
        readers = [Wire(port)]
        readers[0].subscribe("reads")
        one = server.memory_bytes()
        for number in range(9):
            readers.append(Wire(port))
            readers[-1].subscribe(f"more-{number}")
        for reader in readers:
            reader.tell(
                type=wire.BaseCommand.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=1_000)
            )
        time.sleep(1)
        return one, server.memory_bytes()


def _quiet() -> Any:
    import pulsar

    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def measure(figures: Figures, folder: Path, plan: Plan, who: str) -> None:
    """Everything, each on a server of its own."""
    payload = bytes(PAYLOAD_BYTES)
    count = plan.pulsar
    server, port = serving(folder / "sends")
    with server:
        replay(server, port, count // 4, payload, HOUR_MS)
        rate = replay(server, port, count, payload, HOUR_MS)
        figures.add(who, "pulsar replay", rate.per_s)
        figures.add(who, "pulsar replay cpu", rate.cpu_us)
        figures.add(who, "pulsar client", real_sends(port, count // 2, payload))
    server, port = serving(folder / "reads")
    with server:
        replay(server, port, count, payload, None)
        rate = consume(server, port, count, "reads")
        figures.add(who, "pulsar consume", rate.per_s)
        figures.add(who, "pulsar consume cpu", rate.cpu_us)
    for burst in plan.pulsar_bursts:
        lead_ms = 2_000 + burst // 5
        server, port = serving(folder / f"burst{burst}")
        with server:
            late = real_burst(port, burst, payload, lead_ms)
        server, port = serving(folder / f"own{burst}")
        with server:
            own = own_burst(port, burst, payload, lead_ms)
        figures.add_lateness(who, f"pulsar burst {burst}", late)
        figures.add_lateness(who, f"pulsar burst {burst} own", own)
        figures.add(who, "early", late.early + own.early)
    one, ten = subscriptions_memory(folder / "memory", plan.pulsar_delayed, payload)
    figures.add(who, "pulsar ten subscriptions", (ten / one - 1) * 100)
