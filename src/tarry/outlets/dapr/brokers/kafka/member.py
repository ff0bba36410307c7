"""A member of a consumer group: a consumer in a thread of its own, and receivers on the loop."""

import asyncio
import logging
import threading
import time
from functools import partial
from typing import Any, Final
from urllib.parse import quote_plus

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tarry.outlets.dapr.broker import Joining
from tarry.outlets.dapr.brokers.kafka.failures import Denial, component_error
from tarry.outlets.dapr.brokers.kafka.offsets import Offsets
from tarry.outlets.dapr.brokers.kafka.settings import KafkaSettings
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.errors import ComponentError
from tarry.outlets.dapr.receiving import Receivers, ended

log = logging.getLogger("tarry.dapr")

AT_ONCE: Final = 1_000
FULL: Final = 2_000
"""Records of a partition in memory at which no more are asked for; a subscription that holds has no such bound."""
COMMIT_S: Final = 1.0
ANSWERED_WITHIN_S: Final = 5.0
JOINED_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.1


class Partition:
    """One partition that is ours for now. Lives on the loop; `offsets` is read by the thread under a lock."""

    def __init__(self, number: int, offsets: Offsets, receivers: Receivers) -> None:
        self.number = number
        self.offsets = offsets
        self.receivers = receivers
        self.arrived: asyncio.Queue[Message] = asyncio.Queue()
        self.held: set[int] = set()
        self.feeding: asyncio.Task[None] | None = None
        self.paused = False

    @property
    def load(self) -> int:
        """Records in memory."""
        return self.arrived.qsize() + len(self.held)


