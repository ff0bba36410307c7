"""beanstalkd: jobs with a delay in whole seconds, a write-ahead log with a choice of how often it is synced.

Its delays count from each put, so that jobs cannot be given one due instant. For the burst the tube is paused until
after all of them are ready: at the end of the pause they all are, at one instant. That spares it the work
of its timers at that instant.
"""

import socket
import time
from itertools import repeat
from pathlib import Path

import numpy as np

from bench.figures import Lateness
from bench.peers import packages
from bench.peers.peer import Entrant
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH
from bench.processes import Process, free_port
from bench.tape import Tape, lateness, payload
from bench.wire import RECV_BYTES, Refused, connect, drive

BATCH_CONNECTIONS = 4
HOUR_S = 3600
PAUSE_S = 3
IN_FLIGHT = 1000


class Inserted:
    """So many answers that a job was put."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._data = b""

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether all answers are here."""
        self._data += data
        if self._data.count(b"\n") < self._count:
            return False
        if self._data.count(b"INSERTED ") != self._count:
            raise Refused(self._data.decode(errors="replace")[:200])
        self._data = b""
        return True


class Beanstalkd:
    """A server of its own with a sync every so many milliseconds; 0 is at each write."""

    def __init__(self, folder: Path, sync_ms: int) -> None:
        binary = packages.program("beanstalkd", "beanstalkd")
        self._port = free_port()
        log = folder / "binlog"
        log.mkdir(parents=True)
        command: list[str | Path] = [binary, "-l", "127.0.0.1", "-p", str(self._port), "-b", log]
        self._process = Process([*command, f"-f{sync_ms}"], folder / "log", env=packages.environment())
        self._process.wait_for_port(self._port)

    def single(self, seconds: float) -> float:
        """One put at a time on each connection."""
        sockets = connect(self._port, CONNECTIONS)
        return drive(sockets, repeat(_put(0, HOUR_S)), lambda: Inserted(1), seconds).per_s

    def batched(self, seconds: float) -> float:
        """Puts sent together; the protocol has no batch."""
        many = _put(0, HOUR_S) * PEER_BATCH
        sockets = connect(self._port, BATCH_CONNECTIONS)
        return drive(sockets, repeat(many), lambda: Inserted(PEER_BATCH), seconds).per_s * PEER_BATCH

    def burst(self, count: int) -> Lateness:
        """Put them with a delay, pause the tube past it, reserve them all; deletes are not counted."""
        connection = connect(self._port)[0]
        _ask(connection, b"use burst\r\nwatch burst\r\nignore default\r\n", 3)
        for first in range(0, count, PEER_BATCH):
            some = range(first, min(first + PEER_BATCH, count))
            _ask(connection, b"".join(_put(number, 1) for number in some), len(some))
        _ask(connection, b"pause-tube burst %d\r\n" % PAUSE_S, 1)
        due_at_ms = time.time_ns() / 1e6 + PAUSE_S * 1000
        tape = Tape()
        asked = 0
        while tape.count < count:
            if asked - tape.count <= IN_FLIGHT // 2 and asked < count:
                more = min(IN_FLIGHT, count - asked)
                connection.sendall(b"reserve\r\n" * more)
                asked += more
            tape.add(connection.recv(RECV_BYTES))
        connection.close()
        return lateness(tape, np.full(count, due_at_ms))

    def stop(self) -> None:
        """End the server."""
        self._process.end()


def _put(number: int, delay_s: int) -> bytes:
    return b"put 0 %d 600 %d\r\n%b\r\n" % (delay_s, PAYLOAD_BYTES, payload(number, PAYLOAD_BYTES))


def _ask(connection: socket.socket, words: bytes, lines: int) -> None:
    connection.sendall(words)
    answers = b""
    while answers.count(b"\n") < lines:
        answers += connection.recv(RECV_BYTES)


ENTRANTS = [
    Entrant("beanstalkd -f0", "each put synced", lambda folder: Beanstalkd(folder, 0)),
    Entrant(
        "beanstalkd -f50",
        "synced every 50 ms: not durable when it answers",
        lambda folder: Beanstalkd(folder, 50),
    ),
]
