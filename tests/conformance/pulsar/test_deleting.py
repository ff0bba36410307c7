"""Topics that are deleted under load, with the real client: all that the next topic of that name confirmed arrives."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from tests.conformance.pulsar.kit import Broker, broker, now_ms
from tests.processes import ROOT
from tests.waiting import wait_until

ROUNDS = 3
Earliest = pulsar.InitialPosition.Earliest

SLOW_SYNC: Final = """
import os, time
_sync = os.fdatasync
def fdatasync(descriptor):
    time.sleep(0.25)
    _sync(descriptor)
os.fdatasync = fdatasync
"""
"""Put before the server: clients are back, and have made the next topic, while messages for the first one are being synced."""


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A server on a slow disk."""
    folder: Path = tmp_path_factory.mktemp("deleting")
    (folder / "before").mkdir()
    (folder / "before" / "sitecustomize.py").write_text(SLOW_SYNC)
    path = f"{folder / 'before'}{os.pathsep}{ROOT / 'src'}"
    with broker(folder / "data", PYTHONPATH=path) as running:
        yield running


class Sender(threading.Thread):
    """A producer that sends without waiting; every third message is delayed if it is asked to be."""

    def __init__(self, producer: Any, name: str, delayed: bool) -> None:
        super().__init__()
        self.confirmed: list[tuple[int, bytes]] = []
        """The ledger, which is the topic's, and the payload of each message that has a receipt."""
        self._producer, self._name, self._delayed = producer, name, delayed
        self._stop_asked = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            number += 1
            payload = f"{self._name}-{number}".encode()
            delay = {"deliver_at": now_ms() + 200} if self._delayed and number % 3 == 0 else {}
            self._producer.send_async(payload, self._noting(payload), **delay)
            if number % 100 == 0:
                time.sleep(0.001)
        self._producer.flush()

    def _noting(self, payload: bytes) -> Any:
        def told(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.confirmed.append((message_id.ledger_id(), payload))

        return told

    def end(self) -> None:
        self._stop_asked.set()
        self.join()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_what_the_next_topic_of_a_name_confirmed_arrives(
    slow_server: Broker, topic: str, round_: int
) -> None:
    client = slow_server.client()
    got: dict[tuple[int, bytes], None] = {}

    def listen(consumer: Any, message: Any) -> None:
        got[message.message_id().ledger_id(), message.data()] = None
        consumer.acknowledge(message)

    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, initial_position=Earliest, message_listener=listen
    )
    senders = [
        Sender(client.create_producer(topic, block_if_queue_full=True), f"s{n}", delayed=n == 1)
        for n in range(2)
    ]
    for sender in senders:
        sender.start()
    try:
        wait_until(lambda: len(got) > 500)
        first = max(ledger for ledger, _ in list(got))
        slow_server.delete_topic(topic)
        # Clients come again by themselves, and make the next topic.
        wait_until(lambda: any(ledger > first for one in senders for ledger, _ in list(one.confirmed)))
    finally:
        for sender in senders:
            sender.end()
    confirmed = {pair for one in senders for pair in one.confirmed if pair[0] > first}
    wait_until(lambda: confirmed <= got.keys())
    consumer.close()
