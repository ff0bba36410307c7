"""Producers and receivers of further doors for the campaign: each sends messages for later, receives them, and keeps books of both.

Nobody tells them of a takeover. Pulsar's client knows the addresses of both servers; the others come by the load balancer.
"""

import json
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pulsar
from dapr.clients import DaprClient
from dapr.conf import settings

from tests.cluster.links import Network
from tests.crash.books import new_label, now_ms
from tests.unit.matrix_kit import AS_TOKEN, HS_TOKEN, ROOM, Sent, TinyHomeserver

TOPIC: Final = "persistent://public/default/by-pulsar"
PAUSE_S: Final = 0.05


class Pair(ABC):
    """A producer and a receiver, with their books."""

    door: str
    scheduled = True
    """Whether its messages are scheduled ones, which the audit counts; delayed entries of a topic are none."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._due: dict[str, int] = {}
        self._answered: set[str] = set()
        self._places: defaultdict[str, set[object]] = defaultdict(set)
        """The ids under which each message came: two ids are two messages."""
        self._early: list[str] = []
        self.wrong_by: Callable[[int], int] = lambda at_ms: 0
        """By how much the clock of a server may be wrong at an instant."""
        self._sending = threading.Event()
        self._closing = threading.Event()

    def begin(self) -> None:
        """Start both; a server is ready."""
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def send(self, *, on: bool) -> None:
        """Go on with sending, or pause."""
        (self._sending.set if on else self._sending.clear)()

    @property
    def missing(self) -> list[str]:
        """Messages whose sending was answered and that have not come."""
        return sorted(self._answered - self._places.keys())

    @property
    def early(self) -> list[str]:
        """Messages that came before they were due."""
        return list(self._early)

    @property
    def doubled(self) -> list[str]:
        """Messages that are there more than once."""
        return [label for label, places in list(self._places.items()) if len(places) > 1]

    @property
    def received(self) -> int:
        """How many came."""
        return len(self._places)

    def summary(self) -> str:
        """Some words that say how many were sent and received."""
        return f"{self.door}: {len(self._answered)} answered, {self.received} received"

    def close(self) -> None:
        """End both threads; a client that still waits for a server ends with the process."""
        self._closing.set()
        self._sending.set()

    def _send(self) -> None:
        while self._sending.wait() and not self._closing.is_set():
            label, delay_ms = new_label(), self._random.choice((1, 300, 2_000))
            self._due[label] = now_ms() + delay_ms
            if self.schedule(label, self._due[label], delay_ms):
                self._answered.add(label)
            self._closing.wait(PAUSE_S)

    def _came(self, label: str, place: object) -> None:
        at_ms = now_ms()
        if at_ms + self.wrong_by(at_ms) < self._due[label]:
            self._early.append(label)
        self._places[label].add(place)

    def _receive(self) -> None:
        while not self._closing.is_set():
            # Whatever a client says of servers that are away, it tries again.
            with suppress(Exception):
                self.receive()
            self._closing.wait(PAUSE_S)

    @abstractmethod
    def schedule(self, label: str, due_ms: int, delay_ms: int) -> bool:
        """Send a message; gives whether it was answered. Nothing is known of one that was not."""

    @abstractmethod
    def receive(self) -> None:
        """Receive for a while."""


class PulsarPair(Pair):
    """Pulsar's client, unmodified."""

    door = "Pulsar"
    scheduled = False

    def __init__(self, service_url: str, seed: int) -> None:
        super().__init__(seed)
        quiet = logging.getLogger("tests.pulsar_pair")
        quiet.setLevel(logging.CRITICAL)
        self._client = pulsar.Client(service_url, operation_timeout_seconds=60, logger=quiet)

    def begin(self) -> None:
        """Subscribe, and make the producer, which the topic takes for the same one after a takeover."""
        self._consumer = self._client.subscribe(TOPIC, "pair", consumer_type=pulsar.ConsumerType.Shared)
        # It repeats what was not answered when a connection broke, for as long as it takes; the topic takes it once.
        self._producer = self._client.create_producer(TOPIC, producer_name="pair", send_timeout_millis=0)
        super().begin()

    def schedule(self, label: str, due_ms: int, delay_ms: int) -> bool:
        """`deliver_at`."""
        try:
            self._producer.send(label.encode(), deliver_at=due_ms)
        except pulsar.PulsarException:
            return False
        return True

    def receive(self) -> None:
        """One message; it may come again as the same entry."""
        message = self._consumer.receive(500)
        self._came(message.data().decode(), message.message_id().entry_id())
        self._consumer.acknowledge(message)


