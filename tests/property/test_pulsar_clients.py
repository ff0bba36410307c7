"""Producers that behave as real clients do, against a model: every receipt has a stored message behind it.

Delayed messages overtake the batch that is pending, as with the C++ client; batches state their highest sequence id, as
Java's do, or not. Receipts are lost with their connection, and what has none is sent again under the same name. The
server is killed with units in flight, and the topic is deleted under them and made again by the next message. A
consumer that is always there, and one that comes at the end, get what the receipts say, no more and no less.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tarry.core.rules.policy import Policy
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import NO_ID, frame
from tarry.doors.pulsar.ids import ledger_of
from tests.unit.engine_kit import Bench
from tests.unit.pulsar_kit import TOPIC, Client, Desk, Type, message_of, payload_of

DELAY_MS = 500
Place = tuple[int, int]


class Op:
    """A SEND: one message or a batch, which is sent again as it is until there is a receipt for it."""

    def __init__(self, first: int, last: int, messages: int, payload: bytes, deliver_at_ms: int) -> None:
        self.first = first
        self.payload = payload
        metadata: dict[str, Any] = {"deliver_at_time": deliver_at_ms} if deliver_at_ms else {}
        if messages > 1:
            metadata["num_messages_in_batch"] = messages
        send = wire.CommandSend(
            producer_id=1,
            sequence_id=first,
            highest_sequence_id=last if last > first else 0,
            num_messages=messages,
        )
        self.frame = frame(
            wire.BaseCommand(type=Type.SEND, send=send), message_of(payload, first, **metadata)
        )
        self.sent_in = 0
        """How often the topic had been deleted when it was last sent."""


class Producer:
    """A client with one producer: what it has gathered, and what it waits for."""

    def __init__(self, name: str, states_highest: bool) -> None:
        self.name = name
        self.states_highest = states_highest
        self.batch: list[int] = []
        self.pending: list[Op] = []
        self.sequence = 0
        self.epoch = 0
        self.client: Client | None = None

    def next(self) -> int:
        self.sequence += 1
        return self.sequence - 1


class Clients(RuleBasedStateMachine):
    """The door, two producers and a consumer; `oks` is what receipts promise of the present topic."""

    deduplicates = False

    @initialize(states_highest=st.tuples(st.booleans(), st.booleans()))
    def begin(self, states_highest: tuple[bool, bool]) -> None:
        self.desk = Desk()
        # The namespace's policy: a topic's own would go with the topic when it is deleted.
        wanted = Policy(deduplication=self.deduplicates)
        self.bench.ask(self.bench.engine.set_policy("namespace", "public/default", wanted))
        self.deleted = 0
        self.oks: list[tuple[Op, Place]] = []
        self.got: dict[Place, bytes] = {}
        self.producers = [Producer(f"p{number}", stated) for number, stated in enumerate(states_highest, 1)]
        self._arrive()

    @property
    def bench(self) -> Bench:
        return self.desk.bench

    def _arrive(self) -> None:
        self.reader = self.desk.client()
        self.reader.subscribe(permits=100_000)
        for producer in self.producers:
            self._connect(producer)

    def _connect(self, producer: Producer) -> None:
        """Connect anew under the same name, and send again what has no receipt."""
        producer.epoch += 1
        producer.client = self.desk.client()
        self._open(producer)

    def _open(self, producer: Producer) -> None:
        assert producer.client is not None
        answer = producer.client.produce(producer_name=producer.name, epoch=producer.epoch)
        assert answer.type == Type.PRODUCER_SUCCESS, answer
        for op in producer.pending:
            self._send(producer, op)

    def _send(self, producer: Producer, op: Op) -> None:
        assert producer.client is not None
        op.sent_in = self.deleted
        producer.client.connection.receive(op.frame)

    # What clients do

    who = st.integers(0, 1)

    @rule(who=who, count=st.integers(1, 4))
    def gather(self, who: int, count: int) -> None:
        producer = self.producers[who]
        producer.batch += [producer.next() for _ in range(count)]

    @rule(who=who)
    def send_delayed(self, who: int) -> None:
        """At once, past the batch that is pending."""
        producer = self.producers[who]
        number = producer.next()
        self._add(producer, [number], self.bench.now_ms + DELAY_MS)

    @rule(who=who)
    def flush(self, who: int) -> None:
        producer = self.producers[who]
        batch, producer.batch = producer.batch, []
        if batch:
            self._add(producer, batch, 0)

    def _add(self, producer: Producer, numbers: list[int], deliver_at_ms: int) -> None:
        payload = f"{producer.name}:{','.join(map(str, numbers))}".encode()
        last = numbers[-1] if producer.states_highest else numbers[0]
        op = Op(numbers[0], last, len(numbers), payload, deliver_at_ms)
        producer.pending.append(op)
        self._send(producer, op)

    @rule(who=who)
    def read_receipts(self, who: int) -> None:
        producer = self.producers[who]
        client = producer.client
        assert client is not None
        told = client.take(Type.SEND_RECEIPT, Type.SEND_ERROR, Type.CLOSE_PRODUCER)
        for command in told:
            assert command.type != Type.SEND_ERROR, command
            if command.type == Type.SEND_RECEIPT:
                self._receipt(producer, command.send_receipt)
        if any(command.type == Type.CLOSE_PRODUCER for command in told):
            producer.epoch += 1
            self._open(producer)

    def _receipt(self, producer: Producer, receipt: wire.CommandSendReceipt) -> None:
        for op in producer.pending:
            if op.first == receipt.sequence_id:
                producer.pending.remove(op)
                place = receipt.message_id.ledgerId, receipt.message_id.entryId
                if place != (NO_ID, NO_ID) or op.sent_in == self.deleted:
                    self.oks.append((op, place))
                return
        # It was sent twice, and this is the second receipt.

    @rule(who=who)
    def lose_connection(self, who: int) -> None:
        """With the receipts that were on their way."""
        producer = self.producers[who]
        assert producer.client is not None
        producer.client.connection.lost()
        self._connect(producer)

    # What happens to the server

    @rule()
    def commit(self) -> None:
        self.bench.commit()

    @rule()
    def rest(self) -> None:
        self.bench.rest()

    @rule(ms=st.integers(1, DELAY_MS))
    def wait(self, ms: int) -> None:
        self.bench.wait(ms)

    @rule(again=st.booleans())
    def delete_topic(self, again: bool) -> None:
        """By force, whatever is in flight. What was promised of it went with it."""
        self.bench.engine.topics.delete(TOPIC).then(lambda _: None)
        if again:
            self.bench.engine.topics.create(TOPIC).then(lambda _: None)
        self.deleted += 1
        self.oks.clear()

    @rule()
    def kill_server(self) -> None:
        self._take_messages()
        self.bench.reopen()
        self.desk = Desk(bench=self.desk.bench)
        self._arrive()

    # What must hold

    @invariant()
    def no_entry_is_seen_that_is_not_there(self) -> None:
        for topic in self.bench.engine.topics.by_name.values() if hasattr(self, "desk") else ():
            assert topic.visible <= topic.next

    @rule()
    def read_messages(self) -> None:
        """And subscribe again if the subscription went with its topic."""
        self._take_messages()
        if self.reader.take(Type.CLOSE_CONSUMER):
            self.reader.subscribe(permits=100_000)

    def _take_messages(self) -> None:
        for command, message in self.reader.got:
            if command.type == Type.MESSAGE:
                place = command.message.message_id.ledgerId, command.message.message_id.entryId
                payload = payload_of(message)
                assert self.got.setdefault(place, payload) == payload
        self.reader.take(Type.MESSAGE)

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        for _ in range(3):
            self.bench.wait(2 * DELAY_MS)
            self.read_messages()
            for who in range(2):
                self.read_receipts(who)
        assert [op.payload for producer in self.producers for op in producer.pending] == []
        late = self.desk.client()
        late.subscribe(subscription="late", permits=100_000)
        topic = self.bench.engine.topics.find(TOPIC)
        ledger = ledger_of(topic.incarnation)
        stored = dict(late.messages())
        by_payload = list(stored.values())
        for op, place in self.oks:
            if place == (NO_ID, NO_ID):
                assert self.deduplicates
                assert op.payload in by_payload, "said to be stored before, and is not"
            elif place[0] == ledger:
                assert stored.get(place[1]) == op.payload, "a receipt for another message or for none"
        if self.deduplicates:
            assert len(by_payload) == len(set(by_payload)), "stored twice"
        assert {entry: payload for (of, entry), payload in self.got.items() if of == ledger} == stored
        sub = topic.subscriptions["late"]
        assert (sub.backlog, topic.visible, topic.next) == (len(stored), len(stored), len(stored))


class DeduplicatingClients(Clients):
    """Clients of a namespace whose policy turns deduplication on."""

    deduplicates = True


STEPS = settings(max_examples=60, stateful_step_count=40)


def test_every_receipt_has_a_stored_message_behind_it() -> None:
    run_state_machine_as_test(Clients, settings=STEPS)


def test_with_deduplication_it_is_stored_once() -> None:
    run_state_machine_as_test(DeduplicatingClients, settings=STEPS)
