"""PostgreSQL as a queue: a table with an index on the due instant, taken with FOR UPDATE SKIP LOCKED.

It is spoken to in its wire protocol, with a prepared statement, so that the client costs as little as for the others.
"""

import os
import pwd
import select
import socket
import struct
import subprocess
import time
from itertools import repeat
from pathlib import Path

import numpy as np

from bench.figures import Lateness
from bench.peers import packages
from bench.peers.peer import Entrant, Skipped
from bench.plan import CONNECTIONS, PAYLOAD_BYTES, PEER_BATCH
from bench.processes import Process, free_port
from bench.tape import Tape, lateness, payload
from bench.wire import RECV_BYTES, Refused, connect, drive

BATCH_CONNECTIONS = 4
HOUR_MS = 3_600_000
SETTLE_MS = 1_500
POLL_S = 0.001
COPY_ROWS = 5_000
TABLE = """
CREATE TABLE job (id bigserial PRIMARY KEY, due_at_ms bigint NOT NULL, payload text NOT NULL);
CREATE INDEX job_due ON job (due_at_ms);
"""
TAKE = """
DELETE FROM job WHERE id IN
(SELECT id FROM job WHERE due_at_ms <= $1 ORDER BY due_at_ms LIMIT 1000 FOR UPDATE SKIP LOCKED)
RETURNING payload
"""
_ENDS = b"Z\x00\x00\x00\x05"


