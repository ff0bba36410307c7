"""Things that are deleted and made again under the same name: nothing of the first one touches the second."""

from typing import Any

import pytest

from tarry.core.errors import Conflict, NotFound
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.core.messages.bulk_command import MessageFilter
from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.core.messages.message import Message, NamedMessage
from tarry.core.messages.pause import PausablePlace
from tarry.core.messages.repeat import Repeat
from tarry.core.rules.policy import Policy
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.exclusivity import Mode
from tarry.doors.pulsar.frames import frame
from tarry.doors.pulsar.ids import EARLIER_LEDGER, entry_of, ledger_of
from tarry.engine.topics.entries import NewEntry
from tarry.engine.topics.topic import Topic, incarnation_of
from tarry.ledger.record import FIRST_BATCH_SEQ
from tests.unit.engine_kit import FOREIGN, Bench, NoSpace, full
from tests.unit.pulsar_kit import TOPIC, Desk, Type, message_of, place
from tests.unit.test_adoption import file, manifest


@pytest.fixture
def bench() -> Bench:
    return Bench()


def in_flight(bench: Bench, *payloads: bytes) -> None:
    """Publish without waiting for the disk."""
    _ = bench.engine.topics.publish("t", [NewEntry(payload=payload) for payload in payloads])


def replaced(bench: Bench) -> None:
    """Delete the topic and make it again, without waiting for the disk."""
    _ = bench.engine.topics.delete("t")
    _ = bench.engine.topics.create("t")


# Topics


def test_entries_in_flight_are_not_seen_in_the_next_topic_of_their_name(bench: Bench) -> None:
    bench.publish("t", b"old")
    in_flight(bench, *[b"in flight"] * 9)
    replaced(bench)
    bench.rest()
    topic = bench.engine.topics.find("t")
    assert (topic.visible, topic.next) == (0, 0)
    reader = bench.drain("t")
    for number in range(12):
        bench.publish("t", b"%d" % number)
    assert reader.payloads == [b"%d" % number for number in range(12)]
    assert bench.engine.topics.stats("t").subscriptions["drain"]["backlog"] == 12


def test_a_burst_in_flight_is_not_seen_in_the_next_topic_of_its_name(bench: Bench) -> None:
    for number in range(8):
        bench.schedule("t", payload=b"%d" % number, delay_ms=100)
    bench.clock.advance(100)
    while not bench.engine.topics.names():
        bench.tick()
        while bench.work():
            pass
    replaced(bench)
    bench.rest()
    topic = bench.engine.topics.find("t")
    assert (topic.visible, topic.next) == (0, 0)


def test_a_single_record_in_flight_is_not_seen_in_the_next_topic_of_its_name(bench: Bench) -> None:
    bench.publish("t", b"a", deliver_at_ms=bench.now_ms + 1000)
    _ = bench.engine.delayed.reschedule("t", 0, bench.now_ms + 2000)
    replaced(bench)
    bench.rest()
    assert bench.engine.topics.find("t").visible == 0


def test_every_topic_has_a_number_of_its_own_that_outlives_restarts(bench: Bench) -> None:
    seen: set[int] = set()
    for _ in range(3):
        bench.ask(bench.engine.topics.create("parts", 2))
        bench.publish("t", b"x")
        bench.schedule("due", delay_ms=1)
        bench.wait(10)
        numbers = {name: bench.engine.topics.stats(name).incarnation for name in bench.engine.topics.names()}
        assert len({*numbers.values()} - seen) == len(numbers) == 5
        seen |= {*numbers.values()}
        bench.ask(bench.engine.flush())
        bench.reopen()
        assert {name: bench.engine.topics.stats(name).incarnation for name in numbers} == numbers
        for name in ("parts", "t", "due"):
            bench.ask(bench.engine.topics.delete(name))
    assert min(seen) > 0
    assert max(seen) < FIRST_BATCH_SEQ


def test_topics_of_earlier_versions_have_numbers_by_their_names() -> None:
    names = [full(f"topic-{number}") for number in range(10_000)]
    numbers = {incarnation_of(name) for name in names}
    assert len(numbers) == len(names)
    assert all(FIRST_BATCH_SEQ <= number < 2 * FIRST_BATCH_SEQ for number in numbers)
    assert incarnation_of(names[0]) == incarnation_of(names[0])


