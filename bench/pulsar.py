"""The Pulsar door under load beside a real Pulsar: frames replayed as they are, and the real client.

A replay is what a client would send, built before the clock starts: it shows the server's part. The real client shows what its
users get; on two cores it is mostly the client that is measured.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figures, Lateness
from bench.peers.peer import FAILURES
from bench.peers.pulsar import DEFAULT_TICK_MS, PulsarStandalone
from bench.plan import PAYLOAD_BYTES
from bench.processes import free_port
from bench.pulsar_wire import FRAME_BYTES, READ_BYTES, WITHIN_S, Wire, acknowledged, send_all, sends
from bench.run import TARRY, Run
from bench.tarry_server import TarryServer
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import Frames

PULSAR: Final = "Pulsar"
HOUR_MS: Final = 3_600_000
WINDOW: Final = 2_000
"""Messages under way, as a client that does not wait for each has them."""
FAST_TICK_MS: Final = 1
PAYLOAD: Final = bytes(PAYLOAD_BYTES)

Arrivals = Callable[[], NDArray[np.float64]]
"""Waits for messages, and gives when each came, in milliseconds."""


class Broker(Protocol):
    """The measured broker."""

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        ...


@dataclass(frozen=True)
class Topic:
    """A topic of a broker, which is new."""

    broker: Broker
    port: int
    name: str = "persistent://public/default/bench"


@dataclass(frozen=True)
class Rate:
    """How fast it went, and the processor time of the server for each."""

    per_s: float
    cpu_us: float

    def add_to(self, figures: Figures, who: str, what: str) -> None:
        """Among the figures."""
        figures.add(who, what, self.per_s)
        figures.add(who, f"{what} cpu", self.cpu_us)


@contextmanager
def serving(folder: Path) -> Iterator[Topic]:
    """A new Tarry with the door open."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tarry.toml").write_text(f"[doors.pulsar]\nenabled = true\nport = {port}\n")
    with TarryServer(folder) as server:
        yield Topic(server, port)


def measure(run: Run) -> None:
    """Tarry and Pulsar in turns, each measurement on a topic of its own."""
    with run.place() as place, ExitStack() as stack:
        peers = _peers(run, place, stack)
        for turn in run.turns():
            _tarry(run, place / f"turn{turn}")
            for tick_ms, peer in peers.items():
                if PULSAR not in run.figures.skipped:
                    with peer.awake():
                        _pulsar(run, peer, tick_ms, turn)


def _peers(run: Run, place: Path, stack: ExitStack) -> dict[int, PulsarStandalone]:
    """Real Pulsars by their ticks, warm and standing still, if they can be had."""
    peers: dict[int, PulsarStandalone] = {}
    try:
        for tick_ms in (DEFAULT_TICK_MS, FAST_TICK_MS) if run.peers else ():
            run.say(f"a real Pulsar starts, tick {tick_ms:,} ms")
            peer = stack.enter_context(PulsarStandalone(place / f"pulsar{tick_ms}", tick_ms))
            with peer.awake():
                replay(Topic(peer, peer.port, peer.topic("warm")), run.plan.pulsar, HOUR_MS)
            run.figures.notes[PULSAR] = f"{peer.version} standalone, its journal synced before the receipt"
            peers[tick_ms] = peer
    except FAILURES as error:
        run.skip(PULSAR, str(error))
    return peers