class Answered:
    """Everything up to «ready for the next query»."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        """Take bytes; whether the server waits again."""
        if data[:1] == b"E" or b"ERROR\x00" in data:
            raise Refused(data.decode(errors="replace")[:300])
        self._tail = data if len(data) >= 6 else self._tail[-6:] + data
        return self._tail[-6:-1] == _ENDS


class PostgreSQL:
    """A cluster of its own, with the defaults of the package, which are durable."""

    def __init__(self, folder: Path) -> None:
        bin_ = "usr/lib/postgresql/*/bin"
        initdb = packages.program("initdb", "postgresql", bin_)
        postgres = packages.program("postgres", "postgresql", bin_)
        data = folder / "data"
        data.mkdir(parents=True)
        user = self._unprivileged(folder)
        env = packages.environment()
        made = subprocess.run(
            [initdb, "-D", data, "-A", "trust", "-U", "bench", "--no-sync", "-E", "UTF8", "--locale=C"],
            capture_output=True, text=True, check=False, env=env, user=user, cwd=folder,
        )  # fmt: skip
        if made.returncode != 0:
            raise Skipped(f"initdb did not work: {made.stderr.strip()[-200:]}")
        self.port = free_port()
        options = {
            "listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": "",
            "fsync": "on", "synchronous_commit": "on", "max_connections": str(CONNECTIONS + 10),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self._process = Process(
            [postgres, "-D", data, *words], folder / "log", env=env, user=user, cwd=folder
        )
        self._process.wait_for_port(self.port)
        self._wait_until_up()
        self._session().close_after(simple(TABLE))

    def _wait_until_up(self) -> None:
        """Wait until the server takes clients in: it listens a moment before."""
        until = time.monotonic() + 30
        while True:
            try:
                self._session().socket.close()
                return
            except Refused:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    @staticmethod
    def _unprivileged(folder: Path) -> str | None:
        """PostgreSQL refuses to run as root: somebody else gets the folder."""
        if os.getuid() != 0:
            return None
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in known else "nobody"
        for path in (folder, *folder.iterdir()):
            os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        return user

    def _session(self) -> "Session":
        return Session(connect(self.port)[0])

    def single(self, seconds: float) -> float:
        """One INSERT a transaction, on each connection."""
        insert = "INSERT INTO job (due_at_ms, payload) VALUES ($1, $2)"
        sockets = [self._session().prepare(insert).socket for _ in range(CONNECTIONS)]
        one = execute(_later(), payload(0, PAYLOAD_BYTES))
        return drive(sockets, repeat(one), Answered, seconds).per_s

    def batched(self, seconds: float) -> float:
        """INSERT of many rows in one statement."""
        sockets = [self._session().socket for _ in range(BATCH_CONNECTIONS)]
        row = f"({_later().decode()},'{payload(0, PAYLOAD_BYTES).decode()}')"
        many = simple(f"INSERT INTO job (due_at_ms, payload) VALUES {','.join([row] * PEER_BATCH)}")
        return drive(sockets, repeat(many), Answered, seconds).per_s * PEER_BATCH

    def copy(self, seconds: float) -> float:
        """COPY, the quickest way in."""
        sockets = [self._session().socket for _ in range(BATCH_CONNECTIONS)]
        many = copied(range(COPY_ROWS), _later())
        return drive(sockets, repeat(many), Answered, seconds).per_s * COPY_ROWS

    def burst(self, count: int) -> Lateness:
        """Poll every millisecond, and at once after something came; what is taken is deleted, durably."""
        due_at_ms = time.time_ns() // 1_000_000 + SETTLE_MS
        self._session().close_after(copied(range(count), b"%d" % due_at_ms))
        self._session().close_after(simple("ANALYZE job"))
        session = self._session().prepare(TAKE)
        tape = Tape()
        while tape.count < count:
            before = tape.count
            session.socket.sendall(execute(b"%d" % (time.time_ns() // 1_000_000)))
            session.answer(tape)
            if tape.count == before:
                select.select([], [], [], POLL_S)
        session.socket.close()
        return lateness(tape, np.full(count, float(due_at_ms)))

    def stop(self) -> None:
        """End the server."""
        self._process.end()


class PostgreSQLCopy(PostgreSQL):
    """PostgreSQL with COPY for its batches."""

    def batched(self, seconds: float) -> float:
        """COPY."""
        return self.copy(seconds)


class Session:
    """One connection that has said who it is."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        words = struct.pack("!I", 196608) + b"user\0bench\0database\0postgres\0\0"
        connected.sendall(struct.pack("!I", len(words) + 4) + words)
        self._wait()

    def prepare(self, statement: str) -> "Session":
        """Prepare the one statement that this connection executes."""
        self.socket.sendall(_message(b"P", b"\0" + statement.encode() + b"\0\0\0") + _message(b"S", b""))
        self._wait()
        return self

    def close_after(self, query: bytes) -> None:
        """Run something and be done."""
        self.socket.sendall(query)
        self._wait()
        self.socket.close()

    def answer(self, tape: Tape) -> None:
        """Take one whole answer."""
        reply = Answered()
        while True:
            data = self.socket.recv(RECV_BYTES)
            tape.add(data)
            if reply.feed(data):
                return

    def _wait(self) -> None:
        reply = Answered()
        while not reply.feed(self.socket.recv(RECV_BYTES)):
            pass


def simple(query: str) -> bytes:
    """A query without parameters."""
    return _message(b"Q", query.encode() + b"\0")


def execute(*values: bytes) -> bytes:
    """Bind the prepared statement to values, run it, wait for the next."""
    bound = b"\0\0" + struct.pack("!HH", 0, len(values))
    bound += b"".join(struct.pack("!I", len(value)) + value for value in values) + struct.pack("!H", 0)
    return _message(b"B", bound) + _message(b"E", b"\0\0\0\0\0") + _message(b"S", b"")


def copied(numbers: range, due_at_ms: bytes) -> bytes:
    """A COPY with its rows; the server reads on without being waited for."""
    rows = b"".join(b"%b\t%b\n" % (due_at_ms, payload(number, PAYLOAD_BYTES)) for number in numbers)
    return simple("COPY job (due_at_ms, payload) FROM STDIN") + _message(b"d", rows) + _message(b"c", b"")


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _later() -> bytes:
    return b"%d" % (time.time_ns() // 1_000_000 + HOUR_MS)


ENTRANTS = [
    Entrant("PostgreSQL", "synchronous_commit = on", PostgreSQL),
    Entrant("PostgreSQL, COPY", "synchronous_commit = on", PostgreSQLCopy),
]
