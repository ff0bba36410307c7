"""Shared parts of the tests with the real client: a server with the Pulsar door in a process of its own, and clients for it."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pulsar

from tests.processes import ServerProcess, running

WITHIN_MS = 30_000
"""How long a message may take that must come; the machine may be busy."""
SILENCE_MS = 300
"""How long nothing comes where nothing is to come. A message that is early would be there at once."""

CONFIG = """
[doors.pulsar]
enabled = true
port = {port}
{door}
[ledger]
segment_bytes = 8388608
{more}
"""


class Broker:
    """A server, and clients that are closed with it."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        found = re.findall(r"url=(pulsar(?:\+ssl)?://\S+)", server.said())
        self.url: str = found[-1]
        self._clients: list[pulsar.Client] = []

    def client(self, **options: Any) -> pulsar.Client:
        """A client; its own log says only what is wrong."""
        options.setdefault("operation_timeout_seconds", 20)
        options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client = pulsar.Client(self.url, **options)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()

    def make_namespace(self, name: str) -> None:
        """Make a namespace, as an administrator has to before clients use it."""
        with urlopen(Request(f"{self.server.url}/admin/v2/namespaces/{name}", method="PUT"), timeout=20):
            pass

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all that it holds, over the native API."""
        path = topic.removeprefix("persistent://")
        with urlopen(Request(f"{self.server.url}/v1/topics/{path}", method="DELETE"), timeout=20):
            pass

    def policy(self, scope: str, policy: dict[str, object] | None) -> None:
        """Set or remove a policy over the native API; `scope` as in `namespaces/public/default`."""
        import json

        request = Request(
            f"{self.server.url}/v1/policies/{scope}",
            data=None if policy is None else json.dumps(policy).encode(),
            headers={"Content-Type": "application/json"},
            method="DELETE" if policy is None else "PUT",
        )
        with urlopen(request, timeout=20):
            pass


@contextlib.contextmanager
def broker(folder: Path, door: str = "", more: str = "", port: int = 0, **settings: str) -> Iterator[Broker]:
    """A server on a folder, with settings of the door, further tables, and variables."""
    with running(folder, CONFIG.format(door=door, more=more, port=port), **settings) as server:
        one = Broker(server)
        try:
            yield one
        finally:
            one.close()


def received(consumer: Any, count: int, *, ack: bool = True) -> list[Any]:
    """So many messages, in order; the test fails if they do not come."""
    messages = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=WITHIN_MS)
        if ack:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def silent(consumer: Any, within_ms: int = SILENCE_MS) -> bool:
    """Whether nothing comes."""
    try:
        consumer.receive(timeout_millis=within_ms)
    except pulsar.Timeout:
        return True
    return False


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def due_of(message: Any) -> int:
    """The due instant of a message that was sent by `send_delayed`."""
    return int(message.properties()["due"])


def send_delayed(producer: Any, payload: bytes, delay_ms: int, **options: Any) -> int:
    """Send with `deliver_at`, and say in the message when that is; gives the due instant."""
    due_ms = now_ms() + delay_ms
    producer.send(payload, deliver_at=due_ms, properties={"due": str(due_ms)}, **options)
    return due_ms
