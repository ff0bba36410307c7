"""A consumer on an asyncio loop: entries as an event stream, and their acknowledgements gathered.

The server gives unacknowledged entries to others as soon as the stream ends, whatever ended it: a program that is
killed holds nothing back.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from tarry.client import operations
from tarry.client.call import ClientCall, check, query, reads_nothing, topic_path
from tarry.client.consuming import Entry, Settlements, consumer_name
from tarry.client.events import EventReader
from tarry.client.operation import Awaiting
from tarry.client.shapes import Received
from tarry.core.errors import TarryError, Unavailable
from tarry.core.time.backoff import doubling

log = logging.getLogger("tarry")

SILENCE_S: Final = 60.0
"""The server says something every 15 seconds; after so much silence the connection is dead."""
FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 5.0


class Consumer:
    """A consumer of one subscription."""

    def __init__(
        self,
        client: Awaiting,
        topic: str,
        subscription: str,
        name: str | None,
        max_unacked: int,
        ack_timeout_ms: int | None,
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self._client = client
        self._name = name or consumer_name()
        path = topic_path(topic, "subscriptions", subscription, "events")
        path = query(path, consumer=self._name, window=max_unacked, ack_timeout_ms=ack_timeout_ms)
        self._events = ClientCall("GET", path, reads_nothing)
        self._settlements = Settlements()
        self._telling: asyncio.Task[None] | None = None
        self._held: set[int] = set()

    async def entries(self, wait_s: float | None = None) -> AsyncGenerator[Entry, None]:
        """Entries as they come, over as many streams as it takes; the end once nothing has come for `wait_s`."""
        waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)
        try:
            while True:
                try:
                    async with aclosing(self._stream(wait_s)) as stream:
                        async for entry in stream:
                            waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)
                            yield entry
                    return
                except _Ended:
                    pass
                except Unavailable as error:
                    log.warning("%s: the stream has ended, and is opened again: %s", self.topic, error)
                await asyncio.sleep(next(waits))
        finally:
            # Leaving must not hide why it was left; entries that are not acknowledged come again.
            with contextlib.suppress(TarryError):
                await self.settled()

    async def _stream(self, wait_s: float | None) -> AsyncGenerator[Entry, None]:
        """Entries of one stream; returns after `wait_s` without any, and raises `_Ended` where the server ended it."""
        reader = EventReader()
        loop = asyncio.get_running_loop()
        async with aclosing(self._client._pieces(self._events, SILENCE_S)) as pieces:
            while True:
                try:
                    # A keep-alive is no entry, and does not prolong the wait.
                    async with asyncio.timeout_at(None if wait_s is None else loop.time() + wait_s):
                        found: list[Received] = []
                        while not found:
                            piece = await anext(pieces)
                            check(piece)
                            found = reader.feed(piece.body)
                except TimeoutError:
                    return
                except StopAsyncIteration:
                    raise _Ended from None
                for received in found:
                    # It is still in the program's hands where a broken stream made it come again.
                    if received.entry_id not in self._held:
                        self._held.add(received.entry_id)
                        yield Entry(received, self._settle)

    def _settle(self, entry_id: int, acked: bool) -> None:
        self._held.discard(entry_id)
        self._settlements.add(entry_id, acked)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        """Tell the server of acknowledgements and returns; those that come meanwhile go together."""
        try:
            while self._settlements:
                told = self._settlements.take()
                if told.acked:
                    ack = operations.ack(self.topic, self.subscription, told.acked, consumer=self._name)
                    await self._client.run(ack)
                if told.given_back:
                    nack = operations.nack(
                        self.topic, self.subscription, told.given_back, consumer=self._name
                    )
                    await self._client.run(nack)
        except TarryError as error:
            # Entries that the server was not told of come again.
            log.warning("%s: entries were not acknowledged, and come again: %s", self.topic, error)
        finally:
            self._telling = None

    async def settled(self) -> None:
        """Wait until the server has been told."""
        while self._telling is not None:
            await asyncio.shield(self._telling)


class _Ended(Exception):
    """The server has ended the stream."""
