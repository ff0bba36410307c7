"""The producers of one connection: messages in, receipts out, in the order in which they came.

What comes together is published together, and its receipts go out together once the ledger has synced it. A message that
is refused has its error at its place among the receipts, so that its neighbours are unharmed: see `Producer.refusal`.
"""

import base64
import binascii
import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from tarry.core.errors import DelayTooLong, Invalid, QuotaExceeded, Rejected, TarryError
from tarry.core.limits import MAX_KEY_BYTES, MAX_PRODUCER_BYTES
from tarry.core.names import unpartitioned
from tarry.core.policy import Effective
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code, Refused, code_of, text_of
from tarry.doors.pulsar.exclusivity import Mode, Producing
from tarry.doors.pulsar.frames import (
    NO_ID,
    BadChecksum,
    Malformed,
    frame,
    metadata_of,
    receipt_frame,
    text,
    varint,
)
from tarry.doors.pulsar.schema import read_schema, version_bytes
from tarry.engine.answer import Answer, settled
from tarry.engine.topics import NewEntry

if TYPE_CHECKING:
    from tarry.doors.pulsar.connection import Connection, Take

Type = wire.BaseCommand
Sent = tuple[int, int]
"""The sequence id of a SEND, and its highest one where it is a batch."""

DOOR: Final = "pulsar"


class Producer:
    """One producer: what it has sent that is not published, and what it is to be told, in order."""

    def __init__(self, connection: "Connection", asked: wire.CommandProducer, topic: str, name: str) -> None:
        self.connection = connection
        self.id = asked.producer_id
        self.topic = topic
        self.name = name
        self.mode: int = asked.producer_access_mode
        self.epoch: int = asked.epoch
        self.client = (connection.host, asked.producer_id)
        self.ready = False
        self._settings = connection.broker.settings
        self.sent_messages = 0
        self.sent_bytes = 0
        self._wire_id = varint(asked.producer_id)
        self._entries: list[NewEntry] = []
        self._sent: list[Sent] = []
        self._policy: Effective | None = None
        self._replies: deque[list[bytes]] = deque()
        """What it is told next; an empty one waits for the ledger, and all behind it wait with it."""

    # Publishing

    def take(self, send: wire.CommandSend, message: bytes) -> None:
        """Take a message that was sent."""
        try:
            metadata = wire.MessageMetadata.FromString(metadata_of(message))
        except BadChecksum:
            self._refuse(send, Refused(Code.ChecksumError, "the checksum is not that of the message"))
            return
        except DecodeError:
            raise Malformed("metadata that are none") from None
        if send.txnid_least_bits or send.txnid_most_bits:
            self._refuse(send, Refused(Code.NotAllowedError, "transactions are not served here"))
            return
        settings = self._settings
        due_ms = metadata.deliver_at_time
        deliver_at_ms = due_ms if due_ms > 0 else None
        if deliver_at_ms is not None and not self._delays() and deliver_at_ms > self._now_ms():
            if settings.refuse_ignored_delay:
                self._refuse(send, Refused(Code.NotAllowedError, "delayed delivery is off for this topic"))
                return
            self.connection.broker.delay_ignored(self.topic, self.name)
        sequence_id, highest = send.sequence_id, send.highest_sequence_id
        entry = NewEntry(
            payload=message,
            key=_key_of(metadata),
            deliver_at_ms=deliver_at_ms,
            delayed_since_ms=None if settings.measure_delay_by_server else metadata.publish_time,
            producer=self.name if settings.deduplicate else None,
            producer_sequence=-1 if _is_early_chunk(metadata) else max(sequence_id, highest),
            door=DOOR,
            messages=max(1, send.num_messages),
        )
        self._entries.append(entry)
        self._sent.append((sequence_id, highest))

    def _delays(self) -> bool:
        if self._policy is None:
            self._policy = self.connection.broker.engine.effective_policy(self.topic, "")
        return self._policy.delayed_delivery

    def _now_ms(self) -> int:
        return self.connection.broker.engine.clock.now_ms()

    def _refuse(self, send: wire.CommandSend, error: TarryError) -> None:
        self.publish()
        self._replies.append([self.refusal(send.sequence_id, error)])
        self._tell()

    def refusal(self, sequence_id: int, error: BaseException) -> bytes:
        """The frame that refuses a message.

        The C++ client and those built on it (Python, Node.js) take any SEND_ERROR but that of a checksum for a broken
        connection, come again and send the same message for ever. So they are told of a message that can never be
        taken as of one with a bad checksum: it fails at once and alone. The text says what it is.
        """
        code, text = code_of(error), text_of(error)
        if isinstance(error, DelayTooLong):
            self.connection.broker.counters["delays_refused"] += 1
        hopeless = isinstance(error, Rejected) or code == Code.NotAllowedError
        if hopeless and self.connection.is_cpp:
            code = Code.ChecksumError
        answer: Any = wire.CommandSendError(
            producer_id=self.id,
            sequence_id=sequence_id,
            error=code,  # type: ignore[arg-type]
            message=text,
        )
        return frame(wire.BaseCommand(type=Type.SEND_ERROR, send_error=answer))

    def publish(self) -> None:
        """Publish what has gathered."""
        self._policy = None
        if not self._entries:
            return
        entries, sent = self._entries, self._sent
        self._entries, self._sent = [], []
        size_bytes = sum([len(entry.payload) for entry in entries])
        self.sent_bytes += size_bytes
        self.sent_messages += sum([entry.messages for entry in entries])
        reply: list[bytes] = []
        self._replies.append(reply)
        self.connection.owe(size_bytes)

        def published(answer: Answer[list[int | TarryError]]) -> None:
            error = answer.error()
            results = answer.value() if error is None else [error] * len(sent)
            reply.append(b"".join(map(self._reply, sent, results)))
            self._tell()
            self.connection.owe(-size_bytes)

        self.connection.broker.engine.topics.publish_each(self.topic, entries).then(published)

    def _reply(self, sent: Sent, result: int | BaseException) -> bytes:
        if isinstance(result, int):
            return receipt_frame(self._wire_id, *sent, result)
        return self.refusal(sent[0], result)

    def _tell(self) -> None:
        replies = self._replies
        ready: list[bytes] = []
        while replies and replies[0]:
            ready += replies.popleft()
        if ready:
            self.connection.write(b"".join(ready))

    # Its life

    def end(self, request_id: int) -> None:
        """Say yes to the client's wish to close it, once it has been told of all that it sent."""
        success = wire.BaseCommand(type=Type.SUCCESS, success=wire.CommandSuccess(request_id=request_id))
        self._replies.append([frame(success)])
        self._tell()

    def evict(self) -> None:
        """See `Claimant`."""
        self.ready = False
        closed = wire.CommandCloseProducer(producer_id=self.id, request_id=NO_ID)
        self.connection.producers.forget(self)
        self.connection.send(type=Type.CLOSE_PRODUCER, close_producer=closed)


