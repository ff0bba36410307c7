"""Clients that are slow, rude or gone: they get a clear answer or an end, and nobody else notices them.

One server with few open files serves all of them, so that what one leaves behind would be felt by the next.
"""

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tarry.client import Client
from tarry.core.errors import Unavailable
from tests.processes import ServerProcess

pytestmark = pytest.mark.crash

TOPIC: Final = "persistent://public/default/t"
OPEN_FILES: Final = 192
CONFIG: Final = """
[ledger]
segment_bytes = 1048576

[http]
idle_timeout_ms = 3000
body_timeout_ms = 1000

[webhook]
max_connections = 16
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("clients") / "data", CONFIG)
    with server:
        server.start(wrapper=("prlimit", f"--nofile={OPEN_FILES}"))
        yield server
        # What happened to it left no trace that an operator would have to read.
        assert server.stop() == 0
        assert "Traceback" not in server.said(), server.said()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A decent client; whatever the test does, it is served afterwards, and soon."""
    with Client(server.url, retry_for_s=0) as client:
        yield client
        name = f"served-{time.time_ns()}"
        client.subscribe(TOPIC, name, start="latest")
        began = time.monotonic()
        client.schedule(TOPIC, name, delay_ms=1)
        (entry,) = client.receive(TOPIC, name)
        assert entry.payload == name.encode()
        assert time.monotonic() - began < 3
        client.unsubscribe(TOPIC, name)


def connect(server: ServerProcess) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def exchange(server: ServerProcess, sent: bytes) -> bytes:
    """The server's answer to these bytes, up to the end of the connection. The client ends its side first."""
    with connect(server) as connection:
        # The server may have ended it before it has heard everything.
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        return receive_all(connection)


def receive_all(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def head(path: str, length: int | None, content_type: str = "application/json") -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n{size}\r\n\r\n"
    ).encode()


def line(payload: str) -> bytes:
    return json.dumps({"destination": TOPIC, "payload": payload, "delay": "1h"}).encode() + b"\n"


GARBAGE: Final = {
    "random bytes": random.Random(1).randbytes(5_000),
    "zeros": bytes(1000),
    "a TLS greeting": bytes.fromhex("16030100a5010000a10303") + bytes(160),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no method": b" / HTTP/1.1\r\n\r\n",
    "a negative length": b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\nhello",
    "two lengths": b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "length and chunks": head("/v1/messages", None)[:-2] + b"content-length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a bad chunk": head("/v1/messages", None) + b"zz\r\nabc\r\n0\r\n\r\n",
    "a huge chunk": head("/v1/messages", None) + b"ffffffffffffffffff\r\nabc",
    "a header without end": b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
    "an endless path": b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 50_000 + b"\r\n",
    "an upgrade": b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_refused(server: ServerProcess, kind: str) -> None:
    answer = exchange(server, GARBAGE[kind])
    # An upgrade is not granted, and then it is a request like others. An answer may be lost with a reset.
    expected = b"HTTP/1.1 200 " if kind == "an upgrade" else b"HTTP/1.1 4"
    assert not answer or answer.startswith(expected), answer[:200]


def test_after_garbage_all_is_well(client: Client) -> None:
    assert client.ready()


def test_a_truncated_body_changes_nothing(server: ServerProcess, client: Client) -> None:
    before = client.status()["engine"]["counters"].get("accepted", 0)
    whole = line("whole")
    for sent in (
        head("/v1/messages", len(whole) + 1) + whole,
        head("/v1/messages", len(whole)) + whole[:-20],
        head("/v1/messages", None) + b"%x\r\n%b\r\n" % (len(whole), whole),
        head("/v1/messages", None) + b"%x\r\n%b" % (len(whole) + 100, whole),
    ):
        answer = exchange(server, sent)
        assert not answer or answer.startswith(b"HTTP/1.1 4"), answer
    assert client.status()["engine"]["counters"].get("accepted", 0) == before


def test_a_truncated_batch_takes_whole_lines_only(server: ServerProcess, client: Client) -> None:
    owner = f"batch-{time.time_ns()}"
    lines = [line(f"line {number}") for number in range(5)]
    body = b"".join(lines)
    path = f"/v1/messages/batch?owner={owner}"
    answer = exchange(server, head(path, len(body), "application/x-ndjson") + body[: -len(lines[-1]) // 2])
    listed = {message.id for message in client.list(owner=owner)}
    assert len(listed) <= 4
    # Whatever was answered is there, even if the connection then broke.
    for answered in answer.partition(b"\r\n\r\n")[2].splitlines():
        if answered.startswith(b'{"id"'):
            assert json.loads(answered)["id"] in listed


def test_clients_that_are_slow(server: ServerProcess, client: Client) -> None:
    """Some dribble their heads, some stop in the middle of a body: all are given up, and hold up nobody."""
    with contextlib.ExitStack() as stack:
        dribbling = [stack.enter_context(connect(server)) for _ in range(20)]
        stuck = [stack.enter_context(connect(server)) for _ in range(20)]
        for connection in dribbling:
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nhost: ")
        for connection in stuck:
            connection.sendall(head("/v1/messages", 1_000) + b'{"destination": ')
        deadline = time.monotonic() + 20
        open_ones = set(dribbling)
        while open_ones:
            assert time.monotonic() < deadline, "slow clients are kept for too long"
            client.schedule(TOPIC, "meanwhile", delay="1h")
            for connection in list(open_ones):
                try:
                    connection.sendall(b"l")
                except ConnectionError:
                    open_ones.discard(connection)
            time.sleep(0.2)
        for connection in stuck:
            answer = receive_all(connection)
            assert not answer or answer.startswith(b"HTTP/1.1 408 "), answer[:200]


def test_readers_that_do_not_read(server: ServerProcess, client: Client) -> None:
    """Event streams and lists whose clients take nothing: the server holds little for them, and goes on."""
    topic = "persistent://public/default/unread"
    with contextlib.ExitStack() as stack:
        for number in range(10):
            client.subscribe(topic, f"s{number}", start="earliest")
            connection = stack.enter_context(connect(server))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            path = f"/v1/topics/public/default/unread/subscriptions/s{number}/events?window=1000"
            connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        before = resident_bytes(server)
        for _ in range(100):
            publish(client, topic, os.urandom(100_000))
        client.subscribe(topic, "reader", start="earliest")
        taken = 0
        while taken < 100:
            received = client.receive(topic, "reader")
            client.ack(topic, "reader", [entry.entry_id for entry in received])
            taken += len(received)
        # Ten streams with ten megabytes each would be a hundred; base64 makes it more.
        assert resident_bytes(server) - before < 80 * 1024 * 1024
    client.delete_topic(topic)


def publish(client: Client, topic: str, payload: bytes) -> None:
    """Publish; a disk that is busy with others is told as 503, and means: again in a moment."""
    give_up_at = time.monotonic() + 60
    while True:
        try:
            client.publish(topic, payload)
            return
        except Unavailable:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)


def resident_bytes(server: ServerProcess) -> int:
    pages = Path(f"/proc/{server.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_idle_connections_up_to_the_limit_of_open_files(server: ServerProcess, client: Client) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(2 * OPEN_FILES):
            connection = stack.enter_context(connect(server))
            if number % 3 == 0:
                # One that was served once, and stays.
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    connection.recv(1000)
            if number % 20 == 0:
                with Client(server.url, retry_for_s=0) as newcomer:
                    newcomer.schedule(TOPIC, b"x" * 50_000, delay="1h")
        with Client(server.url, retry_for_s=0) as newcomer:
            assert newcomer.ready()
