"""SIGKILL on a server whose Pulsar door is under load: what had its receipt arrives, and what was acknowledged does not come again."""

import contextlib
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.pulsar.kit import Broker, broker, now_ms
from tests.conformance.pulsar.raw import Raw, Sub, Type, ack_frame, flow_frame, send_frame

TOPIC = "persistent://public/default/crash"
SUBSCRIPTIONS: dict[str, Any] = {
    "shared": Sub.Shared,
    "keys": Sub.Key_Shared,
    "failover": Sub.Failover,
    "second": Sub.Shared,
}
KILLS = 2
WITHIN_S = 120


class Books:
    """Requests and answers, over all lives of the server."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent = 0
        self.due: dict[int, int] = {}
        """When each message is due; what is at once is due at 0."""
        self.receipts: set[int] = set()
        self.got: dict[str, set[int]] = {name: set() for name in SUBSCRIPTIONS}
        self.entries: dict[str, dict[int, int]] = {name: {} for name in SUBSCRIPTIONS}
        self.done: dict[str, set[int]] = {name: set() for name in SUBSCRIPTIONS}
        """Messages whose acknowledgement was answered."""
        self.offences: list[str] = []

    def missing(self) -> dict[str, int]:
        with self.lock:
            return {name: len(self.receipts - got) for name, got in self.got.items()}


def produce(server: Broker, books: Books, stop: threading.Event) -> None:
    connection = Raw(server.url)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        last = connection.produce(TOPIC, "load")
        # What has no receipt may be there or not; its number is not used again.
        books.sent = max(books.sent, last + 1)
        while not stop.is_set():
            first = books.sent
            frames = []
            for number in range(first, first + 50):
                publish_ms = now_ms()
                due_ms = publish_ms + random.randrange(100, 900) if number % 3 else None
                with books.lock:
                    books.due[number] = due_ms or 0
                frames.append(send_frame(number, b"%d" % number, publish_ms, due_ms, f"k{number % 17}"))
            books.sent += 50
            connection.tell(b"".join(frames))
            for _ in frames:
                command, _ = connection.hear()
                assert command.type == Type.SEND_RECEIPT, command
                with books.lock:
                    books.receipts.add(command.send_receipt.sequence_id)
            time.sleep(0.01)


def consume(server: Broker, books: Books, name: str, stop: threading.Event) -> None:
    connection = Raw(server.url)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.subscribe(TOPIC, name, SUBSCRIPTIONS[name])
        connection.tell(flow_frame(200))
        pending: dict[int, list[int]] = {}
        request = 10
        while not stop.is_set():
            command, message = connection.hear()
            if command.type == Type.MESSAGE:
                number = int(message[10 + int.from_bytes(message[6:10], "big") :])
                entry_id = command.message.message_id.entryId
                note(books, name, number, entry_id)
                request += 1
                pending[request] = [number]
                # Some are left, to come again.
                if random.random() < 0.8:
                    connection.tell(ack_frame([entry_id], request) + flow_frame(1))
                else:
                    connection.tell(flow_frame(1))
            elif command.type == Type.ACK_RESPONSE:
                with books.lock:
                    books.done[name].update(pending.pop(command.ackResponse.request_id))


def note(books: Books, name: str, number: int, entry_id: int) -> None:
    at_ms = now_ms()
    with books.lock:
        if number in books.done[name]:
            books.offences.append(f"{name}: {number} came again after its acknowledgement was answered")
        if books.entries[name].setdefault(number, entry_id) != entry_id:
            books.offences.append(f"{name}: {number} is in the topic twice")
        if SUBSCRIPTIONS[name] != Sub.Failover and at_ms < books.due[number]:
            books.offences.append(f"{name}: {number} is early")
        books.got[name].add(number)


def live(server: Broker, books: Books, stop: threading.Event, *, producing: bool) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=consume, args=(server, books, name, stop), daemon=True)
        for name in SUBSCRIPTIONS
    ]
    if producing:
        threads.append(threading.Thread(target=produce, args=(server, books, stop), daemon=True))
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.crash
def test_nothing_with_a_receipt_is_lost_and_acknowledged_stays_so(tmp_path: Path) -> None:
    books = Books()
    for _ in range(KILLS):
        with broker(tmp_path / "data", "deduplicate = true") as server:
            stop = threading.Event()
            before = len(books.receipts)
            threads = live(server, books, stop, producing=True)
            deadline = time.monotonic() + 30
            while len(books.receipts) < before + 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.3))
            server.server.kill()
            stop.set()
            for thread in threads:
                thread.join(timeout=30)
    assert len(books.receipts) >= KILLS * 200
    with broker(tmp_path / "data", "deduplicate = true") as server:
        stop = threading.Event()
        threads = live(server, books, stop, producing=False)
        deadline = time.monotonic() + WITHIN_S
        while any(books.missing().values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        missing = books.missing()
        stop.set()
        server.server.kill()
        for thread in threads:
            thread.join(timeout=30)
    assert not any(missing.values()), missing
    assert not books.offences, books.offences[:10]
