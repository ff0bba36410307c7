"""Redis as it is mostly used for this: a sorted set by due instant, polled with a script that takes what is due.

A message that was taken is gone from Redis, whatever becomes of the consumer: there is no acknowledgement.
"""

import select
import socket
import time
from collections.abc import Iterator
from itertools import count as numbers
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
HOUR_MS = 3_600_000
SETTLE_MS = 1_500
POLL_S = 0.001
TAKE = b"""
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return due
"""


def command(*words: bytes) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Added:
    """The number of members that were added."""

    def __init__(self, count: int) -> None:
        self._wanted = b":%d\r\n" % count

    def feed(self, data: bytes) -> bool:
        """Take the answer, which is too short to come in pieces."""
        if data != self._wanted:
            raise Refused(data.decode(errors="replace")[:200])
        return True


class RedisServer:
    """A server of its own with an append-only file, synced `always` or `everysec`."""

    def __init__(self, folder: Path, sync: str) -> None:
        binary = packages.program("redis-server", "redis-server")
        self.port = free_port()
        data = folder / "data"
        data.mkdir(parents=True)
        options = {
            "--port": str(self.port), "--bind": "127.0.0.1", "--dir": str(data), "--save": "",
            "--appendonly": "yes", "--appendfsync": sync, "--no-appendfsync-on-rewrite": "no",
            # BullMQ asks for it; nothing is evicted here anyway.
            "--maxmemory-policy": "noeviction",
        }  # fmt: skip
        words = [word for pair in options.items() for word in pair]
        self._process = Process([binary, *words], folder / "log", env=packages.environment())
        self._process.wait_for_port(self.port)

    def stop(self) -> None:
        """End the server."""
        self._process.end()


class Redis(RedisServer):
    """The sorted set; each load has one of its own."""

    _loads = 0

    def _new_key(self) -> bytes:
        self._loads += 1
        return b"load%d" % self._loads

    def single(self, seconds: float) -> float:
        """One ZADD at a time on each connection."""
        return drive(
            connect(self.port, CONNECTIONS), _adds(self._new_key(), 1), lambda: Added(1), seconds
        ).per_s

    def batched(self, seconds: float) -> float:
        """One ZADD of many members."""
        sockets = connect(self.port, BATCH_CONNECTIONS)
        return (
            drive(sockets, _adds(self._new_key(), PEER_BATCH), lambda: Added(PEER_BATCH), seconds).per_s
            * PEER_BATCH
        )

    def burst(self, count: int) -> Lateness:
        """Poll every millisecond, and at once after something came."""
        due_at_ms = time.time_ns() // 1_000_000 + SETTLE_MS
        score = b"%d" % due_at_ms
        members = [payload(number, PAYLOAD_BYTES) for number in range(count)]
        connection = connect(self.port)[0]
        for first in range(0, count, PEER_BATCH):
            some = members[first : first + PEER_BATCH]
            connection.sendall(command(b"ZADD", b"burst", *(word for one in some for word in (score, one))))
            connection.recv(RECV_BYTES)
        tape = Tape()
        while tape.count < count:
            connection.sendall(command(b"EVAL", TAKE, b"1", b"burst", b"%d" % (time.time_ns() // 1_000_000)))
            if not self._answer(connection, tape):
                select.select([], [], [], POLL_S)
        connection.close()
        return lateness(tape, np.full(count, float(due_at_ms)))

    @staticmethod
    def _answer(connection: socket.socket, tape: Tape) -> int:
        """Take one answer; gives how many members it has."""
        data = connection.recv(RECV_BYTES)
        if data == b"*0\r\n":
            return 0
        tape.add(data)
        end = data.index(b"\r\n")
        if data[:1] != b"*":
            raise Refused(data.decode(errors="replace")[:200])
        found = int(data[1:end])
        member = len(b"$%d\r\n" % PAYLOAD_BYTES) + PAYLOAD_BYTES + 2
        missing = end + 2 + found * member - len(data)
        while missing > 0:
            data = connection.recv(RECV_BYTES)
            tape.add(data)
            missing -= len(data)
        return found


def _adds(key: bytes, size: int) -> Iterator[bytes]:
    """ZADD commands; members are distinct, as they must be in a set."""
    score = b"%d" % (time.time_ns() // 1_000_000 + HOUR_MS)
    member = b"$%d\r\n%b" % (len(score), score) + b"\r\n$%d\r\n" % PAYLOAD_BYTES + b"x" * (PAYLOAD_BYTES - 11)
    head = b"*%d\r\n$4\r\nZADD\r\n$%d\r\n%b\r\n" % (2 + 2 * size, len(key), key)
    for first in numbers(0, size):
        yield head + b"".join([member + b"<%08d>~\r\n" % number for number in range(first, first + size)])


ENTRANTS = [
    Entrant("Redis ZSET, always", "synced before the answer", lambda folder: Redis(folder, "always")),
    Entrant(
        "Redis ZSET, everysec",
        "synced every second: not durable when it answers",
        lambda folder: Redis(folder, "everysec"),
    ),
]
