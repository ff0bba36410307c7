"""Shared parts of the tests of Dapr's components: a receiver that keeps what it got, and waiting for it."""

import asyncio
from collections.abc import Mapping

from tarry.core.time.clock import SystemClock
from tarry.outlets.dapr.component import (
    BrokerMessage,
    Component,
    ComponentSurroundings,
    OwnTopics,
    Settlement,
    make,
)

WITHIN_S = 60.0


class Inbox:
    """A receiver that keeps what it got and says what it is told to say."""

    def __init__(self, *replies: Settlement | Exception, hold: asyncio.Event | None = None) -> None:
        """`replies` are said first, one after another; then it acknowledges. With `hold` it waits before."""
        self.got: list[BrokerMessage] = []
        self.cancelled = 0
        self._replies = list(replies)
        self._hold = hold
        self._changed = asyncio.Condition()

    async def __call__(self, message: BrokerMessage) -> Settlement:
        async with self._changed:
            self.got.append(message)
            self._changed.notify_all()
        if self._hold is not None:
            try:
                await self._hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        reply = self._replies.pop(0) if self._replies else Settlement.ACK
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.got]

    async def expect(self, count: int, within_s: float = WITHIN_S) -> list[bytes]:
        """Wait for so many messages; gives the data of all."""
        async with asyncio.timeout(within_s), self._changed:
            await self._changed.wait_for(lambda: len(self.got) >= count)
        return self.data

    async def expect_all(self, wanted: set[bytes], within_s: float = WITHIN_S) -> None:
        """Wait until each of these came at least once."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: wanted <= set(self.data))
        except TimeoutError:
            raise AssertionError(f"never came: {sorted(wanted - set(self.data))[:5]}") from None


def made(
    kind: str, properties: Mapping[str, str] | None = None, topics: OwnTopics | None = None
) -> Component:
    """A component, not started."""
    return make(
        kind, properties or {}, ComponentSurroundings(name="pubsub", clock=SystemClock(), topics=topics)
    )