class KafkaMember:
    """One subscription.

    An application's records are received one after another in each partition. Those of a subscription that must
    last are received together, and what is done is kept exactly (see `offsets`).
    """

    def __init__(self, settings: KafkaSettings, joining: Joining) -> None:
        self._settings = settings
        self._topic = joining.topic
        self._receive = joining.receive
        self._lasting = joining.lasting
        self._hold = joining.hold
        self._denial = Denial()
        self._config: dict[str, Any] = settings.client | {
            "group.id": settings.group or joining.group,
            "auto.offset.reset": "earliest" if joining.lasting else settings.initial_offset,
            "enable.auto.commit": False,
            "enable.partition.eof": False,
            "allow.auto.create.topics": True,
            "topic.metadata.refresh.interval.ms": 5_000,
            "heartbeat.interval.ms": settings.heartbeat_ms,
            "session.timeout.ms": settings.session_ms,
            "error_cb": self._denial.heard,
        }
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[int, Partition] = {}
        self._lock = threading.Lock()
        self._joined = threading.Event()
        self._closed = threading.Event()
        self._consumer: Consumer | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Join the group; raises `ComponentError`."""
        self._consumer = await asyncio.to_thread(self._connect)
        self._thread = threading.Thread(target=self._run, name="kafka-consumer", daemon=True)
        self._thread.start()
        # Until then nothing would be received of what is published.
        await asyncio.to_thread(self._joined.wait, JOINED_WITHIN_S)

    # In the thread

    def _connect(self) -> Consumer:
        consumer = Consumer(self._config)
        try:
            self._await_topic(consumer)
            consumer.subscribe(
                [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except KafkaException as error:
            consumer.poll(0)
            consumer.close()
            raise component_error(self._denial.take(error.args[0]), self._topic) from None
        except ComponentError:
            consumer.close()
            raise
        return consumer

    def _await_topic(self, consumer: Consumer) -> None:
        """The cluster makes the topic when it is asked for, if it does so at all."""
        deadline_s = time.monotonic() + ANSWERED_WITHIN_S
        while True:
            found = consumer.list_topics(self._topic, timeout=ANSWERED_WITHIN_S).topics[self._topic]
            if found.error is None:
                return
            if time.monotonic() > deadline_s:
                raise component_error(found.error, self._topic)
            time.sleep(_POLL_S)

    def _run(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        committed_at_s = time.monotonic()
        while not self._closed.is_set():
            record = consumer.poll(_POLL_S)
            if record is not None:
                self._polled(record)
            if time.monotonic() - committed_at_s > COMMIT_S:
                self._commit(consumer)
                self._pause_and_resume(consumer)
                committed_at_s = time.monotonic()
        self._commit(consumer)
        consumer.close()

    def _polled(self, record: Message) -> None:
        error = record.error()
        if error is None:
            self._loop.call_soon_threadsafe(self._arrived, record)
        elif error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            log.warning("a Kafka topic cannot be read", extra={"topic": self._topic, "reason": error.str()})

    def _commit(self, consumer: Consumer) -> None:
        with self._lock:
            changed = [one for one in self._partitions.values() if one.offsets.changed]
            marks = [
                TopicPartition(self._topic, one.number, one.offsets.below, one.offsets.note())
                for one in changed
            ]
            for one in changed:
                one.offsets.changed = False
        if not marks:
            return
        try:
            consumer.commit(offsets=marks, asynchronous=False)
        except KafkaException as error:
            log.warning("Kafka did not take a commit", extra={"topic": self._topic, "reason": str(error)})
            with self._lock:
                for one in changed:
                    one.offsets.changed = True

    def _pause_and_resume(self, consumer: Consumer) -> None:
        if self._hold:
            return
        with self._lock:
            partitions = list(self._partitions.values())
        for one in partitions:
            if one.paused != (one.load > FULL // (2 if one.paused else 1)):
                one.paused = not one.paused
                at = [TopicPartition(self._topic, one.number)]
                consumer.pause(at) if one.paused else consumer.resume(at)

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        begins = self._begins(consumer, given)
        with self._lock:
            for one in begins:
                offsets = Offsets(one.offset, one.metadata or "")
                # The place of a new group is kept: another member, or the next start, goes on from there.
                offsets.changed = one.metadata is None
                at_once = None if self._hold else AT_ONCE if self._lasting else 1
                receivers = Receivers(self._persistently, at_once)
                self._partitions[one.partition] = Partition(one.partition, offsets, receivers)
        consumer.assign([TopicPartition(self._topic, one.partition, one.offset) for one in begins])
        self._joined.set()

    def _begins(self, consumer: Consumer, given: list[TopicPartition]) -> list[TopicPartition]:
        """Where each partition is read from: what the group has committed, or an end of it, which is asked for now.

        Left to the library it would be asked for later, and what is published in between be passed over.
        """
        while given and not self._closed.is_set():
            try:
                known = consumer.committed(given, timeout=ANSWERED_WITHIN_S)
                return [one if one.offset >= 0 else self._end_of(consumer, one) for one in known]
            except KafkaException as error:
                log.warning(
                    "Kafka does not say where a group is", extra={"topic": self._topic, "reason": str(error)}
                )
                self._closed.wait(_POLL_S)
        return []

    def _end_of(self, consumer: Consumer, partition: TopicPartition) -> TopicPartition:
        """The end of a partition at which a new group begins, without a note."""
        first, last = consumer.get_watermark_offsets(partition, timeout=ANSWERED_WITHIN_S)
        earliest = self._config["auto.offset.reset"] == "earliest"
        return TopicPartition(self._topic, partition.partition, first if earliest else last)

    def _on_revoke(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        self._commit(consumer)
        self._on_lost(consumer, taken)

    def _on_lost(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        del consumer
        with self._lock:
            gone = [self._partitions.pop(one.partition, None) for one in taken]
        ending = asyncio.run_coroutine_threadsafe(_end([one for one in gone if one is not None]), self._loop)
        if not self._closed.is_set():
            try:
                ending.result(ANSWERED_WITHIN_S)
            except TimeoutError:
                log.warning("receivers of a partition that is another's do not end")

    # On the loop

    def _arrived(self, record: Message) -> None:
        with self._lock:
            partition = self._partitions.get(record.partition() or 0)
        if partition is None:
            return
        if partition.feeding is None:
            partition.feeding = asyncio.create_task(self._feed(partition))
        partition.arrived.put_nowait(record)

    async def _feed(self, partition: Partition) -> None:
        while True:
            record = await partition.arrived.get()
            offset = record.offset() or 0
            with self._lock:
                partition.offsets.first_seen(offset)
                partition.offsets.skip_to(offset, iter(partition.held))
                known = partition.offsets.done(offset)
            if known:
                continue
            partition.held.add(offset)
            await partition.receivers.start(self._received(record), partial(self._finish, partition, offset))

    def _received(self, record: Message) -> BrokerMessage:
        key, value = record.key(), record.value()
        text = quote_plus if self._settings.escapes_headers else str
        metadata = {} if key is None else {"__key": text(_text(key))}
        metadata |= {
            "__offset": str(record.offset()),
            "__topic": self._topic,
            "__timestamp": str(record.timestamp()[1]),
            "__partition": str(record.partition()),
        }
        excluded = self._settings.excluded
        headers: Any = record.headers()
        for name, header in headers or []:
            if excluded is None or not excluded.search(name):
                metadata[name] = text(_text(header or b""))
        return BrokerMessage(
            topic=self._topic,
            data=_bytes(value),
            metadata=metadata,
            position=f"{record.partition()}/{record.offset()}",
        )

    async def _persistently(self, message: BrokerMessage) -> Settlement:
        """Kafka cannot be told that a record was not taken: it is given again from here."""
        while True:
            try:
                reply = await self._receive(message)
            except Exception as error:  # noqa: BLE001 - whatever a receiver raises, it is asked again
                log.warning("a receiver failed", extra={"topic": message.topic, "reason": str(error)})
                reply = Settlement.NACK
            if reply is Settlement.ACK or not (self._settings.retries or self._lasting):
                return reply
            await asyncio.sleep(self._settings.retry_ms / 1000)

    async def _finish(self, partition: Partition, offset: int, reply: Settlement) -> None:
        del reply
        with self._lock:
            partition.offsets.finish(offset)
        partition.held.discard(offset)

    async def close(self) -> None:
        """Leave the group; unfinished messages come again to another member."""
        self._closed.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        with self._lock:
            left = list(self._partitions.values())
            self._partitions.clear()
        await _end(left)


async def _end(partitions: list[Partition]) -> None:
    for one in partitions:
        if one.feeding is not None:
            await ended([one.feeding])
        await one.receivers.close()


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