class DaprPair(Pair):
    """Dapr's SDK, unmodified, with a streaming subscription."""

    door = "Dapr"

    def __init__(self, http_port: int, grpc_port: int, seed: int) -> None:
        super().__init__(seed)
        self._address = f"127.0.0.1:{grpc_port}"
        self._publisher: DaprClient | None = None
        # Where the SDK asks whether its sidecar is well.
        configured: Any = settings
        configured.DAPR_HTTP_PORT = http_port
        logging.getLogger("dapr").setLevel(logging.CRITICAL)

    def schedule(self, label: str, due_ms: int, delay_ms: int) -> bool:
        """`scheduledSendTime`; what was not answered is not sent again, because nothing would know it."""
        at = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds")
        with suppress(Exception):
            if self._publisher is None:
                self._publisher = DaprClient(self._address)
            self._publisher.publish_event(
                "pubsub", "by-dapr", label, publish_metadata={"scheduledSendTime": at}
            )
            return True
        return False

    def receive(self) -> None:
        """A stream, until it breaks."""
        with DaprClient(self._address) as client:
            subscription: Any = client.subscribe("pubsub", "by-dapr")
            for message in subscription:
                self._came(str(message.data()), message.id())
                subscription.respond_success(message)


class MatrixPair(Pair):
    """A client of a small homeserver that schedules messages into a room; the homeserver has what came."""

    door = "Matrix"

    def __init__(self, network: Network, folder: Path, seed: int) -> None:
        super().__init__(seed)
        self._network = network
        self._homeserver = TinyHomeserver()
        self._homeserver.answers.append(self._sent)
        network.run(self._homeserver.start())
        self._registration = folder / "registration.yaml"
        self._registration.write_text(json.dumps({"as_token": AS_TOKEN, "hs_token": HS_TOKEN}))
        self.url = ""
        """Where the door is, once that is known."""

    def config(self, port: int) -> str:
        """The configuration of a door."""
        return f"""
[doors.matrix]
enabled = true
port = {port}
homeserver = "{self._homeserver.url}"
registration = "{self._registration}"
schedule_per_second = 0
max_pending_per_user = 100000
"""

    def schedule(self, label: str, due_ms: int, delay_ms: int) -> bool:
        """A delayed event, asked for with the same transaction id until it is answered."""
        url = f"{self.url}/_matrix/client/v3/rooms/{ROOM}/delayed_event/m.room.message/{label}"
        body = {"delay": delay_ms, "content": {"msgtype": "m.text", "body": label}}
        token = next(iter(self._homeserver.users))
        while not self._closing.is_set():
            with suppress(httpx.HTTPError):
                answer = httpx.put(
                    url, json=body, headers={"authorization": f"Bearer {token}"}, timeout=30, trust_env=False
                )
                if answer.status_code == 200:
                    return True
            self._closing.wait(0.3)
        return False

    def receive(self) -> None:
        """The homeserver does it."""
        self._closing.wait()

    def _sent(self, sent: Sent) -> None:
        """An event; sent again it has the same transaction id, and a homeserver takes it for the same one."""
        if sent.method == "PUT":
            self._came(sent.json["body"], sent.path)

    def close(self) -> None:
        """End the homeserver too."""
        super().close()
        self._network.run(self._homeserver.stop())