# Subscriptions


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_nothing_that_was_said_of_a_topic_is_said_of_the_next_one(
    bench: Bench, flushed: bool, partitions: int
) -> None:
    """Its policy, its rules and its schema (in the shape of today and of before) end with it, and come back with no restart."""
    engine = bench.engine
    said = [("schema", full("t")), ("schema", full("t/1")), ("topic", full("t")), ("schema", full("t2/0"))]
    bench.ask(engine.topics.create("t", partitions))
    for sort, name in said:
        bench.ask(engine.catalogue.enter(sort, name, b"[]"))  # type: ignore[arg-type]
    topics = ["t", "t2", *(f"t-partition-{number}" for number in range(partitions))]
    for topic in topics:
        bench.ask(engine.set_policy("topic", topic, Policy(tick_ms=5)))
    if flushed:
        bench.wait(2000)
    bench.ask(engine.topics.delete("t"))
    bench.ask(engine.topics.create("t", partitions))
    for _ in range(3):
        engine = bench.engine
        assert [engine.policy("topic", topic) for topic in topics if topic != "t2"] == [None] * (
            1 + partitions
        )
        assert [engine.catalogue.get(*one) for one in said] == [None, None, None, b"[]"]  # type: ignore[arg-type]
        assert engine.policy("topic", "t2") == Policy(tick_ms=5)
        bench.reopen()
        bench.wait(2000)


def test_a_policy_may_be_set_before_its_topic_is_there_and_ends_with_it(bench: Bench) -> None:
    bench.ask(bench.engine.set_policy("topic", "t", Policy(tick_ms=5)))
    bench.refused(bench.engine.topics.delete("t"), NotFound)
    bench.publish("t", b"first")
    bench.reopen()
    assert bench.engine.policy("topic", "t") == Policy(tick_ms=5)
    bench.ask(bench.engine.topics.delete("t"))
    assert bench.engine.policy("topic", "t") is None


def test_a_partition_that_goes_by_itself_leaves_what_was_said_of_the_topic(bench: Bench) -> None:
    bench.ask(bench.engine.topics.create("t", 2))
    bench.ask(bench.engine.set_policy("topic", "t", Policy(tick_ms=5)))
    bench.ask(bench.engine.catalogue.enter("schema", full("t/0"), b"{}"))
    bench.ask(bench.engine.topics.delete("t-partition-1"))
    assert bench.engine.policy("topic", "t") == Policy(tick_ms=5)
    assert bench.engine.catalogue.get("schema", full("t/0")) == b"{}"


def test_a_consumer_of_a_deleted_subscription_has_no_say_in_the_next_one(bench: Bench) -> None:
    bench.publish("t", b"a", b"b")
    old = bench.subscribe("t", max_redeliveries=1)
    reader = bench.reader(old)
    reader.handle.nack([1])
    bench.rest()
    assert reader.ids == [0, 1, 1]
    bench.ask(bench.engine.topics.unsubscribe("t", "sub"))
    new = bench.subscribe("t")
    refusal = bench.refused(reader.handle.ack([0]), NotFound)
    assert "was deleted" in str(refusal)
    bench.refused(old.seek(2), NotFound)
    bench.refused(bench.engine.topics.end(old), NotFound)
    # Once more would make it a dead letter.
    reader.handle.nack([1])
    reader.handle.close()
    bench.rest()
    assert bench.engine.topics.subscription("t", "sub") is new
    assert new.backlog == 2
    assert bench.reader(new).ids == [0, 1]
    assert full("t-sub-DLQ") not in bench.engine.topics.names()
    assert new.incarnation > old.incarnation > 0


def test_a_consumer_of_a_deleted_topic_acknowledges_nothing_in_the_next_one(bench: Bench) -> None:
    bench.publish("t", b"old")
    reader = bench.drain("t", "sub")
    replaced(bench)
    bench.publish("t", b"new")
    again = bench.subscribe("t")
    bench.refused(reader.handle.ack([0]), NotFound)
    assert bench.reader(again).payloads == [b"new"]


