"""The consumers of one connection: opened, fed with permits, acknowledging, going elsewhere, asked about.

Acknowledgements that come together are one record.
"""

from typing import Any, Final, Literal

from tarry.core.errors import NotFound, TarryError
from tarry.core.names import partition_number, unpartitioned
from tarry.core.tenants.access import Caller
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.consumer import PulsarConsumer
from tarry.doors.pulsar.delivery import batch_size
from tarry.doors.pulsar.errors import Code, PulsarRefusal, say, say_code, told_as
from tarry.doors.pulsar.frames import NO_ID, Malformed, text
from tarry.doors.pulsar.ids import entry_of, is_of, ledger_of
from tarry.doors.pulsar.peer import PulsarPeer, TakeCommand
from tarry.doors.pulsar.schema import read_schema
from tarry.engine.answer import Answer
from tarry.engine.api import Consumer, Subscription, SubscriptionType, Topic, Topics

_Type = wire.BaseCommand
_Sub = wire.CommandSubscribe

TYPES: Final[dict[int, SubscriptionType]] = {
    _Sub.Exclusive: "exclusive",
    _Sub.Shared: "shared",
    _Sub.Failover: "failover",
    _Sub.Key_Shared: "key_shared",
}


MAX_ACK_WORDS: Final = 1024
"""Maximum number of words, of 64 messages each, in the acknowledgement of part of a batch."""


