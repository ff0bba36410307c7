"""`pubsub.in-memory`: topics in this process, for a first try and for tests. Nothing outlives it.

As in Dapr: every subscription gets every message, what nobody subscribes to is gone, and a receiver that says no is
asked ten times in all, a tenth of a second apart. Only members of a lasting group share its messages.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from tarry.outlets.dapr.broker import BrokerComponent, Joining, Outgoing, Send
from tarry.outlets.dapr.component import (
    BrokerMessage,
    BulkEntry,
    Component,
    ComponentSurroundings,
    Settlement,
    Subscribed,
)
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError
from tarry.outlets.dapr.properties import Properties
from tarry.outlets.dapr.receiving import Receivers, ended

ATTEMPTS: Final = 10
RETRY_S: Final = 0.1
AT_ONCE: Final = 100


def component(properties: Properties, surroundings: ComponentSurroundings) -> Component:
    """There is nothing to configure."""
    del properties, surroundings
    return InMemory()


class InMemory(BrokerComponent):
    """The topics, and who listens to them."""

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[tuple[str, str], MemoryGroup] = {}
        self._published = 0
        self._alone = itertools.count()
        """Numbers that tell subscriptions apart which share with nobody."""

    async def sender(self, message: Outgoing) -> Send:
        """Give it to every group that subscribes to the topic."""
        if self.closed:
            raise BrokerUnreachable("the component is closed")
        return partial(self._give, message)

    async def _give(self, message: Outgoing) -> None:
        self._published += 1
        given = BrokerMessage(
            topic=message.topic,
            data=message.data,
            metadata=dict(message.metadata),
            content_type=message.content_type,
            position=str(self._published),
        )
        for (name, _), group in self._groups.items():
            if name == message.topic:
                group.queue.put_nowait(given)

    async def bulk_publish(
        self, topic: str, entries: Sequence[BulkEntry], metadata: Mapping[str, str]
    ) -> dict[str, ComponentError]:
        """Publish one after another."""
        for entry in entries:
            await self.publish(topic, entry.data, entry.metadata, entry.content_type)
        return {}

    async def join(self, joining: Joining) -> Subscribed:
        """Receive from now on, alone, or as one of a lasting group."""
        alone = f"{joining.group}#{next(self._alone)}"
        key = (joining.topic, joining.group if joining.lasting else alone)
        if key not in self._groups:
            self._groups[key] = MemoryGroup(partial(self._groups.pop, key, None))
        return self._groups[key].join(joining)

    async def disconnect(self) -> None:
        """Forget everything."""
        self._groups.clear()


class MemoryGroup:
    """A consumer group: members who share the messages of a topic."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.queue: asyncio.Queue[BrokerMessage] = asyncio.Queue()
        self.members: set[MemoryMember] = set()
        self.lasting = False

    def join(self, joining: Joining) -> "MemoryMember":
        """Add a member."""
        self.lasting = self.lasting or joining.lasting
        member = MemoryMember(self, Receivers(joining.receive, None if joining.hold else AT_ONCE))
        self.members.add(member)
        return member

    def leave(self, member: "MemoryMember") -> None:
        """Remove a member; with the last one the group and its messages go, unless it is lasting."""
        self.members.discard(member)
        if not self.members and not self.lasting:
            self._end()


class MemoryMember:
    """One subscription."""

    def __init__(self, group: MemoryGroup, receivers: Receivers) -> None:
        self._group = group
        self._receivers = receivers
        self._held: dict[str, BrokerMessage] = {}
        self._attempts: dict[str, int] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            message = await self._group.queue.get()
            position = message.position or ""
            self._held[position] = message
            await self._receivers.start(message, partial(self._settle, message))

    async def _settle(self, message: BrokerMessage, reply: Settlement) -> None:
        position = message.position or ""
        if reply is Settlement.NACK:
            tried = self._attempts[position] = self._attempts.get(position, 0) + 1
            if tried < ATTEMPTS or self._group.lasting:
                await asyncio.sleep(RETRY_S)
                del self._held[position]
                self._group.queue.put_nowait(message)
                return
        self._attempts.pop(position, None)
        self._held.pop(position, None)

    async def close(self) -> None:
        """Leave the group; messages that its receivers held go to the other members."""
        await ended([self._reading])
        await self._receivers.close()
        for message in self._held.values():
            self._group.queue.put_nowait(message)
        self._held.clear()
        self._group.leave(self)
