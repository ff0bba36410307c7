"""One partition of a Kafka topic as a log that several nodes read and write.

Records are produced by an idempotent producer, acknowledged by all in-sync replicas, five requests in flight, and
without transactions: who may append is decided by the readers (`tarry.ledger.log.fold`), not by the brokers. It
translates between the library and `LogPartition`, and decides nothing.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tarry.core.errors import NotFound, Unavailable
from tarry.ledger.log.partition import LogDelivery, LogRecord

ANSWERED_WITHIN_S: Final = 10.0
"""Longest wait for the brokers to answer a question."""
READ_RECORDS: Final = 1_000
READ_BYTES: Final = 8 << 20
RECORD_BYTES: Final = 2 << 20
"""Bound of the client on one record; the topic has its own."""

log = logging.getLogger("tarry.kafka")


class KafkaPartition:
    """A connection to one partition: a producer, and a consumer that is assigned to it by hand."""

    in_flight: Final = 5
    """The most for which an idempotent producer keeps its order."""

    def __init__(
        self, settings: Mapping[str, Any], topic: str, partition: int, *, outcome_within_s: float = 30.0
    ) -> None:
        """Connect when first used. `settings` are librdkafka's own: addresses, TLS, SASL."""
        self.name = f"{topic}-{partition} at {settings.get('bootstrap.servers')}"
        self._settings = {"logger": log, "log_level": 5, **settings}
        self._topic = topic
        self._partition = partition
        self._outcome_within_s = outcome_within_s
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._sent = 0
        self._delivered: deque[LogDelivery] = deque()
        self._next_offset = -1
        """Offset of the record that the consumer gives next; -1 if it is nowhere."""

    def send(self, data: bytes) -> int:
        """Hand a record to the producer; return its ticket."""
        ticket = self._sent
        self._sent += 1

        # Nothing but this: an exception here would come out of somebody else's call.
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            known = offset if offset is not None and offset != OFFSET_INVALID and offset >= 0 else None
            self._delivered.append(LogDelivery(ticket, known, error.str() if error is not None else ""))

        try:
            self._producing().produce(self._topic, data, partition=self._partition, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._delivered.append(LogDelivery(ticket, None, _text(error)))
        return ticket

    def deliveries(self, wait_s: float) -> list[LogDelivery]:
        """What became of records that were sent, in the order of their tickets."""
        producer = self._producing()
        deadline = time.monotonic() + wait_s
        producer.poll(0)
        while not self._delivered and (left := deadline - time.monotonic()) > 0:
            # It also returns for the library's own events.
            producer.poll(left)
        found = list(self._delivered)
        self._delivered.clear()
        return found

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
            raise Unavailable(f"{self.name} cannot be read: {_text(error)}") from None
        found = []
        for message in messages:
            if (failed := message.error()) is not None:
                self._next_offset = -1
                if failed.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    raise NotFound(f"{self.name} has no record at {offset} any more: {failed.str()}")
                raise Unavailable(f"{self.name} cannot be read: {failed.str()}")
            at, data = message.offset(), message.value()
            assert at is not None
            found.append(LogRecord(at, data or b""))
            self._next_offset = at + 1
        return found

    def ends(self) -> tuple[int, int]:
        """The first offset that has not been trimmed, and the one after the last committed record."""
        where = TopicPartition(self._topic, self._partition)
        try:
            low, high = self._consuming().get_watermark_offsets(where, timeout=ANSWERED_WITHIN_S) or (-1, -1)
        except KafkaException as error:
            raise Unavailable(f"{self.name} does not answer: {_text(error)}") from None
        if high < 0:
            raise Unavailable(f"{self.name} does not answer within {ANSWERED_WITHIN_S:.0f} s")
        return low, high

    def trim(self, offset: int) -> None:
        """Have the brokers delete the records below an offset; they may refuse, and then keep them."""
        if self._admin is None:
            self._admin = AdminClient(self._settings)
        where = TopicPartition(self._topic, self._partition, offset)
        try:
            for future in self._admin.delete_records([where]).values():
                future.result(ANSWERED_WITHIN_S)
        except (KafkaException, TimeoutError) as error:
            log.warning("%s was not trimmed and will be at the next attempt: %s", self.name, _text(error))

    def close(self) -> None:
        """Let go of the connections; what is in flight is not waited for."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            self._producer = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._admin = None

    def _producing(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **self._settings,
                    "acks": "all",
                    "enable.idempotence": True,
                    # A record that is given up must not be followed by one that is taken.
                    "enable.gapless.guarantee": True,
                    "max.in.flight.requests.per.connection": self.in_flight,
                    "linger.ms": 0,
                    "message.max.bytes": RECORD_BYTES,
                    "message.timeout.ms": int(self._outcome_within_s * 1000),
                    "compression.type": "none",
                }
            )
        return self._producer

    def _consuming(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **self._settings,
                    # It is never joined: the library wants a name where offsets could be kept.
                    "group.id": f"tarry-reader-{self._topic}",
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


def _text(error: BaseException) -> str:
    """What an error of the library says."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first) or type(error).__name__
