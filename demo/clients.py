"""One real client for each door: it schedules messages that carry their name, and listens for them."""

import contextlib
import json
import logging
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import pulsar
from dapr.clients import DaprClient

from bench.peers.packages import npm_modules
from demo.books import Listening, Page, now_ms
from tarry import Client

PASSWORD: Final = "correct horse battery staple"
TOPIC: Final = "persistent://public/default/{}"


class Doors(Protocol):
    """A running Tarry, as its clients find it."""

    ports: dict[str, int]
    """The ports of 127.0.0.1 on which the doors are."""

    @property
    def url(self) -> str:
        """The native API."""

    @property
    def pulsar_url(self) -> str:
        """The Pulsar door."""

    def add_user(self, name: str, password: str) -> None:
        """Register a user of the homeserver."""


class DoorClient(Protocol):
    """The demonstration's use of one door."""

    page: Page

    def schedule(self, due: Sequence[int]) -> None:
        """Schedule messages due at these instants."""

    def close(self) -> None:
        """Let go of the server."""


class Native:
    """Tarry's own client."""

    def __init__(self, doors: Doors) -> None:
        self.page = Page("native HTTP", "HTTP: tarry.Client")
        self._client = Client(doors.url)
        self._url = doors.url
        self._client.subscribe(TOPIC.format("demo-native"), "demo")
        self._listening = Listening(self._listen)

    def schedule(self, due: Sequence[int]) -> None:
        """One request for each."""
        for n, due_at_ms in enumerate(due):
            self._client.schedule(TOPIC.format("demo-native"), f"n{n}", due_at_ms=due_at_ms)
            self.page.scheduled(f"n{n}", due_at_ms)

    def _listen(self, end: threading.Event) -> None:
        with Client(self._url) as client:
            for received in client.consume(TOPIC.format("demo-native"), "demo"):
                with received:
                    self.page.arrived(received.payload.decode(), now_ms())
                if end.is_set():
                    return

    def close(self) -> None:
        """Close the connections."""
        self._listening.end()
        self._client.close()


class Pulsar:
    """pulsar-client, as it is on PyPI."""

    def __init__(self, doors: Doors) -> None:
        self.page = Page("Pulsar", "Pulsar: pulsar-client")
        quiet = logging.getLogger("demo.pulsar")
        quiet.setLevel(logging.CRITICAL)
        self._client = pulsar.Client(doors.pulsar_url, logger=quiet)
        self._consumer = self._client.subscribe(
            TOPIC.format("demo-pulsar"), "demo", consumer_type=pulsar.ConsumerType.Shared
        )
        self._listening = Listening(self._listen)

    def schedule(self, due: Sequence[int]) -> None:
        """`deliver_at`, in milliseconds."""
        producer = self._client.create_producer(TOPIC.format("demo-pulsar"))
        for n, due_at_ms in enumerate(due):
            producer.send(f"p{n}".encode(), deliver_at=due_at_ms)
            self.page.scheduled(f"p{n}", due_at_ms)
        producer.close()

    def _listen(self, end: threading.Event) -> None:
        while not end.is_set():
            with contextlib.suppress(pulsar.Timeout):
                message = self._consumer.receive(timeout_millis=500)
                self.page.arrived(message.data().decode(), now_ms())
                self._consumer.acknowledge(message)

    def close(self) -> None:
        """Close the client."""
        self._listening.end()
        self._client.close()


class Dapr:
    """Dapr's SDK, with a streaming subscription."""

    def __init__(self, doors: Doors) -> None:
        self.page = Page("Dapr", "Dapr: dapr, gRPC")
        self._address = f"127.0.0.1:{doors.ports['dapr_grpc']}"
        # Where the SDK asks whether its sidecar is well.
        os.environ["DAPR_HTTP_PORT"] = str(doors.ports["dapr"])
        logging.getLogger("dapr").setLevel(logging.CRITICAL)
        self._listening = Listening(self._listen)

    def schedule(self, due: Sequence[int]) -> None:
        """`scheduledSendTime` in the metadata of a publish."""
        with DaprClient(self._address) as client:
            for n, due_at_ms in enumerate(due):
                at = datetime.fromtimestamp(due_at_ms / 1000, UTC).isoformat(timespec="milliseconds")
                client.publish_event("pubsub", "demo-dapr", f"d{n}", {"scheduledSendTime": at})
                self.page.scheduled(f"d{n}", due_at_ms)

    def _listen(self, end: threading.Event) -> None:
        with DaprClient(self._address) as client:
            subscription: Any = client.subscribe("pubsub", "demo-dapr")
            try:
                while not end.is_set():
                    message = subscription.next_message()
                    self.page.arrived(str(message.data()), now_ms())
                    subscription.respond_success(message)
            finally:
                subscription.close()

    def close(self) -> None:
        """Listen no more."""
        self._listening.end()


class Matrix:
    """matrix-js-sdk, as it is on npm, in a process of its own."""

    def __init__(self, doors: Doors) -> None:
        self.page = Page("Matrix", "Matrix: matrix-js-sdk")
        doors.add_user("alice", PASSWORD)
        url = f"http://127.0.0.1:{doors.ports['matrix']}"
        told = {"url": url, **_signed_in(url)}
        script = Path(__file__).with_name("matrix_client.mjs")
        self._process = subprocess.Popen(
            ["node", script, npm_modules("matrix-js-sdk@43.0.0"), json.dumps(told)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._accepted = threading.Semaphore(0)
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=[iter(self._process.stdout)], daemon=True).start()

    def schedule(self, due: Sequence[int]) -> None:
        """The client counts delays and not instants: what it is told is due then, or a moment later."""
        assert self._process.stdin is not None
        for n, due_at_ms in enumerate(due):
            self._process.stdin.write(json.dumps({"name": f"m{n}", "due_at_ms": due_at_ms}) + "\n")
        self._process.stdin.flush()
        for _ in due:
            if not self._accepted.acquire(timeout=30):
                raise RuntimeError("the Matrix client did not schedule its events")

    def _listen(self, lines: Iterator[str]) -> None:
        for line in lines:
            said = json.loads(line)
            if "scheduled" in said:
                self.page.scheduled(said["scheduled"], said["due_at_ms"])
                self._accepted.release()
            else:
                self.page.arrived(said["arrived"], said["at_ms"])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _signed_in(url: str) -> dict[str, str]:
    """A session and a room of alice's."""
    with httpx.Client(base_url=f"{url}/_matrix/client/v3", trust_env=False, timeout=30) as client:
        login = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": "alice"},
            "password": PASSWORD,
        }
        session: dict[str, str] = client.post("/login", json=login).raise_for_status().json()
        headers = {"authorization": f"Bearer {session['access_token']}"}
        room = client.post("/createRoom", json={}, headers=headers).raise_for_status().json()
    kept = ("user_id", "access_token", "device_id")
    return {**{name: session[name] for name in kept}, "room_id": room["room_id"]}