def test_nobody_attaches_to_a_deleted_subscription(bench: Bench) -> None:
    sub = bench.subscribe("t")
    bench.ask(bench.engine.topics.delete("t"))
    with pytest.raises(NotFound, match="was deleted"):
        sub.attach("late", lambda _: None)


def test_a_subscription_that_is_deleted_while_it_is_made_is_not_the_next_one(bench: Bench) -> None:
    first = bench.engine.topics.subscribe("t", "sub")
    _ = bench.engine.topics.unsubscribe("t", "sub")
    second = bench.engine.topics.subscribe("t", "sub")
    bench.rest()
    assert first.value() is not second.value()
    assert (first.value().closed, second.value().closed) == (True, False)


def test_a_reader_whose_topic_goes_while_it_is_made_is_told(bench: Bench) -> None:
    made = bench.engine.topics.subscribe("t", "reader", "exclusive", durable=False)
    _ = bench.engine.topics.delete("t")
    bench.rest()
    assert made.value().closed


def test_a_reader_that_goes_takes_no_other_of_its_name_along(bench: Bench) -> None:
    bench.publish("t", b"x")
    old = bench.subscribe("t", "reader", "exclusive", durable=False)
    bench.ask(bench.engine.topics.unsubscribe("t", "reader"))
    new = bench.subscribe("t", "reader", "exclusive", durable=False)
    bench.engine.topics.find("t").forget(old)
    assert bench.engine.topics.subscription("t", "reader") is new


# Pulsar's producers and ids


def test_producers_of_a_deleted_topic_are_closed_and_begin_anew() -> None:
    desk = Desk()
    client = desk.client()
    opened = client.produce(producer_access_mode=Mode.Exclusive, producer_name="me")
    assert opened.producer_success.topic_epoch == 0
    waiting = desk.client()
    waiting.produce(producer_access_mode=Mode.WaitForExclusive, producer_name="next")
    client.send(0)
    client.take()
    desk.bench.ask(desk.bench.engine.topics.delete(TOPIC))
    assert [one.close_producer.producer_id for one in client.take(Type.CLOSE_PRODUCER)] == [1]
    assert waiting.take(Type.CLOSE_PRODUCER)
    client.send(1)
    assert client.receipts() == []
    assert desk.bench.engine.topics.names() == []
    again = client.produce(producer_access_mode=Mode.Exclusive, producer_name="me")
    assert again.producer_success.topic_epoch == 0
    client.send(1)
    assert client.receipts() == [(1, 0)]


def test_messages_in_flight_to_a_topic_that_is_deleted_have_no_receipt() -> None:
    """Its client knows that producer no more: it sends them again, to the topic that has the name then."""
    desk = Desk()
    client = desk.client()
    client.produce()
    send = wire.BaseCommand(type=Type.SEND, send=wire.CommandSend(producer_id=1, sequence_id=0))
    client.connection.receive(frame(send, message_of(b"x", 0)))
    _ = desk.bench.engine.topics.delete(TOPIC)
    _ = desk.bench.engine.topics.create(TOPIC)
    desk.bench.rest()
    assert client.take(Type.CLOSE_PRODUCER)
    assert client.take(Type.SEND_RECEIPT) == []
    client.produce()
    client.send(0)
    (receipt,) = client.take(Type.SEND_RECEIPT)
    incarnation = desk.bench.engine.topics.find(TOPIC).incarnation
    assert receipt.send_receipt.message_id.ledgerId == ledger_of(incarnation)


def test_ids_of_two_topics_and_two_partitions_differ() -> None:
    desk = Desk()
    names = [TOPIC, TOPIC + "2", TOPIC + "-partition-0", TOPIC + "-partition-11"]
    ids = []
    for number, name in enumerate(names, 1):
        client = desk.client()
        client.produce(topic=name)
        client.send(0)
        (receipt,) = client.take(Type.SEND_RECEIPT)
        client.subscribe(topic=name)
        (message,) = client.take(Type.MESSAGE)
        id_ = message.message.message_id
        assert id_.ledgerId == receipt.send_receipt.message_id.ledgerId, number
        ids.append((id_.ledgerId, id_.entryId, id_.partition))
    assert len({ledger for ledger, _, _ in ids}) == 4
    assert [partition for _, _, partition in ids] == [-1, -1, 0, 11]


