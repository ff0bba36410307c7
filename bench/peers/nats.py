"""NATS JetStream's message schedules: a message with a `Nats-Schedule` header is published again, to its target, when it is due.

A subject holds one schedule, so each has a subject of its own. It is spoken to in NATS's own protocol, where the answer
to a publish comes on the subject that the publish names: each connection listens on its own.
"""

import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count as numbers
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.figures import Lateness
from bench.peers import packages
from bench.peers.peer import Entrant, Skipped
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH
from bench.processes import Process, free_port
from bench.tape import Tape, lateness, payload
from bench.wire import RECV_BYTES, Refused, connect, drive

MODULE: Final = "github.com/nats-io/nats-server/v2"
VERSION: Final = "v2.15.2"
"""Debian's are older than message schedules, which came with 2.12."""
BATCH_CONNECTIONS: Final = 4
HOUR_S: Final = 3600
TRIED_S: Final = 0.5
LEAD_S: Final = 3
"""From the first publish of a burst to its due instant, on top of twice the time that so many are thought to take."""

_STREAM: Final = {
    "name": "bench",
    "subjects": ["later.>", "due"],
    "storage": "file",
    "allow_msg_schedules": True,
}


class Nats:
    """A server of its own with one stream, synced `always` or now and then."""

    def __init__(self, folder: Path, sync: str) -> None:
        binary = packages.go_program(MODULE, VERSION)
        self._port = free_port()
        self._loads = 0
        folder.mkdir(parents=True)
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self._port}"\n'
            f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: {sync} }}\n'
        )
        self._process = Process([binary, "-c", settings], folder / "log", keep_output=False)
        try:
            self._process.wait_for_port(self._port)
            self._ask("STREAM.CREATE.bench", _STREAM)
        except BaseException:
            self.stop()
            raise

    def _ask(self, what: str, body: dict[str, Any]) -> None:
        """Call JetStream's API."""
        request = json.dumps(body).encode()
        asked = b"PUB $JS.API.%b %b %d\r\n%b\r\n" % (what.encode(), _inbox(0), len(request), request)
        drive([_listening(self._port, _inbox(0))], iter([asked]), lambda: Answers(1, b'"type"'))

    def _lanes(self, connections: int, together: int) -> tuple[list[socket.socket], list[Iterator[bytes]]]:
        """Connections, and what each of them sends: publishes for an hour from now on, so many of them together."""
        self._loads += 1
        due_at = time.time() + HOUR_S

        def requests(lane: int) -> Iterator[bytes]:
            name = b"%d.%d" % (self._loads, lane)
            for first in numbers(0, together):
                yield b"".join(
                    publish(_inbox(lane), b"%b.%d" % (name, number), due_at, payload(0, PAYLOAD_BYTES))
                    for number in range(first, first + together)
                )

        lanes = range(connections)
        return [_listening(self._port, _inbox(lane)) for lane in lanes], [requests(lane) for lane in lanes]

    def single(self, seconds: float) -> float:
        """One publish at a time on each connection, until it is acknowledged."""
        return drive(*self._lanes(CONNECTIONS, 1), lambda: Answers(1), seconds).per_s

    def batched(self, seconds: float) -> float:
        """Publishes sent together."""
        lanes = self._lanes(BATCH_CONNECTIONS, PEER_BATCH)
        return drive(*lanes, lambda: Answers(PEER_BATCH), seconds).per_s * PEER_BATCH

    def burst(self, count: int) -> Lateness:
        """All for one whole second; a consumer has them pushed and acknowledges nothing."""
        # With and without a sync, one takes ten times as long as the other.
        per_s = self.batched(TRIED_S)
        due_at = int(time.time() + LEAD_S + 2 * count / per_s)

        def batches() -> Iterator[bytes]:
            for first in range(0, count, PEER_BATCH):
                some = range(first, min(first + PEER_BATCH, count))
                yield b"".join(
                    publish(_inbox(0), b"burst.%d" % number, due_at, payload(number, PAYLOAD_BYTES))
                    for number in some
                )

        sizes = iter([*[PEER_BATCH] * (count // PEER_BATCH), count % PEER_BATCH])
        drive([_listening(self._port, _inbox(0))], batches(), lambda: Answers(sizes))
        consumer = _listening(self._port, b"out")
        config = {"deliver_subject": "out", "filter_subject": "due", "ack_policy": "none"}
        self._ask("CONSUMER.CREATE.bench", {"stream_name": "bench", "config": config})
        if time.time() > due_at:
            raise Skipped("publishing took longer than the delay")
        tape = Tape()
        while tape.count < count:
            tape.add(consumer.recv(RECV_BYTES))
        consumer.close()
        return lateness(tape, np.full(count, due_at * 1000.0))

    def stop(self) -> None:
        """End the server."""
        self._process.end()


class Answers:
    """So many answers that a publish was stored; of an iterator, so many after each other."""

    def __init__(self, count: int | Iterator[int], good: bytes = b'"seq"') -> None:
        self._counts = repeat(count) if isinstance(count, int) else count
        self._good = good
        self._missing = 0
        self._data = b""

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether all answers are here."""
        self._missing = self._missing or next(self._counts)
        self._data += data
        while (end := self._data.find(b"\r\n")) >= 0:
            line = self._data[:end]
            if line == b"PING":
                # It does without an answer for minutes.
                self._data = self._data[end + 2 :]
                continue
            if not line.startswith(b"MSG "):
                raise Refused(line.decode(errors="replace")[:200])
            size = int(line.rpartition(b" ")[2])
            if len(self._data) < end + 2 + size + 2:
                break
            answer = self._data[end + 2 : end + 2 + size]
            if self._good not in answer or b'"error"' in answer:
                raise Refused(answer.decode(errors="replace")[:200])
            self._data = self._data[end + 2 + size + 2 :]
            self._missing -= 1
        return not self._missing


def publish(inbox: bytes, name: bytes, due_at: float, body: bytes) -> bytes:
    """A schedule under a name of its own, answered to an inbox; the instant is taken in whole milliseconds."""
    at = datetime.fromtimestamp(due_at, UTC).isoformat(timespec="milliseconds").encode()
    head = b"NATS/1.0\r\nNats-Schedule: @at %b\r\nNats-Schedule-Target: due\r\n\r\n" % at
    sizes = b"%d %d" % (len(head), len(head) + len(body))
    return b"HPUB later.%b %b %b\r\n%b%b\r\n" % (name, inbox, sizes, head, body)


def _inbox(lane: int) -> bytes:
    return b"answers.%d" % lane


def _listening(port: int, subject: bytes) -> socket.socket:
    """A connection that has what comes to a subject sent to it."""
    connected = connect(port)[0]
    connected.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB %b 1\r\nPING\r\n' % subject)
    said = b""
    while not said.endswith(b"PONG\r\n"):
        data = connected.recv(RECV_BYTES)
        if not data or b"-ERR" in data:
            raise Refused((said + data).decode(errors="replace")[-200:])
        said += data
    return connected


ENTRANTS = [
    Entrant("NATS JetStream, sync always", "each schedule synced", lambda folder: Nats(folder, "always")),
    Entrant(
        "NATS JetStream, sync every 2 min",
        "synced every two minutes, its default: not durable when it answers",
        lambda folder: Nats(folder, '"2m"'),
    ),
]