class Consumers:
    """The consumers of a connection, by their ids."""

    def __init__(self, connection: PulsarPeer) -> None:
        self._connection = connection
        self._by_id: dict[int, PulsarConsumer] = {}
        self._fed: dict[PulsarConsumer, None] = {}
        self._holders: dict[PulsarConsumer, Caller] = {}
        """Whose place a consumer has: the connection's token may be another one by its end."""
        self._sought: list[Subscription] = []
        """Readers that went elsewhere; they go if nobody comes back to them."""
        self.held = False
        """Whether the client has to read before it gets more."""
        self.takes: dict[int, tuple[str, TakeCommand]] = {
            _Type.SUBSCRIBE: ("subscribe", self._subscribe),
            _Type.FLOW: ("flow", self._flow),
            _Type.ACK: ("ack", self._ack),
            _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", self._redeliver),
            _Type.CLOSE_CONSUMER: ("close_consumer", self._close_one),
            _Type.UNSUBSCRIBE: ("unsubscribe", self._unsubscribe),
            _Type.SEEK: ("seek", self._seek),
            _Type.GET_LAST_MESSAGE_ID: ("getLastMessageId", self._last_id),
            _Type.CONSUMER_STATS: ("consumerStats", self._stats),
        }

    # Their life

    def forget(self, consumer: PulsarConsumer) -> None:
        """A consumer is closed."""
        if self._by_id.get(consumer.id) is consumer:
            del self._by_id[consumer.id]
            self._connection.broker.consumer_places.give_back(self._holders.pop(consumer))

    def close(self) -> None:
        """The connection ends: what came whole counts, and what its consumers hold goes to others."""
        self.flush()
        for consumer in list(self._by_id.values()):
            self.forget(consumer)
            if consumer.engine is not None:
                consumer.engine.close()
        for sub in self._sought:
            self._let_go(sub)

    def _let_go(self, sub: Subscription) -> None:
        """Forget a reader to which nobody is attached any more."""
        if not sub.consumers and not sub.closed:
            self._topics.end(sub).then(lambda _: None)

    def hold(self) -> None:
        """Give no more."""
        self.held = True
        for consumer in self._by_id.values():
            consumer.hold()

    def release(self) -> None:
        """Go on."""
        self.held = False
        for consumer in list(self._by_id.values()):
            # What one of them is given may be more than the client reads; the rest waits for the next time.
            if not self.held:
                consumer.release()

    @property
    def _topics(self) -> Topics:
        return self._connection.broker.engine.topics

    def _find(self, consumer_id: int) -> tuple[PulsarConsumer, Consumer]:
        consumer = self._by_id.get(consumer_id)
        if consumer is None or consumer.engine is None or consumer.engine.closed:
            raise PulsarRefusal(Code.ConsumerNotFound, "there is no such consumer")
        return consumer, consumer.engine

    # Subscribing

    def _subscribe(self, asked: _Sub, _: bytes) -> None:
        connection = self._connection

        def begin() -> None:
            found = self._by_id.get(asked.consumer_id)
            if found is not None and found.engine is not None:
                connection.success(asked.request_id)
                return
            if found is not None:
                raise PulsarRefusal(Code.ServiceNotReady, "the consumer is being created already")
            topic = connection.require(asked.topic, _Type.SUBSCRIBE).full
            if not asked.force_topic_creation and topic not in self._topics.by_name:
                raise NotFound(f"Topic {topic} does not exist")
            connection.broker.rules.check_topic(topic)
            connection.broker.rules.check_subscription(topic, text(asked.subscription), durable=asked.durable)
            if asked.HasField("schema"):
                connection.broker.schemas.check(unpartitioned(topic), read_schema(asked.schema))
            name = text(asked.consumer_name) or connection.broker.new_name("c")
            caller = connection.caller
            assert caller is not None, "a command before CONNECT is not taken"
            consumer = PulsarConsumer(connection, asked, name, lambda: self.held, self.forget)
            with told_as(Code.ConsumerBusy):
                connection.broker.consumer_places.take(caller)
            self._by_id[asked.consumer_id] = consumer
            self._holders[consumer] = caller
            self._topics.subscribe(
                topic,
                text(asked.subscription),
                TYPES[asked.subType],
                start=_start_of(asked, self._topics.by_name.get(topic)),
                durable=asked.durable,
            ).then(lambda sub: self._subscribed(consumer, asked, sub))

        connection.attempt(asked.request_id, begin)

    def _subscribed(self, consumer: PulsarConsumer, asked: _Sub, answer: Answer[Subscription]) -> None:
        connection = self._connection
        if connection.closed or self._by_id.get(consumer.id) is not consumer:
            if answer.error() is None and not answer.value().durable:
                self._let_go(answer.value())
            return
        try:
            sub = answer.value()
            connection.broker.rules.check_consumer(sub)
            consumer.attach(sub, asked)
        except TarryError as error:
            self.forget(consumer)
            if answer.error() is None and not answer.value().durable:
                self._let_go(answer.value())
            connection.refuse(asked.request_id, error)
            return
        if not asked.durable and asked.start_message_rollback_duration_sec:
            now_ms = connection.broker.engine.clock.now_ms()
            back_ms = asked.start_message_rollback_duration_sec * 1000
            sub.seek(at_ms=max(0, now_ms - back_ms)).then(lambda _: None)
        connection.success(asked.request_id)

    # Messages

    def _flow(self, asked: wire.CommandFlow, _: bytes) -> None:
        consumer = self._by_id.get(asked.consumer_id)
        if consumer is not None:
            consumer.flow(asked.messagePermits)

    def _redeliver(self, asked: wire.CommandRedeliverUnacknowledgedMessages, _: bytes) -> None:
        consumer = self._by_id.get(asked.consumer_id)
        if consumer is None or consumer.engine is None:
            return
        if asked.HasField("consumer_epoch"):
            consumer.epoch = asked.consumer_epoch
        topic = consumer.subscription.topic
        entry_ids = [place.entryId for place in asked.message_ids if is_of(place.ledgerId, topic)]
        consumer.engine.nack(entry_ids if asked.message_ids else None)

    # Acknowledging

    def flush(self) -> None:
        """Send the gathered acknowledgements of all consumers to the engine."""
        if self._fed:
            fed, self._fed = self._fed, {}
            for consumer in fed:
                consumer.acknowledge()

    def _ack(self, ack: wire.CommandAck, _: bytes) -> None:
        try:
            consumer = self._find(ack.consumer_id)[0]
            if ack.txnid_least_bits or ack.txnid_most_bits:
                raise PulsarRefusal(Code.NotAllowedError, "transactions are not served here")
        except PulsarRefusal as refused:
            if ack.HasField("request_id"):
                self._tell_acked(ack, refused)
            return
        entry_ids: list[int] = []
        partial: list[tuple[int, list[int]]] = []
        topic = consumer.subscription.topic
        for place in ack.message_id:
            if not is_of(place.ledgerId, topic):
                # Of a topic that had this name before: here there is nothing to be done with.
                continue
            left = place.ack_set
            if left:
                partial.append((place.entryId, list(left)))
            else:
                entry_ids.append(place.entryId)
        if any(len(left) > MAX_ACK_WORDS for _, left in partial):
            raise Malformed("an acknowledgement of more messages than a batch holds")
        below = 0
        if ack.ack_type == wire.CommandAck.Cumulative:
            # Of a batch that is acknowledged in part, all before it is done with.
            bounds = [entry_id + 1 for entry_id in entry_ids] + [entry_id for entry_id, _ in partial]
            below = max(bounds, default=0)
            entry_ids = []
        if below or partial or ack.HasField("request_id"):
            self.flush()
            answer = consumer.subscription.ack(entry_ids, below, partial)
            if ack.HasField("request_id"):
                answer.then(lambda done: self._tell_acked(ack, done.error()))
            return
        self._fed[consumer] = None
        consumer.gather(entry_ids)

    def _tell_acked(self, ack: wire.CommandAck, error: BaseException | None) -> None:
        answer = wire.CommandAckResponse(consumer_id=ack.consumer_id, request_id=ack.request_id)
        if error is not None:
            say(answer, error)
        self._connection.send(type=_Type.ACK_RESPONSE, ackResponse=answer)

    # Leaving, and going elsewhere

    def _close_one(self, asked: wire.CommandCloseConsumer, _: bytes) -> None:
        consumer = self._by_id.get(asked.consumer_id)
        if consumer is not None:
            self.forget(consumer)
            if consumer.engine is not None:
                consumer.engine.close()
        # Clients acknowledge without waiting; who closes orderly may rely on what was acknowledged before.
        self._topics.once_durable(None).then(lambda done: self._answer(asked.request_id, done))

    def _unsubscribe(self, asked: wire.CommandUnsubscribe, _: bytes) -> None:
        def leave() -> None:
            consumer, engine = self._find(asked.consumer_id)
            sub = consumer.subscription
            if len(sub.consumers) > 1 and not asked.force:
                raise PulsarRefusal(Code.MetadataError, "the subscription has other consumers")
            self.forget(consumer)
            engine.on_close = None
            self._topics.end(sub).then(lambda done: self._answer(asked.request_id, done))

        self._connection.attempt(asked.request_id, leave)

    def _seek(self, asked: wire.CommandSeek, _: bytes) -> None:
        def go() -> None:
            consumer = self._find(asked.consumer_id)[0]
            sub = consumer.subscription
            # They come again, with permits that the broker knows of: those they have given count no more.
            sub.disconnect()
            # Of those before it some were come back to, and have gone since with their consumers.
            self._sought = [one for one in self._sought if not one.consumers and not one.closed]
            if not sub.durable and sub not in self._sought:
                self._sought.append(sub)
            if asked.HasField("message_publish_time"):
                answer = sub.seek(at_ms=asked.message_publish_time)
            else:
                place = asked.message_id
                answer = sub.seek(entry_of(place.ledgerId, place.entryId, sub.topic))
            answer.then(lambda done: self._answer(asked.request_id, done))

        self._connection.attempt(asked.request_id, go)

    def _answer(self, request_id: int, done: Answer[Any]) -> None:
        error = done.error()
        if error is None:
            self._connection.success(request_id)
        else:
            self._connection.refuse(request_id, error)

    # Questions

    def _last_id(self, asked: wire.CommandGetLastMessageId, _: bytes) -> None:
        def tell() -> None:
            consumer = self._find(asked.consumer_id)[0]
            sub = consumer.subscription
            ledger_id, partition = ledger_of(sub.topic.incarnation), partition_number(sub.topic.name)
            last = wire.MessageIdData(
                ledgerId=ledger_id, entryId=(sub.topic.visible - 1) & NO_ID, partition=partition
            )
            if sub.topic.visible > sub.topic.first:
                entry = self._topics.entry(sub.topic, sub.topic.visible - 1)
                batch = None if entry is None else batch_size(entry)
                if batch is not None:
                    last.batch_index = batch - 1
            answer = wire.CommandGetLastMessageIdResponse(
                request_id=asked.request_id,
                last_message_id=last,
                consumer_mark_delete_position=wire.MessageIdData(
                    ledgerId=ledger_id, entryId=(sub.acked.below - 1) & NO_ID, partition=partition
                ),
            )
            self._connection.send(type=_Type.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer)

        self._connection.attempt(asked.request_id, tell)

    def _stats(self, asked: wire.CommandConsumerStats, _: bytes) -> None:
        answer = wire.CommandConsumerStatsResponse(request_id=asked.request_id)
        try:
            consumer, engine = self._find(asked.consumer_id)
            answer.consumerName = consumer.name
            answer.availablePermits = max(0, engine.permits)
            answer.unackedMessages = engine.unacked
            answer.blockedConsumerOnUnackedMsgs = engine.blocked
            answer.type = consumer.subscription.type
            answer.msgBacklog = consumer.subscription.backlog
            answer.address = self._connection.host
        except PulsarRefusal as refused:
            say_code(answer, refused)
        self._connection.send(type=_Type.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer)


def _start_of(asked: _Sub, topic: Topic | None) -> Literal["earliest", "latest"] | int:
    """Where a new subscription of a topic begins."""
    if asked.durable or not asked.HasField("start_message_id"):
        return "earliest" if asked.initialPosition == _Sub.Earliest else "latest"
    place = asked.start_message_id
    # Clients pass over the entry itself, or the part of it that they have had.
    return "earliest" if topic is None else entry_of(place.ledgerId, place.entryId, topic)
