"""The producers and consumers of one run: they publish, subscribe, read, acknowledge, and come and go."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tarry.core.errors import Conflict, DelayTooLong, NotFound, Unavailable
from tarry.engine.answer import Answer
from tarry.engine.topics.entries import NewEntry, Received
from tarry.engine.topics.subscription import Subscription
from tests.simulation.checker import Violation
from tests.simulation.clients import KEYS
from tests.simulation.model import (
    AUDIT,
    DEAD_LETTERS,
    EAGER,
    FLEETING,
    LETTERS,
    TOPICS,
    WHOLE,
    Publication,
    Reader,
    Sub,
)

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

AUDITED = (*TOPICS, EAGER, DEAD_LETTERS, LETTERS)
"""Somebody reads these from their first entry on."""
TYPES = ("exclusive", "shared", "failover", "key_shared")
SUBSCRIPTIONS = {
    "x": ("exclusive", 0),
    "s": ("shared", 0),
    "f": ("failover", 0),
    "k": ("key_shared", 0),
    "d": ("shared", 2),
}
"""Name -> type, and how often an entry may be given back before it is a dead letter."""
MANY = 1_000_000


class Consumers:
    """Clients of topics."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._random = sim.random
        self._model = sim.model
        self._checker = sim.checker
        self._sequences = {"p1": 0, "p2": 0}

    def actions(self) -> dict[str, Callable[[], None]]:
        """The steps that producers and consumers take."""
        return {
            "publish": self.publish,
            "subscribe": self.subscribe,
            "watch": self.watch,
            "attach": self.attach,
            "flow": self.flow,
            "ack": self.ack,
            "ack_part": self.ack_part,
            "honour": self.honour,
            "nack": self.nack,
            "seek": self.seek,
            "close": self.close,
            "retype": self.retype,
            "unsubscribe": self.unsubscribe,
            "delete": self.delete,
        }

    def found(self) -> None:
        """Begin the audit of every topic."""
        for topic in AUDITED:
            self._subscribe(topic, AUDIT, "exclusive", 0, "earliest")
        while self._sim.commit_frame():
            pass
        for sub in self._model.subs.values():
            self._attach(sub, MANY)

    def read_everything(self) -> None:
        """Somebody reads every subscription to its end, and acknowledges nothing more."""
        for sub in list(self._model.subs.values()):
            if sub.type == "key_shared" or sub.loose:
                # A key stays with the consumer that holds an entry of it: with one consumer, all keys can go on.
                for reader in list(sub.consumers):
                    self._close(reader)
            for reader in sub.consumers:
                reader.permits += MANY
                reader.handle.flow(MANY)
            if not sub.consumers:
                self._attach(sub, MANY)

    # Publishing

    def publish(self) -> None:
        """Some entries, perhaps delayed, perhaps numbered by their producer."""
        random = self._random
        topic = random.choice((*TOPICS, *TOPICS, EAGER, FLEETING))
        publications = [self._new_publication(topic) for _ in range(random.choice((1, 1, 3)))]
        if random.random() < 0.4 and topic != FLEETING:
            self._publish_numbered(topic, publications)
        else:
            self._publish(topic, publications, set())

    def _new_publication(self, topic: str) -> Publication:
        random = self._random
        token = self._sim.token("p")
        deliver_at_ms = None
        if random.random() < 0.4:
            deliver_at_ms = self._sim.clock.now_ms() + self._sim.clients.delay() - random.choice((0, 5))
            self._sim.note_due(deliver_at_ms)
        publication = Publication(
            token, topic, token.encode() * random.choice((1, 20)), {"token": token}, random.choice(KEYS),
            deliver_at_ms, 1_000 if topic == EAGER and random.random() < 0.3 else None, self._sim.since(),
        )  # fmt: skip
        self._model.publications[token] = publication
        return publication

    def _publish_numbered(self, topic: str, publications: list[Publication]) -> None:
        """A producer numbers what it publishes, and publishes again what was not answered before a crash."""
        name = self._random.choice(("p1", "p2"))
        producer = f"{name}-{topic}"
        if any(what.startswith(f"publish {producer}") for what, _ in self._sim.open):
            for publication in publications:
                publication.maybe = False
            return
        lost = [
            one
            for one in self._model.publications.values()
            if one.producer is not None and one.producer[0] == producer and one.maybe
        ]
        for publication in publications:
            self._sequences[name] += 1
            publication.producer = (producer, self._sequences[name])
        self._publish(topic, [*lost, *publications], {one.token for one in lost}, producer)

    def _publish(self, topic: str, publications: list[Publication], again: set[str], by: str = "") -> None:
        entries = [
            NewEntry(
                payload=one.payload,
                headers=one.headers,
                key=one.key,
                deliver_at_ms=one.deliver_at_ms,
                ttl_ms=one.ttl_ms,
                producer=one.producer[0] if one.producer else None,
                producer_sequence=one.producer[1] if one.producer else -1,
            )
            for one in publications
        ]
        answer = self._sim.engine.topics.publish(topic, entries)

        def published(entry_ids: Sequence[int]) -> None:
            for one, entry_id in zip(publications, entry_ids, strict=True):
                one.accepted, one.maybe = True, False
                if entry_id >= 0:
                    one.entry_id = entry_id
                elif one.token not in again:
                    raise Violation(f"{one.token} is said to be a duplicate, but is new")

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            if error is None:
                published(of.value())
            elif not isinstance(error, Unavailable | DelayTooLong):
                raise error
            elif not unclear:
                for one in publications:
                    if one.token not in again:
                        one.maybe = False

        tokens = " ".join(one.token for one in publications)
        self._sim.ask(f"publish {by or topic} {topic} {tokens}", answer, then, fact=published)

    def delete(self) -> None:
        """Delete the one topic that is not audited, with all that it holds."""
        names = self._sim.engine.topics.names()
        if not any(name.endswith(f"/{FLEETING}") for name in names) or self._random.random() < 0.5:
            return
        answer = self._sim.engine.topics.delete(FLEETING)
        if answer.settled:
            # Refused: nothing was changed.
            if not isinstance(answer.error(), Unavailable):
                raise Violation(f"a deletion was answered at once: {answer.error()!r}")
            return
        gone = self._model.forget_fleeting()

        def then(of: Answer[Any], _: bool) -> None:
            if of.error() is None:
                self._model.deleted.update(gone)

        self._sim.ask("delete", answer, then)

    # Subscriptions

    def subscribe(self) -> None:
        """Make a subscription, or find it."""
        random = self._random
        name = random.choice(sorted(SUBSCRIPTIONS))
        type_, limit = SUBSCRIPTIONS[name]
        topic = random.choice((*TOPICS, EAGER, FLEETING))
        sub = self._model.subs.get((topic, name))
        # One whose type was changed stays as it is.
        self._subscribe(topic, name, sub.type if sub else type_, limit, random.choice(("earliest", "latest")))

    def _subscribe(self, topic: str, name: str, type_: Any, limit: int, start: Any) -> None:
        sub = self._model.subs.get((topic, name))
        if sub is None:
            sub = self._model.subs[topic, name] = Sub(topic, name, type_, limit)
        if sub.loose:
            return
        answer = self._sim.engine.topics.subscribe(topic, name, type_, start=start, **self._letters(limit))
        self._sim.ask(f"subscribe {topic}/{name}", answer, partial(self._subscribed, sub))

    @staticmethod
    def _letters(limit: int) -> dict[str, Any]:
        return {"max_redeliveries": limit, "dead_letter_topic": LETTERS} if limit else {}

    def _subscribed(self, sub: Sub, answer: Answer[Any], _: bool) -> None:
        error = answer.error()
        if error is not None:
            # The topic may be deleted before the subscription is durable.
            if not isinstance(error, Unavailable) and not (
                sub.topic == FLEETING and isinstance(error, NotFound)
            ):
                raise error
        elif not sub.accepted and self._model.subs.get((sub.topic, sub.name)) is sub:
            try:
                stats = self._sim.engine.topics.stats(sub.topic)
            except NotFound:
                return
            sub.accepted = True
            # From outside it is only known that it begins no later than here.
            sub.first = 0 if sub.name == AUDIT else stats.next_entry

    def watch(self) -> None:
        """A reader: a subscription that lives in memory for as long as it is attached."""
        topic = self._random.choice(TOPICS)
        name = self._sim.token("r")
        sub = Sub(topic, name, "exclusive", durable=False)
        answer = self._sim.engine.topics.subscribe(topic, name, "exclusive", start="latest", durable=False)

        def then(of: Answer[Any], _: bool) -> None:
            if of.error() is None:
                self._model.subs[topic, name] = sub
                sub.accepted = True
                self._attach(sub, MANY)

        self._sim.ask(f"watch {topic}", answer, then)

    def retype(self) -> None:
        """Change the type of a subscription that nobody reads."""
        subs = [
            sub
            for sub in self._model.subs.values()
            if sub.accepted and not sub.consumers and not sub.busy and sub.durable and sub.name != AUDIT
        ]
        if not subs:
            return
        sub = self._random.choice(subs)
        type_: Any = self._random.choice(TYPES)
        before = sub.loose
        sub.loose = True
        sub.busy += 1
        # Nobody holds anything, so that all that is not acknowledged comes again.
        sub.rewound()
        answer = self._sim.engine.topics.subscribe(
            sub.topic, sub.name, type_, **self._letters(sub.max_redeliveries)
        )

        def then(of: Answer[Any], unclear: bool) -> None:
            error = of.error()
            sub.busy -= 1
            if error is None:
                sub.type, sub.loose = type_, False
            elif isinstance(error, Conflict):
                # Somebody has attached before the change was decided.
                sub.loose = before
            elif not unclear:
                sub.loose = before

        self._sim.ask(f"retype {sub.topic}/{sub.name} {type_}", answer, then)

    def unsubscribe(self) -> None:
        """End a subscription."""
        subs = [
            sub for sub in self._model.subs.values() if sub.accepted and sub.durable and sub.name != AUDIT
        ]
        if not subs:
            return
        sub = self._random.choice(subs)
        answer = self._sim.engine.topics.unsubscribe(sub.topic, sub.name)
        if answer.settled:
            # Refused: nothing was changed.
            if not isinstance(answer.error(), Unavailable):
                raise Violation(f"unsubscribing was answered at once: {answer.error()!r}")
            return
        for reader in sub.consumers:
            reader.closed = True
        # It may or may not be there, and if somebody makes it again it begins anew: another one to the model.
        fresh = Sub(sub.topic, sub.name, sub.type, sub.max_redeliveries)
        fresh.loose = sub.loose
        # If it is still there after a crash, so is all that was acknowledged in part.
        fresh.parts = {entry_id: (WHOLE, least) for entry_id, (_, least) in sub.parts.items()}
        self._model.subs[sub.topic, sub.name] = fresh

        def then(of: Answer[Any], _: bool) -> None:
            if of.error() is None and not fresh.accepted:
                fresh.parts.clear()

        self._sim.ask(f"unsubscribe {sub.topic}/{sub.name}", answer, then)

    def _handle(self, sub: Sub) -> Subscription | None:
        try:
            found: Subscription = self._sim.engine.topics.subscription(sub.topic, sub.name)
            return found
        except NotFound:
            if sub.accepted:
                raise Violation(f"the subscription {sub.topic}/{sub.name} is gone") from None
            return None

    # Consumers

    def attach(self) -> None:
        """A consumer comes."""
        subs = [sub for sub in self._model.subs.values() if sub.durable]
        if subs:
            self._attach(self._random.choice(subs), self._random.choice((1, 5, MANY)))

    def _attach(self, sub: Sub, permits: int) -> None:
        handle = self._handle(sub)
        if handle is None or not sub.accepted:
            return
        reader = Reader(sub, self._sim.token("c"), priority=self._random.choice((0, 1)))
        try:
            consumer = handle.attach(
                reader.name, partial(self._deliver, self._checker.life, sub, reader), priority=reader.priority
            )
        except Conflict:
            if handle.type == "exclusive" and sub.consumers:
                return
            raise
        self._sim.say(f"attach {reader.name} to {sub.topic}/{sub.name} with {permits}")
        reader.handle, reader.attached_to = consumer, handle
        active = sub.consumers[:1]
        sub.consumers.append(reader)
        if handle.type == "failover":
            sub.consumers.sort(key=lambda one: (one.priority, one.name))
            if active and sub.consumers[0] is not active[0]:
                # The new one takes over, and with it what the old one held.
                active[0].held.clear()
        reader.permits = permits
        consumer.flow(permits)

    def _deliver(self, life: int, sub: Sub, reader: Reader, entries: list[Received]) -> None:
        if life != self._checker.life:
            assert self._sim.cluster is not None
            self._sim.cluster.gives_out(life, sub, entries)
            return
        if self._sim.trace is not None:
            ids = [entry.entry_id for entry in entries]
            self._sim.say(f"{sub.topic}/{sub.name} gives {ids} to {reader.name}")
        self._checker.received(sub, reader, entries)

    def _reader(self) -> Reader | None:
        readers = [reader for sub in self._model.subs.values() for reader in sub.consumers]
        return self._random.choice(readers) if readers else None

    def flow(self) -> None:
        """A consumer wants more."""
        reader = self._reader()
        if reader is not None:
            more = self._random.choice((1, 10))
            reader.permits += more
            reader.handle.flow(more)

    def acknowledge_everything(self) -> None:
        """All consumers are done with all that they have; where much fails, dead letters wait for somebody to look at them."""
        for sub in self._model.subs.values():
            if self._sim.harsh and sub.topic == DEAD_LETTERS:
                continue
            for reader in sub.consumers:
                if reader.held:
                    self._ack_each(reader, sorted(reader.held))

    def ack(self) -> None:
        """A consumer is done with some of what it has."""
        reader = self._reader()
        if reader is None or not reader.held:
            return
        sub, random = reader.sub, self._random
        held = sorted(reader.held)
        if sub.in_order and not sub.loose and random.random() < 0.4:
            last = random.choice(held)
            for other in sub.consumers:
                for entry_id in [one for one in other.held if one <= last]:
                    del other.held[entry_id]
            sub.excused_below = max(sub.excused_below, last + 1)
            sub.busy += 1
            answer = reader.attached_to.ack([], below=last + 1)
            self._sim.ask(
                f"ack {sub.topic}/{sub.name} to {last}", answer, partial(self._acked, sub, [], last + 1)
            )
        else:
            self._ack_each(
                reader, held if random.random() < 0.5 else random.sample(held, random.randint(1, len(held)))
            )

    def _ack_each(self, reader: Reader, ids: list[int]) -> None:
        sub = reader.sub
        for entry_id in ids:
            del reader.held[entry_id]
        sub.excused.update(ids)
        sub.busy += 1
        answer = reader.handle.ack(ids)
        self._sim.ask(f"ack {sub.topic}/{sub.name} {ids}", answer, partial(self._acked, sub, ids, 0))

    def ack_part(self) -> None:
        """A consumer is done with some messages of an entry; with the last of them it is done with the entry."""
        reader = self._reader()
        if reader is None or not reader.held:
            return
        sub, random = reader.sub, self._random
        entry_id = random.choice(sorted(reader.held))
        most, least = sub.parts.get(entry_id, (WHOLE, WHOLE))
        left = least & random.choice((0b011, 0b101, 0b110))
        sub.parts[entry_id] = most, left
        if not left:
            del reader.held[entry_id]
            sub.excused.add(entry_id)
        sub.busy += 1
        answer = reader.attached_to.ack([], partial=[(entry_id, [left])])

        def then(of: Answer[Any], _: bool) -> None:
            sub.busy -= 1
            error = of.error()
            if error is None:
                self._sim.coverage.note("partial acknowledgement")
                most, least = sub.parts.get(entry_id, (WHOLE, left))
                sub.parts[entry_id] = most & left, least
                if not left:
                    sub.acked.add(entry_id)
            elif not isinstance(error, Unavailable):
                raise error

        self._sim.ask(f"ack part {sub.topic}/{sub.name} {entry_id} {left:b}", answer, then)

    def honour(self) -> None:
        """Say of a subscription that nobody reads whether delays count, though it is exclusive or failover."""
        subs = [
            sub
            for sub in self._model.subs.values()
            if sub.accepted and sub.durable and not sub.consumers and not sub.busy and sub.name != AUDIT
        ]
        if not subs:
            return
        sub = self._random.choice(subs)
        handle = self._handle(sub)
        assert handle is not None
        sub.honours = self._random.random() < 0.7
        sub.rewound()
        handle.honour_delay(sub.honours)
        if sub.honours and sub.type in ("exclusive", "failover"):
            self._sim.coverage.note("delays honoured in order")
        self._sim.say(f"honour {sub.topic}/{sub.name} {sub.honours}")

    def _acked(self, sub: Sub, ids: list[int], below: int, answer: Answer[Any], _: bool) -> None:
        sub.busy -= 1
        error = answer.error()
        if error is None:
            sub.acked.update(ids)
            sub.acked_below = max(sub.acked_below, below)
        elif not isinstance(error, Unavailable):
            raise error

    def nack(self) -> None:
        """A consumer gives some of what it has back."""
        reader = self._reader()
        if reader is None or not reader.held or self._sim.failing:
            return
        sub = reader.sub
        ids = self._random.sample(sorted(reader.held), self._random.randint(1, len(reader.held)))
        for entry_id in ids:
            del reader.held[entry_id]
            sub.nacks[entry_id] = sub.nacks.get(entry_id, 0) + 1
            if sub.max_redeliveries and sub.nacks[entry_id] > sub.max_redeliveries:
                sub.letters.add(entry_id)
        self._sim.say(f"nack {sub.topic}/{sub.name} {ids}")
        reader.handle.nack(ids)

    def seek(self) -> None:
        """A subscription goes somewhere else."""
        subs = [
            sub
            for sub in self._model.subs.values()
            if sub.accepted and not sub.busy and sub.name != AUDIT and sub.durable
        ]
        if not subs:
            return
        sub = self._random.choice(subs)
        handle = self._handle(sub)
        assert handle is not None
        to = self._random.randint(0, self._sim.engine.topics.stats(sub.topic).next_entry)
        answer = handle.seek(to)
        if answer.settled:
            # Refused: nothing was changed.
            if not isinstance(answer.error(), Unavailable):
                raise Violation(f"a seek was answered at once: {answer.error()!r}")
            return
        sub.busy += 1
        sub.excused |= sub.acked
        # Whatever was acknowledged in part may be whole again.
        sub.parts = {entry_id: (WHOLE, least) for entry_id, (_, least) in sub.parts.items()}
        sub.excused_below = max(sub.excused_below, to)
        sub.acked.clear()
        sub.acked_below = 0
        sub.rewound()

        def then(of: Answer[Any], _: bool) -> None:
            sub.busy -= 1
            if of.error() is None:
                sub.acked_below = to
            elif not isinstance(of.error(), Unavailable):
                raise of.error()  # type: ignore[misc]

        self._sim.ask(f"seek {sub.topic}/{sub.name} {to}", answer, then)

    def close(self) -> None:
        """A consumer goes."""
        reader = self._reader()
        if reader is not None:
            self._close(reader)

    def _close(self, reader: Reader) -> None:
        self._sim.say(f"close {reader.name}")
        sub = reader.sub
        sub.consumers.remove(reader)
        reader.closed = True
        reader.held.clear()
        if not sub.durable:
            del self._model.subs[sub.topic, sub.name]
        reader.handle.close()