def test_an_id_of_another_topic_acknowledges_nothing_and_of_an_earlier_version_all_that_it_names() -> None:
    desk = Desk()
    client = desk.client()
    client.produce()
    for number in range(3):
        client.send(number)
    client.subscribe()
    sub = desk.bench.engine.topics.subscription(TOPIC, "sub")
    ledger = ledger_of(sub.topic.incarnation)
    acks = [(ledger + 1, 0), (ledger, 1), (EARLIER_LEDGER, 2)]
    for of, entry in acks:
        ack = wire.CommandAck(
            consumer_id=1,
            ack_type=wire.CommandAck.Individual,
            message_id=[wire.MessageIdData(ledgerId=of, entryId=entry)],
        )
        client.tell(type=Type.ACK, ack=ack)
    assert sub.backlog == 1
    assert 0 not in sub.acked


def test_where_an_id_is_in_a_topic() -> None:
    topic = Topic("t", 0, 41)
    topic.next = 10
    ledger = ledger_of(41)
    assert entry_of(ledger, 3, topic) == entry_of(EARLIER_LEDGER, 3, topic) == 3
    assert entry_of(ledger - 1, 3, topic) == entry_of(place(0).ledgerId - 2, 3, topic) == 0
    assert entry_of(ledger + 1, 3, topic) == 10


# Groups


