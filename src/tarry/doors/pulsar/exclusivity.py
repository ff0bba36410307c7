"""Exclusive producing to a topic: names that one producer has at a time, and Pulsar's access modes."""

from collections.abc import Callable
from typing import Protocol

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code, PulsarRefusal

Mode = wire.ProducerAccessMode


class Claimant(Protocol):
    """A producer, as far as its place among others is concerned."""

    name: str
    mode: int
    epoch: int
    """How often its client has connected it."""
    client: tuple[str, int]
    """The client's identity across reconnections: its host, and the id it gives the producer."""

    def evict(self) -> None:
        """Another one has taken its place: it is closed, and need not `leave`."""

    def lose_topic(self) -> None:
        """Its topic is deleted: it is closed, and need not `leave`."""


class Producing:
    """The producers of one topic. An exclusive one is alone.

    The topic's epoch counts the exclusive ones: one that comes back with an older epoch is fenced. It is kept with the
    topic, and an exclusive producer is told that it is ready once its epoch is durable.
    """

    def __init__(self, topic: str, epoch: int) -> None:
        """`epoch` is that of the last exclusive producer; -1 if there has been none."""
        self.topic = topic
        self.by_name: dict[str, Claimant] = {}
        self.epoch = epoch
        self._waiting: dict[Claimant, Callable[[], None]] = {}
        """Claimants that want the topic for themselves, the first one first, each with the callback for its turn."""

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost by forgetting this."""
        return not self.by_name and not self._waiting

    @property
    def exclusive(self) -> Claimant | None:
        """The producer that has the topic for itself, if one has."""
        # It is alone, so the first one says it: thousands may share a topic.
        first = next(iter(self.by_name.values()), None)
        return None if first is None or first.mode == Mode.Shared else first

    def claim(self, one: Claimant, known_epoch: int | None, ready: Callable[[], None]) -> bool:
        """Let a producer in; False if it has to wait, until `ready` is called. Raises `PulsarRefusal`."""
        if known_epoch is not None and known_epoch < self.epoch:
            raise PulsarRefusal(Code.ProducerFenced, "another producer has had the topic for itself since")
        self._succeed(one)
        if one.name in self.by_name:
            raise PulsarRefusal(
                Code.ProducerBusy,
                f"Producer with name '{one.name}' is already connected to topic {self.topic}",
            )
        owner = self.exclusive
        if one.mode == Mode.Shared:
            if owner is not None or self._waiting:
                raise PulsarRefusal(Code.ProducerBusy, "Topic has an existing exclusive producer")
        elif one.mode == Mode.Exclusive:
            if self.by_name or self._waiting:
                raise PulsarRefusal(Code.ProducerFenced, "Topic has existing producers")
        elif one.mode == Mode.ExclusiveWithFencing:
            self.evict_all()
        elif self.by_name or self._waiting:
            self._waiting[one] = ready
            return False
        self._let_in(one, known_epoch)
        return True

    def evict_all(self) -> None:
        """Close every producer, those that wait too."""
        for one in self._empty():
            one.evict()

    def lose_topic(self) -> None:
        """Close every producer, those that wait too: the topic is deleted."""
        for one in self._empty():
            one.lose_topic()

    def _empty(self) -> list[Claimant]:
        ones = [*self.by_name.values(), *self._waiting]
        self.by_name.clear()
        self._waiting.clear()
        return ones

    def leave(self, one: Claimant) -> None:
        """A producer goes; a waiting one may be next."""
        if self.by_name.get(one.name) is one:
            del self.by_name[one.name]
        self._waiting.pop(one, None)
        if not self.by_name and self._waiting:
            following = next(iter(self._waiting))
            ready = self._waiting.pop(following)
            self._let_in(following, None)
            ready()

    def _let_in(self, one: Claimant, known_epoch: int | None) -> None:
        self.by_name[one.name] = one
        if one.mode != Mode.Shared:
            # One that comes back keeps its epoch. One that says it had a later one had it in a topic that is gone.
            self.epoch += known_epoch != self.epoch

    def _succeed(self, one: Claimant) -> None:
        """A client that connects its producer again replaces its old self, whose connection may be dead unnoticed."""
        old = self.by_name.get(one.name)
        if old is not None and old.client == one.client and old.epoch < one.epoch:
            del self.by_name[one.name]
            old.evict()