class Producers:
    """The producers of a connection, by their ids."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._by_id: dict[int, Producer] = {}
        self._fed: dict[Producer, None] = {}
        self.takes: dict[int, tuple[str, Take]] = {
            Type.PRODUCER: ("producer", self._open),
            Type.SEND: ("send", self._send),
            Type.CLOSE_PRODUCER: ("close_producer", self._close_one),
        }

    def _send(self, send: wire.CommandSend, message: bytes) -> None:
        producer = self._by_id.get(send.producer_id)
        # One that was closed from here may not know it yet.
        if producer is not None and producer.ready:
            self._fed[producer] = None
            producer.take(send, message)

    def flush(self) -> None:
        """Publish what has gathered."""
        if self._fed:
            fed, self._fed = self._fed, {}
            for producer in fed:
                producer.publish()

    def forget(self, producer: Producer) -> None:
        """A producer is closed."""
        if self._by_id.get(producer.id) is producer:
            del self._by_id[producer.id]

    def close(self) -> None:
        """The connection ends: what came whole is published, and the names are free."""
        self.flush()
        for producer in list(self._by_id.values()):
            self._leave(producer)

    def _close_one(self, asked: wire.CommandCloseProducer, _: bytes) -> None:
        producer = self._by_id.get(asked.producer_id)
        if producer is None:
            self._connection.success(asked.request_id)
            return
        self._leave(producer)
        producer.end(asked.request_id)

    def _leave(self, producer: Producer) -> None:
        self.forget(producer)
        self._producing(producer).leave(producer)
        self._connection.broker.forget_idle(producer.topic)

    def _producing(self, producer: Producer) -> Producing:
        return self._connection.broker.producing_to(producer.topic)

    # Opening

    def _open(self, asked: wire.CommandProducer, _: bytes) -> None:
        connection = self._connection
        found = self._by_id.get(asked.producer_id)
        if found is not None and found.ready:
            self._tell_open(found, asked, b"")
            return

        def begin() -> None:
            topic = connection.require(asked.topic, "produce").full
            if asked.txn_enabled:
                raise Refused(Code.NotAllowedError, "transactions are not served here")
            if found is not None:
                raise Refused(Code.ServiceNotReady, "the producer is being created already")
            full = connection.broker.engine.topics.over_quota(topic)
            if full is not None:
                raise QuotaExceeded(topic, full)
            name = text(asked.producer_name) or connection.broker.new_name("tarry")
            if len(name.encode()) > MAX_PRODUCER_BYTES:
                raise Invalid("producer_name", f"is longer than {MAX_PRODUCER_BYTES} bytes")
            producer = self._by_id[asked.producer_id] = Producer(connection, asked, topic, name)
            self._with_schema(producer, asked)

        connection.attempt(asked.request_id, begin)

    def _with_schema(self, producer: Producer, asked: wire.CommandProducer) -> None:
        """First its schema, then its topic, then its name: the first that fails is the answer."""
        broker = self._connection.broker
        version: Answer[int | None]
        if asked.HasField("schema"):
            version = broker.schemas.add(unpartitioned(producer.topic), read_schema(asked.schema))  # type: ignore[assignment]
        else:
            version = settled(None)

        def stored(version: Answer[int | None]) -> None:
            if self._failed(producer, asked, version):
                return
            number = version.value()
            schema_version = b"" if number is None else version_bytes(number)
            broker.engine.topics.create(producer.topic).then(
                lambda made: (
                    None
                    if self._failed(producer, asked, made)
                    else self._enter(producer, asked, schema_version)
                )
            )

        version.then(stored)

    def _failed(self, producer: Producer, asked: wire.CommandProducer, answer: Answer[Any]) -> bool:
        error = answer.error()
        if error is not None:
            self.forget(producer)
            self._connection.refuse(asked.request_id, error)
        return error is not None or self._connection.closed

    def _enter(self, producer: Producer, asked: wire.CommandProducer, schema_version: bytes) -> None:
        known_epoch = asked.topic_epoch if asked.HasField("topic_epoch") else None

        def ready() -> None:
            producer.ready = True
            self._tell_open(producer, asked, schema_version)

        def claim() -> None:
            try:
                entered = self._producing(producer).claim(producer, known_epoch, ready)
            except Refused:
                self.forget(producer)
                self._connection.broker.forget_idle(producer.topic)
                raise
            if asked.initial_subscription_name:
                self._connection.broker.engine.topics.subscribe(
                    producer.topic, text(asked.initial_subscription_name), start="earliest"
                ).then(lambda _: None)
            if entered:
                ready()
            else:
                self._tell_open(producer, asked, schema_version)

        self._connection.attempt(asked.request_id, claim)

    def _tell_open(self, producer: Producer, asked: wire.CommandProducer, schema_version: bytes) -> None:
        topic = self._connection.broker.engine.topics.find(producer.topic)
        answer = wire.CommandProducerSuccess(
            request_id=asked.request_id,
            producer_name=producer.name,
            last_sequence_id=min(topic.producers.get(producer.name, -1), (1 << 63) - 1),
            schema_version=schema_version,
            producer_ready=producer.ready,
        )
        if producer.mode != Mode.Shared and producer.ready:
            answer.topic_epoch = self._producing(producer).epoch or 0
        self._connection.send(type=Type.PRODUCER_SUCCESS, producer_success=answer)


def _is_early_chunk(metadata: wire.MessageMetadata) -> bool:
    """Whether it is a chunk but not the last: all chunks of a message have one sequence id, which the last one uses up."""
    chunks = metadata.num_chunks_from_msg
    return chunks > 1 and metadata.chunk_id != chunks - 1


def _key_of(metadata: wire.MessageMetadata) -> str | None:
    """The key by which key-shared subscriptions spread messages and keep their order, as text."""
    if metadata.HasField("ordering_key"):
        raw = metadata.ordering_key
    elif not metadata.HasField("partition_key"):
        return None
    elif metadata.partition_key_b64_encoded:
        try:
            raw = base64.b64decode(text(metadata.partition_key), validate=True)
        except binascii.Error:
            raw = text(metadata.partition_key).encode()
    else:
        raw = text(metadata.partition_key).encode()
    if len(raw) > MAX_KEY_BYTES // 2:
        return hashlib.sha256(raw).hexdigest()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
