"""RabbitMQ as it delays without a plugin: messages expire, each by its own time-to-live, into the consumer's queue.

They wait in a durable queue with a dead-letter exchange. A message expires only at the head of its queue: a short delay waits
behind a long one. Here all have the same. It is spoken to in AMQP 0-9-1 itself, persistent messages with publisher confirms, so
that the client costs as little as for the others.
"""

import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np

from bench.figures import Lateness
from bench.peers.peer import Entrant, Skipped
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH
from bench.processes import ROOT, CannotStart, Process, free_port
from bench.tape import Tape, lateness, payload
from bench.wire import RECV_BYTES, Refused, connect, drive

BATCH_CONNECTIONS: Final = 4
HOUR_MS: Final = 3_600_000
LEAD_MS: Final = 4_000
"""From the first publish of a burst to its due instant."""
START_WITHIN_S: Final = 60
SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The one on the usual path changes to the user of Debian's service."""

_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_PERSISTENT_WITH_EXPIRATION: Final = 0x1100
_ACK: Final = (60, 80)


class RabbitMQ:
    """A node of its own with a port mapper of its own; each load has queues of its own."""

    def __init__(self, folder: Path) -> None:
        server, mapper = _programs()
        self.port = free_port()
        self._loads = 0
        folder.mkdir(parents=True)
        mapper_port = str(free_port())
        env = {**os.environ, **_settings(folder, self.port), "ERL_EPMD_PORT": mapper_port}
        self._mapper = Process([mapper, "-port", mapper_port, "-address", "127.0.0.1"], folder / "epmd.log")
        self._process = Process([server], folder / "log", env=env, cwd=folder, keep_output=False)
        try:
            self._process.wait_for_port(self.port, START_WITHIN_S)
            self._wait_until_up()
        except CannotStart:
            self.stop()
            raise

    def _wait_until_up(self) -> None:
        """Wait until the server takes clients in: it listens a moment before."""
        until = time.monotonic() + START_WITHIN_S
        while True:
            try:
                Channel(self.port).socket.close()
                return
            except (OSError, Refused):
                if time.monotonic() > until:
                    raise CannotStart("it listens but takes nobody in") from None
                time.sleep(0.2)

    def _new_queue(self) -> str:
        """A queue for messages that wait; they expire into the one of the consumer, whose name begins with «due-»."""
        self._loads += 1
        name = f"load-{self._loads}"
        channel = Channel(self.port)
        channel.declare(f"due-{name}")
        channel.declare(name, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"due-{name}"})
        channel.socket.close()
        return name

    def single(self, seconds: float) -> float:
        """One publish at a time on each connection, until it is confirmed."""
        one = publish(self._new_queue(), HOUR_MS, payload(0, PAYLOAD_BYTES))
        sockets = [Channel(self.port).confirming() for _ in range(CONNECTIONS)]
        return drive(sockets, repeat(one), lambda: Confirmed(1), seconds).per_s

    def batched(self, seconds: float) -> float:
        """Publishes sent together; the protocol has no batch."""
        many = publish(self._new_queue(), HOUR_MS, payload(0, PAYLOAD_BYTES)) * PEER_BATCH
        sockets = [Channel(self.port).confirming() for _ in range(BATCH_CONNECTIONS)]
        return drive(sockets, repeat(many), lambda: Confirmed(PEER_BATCH), seconds).per_s * PEER_BATCH

    def burst(self, count: int) -> Lateness:
        """Each with what is left until the instant; a consumer takes what expires and acknowledges nothing meanwhile."""
        queue = self._new_queue()
        due_at_ms = time.time_ns() // 1_000_000 + LEAD_MS

        def batches() -> Iterator[bytes]:
            for first in range(0, count, PEER_BATCH):
                left_ms = due_at_ms - time.time_ns() // 1_000_000
                some = range(first, min(first + PEER_BATCH, count))
                yield b"".join(publish(queue, left_ms, payload(number, PAYLOAD_BYTES)) for number in some)

        sizes = iter([*[PEER_BATCH] * (count // PEER_BATCH), count % PEER_BATCH])
        drive([Channel(self.port).confirming()], batches(), lambda: Confirmed(sizes), float("inf"))
        if time.time_ns() // 1_000_000 > due_at_ms:
            raise Skipped("publishing took longer than the delay")
        consumer = Channel(self.port)
        consumer.consume(f"due-{queue}")
        tape = Tape()
        while tape.count < count:
            tape.add(consumer.socket.recv(RECV_BYTES))
        consumer.socket.close()
        return lateness(tape, np.full(count, float(due_at_ms)))

    def stop(self) -> None:
        """End the node and its port mapper."""
        self._process.end()
        self._mapper.end()


def _programs() -> tuple[Path, Path]:
    """The server's program and Erlang's port mapper; installed from Debian where we may do that."""
    if not SERVER.exists():
        done = subprocess.run(
            [ROOT / "tools" / "brokers.sh", "rabbitmq-server"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Skipped(done.stderr.strip())
    mapper = shutil.which("epmd")
    if not SERVER.exists() or mapper is None:
        raise Skipped("Debian's rabbitmq-server is not installed")
    return SERVER, Path(mapper)


def _settings(folder: Path, port: int) -> dict[str, str]:
    """Everything below one folder, and nothing that listens but on the loopback."""
    (folder / "rabbit.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file = false\nlog.console = true\nlog.console.level = warning\n"
    )
    (folder / "plugins").write_text("[].\n")
    return {
        "HOME": str(folder),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }


class Channel:
    """One connection with its one open channel."""

    def __init__(self, port: int) -> None:
        self.socket: socket.socket = connect(port)[0]
        self._data = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._wait((10, 10))
        self._tell(
            0, (10, 11), struct.pack("!I", 0) + _short("PLAIN") + _long("\0guest\0guest") + _short("en_US")
        )
        tune = self._wait((10, 30))
        # No heartbeat: nobody here is ever idle for long.
        self._tell(0, (10, 31), tune[:6] + struct.pack("!H", 0))
        self._ask(0, (10, 40), _short("/") + _short("") + b"\0", (10, 41))
        self._ask(1, (20, 10), _short(""), (20, 11))

    def confirming(self) -> socket.socket:
        """Ask for publisher confirms; gives the socket."""
        self._ask(1, (85, 10), b"\0", (85, 11))
        return self.socket

    def declare(self, queue: str, arguments: dict[str, str] | None = None) -> None:
        """Make a durable queue."""
        words = b"".join(_short(name) + b"S" + _long(value) for name, value in (arguments or {}).items())
        body = struct.pack("!H", 0) + _short(queue) + b"\x02" + struct.pack("!I", len(words)) + words
        self._ask(1, (50, 10), body, (50, 11))

    def consume(self, queue: str) -> None:
        """Have a queue's messages sent here as they come, without a bound on those that are not acknowledged."""
        body = struct.pack("!H", 0) + _short(queue) + _short("") + b"\0" + struct.pack("!I", 0)
        self._ask(1, (60, 20), body, (60, 21))

    def _tell(self, channel: int, method: tuple[int, int], body: bytes) -> None:
        self.socket.sendall(_frame(_METHOD, channel, struct.pack("!HH", *method) + body))

    def _ask(self, channel: int, method: tuple[int, int], body: bytes, answer: tuple[int, int]) -> None:
        self._tell(channel, method, body)
        self._wait(answer)

    def _wait(self, wanted: tuple[int, int]) -> bytes:
        """The arguments of the next method, which must be this one."""
        while len(self._data) < 7 or len(self._data) < 8 + int.from_bytes(self._data[3:7], "big"):
            data = self.socket.recv(RECV_BYTES)
            if not data:
                raise Refused("the server closed the connection")
            self._data += data
        size = int.from_bytes(self._data[3:7], "big")
        body, self._data = self._data[7 : 7 + size], self._data[8 + size :]
        if struct.unpack_from("!HH", body) != wanted:
            raise Refused(body.decode(errors="replace")[:200])
        return body[4:]


class Confirmed:
    """Confirms for so many publishes, one by one or many by one; of an iterator, for so many after each other."""

    _BYTES: Final = 21

    def __init__(self, count: int | Iterator[int]) -> None:
        self._counts = repeat(count) if isinstance(count, int) else count
        self._tag = 0
        self._data = b""
        self._missing: set[int] = set()

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether everything is confirmed."""
        if not self._missing:
            count = next(self._counts)
            self._missing = set(range(self._tag + 1, self._tag + count + 1))
            self._tag += count
        self._data += data
        at = 0
        while len(self._data) - at >= self._BYTES:
            kind, method, tag, several = struct.unpack_from("!B6xIQB", self._data, at)
            if kind != _METHOD or (method >> 16, method & 0xFFFF) != _ACK:
                raise Refused(self._data[at:].decode(errors="replace")[:200])
            if several:
                self._missing = {one for one in self._missing if one > tag}
            else:
                self._missing.discard(tag)
            at += self._BYTES
        self._data = self._data[at:]
        return not self._missing


def publish(queue: str, expires_ms: int, body: bytes) -> bytes:
    """A persistent message that expires after so long."""
    method = struct.pack("!HHH", 60, 40, 0) + _short("") + _short(queue) + b"\0"
    header = (
        struct.pack("!HHQH", 60, 0, len(body), _PERSISTENT_WITH_EXPIRATION)
        + b"\x02"
        + _short(str(expires_ms))
    )
    return _frame(_METHOD, 1, method) + _frame(_HEADER, 1, header) + _frame(_BODY, 1, body)


def _frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack("!BHI", kind, channel, len(body)) + body + _END


def _short(text: str) -> bytes:
    return struct.pack("!B", len(text)) + text.encode()


def _long(text: str) -> bytes:
    return struct.pack("!I", len(text)) + text.encode()


ENTRANTS = [Entrant("RabbitMQ, TTL and dead letter", "confirmed once synced", RabbitMQ)]
