"""An unmodified Pulsar client that knows the addresses of both servers: it sends messages for later, receives them, and keeps books of both."""

import logging
import random
import threading
from collections import defaultdict
from typing import Final

import pulsar

from tests.crash.books import new_label, now_ms

TOPIC: Final = "persistent://public/default/by-pulsar"
PAUSE_S: Final = 0.05


class PulsarPair:
    """A producer and a consumer of one topic, each a thread that nobody tells of a takeover."""

    def __init__(self, service_url: str, seed: int) -> None:
        quiet = logging.getLogger("tests.pulsar_pair")
        quiet.setLevel(logging.CRITICAL)
        self._random = random.Random(seed)
        self._client = pulsar.Client(service_url, operation_timeout_seconds=60, logger=quiet)
        self._due: dict[str, int] = {}
        self._answered: set[str] = set()
        self._places: defaultdict[str, set[int]] = defaultdict(set)
        """The entries in which each message came."""
        self._early: list[str] = []
        self._sending = threading.Event()
        self._closing = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]

    def begin(self) -> None:
        """Start both; a server is ready."""
        self._consumer = self._client.subscribe(TOPIC, "pair", consumer_type=pulsar.ConsumerType.Shared)
        # It repeats what was not answered when a connection broke, for as long as it takes; the topic takes it once.
        self._producer = self._client.create_producer(TOPIC, producer_name="pair", send_timeout_millis=0)
        for thread in self._threads:
            thread.start()

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
        """Messages that are in the topic more than once."""
        return [label for label, entries in list(self._places.items()) if len(entries) > 1]

    def summary(self) -> str:
        """A line that says how many were sent and received."""
        return f"{len(self._answered)} sent and {len(self._places)} received by Pulsar's client"

    def close(self) -> None:
        """End both threads; a client that still waits for a server ends with the process."""
        self._closing.set()
        self._sending.set()

    def _send(self) -> None:
        while self._sending.wait() and not self._closing.is_set():
            label = new_label()
            self._due[label] = now_ms() + self._random.choice((1, 300, 2_000))
            try:
                self._producer.send(label.encode(), deliver_at=self._due[label])
            except pulsar.PulsarException:
                # Of this one nothing is known.
                continue
            self._answered.add(label)
            self._closing.wait(PAUSE_S)

    def _receive(self) -> None:
        while not self._closing.is_set():
            try:
                message = self._consumer.receive(500)
                came_ms = now_ms()
                label = message.data().decode()
                if came_ms < self._due[label]:
                    self._early.append(label)
                self._places[label].add(message.message_id().entry_id())
                self._consumer.acknowledge(message)
            except pulsar.PulsarException:
                self._closing.wait(PAUSE_S)
