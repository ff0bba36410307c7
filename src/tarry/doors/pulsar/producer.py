"""One producer of a connection: messages in, receipts out, in the order in which they came.

What comes together is published together, and its receipts go out together once the ledger has synced it. A message that
is refused has its error at its place among the receipts, so that its neighbours are unharmed: see `Producer.refusal`.
"""

import base64
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

from google.protobuf.message import DecodeError

from tarry.core.errors import DelayTooLong, Rejected, TarryError
from tarry.core.limits import MAX_KEY_BYTES
from tarry.core.rules.policy import Effective
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import DOOR
from tarry.doors.pulsar.errors import Code, PulsarRefusal, code_of, text_of
from tarry.doors.pulsar.figures import about
from tarry.doors.pulsar.frames import (
    NO_ID,
    BadChecksum,
    Malformed,
    Places,
    frame,
    metadata_of,
    places_of,
    receipt_frame,
    receipt_frames,
    text,
    varint,
)
from tarry.doors.pulsar.ids import ledger_of
from tarry.doors.pulsar.peer import PulsarPeer
from tarry.doors.pulsar.traces import callers_of
from tarry.engine.answer import Answer
from tarry.engine.api import NewEntry, Published

_Type = wire.BaseCommand
ENOUGH_BYTES: Final = 1 << 16
"""So many bytes of SENDs are handed over, and gather no more."""
log = logging.getLogger("tarry.pulsar")

_read_metadata: Final = wire.MessageMetadata.FromString


class Sends:
    """SENDs of a producer whose messages are published together."""

    def __init__(
        self, entries: list[NewEntry], sequences: list[int], highest: list[int], size_bytes: int
    ) -> None:
        self.entries = entries
        self.sequences = sequences
        """The sequence id of each SEND."""
        self.highest = highest
        """Its highest one where it is a batch, else 0."""
        self.size_bytes = size_bytes
        self.reply: list[bytes] = []

    def published(self, producer: "Producer") -> Callable[[Answer[Published]], None]:
        """The callback for the outcome."""

        def tell(answer: Answer[Published]) -> None:
            error = answer.error()
            if error is not None:
                producer.answered(self, 0, [error] * len(self.entries))
            else:
                outcome = answer.value()
                producer.answered(self, outcome.incarnation, outcome.ids)

        return tell