def _tarry(run: Run, place: Path) -> None:
    plan, figures = run.plan, run.figures
    with serving(place / "sends") as topic:
        replay(topic, plan.pulsar // 4, HOUR_MS)
        replay(topic, plan.pulsar, HOUR_MS).add_to(figures, TARRY, "pulsar replay")
        run.add("pulsar client", real_sends(topic, plan.pulsar // 2))
    with serving(place / "reads") as topic:
        replay(topic, plan.pulsar, None)
        consume(topic, plan.pulsar).add_to(figures, TARRY, "pulsar consume")
    for count in plan.pulsar_bursts:
        with serving(place / f"own{count}") as topic:
            run.add_lateness(f"pulsar burst {count} own", own_burst(topic, count))
        for way, reader in READERS.items():
            with serving(place / f"burst{count}{way}") as topic:
                run.add_lateness(f"pulsar burst {count}{way}", real_burst(topic, count, reader))
    one, ten = subscriptions_memory(place / "memory", plan.pulsar_delayed)
    run.add("pulsar ten subscriptions", (ten / one - 1) * 100)


def _pulsar(run: Run, peer: PulsarStandalone, tick_ms: int, turn: int) -> None:
    """Everything of one; of the other, which differs in its tick, only what depends on that."""
    run.say(f"{PULSAR} {peer.version}, tick {tick_ms:,} ms")
    try:
        if tick_ms == DEFAULT_TICK_MS:
            _rates(run, peer, turn)
        for count in run.plan.pulsar_bursts:
            for way, reader in READERS.items():
                topic = Topic(peer, peer.port, peer.topic(f"burst-{count}-{turn}{way.strip()}"))
                late = real_burst(topic, count, reader)
                run.figures.add_lateness(PULSAR, f"pulsar burst {count}{way} tick {tick_ms}", late)
    except FAILURES as error:
        run.skip(PULSAR, str(error))


def _rates(run: Run, peer: PulsarStandalone, turn: int) -> None:
    count, figures = run.plan.pulsar, run.figures

    def topic(name: str) -> Topic:
        return Topic(peer, peer.port, peer.topic(f"{name}-{turn}"))

    replay(topic("sends"), count, HOUR_MS).add_to(figures, PULSAR, "pulsar replay")
    figures.add(PULSAR, "pulsar client", real_sends(topic("client"), count // 2))
    reads = topic("reads")
    replay(reads, count, None)
    consume(reads, count).add_to(figures, PULSAR, "pulsar consume")


def replay(topic: Topic, count: int, delay_ms: int | None) -> Rate:
    """Send frames built before, a window ahead of the receipts, which come once they are durable."""
    frames = sends(count, PAYLOAD, None if delay_ms is None else _now_ms() + delay_ms)
    connection = Wire(topic.port)
    connection.produce(topic.name)
    cpu_s = topic.broker.cpu_s()
    seconds = send_all(connection, frames, WINDOW)
    cpu_us = (topic.broker.cpu_s() - cpu_s) / count * 1e6
    connection.close()
    return Rate(count / seconds, cpu_us)


def consume(topic: Topic, count: int) -> Rate:
    """Receive so many messages that are there, and acknowledge them, as a client's queue of a thousand does."""
    connection = Wire(topic.port)
    connection.subscribe(topic.name, "reads")
    cpu_s = topic.broker.cpu_s()
    began = time.perf_counter()
    connection.permit(WINDOW)
    got: list[tuple[int, int]] = []
    seen = 0
    frames = Frames(FRAME_BYTES)
    while seen < count:
        for body, _ in frames.feed(connection.socket.recv(READ_BYTES)):
            message_id = wire.BaseCommand.FromString(body).message.message_id
            got.append((message_id.ledgerId, message_id.entryId))
        if len(got) >= WINDOW // 2 or seen + len(got) >= count:
            connection.socket.sendall(acknowledged(got))
            seen += len(got)
            got = []
    seconds = time.perf_counter() - began
    cpu_us = (topic.broker.cpu_s() - cpu_s) / count * 1e6
    connection.close()
    return Rate(count / seconds, cpu_us)


# The real client


def real_sends(topic: Topic, count: int) -> float:
    """Delayed messages a second from the real client, which does not wait for each; until the last receipt."""
    client = _client(topic)
    producer = client.create_producer(
        topic.name, max_pending_messages=WINDOW, block_if_queue_full=True, batching_enabled=False
    )
    left = threading.Semaphore(0)
    due_ms = _now_ms() + HOUR_MS
    began = time.perf_counter()
    for _ in range(count):
        producer.send_async(PAYLOAD, lambda *_: left.release(), deliver_at=due_ms)
    producer.flush()
    for _ in range(count):
        left.acquire()
    seconds = time.perf_counter() - began
    client.close()
    return count / seconds


def receiving(subscribe: Callable[..., Any], count: int) -> Arrivals:
    """One `receive` after another, each acknowledged."""
    consumer = subscribe()
    arrived = np.zeros(count, np.float64)

    def wait() -> NDArray[np.float64]:
        for number in range(count):
            message = consumer.receive(int(WITHIN_S * 1_000))
            arrived[number] = time.time() * 1e3
            consumer.acknowledge(message)
        return arrived

    return wait


def listening(subscribe: Callable[..., Any], count: int) -> Arrivals:
    """A listener, which the client calls with each message in a thread of its own, and which acknowledges it."""
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

    def wait() -> NDArray[np.float64]:
        assert done.wait(WITHIN_S), f"{count - seen} messages did not come"
        return arrived

    subscribe(message_listener=listen)
    return wait


Reader = Callable[[Callable[..., Any], int], Arrivals]
READERS: Final[dict[str, Reader]] = {"": receiving, " listener": listening}
"""The client's ways to get messages, by what is added to the names of their figures: each subscribes, and gives back who
waits for so many messages."""


def real_burst(topic: Topic, count: int, reader: Reader) -> Lateness:
    """How late a real client gets messages that are all due at one instant."""
    import pulsar

    client = _client(topic)
    wait = reader(
        partial(
            client.subscribe,
            topic.name,
            "burst",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        ),
        count,
    )
    due_ms = _send_due(topic, count)
    arrived = wait()
    client.close()
    return Lateness.of(arrived - due_ms)


def own_burst(topic: Topic, count: int) -> Lateness:
    """A burst whose frames are only counted: the server's own part."""
    connection = Wire(topic.port)
    connection.subscribe(topic.name, "burst")
    connection.permit(2 * count)
    due_ms = _send_due(topic, count)
    arrived: list[float] = []
    frames = Frames(FRAME_BYTES)
    while len(arrived) < count:
        data = connection.socket.recv(READ_BYTES)
        at_ms = time.time() * 1e3
        arrived += [at_ms for _ in frames.feed(data)]
    connection.close()
    return Lateness.of(np.array(arrived) - due_ms)


def _send_due(topic: Topic, count: int) -> int:
    """Send messages that are all due at one instant; all have their receipts long before it."""
    # Building the frames takes time as well.
    due_ms = _now_ms() + 2_000 + count // 5
    frames = sends(count, PAYLOAD, due_ms)
    connection = Wire(topic.port)
    connection.produce(topic.name)
    send_all(connection, frames, WINDOW)
    connection.close()
    assert _now_ms() < due_ms, "sending took longer than the delay; choose a longer one"
    return due_ms


def subscriptions_memory(folder: Path, count: int) -> tuple[int, int]:
    """The server's memory with so many delayed messages and one subscription, and with ten."""
    with serving(folder) as topic:
        server = topic.broker
        assert isinstance(server, TarryServer)
        Wire(topic.port).subscribe(topic.name, "first")
        replay(topic, count, HOUR_MS)
        readers = [Wire(topic.port)]
        readers[0].subscribe(topic.name, "reads")
        one = server.memory_bytes()
        for number in range(9):
            readers.append(Wire(topic.port))
            readers[-1].subscribe(topic.name, f"more-{number}")
        for reader in readers:
            reader.permit(1_000)
        time.sleep(1)
        return one, server.memory_bytes()


def _client(topic: Topic) -> Any:
    import pulsar

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(f"pulsar://127.0.0.1:{topic.port}", logger=logger)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
