"""Produces records, and tells each caller what became of its own.

The library works in threads of its own and calls back in the one that asks it to (`poll`): that one is here.
"""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from tarry.outlets.dapr.brokers.kafka.failures import Denial, component_error
from tarry.outlets.dapr.brokers.kafka.settings import KafkaSettings
from tarry.outlets.dapr.component import BulkEntry
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError

ANSWERED_WITHIN_S: Final = 5.0
SENT_WITHIN_MS: Final = 10_000
_POLL_S: Final = 0.1
_ROOM_S: Final = 0.01

_Outcome = ComponentError | None


class ProducerThread:
    """A producer, and the thread that asks it for news."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._denial = Denial()
        self._config: dict[str, Any] = settings.client | {
            "acks": "all",
            "retries": 5,
            "partitioner": "fnv1a_random",
            "message.timeout.ms": SENT_WITHIN_MS,
            "message.max.bytes": settings.max_message_bytes,
            "error_cb": self._denial.heard,
        }
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    async def start(self) -> None:
        """Connect, if that was not done yet; raises `BrokerUnreachable` or `Denied`."""
        if self._producer is not None:
            return
        async with self._starting:
            if self._closed.is_set():
                raise BrokerUnreachable("the component is closed")
            if self._producer is None:
                self._producer = await asyncio.to_thread(self._connect)
                self._thread = threading.Thread(target=self._poll, name="kafka-producer", daemon=True)
                self._thread.start()

    def _connect(self) -> Producer:
        producer = Producer(self._config)
        try:
            producer.list_topics(timeout=ANSWERED_WITHIN_S)
        except KafkaException as error:
            producer.poll(0)
            raise component_error(self._denial.take(error.args[0])) from None
        return producer

    def _poll(self) -> None:
        assert self._producer is not None
        while not self._closed.is_set():
            self._producer.poll(_POLL_S)

    async def send(self, topic: str, data: bytes, metadata: Mapping[str, str]) -> None:
        """Produce one record."""
        outcome = await (await self._produce(topic, data, metadata))
        if outcome is not None:
            raise outcome

    async def send_all(self, topic: str, entries: Sequence[BulkEntry]) -> dict[str, ComponentError]:
        """Produce several; the answer is what failed."""
        outcomes = [await self._produce(topic, entry.data, entry.metadata) for entry in entries]
        failed = {}
        for entry, outcome in zip(entries, await asyncio.gather(*outcomes), strict=True):
            if outcome is not None:
                failed[entry.entry_id] = outcome
        return failed

    async def _produce(
        self, topic: str, data: bytes, metadata: Mapping[str, str]
    ) -> "asyncio.Future[_Outcome]":
        assert self._producer is not None
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Outcome] = loop.create_future()
        key = metadata.get("__key", metadata.get("partitionKey"))
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in metadata.items()
        ]
        while True:
            try:
                self._producer.produce(
                    topic,
                    value=data,
                    key=None if key is None else key.encode(),
                    headers=headers,
                    on_delivery=partial(_delivered, loop, outcome, topic),
                )
            except BufferError:
                await asyncio.sleep(_ROOM_S)
            except KafkaException as error:
                outcome.set_result(component_error(error.args[0], topic))
                return outcome
            else:
                return outcome

    async def close(self) -> None:
        """Send waiting messages, within the time that is left, and end."""
        self._closed.set()
        if self._thread is not None and self._producer is not None:
            await asyncio.to_thread(self._thread.join)
            await asyncio.to_thread(self._producer.flush, ANSWERED_WITHIN_S)


def _delivered(
    loop: asyncio.AbstractEventLoop,
    outcome: "asyncio.Future[_Outcome]",
    topic: str,
    error: KafkaError | None,
    record: object,
) -> None:
    """Called in the polling thread."""
    del record
    result = None if error is None else component_error(error, topic, sent=True)
    try:
        loop.call_soon_threadsafe(_settle, outcome, result)
    except RuntimeError:
        # The loop has ended, and with it whoever waited.
        pass


def _settle(outcome: "asyncio.Future[_Outcome]", result: _Outcome) -> None:
    if not outcome.done():
        outcome.set_result(result)