class Producer:
    """One producer: what it has sent that is not published, and what it is to be told, in order."""

    def __init__(
        self,
        connection: PulsarPeer,
        asked: wire.CommandProducer,
        topic: str,
        name: str,
        forget: Callable[["Producer"], None],
    ) -> None:
        self.connection = connection
        self._forget = forget
        self.id = asked.producer_id
        self.topic = topic
        self.name = name
        self.mode: int = asked.producer_access_mode
        self.epoch: int = asked.epoch
        self.client = (connection.host, asked.producer_id)
        self.about = about(connection, asked.metadata)
        """For figures."""
        self.ready = False
        self._settings = connection.broker.settings
        self._traced = connection.broker.engine.traced
        self.sent_messages = 0
        self.sent_bytes = 0
        self._wire_id = varint(asked.producer_id)
        self._entries: list[NewEntry] = []
        self._sequences: list[int] = []
        self._highest: list[int] = []
        self._size_bytes = 0
        self._unowed_bytes = 0
        """Bytes of that of which the connection does not know yet."""
        self._under_way = 0
        """Parts that are not answered."""
        self._gathered: deque[Sends] = deque()
        """Parts to publish, in order; the first one waits for room."""
        self._policy: Effective | None = None
        self._said_ignored = False
        self._closed = False
        """Whether it was closed from here."""
        self._lost = False
        """Whether its topic is deleted."""
        self._replies: deque[list[bytes]] = deque()
        """Replies to its client, in order; an empty one waits for the ledger, and all behind it wait with it."""

    # Publishing

    def take(self, send: wire.CommandSend, message: bytes) -> None:
        """Take a message that was sent."""
        try:
            metadata = _read_metadata(metadata_of(message))
        except BadChecksum:
            self._refuse(send, PulsarRefusal(Code.ChecksumError, "the checksum is not that of the message"))
            return
        except DecodeError:
            raise Malformed("the metadata are not a MessageMetadata of Pulsar's protocol") from None
        if send.txnid_least_bits or send.txnid_most_bits:
            self._refuse(send, PulsarRefusal(Code.NotAllowedError, "transactions are not served here"))
            return
        settings = self._settings
        due_ms = metadata.deliver_at_time
        deliver_at_ms = due_ms if due_ms > 0 else None
        policy = self._in_force()
        if deliver_at_ms is not None and not policy.delayed_delivery and deliver_at_ms > self._now_ms():
            if settings.refuse_ignored_delay:
                self.connection.broker.delays_refused["off"] += 1
                self._refuse(
                    send, PulsarRefusal(Code.NotAllowedError, "delayed delivery is off for this topic")
                )
                return
            self._say_ignored()
        sequence_id, highest = send.sequence_id, send.highest_sequence_id
        entry = NewEntry(
            payload=message,
            key=_key_of(metadata),
            deliver_at_ms=deliver_at_ms,
            delayed_since_ms=None if settings.measure_delay_by_server else metadata.publish_time,
            producer=self.name if policy.deduplication else None,
            producer_sequence=-1 if _is_early_chunk(metadata) else max(sequence_id, highest),
            producer_first=sequence_id if highest > sequence_id else -1,
            door=DOOR,
            messages=max(1, send.num_messages),
            callers=callers_of(metadata, message) if self._traced else (),
        )
        self._entries.append(entry)
        self._sequences.append(sequence_id)
        self._highest.append(highest)
        self._unowed_bytes += len(message)

    def _in_force(self) -> Effective:
        """The policy of its topic, as it is for all that is published together."""
        if self._policy is None:
            self._policy = self.connection.broker.engine.effective_policy(self.topic, "")
        return self._policy

    def _say_ignored(self) -> None:
        """A delay does not count because delaying is off at the topic: say so, once for each producer."""
        if not self._said_ignored:
            self._said_ignored = True
            log.warning(
                "delays are ignored: delayed delivery is off",
                extra={"topic": self.topic, "producer": self.name, "client": self.connection.host},
            )

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
            self.connection.broker.delays_refused["too_long"] += 1
        hopeless = isinstance(error, Rejected) or code == Code.NotAllowedError
        if hopeless and self.connection.is_cpp:
            code = Code.ChecksumError
        answer: Any = wire.CommandSendError(
            producer_id=self.id,
            sequence_id=sequence_id,
            error=code,  # type: ignore[arg-type]
            message=text,
        )
        return frame(wire.BaseCommand(type=_Type.SEND_ERROR, send_error=answer))

    def publish(self, *, gather: bool = False) -> None:
        """Publish the gathered entries, behind those that wait already.

        Where more may be gathered it waits while other SENDs are under way: what comes meanwhile is handed over together, and one handing
        over costs as much as some dozens of messages.
        """
        self._policy = None
        if not self._entries:
            return
        self._size_bytes += self._unowed_bytes
        self.connection.owe(self._unowed_bytes)
        self._unowed_bytes = 0
        if gather and self._under_way and self._size_bytes < ENOUGH_BYTES:
            return
        sends = Sends(self._entries, self._sequences, self._highest, self._size_bytes)
        self._entries, self._sequences, self._highest, self._size_bytes = [], [], [], 0
        self.sent_bytes += sends.size_bytes
        self.sent_messages += sum([entry.messages for entry in sends.entries])
        self._replies.append(sends.reply)
        self._under_way += 1
        self._gathered.append(sends)
        if len(self._gathered) == 1:
            self._hand_over()

    @property
    def gathers(self) -> bool:
        """Whether anything is not published yet."""
        return bool(self._entries)

    def _hand_over(self) -> None:
        """Hand over the first SENDs once the ledger has room: while the disk is behind, the client waits and is not refused."""
        engine = self.connection.broker.engine

        def go(_: Answer[None]) -> None:
            sends = self._gathered[0]
            # They are the first until they are handed over: their answer may come at once, with the next ones behind it.
            if self._lost:
                self.connection.owe(-sends.size_bytes)
            else:
                engine.topics.publish_each(self.topic, sends.entries).then(sends.published(self))
            self._gathered.popleft()
            if self._gathered:
                self._hand_over()

        engine.space(self._gathered[0].size_bytes).then(go)

    def answered(self, sends: "Sends", incarnation: int, results: Sequence[int | BaseException]) -> None:
        """The ledger has synced these SENDs in a topic of this incarnation, or they were refused."""
        sends.reply.append(self._answers(sends, places_of(ledger_of(incarnation)), results))
        self._tell()
        self._under_way -= 1
        self.publish()
        self.connection.owe(-sends.size_bytes)

    def _answers(self, sends: "Sends", places: Places, results: Sequence[int | BaseException]) -> bytes:
        entry_ids = [result for result in results if isinstance(result, int)]
        if len(entry_ids) == len(results) and not any(sends.highest):
            return receipt_frames(self._wire_id, places, sends.sequences, entry_ids)
        return b"".join(map(self._answer, repeat(places), sends.sequences, sends.highest, results))

    def _answer(self, places: Places, sequence_id: int, highest: int, result: int | BaseException) -> bytes:
        if isinstance(result, int):
            return receipt_frame(self._wire_id, places, sequence_id, highest, result)
        return self.refusal(sequence_id, result)

    def _tell(self) -> None:
        replies = self._replies
        ready: list[bytes] = []
        while replies and replies[0]:
            ready += replies.popleft()
        # A client that was told that it is closed knows it no more.
        if ready and not self._closed:
            self.connection.write(b"".join(ready))

    # Its life

    def end(self, request_id: int) -> None:
        """Say yes to the client's wish to close it, once it has been told of all that it sent."""
        success = wire.BaseCommand(type=_Type.SUCCESS, success=wire.CommandSuccess(request_id=request_id))
        self._replies.append([frame(success)])
        self._tell()

    def evict(self) -> None:
        """See `Claimant`."""
        # What came before is its own; afterwards nothing is.
        self.publish()
        self._close()

    def lose_topic(self) -> None:
        """See `Claimant`. What is not published has no receipt: the client sends it again to the topic that comes next."""
        self._entries, self._sequences, self._highest = [], [], []
        self._unowed_bytes = 0
        self.connection.owe(-self._size_bytes)
        self._size_bytes = 0
        self._lost = True
        self._close()

    def _close(self) -> None:
        self.ready = False
        self._closed = True
        closed = wire.CommandCloseProducer(producer_id=self.id, request_id=NO_ID)
        self._forget(self)
        self.connection.send(type=_Type.CLOSE_PRODUCER, close_producer=closed)


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
        except ValueError:
            raw = text(metadata.partition_key).encode()
    else:
        raw = text(metadata.partition_key).encode()
    if len(raw) > MAX_KEY_BYTES // 2:
        return hashlib.sha256(raw).hexdigest()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