def later(bench: Bench, ms: int) -> None:
    """Let time pass in a few steps, in which what is past its retention is forgotten."""
    for _ in range(4):
        bench.leap(ms // 4)


def waiting_in_a_forgotten_group(bench: Bench, group: str = "g") -> str:
    """A message that was chosen of its group more than a week ago, and is tried again and again."""
    old = bench.schedule(FOREIGN, payload=b"old", group=group, delay_ms=10)
    bench.wait(10)
    for _ in range(10):
        # It is chosen, and nobody knows whether it arrived.
        bench.verdict(Retry("away", uncertain=True, counted=False))
        bench.leap(DAY_MS)
        later(bench, HOUR_MS)
    return old.id


@pytest.mark.parametrize("meanwhile", ["nothing", "another attempt", "a restart"])
def test_a_message_of_a_group_that_was_forgotten_ends_none_of_the_next_of_its_name(
    bench: Bench, meanwhile: str
) -> None:
    old = waiting_in_a_forgotten_group(bench)
    new = [bench.schedule("orders", group="g", delay_ms=2 * DAY_MS).id for _ in range(2)]
    if meanwhile == "another attempt":
        bench.verdict(Retry("away", uncertain=True, counted=False))
        later(bench, DAY_MS)
    elif meanwhile == "a restart":
        bench.reopen()
        bench.rest()
    bench.verdict(Delivered())
    assert [bench.state(old), *map(bench.state, new)] == ["sent", "scheduled", "scheduled"]
    later(bench, 2 * DAY_MS)
    # And those are a group of their own.
    assert sorted(map(bench.state, new)) == ["cancelled", "sent"]


def test_the_next_group_of_a_name_ends_no_message_of_the_one_before(bench: Bench) -> None:
    old = waiting_in_a_forgotten_group(bench)
    new = bench.schedule("orders", payload=b"new", group="g", delay_ms=10)
    sibling = bench.schedule("orders", payload=b"sibling", group="g", delay_ms=20)
    bench.wait(50)
    assert (bench.state(old), bench.state(new.id)) == ("sending", "sent")
    assert bench.state(sibling.id) == "cancelled"
    bench.verdict(Delivered())
    assert bench.state(old) == "sent"


def restored(bench: Bench, image: bytes | None) -> None:
    """Begin again with a registry of earlier, as after a crash or from a snapshot; the ledger has all since."""
    bench.kill()
    bench.registry_disk.images.clear()
    bench.registry_disk.images.append(image)
    bench.start()
    bench.rest()


def test_a_group_that_begins_again_is_one_group_whatever_a_restart_remembers(bench: Bench) -> None:
    """The registry that a crash leaves may still have the group that had ended and was forgotten."""
    bench.schedule("orders", group="g", delay_ms=10)
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    bench.leap(8 * DAY_MS)
    later(bench, HOUR_MS)
    ids = [bench.schedule("orders", group="g", delay_ms=DAY_MS).id for _ in range(2)]
    restored(bench, before)
    later(bench, DAY_MS)
    assert sorted(map(bench.state, ids)) == ["cancelled", "sent"]


def test_a_group_that_begins_again_is_led_whatever_a_restart_remembers(bench: Bench) -> None:
    bench.schedule("orders", group="g", delay_ms=10)
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    bench.leap(8 * DAY_MS)
    later(bench, HOUR_MS)
    leader = Message(destination=FOREIGN, leads="g", delay_ms=DAY_MS)
    members = [Message(destination="orders", group="g", delay_ms=DAY_MS) for _ in range(2)]
    together = bench.engine.schedule_many([leader, *members], all_or_none=True)
    first, *led = [one.id for one in bench.ask(together)]
    restored(bench, before)
    later(bench, DAY_MS)
    bench.verdict(Delivered())
    assert [bench.state(first), *map(bench.state, led)] == ["sent", "scheduled", "scheduled"]
    later(bench, DAY_MS)
    assert sorted(map(bench.state, led)) == ["cancelled", "sent"]


# Batches


def test_a_batch_that_takes_the_name_of_one_that_was_forgotten_stays(bench: Bench) -> None:
    """The registry that a crash leaves may still have the batch that was forgotten, and forgets it once more."""
    first = manifest(bench, files=[file(high_ms=bench.now_ms + HOUR_MS)], fingerprint="first")
    bench.ask(bench.engine.batches.adopt("letters", first))
    bench.ask(bench.engine.batches.cancel("letters"))
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    bench.leap(9 * DAY_MS)
    later(bench, HOUR_MS)
    bench.refused(bench.engine.batches.batch("letters"), NotFound)
    high_ms = bench.now_ms + 30 * DAY_MS
    second = manifest(bench, files=[file(high_ms=high_ms)], fingerprint="second")
    made = bench.ask(bench.engine.batches.adopt("letters", second))
    restored(bench, before)
    for _ in range(2):
        later(bench, HOUR_MS)
        assert bench.ask(bench.engine.batches.batch("letters")).adopted_at_ms == made.adopted_at_ms
        assert sum(bench.pending.by_holder.values()) == 3
        assert bench.batches.of(bench.batches.by_name["letters"].first_seq) is not None
        bench.reopen()
        bench.rest()


# Names of messages


def named(bench: Bench, payload: bytes, delay_ms: int = HOUR_MS, **fields: Any) -> str:
    message = NamedMessage(destination=FOREIGN, name="n", payload=payload, delay_ms=delay_ms, **fields)
    return bench.ask(bench.engine.schedule(message)).id


def of_name(bench: Bench) -> str:
    return bench.engine.id_of_name("public/default", "n")


@pytest.mark.parametrize("how", ["forgotten", "crash", "older registry"])
def test_the_end_of_a_message_does_not_touch_the_next_one_of_its_name(bench: Bench, how: str) -> None:
    old = named(bench, b"old", 10)
    bench.wait(10)
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    assert of_name(bench) == old
    # Its end is enqueued and not durable when the next one comes.
    bench.outlet.under_way[0].answer(Delivered())
    new = named(bench, b"new", 20 * DAY_MS)
    assert of_name(bench) == new
    if how == "crash":
        bench.reopen()
        bench.rest()
    elif how == "older registry":
        restored(bench, before)
    for _ in range(3):
        # The outcome of the old one is forgotten meanwhile.
        later(bench, 4 * DAY_MS)
        assert of_name(bench) == new
    bench.refused(bench.engine.get(old), NotFound)
    kept = NamedMessage(destination=FOREIGN, name="n", delay_ms=1, on_conflict="keep")
    assert bench.ask(bench.engine.schedule(kept)).id == new


def test_a_name_is_given_to_nobody_while_its_message_is_sent(bench: Bench) -> None:
    old = named(bench, b"old", 10)
    bench.wait(10)
    bench.refused(bench.engine.schedule(NamedMessage(destination=FOREIGN, name="n", delay_ms=1)), Conflict)
    waiting = bench.engine.schedule(
        NamedMessage(destination=FOREIGN, name="n", delay_ms=HOUR_MS, on_conflict="replace")
    )
    bench.rest()
    assert (waiting.settled, of_name(bench)) == (False, old)
    bench.reopen()
    # Whoever waited was not answered, and nothing of it is left.
    bench.rest()
    assert of_name(bench) == old
    bench.verdict(Delivered())
    assert bench.listed() == []


def test_a_failed_message_that_is_retried_does_not_take_its_name_back(bench: Bench) -> None:
    old = named(bench, b"old", 10)
    bench.wait(10)
    bench.verdict(Refused("no"))
    later(bench, 2_000)
    # The registry as it was flushed has the old one under the name.
    new = named(bench, b"new")
    again = bench.ask(bench.engine.retry(old, delay_ms=2 * HOUR_MS))
    assert again.name is None
    for _ in range(2):
        assert of_name(bench) == new
        assert bench.view(old).name is None
        bench.reopen()
        bench.rest()
    bench.ask(bench.engine.cancel(old))
    later(bench, 2_000)
    assert of_name(bench) == new


# Repeats


def set_repeat(bench: Bench, payload: bytes, **fields: Any) -> None:
    repeat = Repeat(**{"destination": FOREIGN, "every_ms": HOUR_MS, "payload": payload, **fields})
    bench.ask(bench.engine.repeats.set("public/default", "r", repeat))


@pytest.mark.parametrize("how", ["goes on", "crash", "older registry"])
@pytest.mark.parametrize("removed", [True, False])
def test_an_occurrence_of_a_repeat_has_no_say_in_the_next_one_of_its_name(
    bench: Bench, how: str, removed: bool
) -> None:
    engine = bench.engine
    set_repeat(bench, b"old", count=3)
    bench.wait(HOUR_MS)
    (attempt,) = bench.outlet.under_way
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    if removed:
        bench.ask(engine.repeats.remove("public/default", "r"))
    set_repeat(bench, b"new", every_ms=2 * HOUR_MS, count=2)
    began_ms = bench.now_ms
    attempt.answer(Delivered())
    bench.rest()
    if how == "crash":
        bench.reopen()
    elif how == "older registry":
        restored(bench, before)
    bench.rest()
    view = bench.ask(bench.engine.repeats.get("public/default", "r"))
    assert (view.payload, view.made, view.next_due_at_ms) == (
        b"new", 0, [began_ms + 2 * HOUR_MS, began_ms + 4 * HOUR_MS],
    )  # fmt: skip
    assert bench.listed() == []
    sent: list[bytes] = []
    for _ in range(6):
        bench.wait(HOUR_MS)
        for one in list(bench.outlet.under_way):
            sent.append(one.delivery.payload)
            one.answer(Delivered())
        bench.rest()
    assert sent == [b"new", b"new"]


def test_an_occurrence_accepted_ahead_and_not_durable_is_not_the_next_repeats(bench: Bench) -> None:
    set_repeat(bench, b"old")
    bench.clock.advance(HOUR_MS - 100)
    bench.tick()
    assert bench.next_seq - 1 > bench.durable_seq, "the occurrence is on its way into the ledger"
    _ = bench.engine.repeats.remove("public/default", "r")
    set_repeat(bench, b"new")
    for _ in range(2):
        view = bench.ask(bench.engine.repeats.get("public/default", "r"))
        assert (view.made, view.last_at_ms) == (0, None)
        bench.reopen()
        bench.rest()
    bench.wait(200)
    assert (bench.outlet.under_way, bench.listed()) == ([], [])


# Paused places


def test_what_a_deleted_topic_held_is_not_in_the_next_one_and_messages_for_it_wait(bench: Bench) -> None:
    """A pause is of a place to which messages go, whether a topic is there or not: it outlives the topic."""
    topic = PausablePlace("topic", "public/default", full("t"))
    bench.publish("t", b"old entry", deliver_at_ms=bench.now_ms + 1_000)
    bench.subscribe("t")
    message = bench.schedule("t", payload=b"message", delay_ms=1_000)
    bench.ask(bench.engine.pausing.pause_place(topic))
    bench.wait(2_000)
    assert bench.engine.stats().paused["place"] == 2
    before = bench.registry_disk.images[-1]
    replaced(bench)
    reader = bench.drain("t")
    bench.rest()
    for older in (None, before):
        if older is not None:
            restored(bench, older)
            reader = bench.drain("t")
        bench.wait(2_000)
        assert reader.payloads == []
        assert bench.view(message.id).paused == "topic"
    bench.ask(bench.engine.pausing.resume_place(topic))
    bench.wait(2_000)
    assert reader.payloads == [b"message"], "the entry went with its topic"


def test_the_end_of_a_pause_that_waits_for_space_does_not_end_the_next_one_of_its_place(bench: Bench) -> None:
    ann = PausablePlace("owner", "public/default", "ann")
    bench.ask(bench.engine.pausing.pause_place(ann))
    _ = bench.engine.pausing.resume_place(ann)
    space = NoSpace(bench)
    bench.wait(50)
    assert bench.engine_state.pauses.by_place[ann].resumed, "its end waits"
    space.end()
    _ = bench.engine.pausing.pause_place(ann)
    bench.wait(5_000)
    id_ = bench.schedule(FOREIGN, owner="ann", delay_ms=10).id
    for _ in range(2):
        bench.wait(50)
        (shown,) = bench.ask(bench.engine.pausing.places(None))
        assert not shown.resumed
        assert bench.view(id_).paused == "owner"
        bench.reopen()


# Bulk commands


def test_a_command_that_was_lost_leaves_nothing_to_the_next_one_of_its_number(bench: Bench) -> None:
    """Its number is the seq of its record, so that only one that nobody was told of is given again."""
    chosen = MessageFilter(owner="ann")
    id_ = bench.schedule(owner="ann", delay_ms=HOUR_MS).id
    _ = bench.engine.bulk_commands.ask("send", chosen, "eve")
    number = bench.next_seq - 1
    bench.crash()
    bench.start()
    bench.rest()
    assert bench.ask(bench.engine.bulk_commands.all(None)) == []
    command = bench.ask(bench.engine.bulk_commands.ask("move", chosen, "ann", delay_ms=2 * HOUR_MS))
    assert command.number <= number
    assert (command.action, command.asked_by) == ("move", "ann")
    bench.wait(100)
    counted = bench.ask(bench.engine.bulk_commands.get(command.number))
    bench.ask(bench.engine.bulk_commands.confirm(command.number, counted.counted, "ann"))
    bench.wait(100)
    assert (counted.counted, bench.state(id_)) == (1, "scheduled")
    assert bench.ask(bench.engine.bulk_commands.get(command.number)).done == 1


def test_a_command_that_was_forgotten_does_not_come_back_with_an_older_registry(bench: Bench) -> None:
    bulk, chosen = bench.engine.bulk_commands, MessageFilter(owner="ann")
    old = bench.ask(bulk.ask("send", chosen, "eve")).number
    bench.wait(100)
    bench.ask(bulk.confirm(old, 0, "eve"))
    later(bench, 2_000)
    before = bench.registry_disk.images[-1]
    later(bench, 8 * DAY_MS)
    assert bench.ask(bulk.all(None)) == []
    id_ = bench.schedule(owner="ann", delay_ms=30 * DAY_MS).id
    new = bench.ask(bulk.ask("cancel", chosen, "ann")).number
    restored(bench, before)
    bench.wait(100)
    assert [one.number for one in bench.ask(bench.engine.bulk_commands.all(None))] == [new]
    assert new > old
    bench.refused(bench.engine.bulk_commands.confirm(old, 0, "eve"), NotFound)
    assert bench.state(id_) == "scheduled"
