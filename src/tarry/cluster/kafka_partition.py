"""One partition of a Kafka topic as a log that several nodes read and write.

Records are produced by an idempotent producer, acknowledged by all in-sync replicas, five requests in flight, and
without transactions: who may append is decided by the readers (`tarry.ledger.log.fold`), not by the brokers. It
translates between the library and `LogPartition`, and decides nothing.
"""

import contextlib
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tarry.cluster.failures import told
from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.log.partition import LogDelivery, LogRecord

ANSWERED_WITHIN_S: Final = 10.0
"""Longest wait for the brokers to answer a question."""
OUTCOME_WITHIN_S: Final = 30.0
"""After so long without an acknowledgement the outcome of a record counts as unknown."""
READ_RECORDS: Final = 1_000
READ_BYTES: Final = 8 << 20
RECORD_BYTES: Final = 2 << 20
"""Bound of the client on one record; the topic has its own."""

log = logging.getLogger("tarry.kafka")
# That it calls `enable.gapless.guarantee` experimental is nothing that an operator could do anything about.
log.addFilter(lambda record: not record.getMessage().startswith("CONFWARN"))


class KafkaPartition:
    """A connection to one partition: a producer, and a consumer that is assigned to it by hand."""

    in_flight = 5
    """The most for which an idempotent producer keeps its order."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        partition: int,
        reader: str | None = None,
        *,
        outcome_within_s: float = OUTCOME_WITHIN_S,
        answered_within_s: float = ANSWERED_WITHIN_S,
    ) -> None:
        """Connect when first used. `settings` are librdkafka's own: addresses, TLS, SASL.

        `reader` is the group to which positions are committed, by whoever says any.
        """
        self.name = f"{topic}-{partition} at {settings.get('bootstrap.servers')}"
        self._settings = {"logger": log, "log_level": 5, **settings}
        self._topic = topic
        self._partition = partition
        self._reader = reader or f"tarry-reader-{topic}"
        self._outcome_within_s = outcome_within_s
        self._answered_within_s = answered_within_s
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._sent = 0
        self._settled = 0
        """The ticket of the oldest record of which nothing was heard."""
        self._delivered: list[LogDelivery] = []
        self._next_offset = -1
        """Offset of the record that the consumer gives next; -1 if it is nowhere."""

    def connect(self) -> None:
        """Let the producer get ready, which takes it half a second, so that the first record does not wait for that."""
        self._producing()

    def renew(self) -> None:
        """Have another producer: one that has failed for good takes nothing any more, and frames may follow no such failure."""
        self._fail("the producer was given up")
        self._delivered.clear()
        self._drop_producer()

    def send(self, data: bytes) -> int:
        """Hand a record to the producer; return its ticket."""
        ticket = self._sent
        self._sent += 1

        # It does nothing else: an exception here would come out of somebody else's call.
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            known = None if error is not None or offset is None or offset < 0 else offset
            self._told(ticket, known, told(error) if error is not None else "")

        try:
            self._producing().produce(self._topic, data, partition=self._partition, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._fail(told(error))
        return ticket

    def deliveries(self, wait_s: float) -> list[LogDelivery]:
        """Outcomes of records that were sent, in the order of their tickets."""
        producer = self._producing()
        deadline = time.monotonic() + wait_s
        try:
            producer.poll(0)
            while not self._delivered and (left := deadline - time.monotonic()) > 0:
                # It also returns for the library's own events.
                producer.poll(left)
        except KafkaException as error:
            self._fail(told(error))
        found, self._delivered = self._delivered, []
        return found

    def _told(self, ticket: int, offset: int | None, error: str) -> None:
        """Take down what became of a record, once."""
        if ticket == self._settled:
            self._settled += 1
            self._delivered.append(LogDelivery(ticket, offset, error))

    def _fail(self, reason: str) -> None:
        """Take down that the producer has failed for good: nothing more is heard of the records that it has."""
        for ticket in range(self._settled, self._sent):
            self._told(ticket, None, reason)

    def read(self, offset: int, wait_s: float) -> list[LogRecord]:
        """Records from this offset on; raises `NotFound` or `Unavailable`."""
        consumer = self._consuming()
        try:
            if offset != self._next_offset:
                consumer.assign([TopicPartition(self._topic, self._partition, offset)])
                self._next_offset = offset
            # Asked for many it would wait for all of them.
            messages = consumer.consume(1, wait_s)
            if messages:
                messages += consumer.consume(READ_RECORDS, 0)
        except KafkaException as error:
            self._next_offset = -1
            raise Unavailable(f"{self.name} cannot be read: {told(error)}") from None
        found = []
        for message in messages:
            if (failed := message.error()) is not None:
                self._next_offset = -1
                if failed.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise NotFound(f"{self.name} has no record at {offset}: {failed.str()}")
                raise Unavailable(f"{self.name} cannot be read: {told(failed)}")
            at, data = message.offset(), message.value()
            assert at is not None
            found.append(LogRecord(at, data or b""))
            self._next_offset = at + 1
        return found

    def commit(self, offset: int) -> None:
        """Tell the brokers up to where this node has read, for others to see; nothing depends on its success."""
        position = TopicPartition(self._topic, self._partition, offset)
        with contextlib.suppress(KafkaException):
            self._consuming().commit(offsets=[position], asynchronous=True)

    def identity(self) -> str:
        """The topic's id; empty where the brokers give none."""
        try:
            (asked,) = (
                self._administering()
                .describe_topics(TopicCollection([self._topic]), request_timeout=self._answered_within_s)
                .values()
            )
            found = asked.result(self._answered_within_s).topic_id
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(f"{self.name} does not tell its id: {told(error)}") from None
        return str(found) if found.get_most_significant_bits() or found.get_least_significant_bits() else ""

    def ends(self) -> tuple[int, int]:
        """The first offset that has not been trimmed, and the one after the last committed record."""
        where = TopicPartition(self._topic, self._partition)
        try:
            return self._consuming().get_watermark_offsets(where, timeout=self._answered_within_s)
        except KafkaException as error:
            raise Unavailable(f"{self.name} does not answer: {told(error)}") from None

    def trim(self, offset: int) -> None:
        """Have the brokers delete the records below an offset, without waiting; they may refuse, and then keep them."""
        where = TopicPartition(self._topic, self._partition, offset)
        try:
            (asked,) = (
                self._administering()
                .delete_records([where], request_timeout=self._answered_within_s)
                .values()
            )
        except KafkaException as error:
            self._not_trimmed(error)
        else:
            asked.add_done_callback(self._trimmed)

    def _trimmed(self, asked: "Future[Any]") -> None:
        """Take note of the brokers' answer, in the library's thread."""
        if (error := asked.exception()) is not None:
            self._not_trimmed(error)

    def _not_trimmed(self, error: BaseException) -> None:
        log.warning("%s was not trimmed and will be at the next attempt: %s", self.name, told(error))

    def close(self) -> None:
        """Let go of the connections; frames in flight are not waited for."""
        self._drop_producer()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._admin = None

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            self._producer = None

    def _producing(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._settings,
                    "acks": "all",
                    "enable.idempotence": True,
                    # A record that the brokers refuse must not be followed by one that they take: then the producer
                    # fails for good. One that is given up for its time is no such case; a frame behind it is void (R14).
                    "enable.gapless.guarantee": True,
                    "max.in.flight.requests.per.connection": self.in_flight,
                    "linger.ms": 0,
                    "message.max.bytes": RECORD_BYTES,
                    "message.timeout.ms": int(self._outcome_within_s * 1000),
                    "compression.type": "none",
                }
            )
        return self._producer

    def _administering(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self._settings)
        return self._admin

    def _consuming(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._settings,
                    # It is never joined: positions are committed to it.
                    "group.id": self._reader,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_uncommitted",
                    "enable.partition.eof": False,
                    "fetch.max.bytes": READ_BYTES,
                    "max.partition.fetch.bytes": READ_BYTES,
                    "fetch.wait.max.ms": 100,
                    "queued.max.messages.kbytes": 4 * READ_BYTES // 1024,
                }
            )
        return self._consumer
