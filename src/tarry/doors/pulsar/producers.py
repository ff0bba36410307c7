"""The producers of one connection: opened with their schema, topic and name, fed, closed."""

from typing import Any

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_PRODUCER_BYTES
from tarry.core.names import unpartitioned
from tarry.core.tenants.access import Caller
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code, PulsarRefusal, told_as
from tarry.doors.pulsar.exclusivity import Mode, Producing
from tarry.doors.pulsar.frames import text
from tarry.doors.pulsar.peer import PulsarPeer, TakeCommand
from tarry.doors.pulsar.producer import Producer
from tarry.doors.pulsar.schema import read_schema, version_bytes
from tarry.engine.answer import Answer, settled

_Type = wire.BaseCommand


class Producers:
    """The producers of a connection, by their ids."""

    def __init__(self, connection: PulsarPeer) -> None:
        self._connection = connection
        self._by_id: dict[int, Producer] = {}
        self._fed: dict[Producer, None] = {}
        self._holders: dict[Producer, Caller] = {}
        """Whose place a producer has: the connection's token may be another one by its end."""
        self.takes: dict[int, tuple[str, TakeCommand]] = {
            _Type.PRODUCER: ("producer", self._open),
            _Type.SEND: ("send", self.take),
            _Type.CLOSE_PRODUCER: ("close_producer", self._close_one),
        }

    def take(self, send: wire.CommandSend, message: bytes) -> None:
        """Take a message that was sent."""
        producer = self._by_id.get(send.producer_id)
        # One that was closed from here may not know it yet.
        if producer is not None and producer.ready:
            self._fed[producer] = None
            producer.take(send, message)

    def flush(self) -> None:
        """Publish the gathered entries of all producers: something else comes that must find it."""
        if self._fed:
            fed, self._fed = self._fed, {}
            for producer in fed:
                producer.publish()

    def pause(self) -> None:
        """No more comes for now: publish what has gathered, or let it gather more."""
        for producer in list(self._fed):
            producer.publish(gather=True)
            if not producer.gathers:
                del self._fed[producer]

    def forget(self, producer: Producer) -> None:
        """A producer is closed."""
        if self._by_id.get(producer.id) is producer:
            del self._by_id[producer.id]
            self._connection.broker.producer_places.give_back(self._holders.pop(producer))

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
            topic = connection.require(asked.topic, _Type.PRODUCER).full
            connection.broker.rules.check_topic(topic)
            if asked.initial_subscription_name:
                # It is made like any other, by whoever may subscribe.
                connection.require(asked.topic, _Type.SUBSCRIBE)
                name = text(asked.initial_subscription_name)
                connection.broker.rules.check_subscription(topic, name, durable=True)
            if asked.txn_enabled:
                raise PulsarRefusal(Code.NotAllowedError, "transactions are not served here")
            if found is not None:
                raise PulsarRefusal(Code.ServiceNotReady, "the producer is being created already")
            connection.broker.engine.topics.check_quota(topic)
            name = text(asked.producer_name) or connection.broker.new_name("tarry")
            if len(name.encode()) > MAX_PRODUCER_BYTES:
                raise Invalid("producer_name", f"is longer than {MAX_PRODUCER_BYTES} bytes")
            caller = connection.caller
            assert caller is not None, "a command before CONNECT is not taken"
            producer = Producer(connection, asked, topic, name, self.forget)
            with told_as(Code.ProducerBusy):
                connection.broker.producer_places.take(caller)
            self._by_id[asked.producer_id] = producer
            self._holders[producer] = caller
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
            self._with_topic(producer, asked).then(
                lambda made: (
                    None
                    if self._failed(producer, asked, made)
                    else self._enter(producer, asked, schema_version)
                )
            )

        version.then(stored)

    def _with_topic(self, producer: Producer, asked: wire.CommandProducer) -> Answer[Any]:
        """Make the topic if it is not there, and the subscription that is to get the producer's first message."""
        topics = self._connection.broker.engine.topics
        name = text(asked.initial_subscription_name)
        found = topics.by_name.get(producer.topic)
        if not name or (found is not None and name in found.subscriptions):
            return topics.create(producer.topic)
        return topics.subscribe(producer.topic, name, start="earliest")

    def _failed(self, producer: Producer, asked: wire.CommandProducer, answer: Answer[Any]) -> bool:
        error = answer.error()
        # Its client, or the end of the connection, may have closed it meanwhile.
        closed = self._by_id.get(producer.id) is not producer
        if error is not None and not closed:
            self.forget(producer)
            self._connection.refuse(asked.request_id, error)
        return error is not None or closed

    def _enter(self, producer: Producer, asked: wire.CommandProducer, schema_version: bytes) -> None:
        known_epoch = asked.topic_epoch if asked.HasField("topic_epoch") else None

        def ready() -> None:
            if producer.mode == Mode.Shared:
                opened(settled(None))
            else:
                topics = self._connection.broker.engine.topics
                topics.enter_epoch(producer.topic, self._producing(producer).epoch).then(opened)

        def opened(entered: Answer[None]) -> None:
            error = entered.error()
            if error is None and self._by_id.get(producer.id) is not producer:
                error = PulsarRefusal(Code.ProducerFenced, "another producer has the topic for itself")
            if error is not None:
                self._leave(producer)
                self._connection.refuse(asked.request_id, error)
                return
            producer.ready = True
            self._tell_open(producer, asked, schema_version)

        def claim() -> None:
            producing = self._producing(producer)
            try:
                others = len(producing.by_name) - (producer.name in producing.by_name)
                self._connection.broker.rules.check_producer(producer.topic, others)
                entered = producing.claim(producer, known_epoch, ready)
            except PulsarRefusal:
                self.forget(producer)
                self._connection.broker.forget_idle(producer.topic)
                raise
            if entered:
                ready()
            else:
                self._tell_open(producer, asked, schema_version)

        self._connection.attempt(asked.request_id, claim)

    def _tell_open(self, producer: Producer, asked: wire.CommandProducer, schema_version: bytes) -> None:
        last = self._connection.broker.engine.topics.last_sequence(producer.topic, producer.name)
        answer = wire.CommandProducerSuccess(
            request_id=asked.request_id,
            producer_name=producer.name,
            last_sequence_id=min(last, (1 << 63) - 1),
            schema_version=schema_version,
            producer_ready=producer.ready,
        )
        if producer.mode != Mode.Shared and producer.ready:
            answer.topic_epoch = self._producing(producer).epoch
        self._connection.send(type=_Type.PRODUCER_SUCCESS, producer_success=answer)
