"""One consumer of a connection: messages out as its permits allow, acknowledgements in.

A client that does not read what it was sent gets nothing more until it does: its permits are set aside meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.delivery import frames_of
from tarry.doors.pulsar.figures import about
from tarry.doors.pulsar.frames import NO_ID, Places, varint
from tarry.doors.pulsar.ids import places_in
from tarry.doors.pulsar.peer import PulsarPeer
from tarry.engine.api import Consumer, Received, Subscription

_Type = wire.BaseCommand
_Sub = wire.CommandSubscribe
NOWHERE: Final = Places(b"", b"")
"""Before a consumer is subscribed it is given nothing."""


class PulsarConsumer:
    """One consumer of the connection, once it is subscribed."""

    def __init__(
        self,
        connection: PulsarPeer,
        asked: _Sub,
        name: str,
        held: Callable[[], bool],
        forget: Callable[["PulsarConsumer"], None],
    ) -> None:
        """`held` says whether the client has to read before it gets more, `forget` lets go of a consumer that is closed."""
        self.connection = connection
        self._held = held
        self._forget = forget
        self.id = asked.consumer_id
        self.name = name
        self.epoch: int | None = asked.consumer_epoch if asked.HasField("consumer_epoch") else None
        self.engine: Consumer | None = None
        self._subscription: Subscription | None = None
        self._wire_id = varint(asked.consumer_id)
        self._places = NOWHERE
        self._acks: list[int] = []
        self._told = False
        """Whether it knows if it is active."""
        self._withheld = 0

    @property
    def subscription(self) -> Subscription:
        """The subscription to which it is attached."""
        assert self._subscription is not None
        return self._subscription

    def attach(self, sub: Subscription, asked: _Sub) -> None:
        """Begin; raises `Conflict` where another one has the subscription."""
        self._subscription = sub
        self._places = places_in(sub.topic)
        broker = self.connection.broker
        sub.honour_delay(broker.settings.honour_delay_in_order)
        limit: int | None = broker.rules.applied(sub.topic.name, "max_unacked")
        max_unacked = broker.settings.max_unacked_messages if limit is None else limit
        self.engine = sub.attach(
            self.name,
            self.deliver,
            priority=asked.priority_level,
            ranges=_ranges_of(asked),
            max_unacked=None if sub.in_order else max_unacked or None,
        )
        self.engine.about = about(self.connection, asked.metadata)
        self.engine.on_close = self.closed_here
        self.engine.on_active = self.tell_active

    def deliver(self, entries: Sequence[Received]) -> None:
        """Called by the engine with what the permits allow."""
        self.connection.write(frames_of(self._wire_id, self._places, self.epoch, list(entries)))

    def flow(self, permits: int) -> None:
        """Allow so many more messages.

        With the first permits a failover consumer is told whether it is active: only now does every client know its
        consumer. That of Go drops what comes right behind the answer to SUBSCRIBE; Pulsar waits a second.
        """
        if not self._told and self.engine is not None and self.subscription.type == "failover":
            self._told = True
            self.tell_active(self.engine.active)
        if self._held():
            self._withheld += permits
        elif self.engine is not None:
            self.engine.flow(permits)

    def hold(self) -> None:
        """Set the permits aside."""
        if self.engine is not None and self.engine.permits > 0:
            self._withheld += self.engine.permits
            self.engine.permits = 0

    def release(self) -> None:
        """Give the permits back."""
        permits, self._withheld = self._withheld, 0
        if permits and self.engine is not None and not self.engine.closed:
            self.engine.flow(permits)

    def tell_active(self, active: bool) -> None:
        """Tell the client whether it is the one that gets messages, once it was told for the first time."""
        if not self._told:
            return
        answer = wire.CommandActiveConsumerChange(consumer_id=self.id, is_active=active)
        self.connection.send(type=_Type.ACTIVE_CONSUMER_CHANGE, active_consumer_change=answer)

    def closed_here(self) -> None:
        """Its subscription is gone or went elsewhere: the client connects it again."""
        self._forget(self)
        closed = wire.CommandCloseConsumer(consumer_id=self.id, request_id=NO_ID)
        self.connection.send(type=_Type.CLOSE_CONSUMER, close_consumer=closed)

    def acknowledge(self) -> None:
        """Send the gathered acknowledgements to the engine."""
        if self._acks and self.engine is not None:
            acks, self._acks = self._acks, []
            self.engine.ack(acks).then(lambda _: None)

    def gather(self, entry_ids: list[int]) -> None:
        """Gather acknowledgements, to be sent with the others of this turn."""
        self._acks += entry_ids


def _ranges_of(asked: _Sub) -> list[tuple[int, int]] | None:
    """The hash slots that a key-shared consumer has chosen, if it has."""
    if asked.subType != _Sub.Key_Shared or asked.keySharedMeta.keySharedMode != wire.KeySharedMode.STICKY:
        return None
    return [(pair.start, pair.end) for pair in asked.keySharedMeta.hashRanges]
