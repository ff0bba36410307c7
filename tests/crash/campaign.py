"""A campaign: the real server under load, killed again and again, then drained and audited.

The clients write their own books (`Load`); the verdict comes from these alone (`tests.crash.audit`).
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from tarry.client import Client
from tests.crash.audit import audit, missing
from tests.crash.books import ALL, Books, Receipt, label_of, now_ms
from tests.crash.consumers import Consumer, OrderedConsumer, Receiver, StreamConsumer
from tests.crash.producers import LONGEST_MS, TOPICS, Away, Producer
from tests.processes import ServerProcess, free_port

BUSY_ENGINE: Final = """
[engine]
backoff_min_ms = 20
backoff_max_ms = 300
attempts = 1000
carry_after_ms = 1000
mark_every_ms = 200
clock_slack_ms = 500
flush_every_ms = 100
reclaim_every_ms = 300
snapshot_every_ms = 1000
"""
"""Everything that the engine does now and then it does often: carry, flush, snapshot, reclaim."""

CONFIG: Final = f"""
[ledger]
segment_bytes = 1048576
{BUSY_ENGINE}
[webhook]
allow = ["127.0.0.1"]
"""

DRAIN_WITHIN_S: Final = 60.0
"""Once all of it is due."""


class Load(ABC):
    """The clients of a server: producers, consumers and a receiver of webhooks, with their books."""

    def __init__(self, url: str, seed: int, longest_ms: int = LONGEST_MS) -> None:
        """`url` is where the server will be."""
        self.books = Books()
        self._longest_ms = longest_ms
        self._random = random.Random(seed)
        self._stop_producing = threading.Event()
        self._stop_consuming = threading.Event()
        self._receiver = Receiver(self.books, seed)
        self._client = Client(url, retry_for_s=10)
        self._url = url
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []

    def begin(self) -> None:
        """Start everybody; the server is ready."""
        self._receiver.begin()
        for topic in TOPICS:
            self._client.subscribe(topic, ALL, type="exclusive", start="earliest")
        for topic, name, kind in ((TOPICS[0], "work", "shared"), (TOPICS[0], "keyed", "key_shared"),
                                  (TOPICS[1], "ordered", "exclusive")):  # fmt: skip
            self._client.subscribe(topic, name, type=kind, start="earliest")  # type: ignore[arg-type]
        self._producers = self._new_producers()
        self._consumers = self._new_consumers()
        for thread in (*self._producers, *self._consumers):
            thread.start()

    @abstractmethod
    def crash(self) -> None:
        """Let it run for a moment and have something fail."""

    def _new_producers(self) -> list[Producer]:
        stop, longest_ms = self._stop_producing, self._longest_ms
        return [
            Producer(self._url, self._receiver.url, self.books, seed, stop, longest_ms) for seed in range(3)
        ]

    def _new_consumers(self) -> list[Consumer]:
        stop = self._stop_consuming
        return [
            Consumer(self._url, self.books, TOPICS[0], "work", 1, stop),
            Consumer(self._url, self.books, TOPICS[0], "work", 2, stop),
            StreamConsumer(self._url, self.books, TOPICS[0], "keyed", 3, stop),
            OrderedConsumer(self._url, self.books, TOPICS[1], "ordered", 4, stop),
        ]

    def drain(self) -> None:
        """Stop producing, bring far messages near, wait until all has come, and read everything once more."""
        self._end(self._producers, self._stop_producing)
        self._receiver.unwilling = 0.0
        self._settle_far()
        deadline = time.monotonic() + DRAIN_WITHIN_S + self._longest_ms / 1000
        while missing(self.books) and time.monotonic() < deadline:
            time.sleep(0.25)
        self.books.entries = [receipt for topic in TOPICS for receipt in self._all_of(topic, deadline)]
        # What the consumers have not got yet, of all that there is.
        while missing(self.books) and time.monotonic() < deadline:
            time.sleep(0.25)
        self._end(self._consumers, self._stop_consuming)
        self._look_up()

    def _settle_far(self) -> None:
        """Half of what is far is sent by command, so that it must arrive; the other half must still be there."""
        producer = self._producers[0]
        for number, message in enumerate(self.books.messages):
            if message.id is None or message.cancelled:
                continue
            try:
                if message.cancel_unknown:
                    producer.command(message, "cancel")
                elif not message.is_due and message.group is None and (not message.waits or number % 2):
                    producer.command(message, "send")
            except Away:
                self.books.complaints.append("the server is away although nobody killed it")
                return

    def _all_of(self, topic: str, deadline: float) -> list[Receipt]:
        """Every entry of a topic, which nobody has read for this subscription before."""
        end = self._client.topic_stats(topic)["next_entry"]
        return self._complete(topic, self._read_upto(topic, end), end)

    def _read_upto(self, topic: str, end: int) -> list[Receipt]:
        found: list[Receipt] = []
        while not found or found[-1].entry_id < end - 1:
            asked_at_ms = now_ms()
            entries = self._client.receive(topic, ALL, max=1000, wait_ms=2_000, consumer="auditor")
            if not entries:
                break
            found += (
                Receipt(topic, ALL, entry.entry_id, label_of(entry.payload), asked_at_ms, now_ms(), entry.published_at_ms)
                for entry in entries
            )  # fmt: skip
            self._client.ack(topic, ALL, up_to=found[-1].entry_id, consumer="auditor")
        return found

    def _complete(self, topic: str, entries: list[Receipt], end: int) -> list[Receipt]:
        ids = [receipt.entry_id for receipt in entries]
        if ids != list(range(end)):
            self.books.complaints.append(f"{topic} has {end} entries, but {len(ids)} were read: {ids[:20]}…")
        return entries

    def _look_up(self) -> None:
        """Ask the server what became of some of the messages."""
        known = [message for message in self.books.messages if message.id is not None]
        for message in self._random.sample(known, min(400, len(known))):
            assert message.id is not None
            self.books.states[message.label] = self._client.get(message.id).state

    def _end(self, threads: "list[Producer] | list[Consumer]", stop: threading.Event) -> None:
        stop.set()
        for thread in threads:
            thread.join(30)
            if thread.is_alive() or thread.failure is not None:
                self.books.complaints.append(f"{thread.name} failed: {thread.failure!r}")

    def offenders(self) -> list[str]:
        """The verdict."""
        return audit(self.books)

    def summary(self) -> str:
        """One line of figures."""
        books = self.books
        answered = sum(message.answered for message in books.messages)
        commands = sum(len(message.commands) for message in books.messages)
        return (
            f"{len(books.kills) // 2} kills; {len(books.messages)} messages, {answered} answered; {commands} commands; "
            f"{len(books.publications)} publications; {len(books.receipts)} receipts; {len(books.arrivals)} arrivals; "
            f"{books.refused} refused"
        )

    def end(self) -> None:
        """Stop everything that still runs."""
        self._stop_producing.set()
        self._stop_consuming.set()
        for thread in (*self._producers, *self._consumers):
            if thread.ident is not None:
                thread.join(30)
        for producer in self._producers:
            # The last commands were given after it had ended.
            producer.close()
        self._client.close()
        if self._receiver.ident is not None:
            self._receiver.end()


class Victim:
    """A server that crashes again and again, with its kills in the books."""

    def __init__(self, folder: Path, config: str, port: int, books: Books, rng: random.Random) -> None:
        self.server = ServerProcess(folder, config, port=port)
        self._books = books
        self._random = rng

    def crash(self) -> None:
        """Let it run for a moment, and have it crash."""
        time.sleep(self._random.uniform(0.2, 2.5))
        self.restart()

    def restart(self) -> None:
        """Kill it and start it again; now and then stop it, or kill it while it starts."""
        if self.server.ended:
            self._books.complaints.append(f"the server ended by itself: {self.server.said()[-300:]}")
        if self._random.random() < 0.15:
            # A clean stop excuses nothing: it waits for what is on its way.
            if (code := self.server.stop()) != 0:
                self._books.complaints.append(f"a stop ended with exit code {code}")
        else:
            self._kill()
        if self._random.random() < 0.25:
            self.server.launch()
            time.sleep(self._random.uniform(0.2, 2.0))
            self._kill()
        self.server.start()

    def _kill(self) -> None:
        # Taken before and after: whatever the kill may explain happened in between.
        self._books.kills.append(now_ms())
        self.server.kill()
        self._books.kills.append(now_ms())


class Rounds(Protocol):
    """The parts of a round."""

    @property
    def books(self) -> Books:
        """The books of the clients."""

    def begin(self) -> None:
        """Start everybody."""

    def crash(self) -> None:
        """Let it run for a moment and have something fail."""

    def drain(self) -> None:
        """Wait until all has come that should."""

    def offenders(self) -> list[str]:
        """The verdict."""

    def summary(self) -> str:
        """One line of figures."""

    def end(self) -> None:
        """Stop everything that still runs."""


class Campaign(Load):
    """One server, its clients and their books."""

    def __init__(
        self, folder: Path, seed: int, *, config: str = CONFIG, longest_ms: int = LONGEST_MS
    ) -> None:
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}", seed, longest_ms)
        self.victim = Victim(folder / "data", config, port, self.books, self._random)
        self.server = self.victim.server

    def begin(self) -> None:
        """Start the server and everybody else."""
        self.server.start()
        super().begin()

    def crash(self) -> None:
        """Let it run for a moment and have it crash."""
        self.victim.crash()

    def offenders(self) -> list[str]:
        """The verdict."""
        return super().offenders() + tracebacks("the server", self.server.said())

    def end(self) -> None:
        """Stop everything that still runs."""
        super().end()
        self.server.kill()


def tracebacks(who: str, said: str) -> list[str]:
    """The first traceback in a log, with what led to it: the folder is often gone by the time somebody reads of it."""
    before, found, after = said.partition("Traceback")
    return [f"the log of {who} has a traceback: {before[-500:]}{found}{after[:5_000]}"] if found else []


def run(campaign: Rounds, go_on: Callable[[int], bool], say: Callable[[str], None]) -> list[str]:
    """A whole campaign; `go_on` is asked after each crash, with their number."""
    try:
        campaign.begin()
        crashes = 0
        # What somebody complains of is best looked at as it is.
        while go_on(crashes) and not campaign.books.complaints:
            campaign.crash()
            crashes += 1
            say(campaign.summary())
        for line in campaign.books.complaints:
            say(f"complaint: {line}")
        campaign.drain()
        say(campaign.summary())
        return campaign.offenders()
    finally:
        campaign.end()
