"""Consumers and a webhook receiver: threads that take what comes, write it down, and acknowledge most of it."""

import asyncio
import http.client
import json
import random
import threading
from typing import Any, Final

from aiohttp import web

from tarry.client import Client, Unreachable
from tarry.client.call import topic_path
from tarry.core.errors import Unavailable
from tests.crash.books import Acknowledged, Arrival, Books, Receipt, label_of, now_ms

AWAY_S: Final = 0.05
ACK_TIMEOUT_MS: Final = 1_500
"""Short, so that what a consumer drops comes again within the run."""


class Consumer(threading.Thread):
    """A consumer by long poll. One entry in twenty it drops, and some it gives back."""

    def __init__(
        self, url: str, books: Books, topic: str, subscription: str, seed: int, stop: threading.Event
    ) -> None:
        super().__init__(name=f"consumer-{seed}")
        self._client = Client(url, retry_for_s=0, timeout_s=20)
        self._books = books
        self._topic = topic
        self._subscription = subscription
        self._random = random.Random(seed)
        self._stopping = stop
        self.failure: Exception | None = None

    def run(self) -> None:
        """Consume until told to stop."""
        try:
            while not self._stopping.is_set():
                try:
                    self._turn()
                except Unavailable:
                    # It is not there, or it stops just now.
                    self._stopping.wait(AWAY_S)
        except Exception as error:  # noqa: BLE001 - whoever joins this thread looks at it
            self.failure = error
        finally:
            self._client.close()

    def _turn(self) -> None:
        asked_at_ms = now_ms()
        entries = self._client.receive(
            self._topic, self._subscription, max=200, wait_ms=500, consumer=self.name,
            ack_timeout_ms=ACK_TIMEOUT_MS,
        )  # fmt: skip
        received_at_ms = now_ms()
        if not entries:
            return
        self._books.receipts.extend(
            Receipt(
                self._topic, self._subscription, entry.entry_id, label_of(entry.payload),
                asked_at_ms, received_at_ms, entry.published_at_ms,
            )
            for entry in entries
        )  # fmt: skip
        self._acknowledge([entry.entry_id for entry in entries])

    def _acknowledge(self, entry_ids: list[int]) -> None:
        taken = [entry_id for entry_id in entry_ids if self._random.random() > 0.05]
        dropped = sorted(set(entry_ids) - set(taken))
        if taken:
            self._ack(tuple(taken), -1)
        if dropped and self._random.random() < 0.5:
            self._client.nack(self._topic, self._subscription, dropped, consumer=self.name)

    def _ack(self, entry_ids: tuple[int, ...], up_to: int) -> None:
        if up_to < 0:
            self._client.ack(self._topic, self._subscription, entry_ids, consumer=self.name)
        else:
            self._client.ack(self._topic, self._subscription, up_to=up_to, consumer=self.name)
        line = Acknowledged(self._topic, self._subscription, entry_ids, up_to, now_ms())
        self._books.acknowledged.append(line)


class OrderedConsumer(Consumer):
    """The consumer of an exclusive subscription, which acknowledges all up to an entry, as far as it has seen all of them."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._next = 0
        """The entry after the last one that it saw."""
        self._missed = False
        """Whether an answer with entries may have got lost since."""
        self._unseen: set[int] = set()
        """Entries of lost answers, which come again when their time is over."""

    def _turn(self) -> None:
        try:
            super()._turn()
        except Unavailable:
            self._missed = True
            raise

    def _acknowledge(self, entry_ids: list[int]) -> None:
        if self._missed:
            self._unseen.update(range(self._next, max(entry_ids)))
            self._missed = False
        self._unseen.difference_update(entry_ids)
        self._next = max(self._next, *(entry_id + 1 for entry_id in entry_ids))
        # Now and then not up to the last one: the rest comes again when its time is over.
        up_to = entry_ids[-1] if self._random.random() < 0.8 else self._random.choice(entry_ids)
        if self._unseen and min(self._unseen) < up_to:
            # "All up to this one" would be said of entries that nobody saw.
            self._ack(tuple(entry_id for entry_id in entry_ids if entry_id <= up_to), -1)
        else:
            self._ack((), up_to)


class StreamConsumer(Consumer):
    """A consumer by server-sent events."""

    together = 1
    """So many entries it acknowledges at once."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._taken: list[int] = []

    def _turn(self) -> None:
        # A connection of its own: the stream ends with it, and what it holds then is given out again.
        self._taken.clear()
        connection = http.client.HTTPConnection(
            self._client._server.host, self._client._server.port, timeout=2
        )
        asked_at_ms = now_ms()
        try:
            path = topic_path(self._topic, "subscriptions", self._subscription, "events")
            connection.request(
                "GET", f"{path}?consumer={self.name}&window=100&ack_timeout_ms={ACK_TIMEOUT_MS}"
            )
            response = connection.getresponse()
            if response.status == 503:
                raise Unavailable("as many sessions as are allowed are open")
            if response.status != 200:
                raise RuntimeError(
                    f"an event stream was answered with {response.status}: {response.read()!r}"
                )
            while not self._stopping.is_set() and (line := response.readline()):
                if line.startswith(b"data: "):
                    self._take(json.loads(line[6:]), asked_at_ms)
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, TimeoutError):
                raise Unreachable(str(error)) from error
        finally:
            connection.close()

    def _take(self, entry: dict[str, Any], asked_at_ms: int) -> None:
        payload = entry["payload"].encode()
        self._books.receipts.append(
            Receipt(
                self._topic, self._subscription, entry["entry_id"], label_of(payload),
                asked_at_ms, now_ms(), entry["published_at_ms"],
            )
        )  # fmt: skip
        self._taken.append(entry["entry_id"])
        if len(self._taken) >= self.together:
            taken, self._taken = self._taken, []
            self._acknowledge(taken)


class Receiver(threading.Thread):
    """A web server that takes webhooks, and is sometimes slow or unwilling."""

    def __init__(self, books: Books, seed: int) -> None:
        super().__init__(name="receiver")
        self._books = books
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stopping = asyncio.Event()
        self.unwilling = 0.15
        """The share of requests that it answers with 503."""
        self.url = ""

    def run(self) -> None:
        """Serve until stopped."""
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/hook", self._take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"  # type: ignore[attr-defined]
        self._listening.set()
        await self._stopping.wait()
        await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        at_ms = now_ms()
        payload = await request.read()
        accepted = self._random.random() >= self.unwilling
        label = label_of(payload)
        if label != request.headers["x-label"]:
            label = None
        self._books.arrivals.append(Arrival(label, request.headers["ce-id"], at_ms, accepted))
        if self._random.random() < 0.05:
            # Long enough for the server to be killed while it waits for the answer.
            await asyncio.sleep(0.3)
        return web.Response(status=200 if accepted else 503)

    def begin(self) -> None:
        """Start, and wait until it listens."""
        self.start()
        if not self._listening.wait(30):
            raise RuntimeError("the receiver did not start")

    def end(self) -> None:
        """Stop, and wait for the end."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(30)
