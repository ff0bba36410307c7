"""The delayed topic of an application, on one component.

Whoever writes there has its message published when it is due. Who keeps it until then is the component's custody:

- `ledger`: it is taken into Tarry's ledger and acknowledged. Publishes through the door do not come by here
  at all. Nothing clogs the broker, however far away the times are.
- `broker`: the proposal to the letter. Publishes through the door are written to the topic; every instance of the
  application holds its share without acknowledging it, publishes what is due, and then acknowledges.
  After a crash the broker gives the share to another instance. To its topic at least once.

What cannot be read, or can never be published, goes to the dead-letter topic.
"""

import asyncio
import hashlib
import heapq
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

from tarry.core.errors import Invalid, Rejected, TarryError
from tarry.core.time.clock import Clock
from tarry.core.time.times import format_instant
from tarry.doors.dapr.delayed_message import (
    Undecodable,
    WaitingMessage,
    decode,
    delayed_topic,
    encode,
    encode_entry,
)
from tarry.doors.dapr.mounting import Mounted, waits_s
from tarry.outlets.dapr.component import BrokerMessage, BulkEntry, Settlement, Subscribed
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, NeverTaken
from tarry.outlets.dapr.events import event_id
from tarry.outlets.dapr.times import due_at_ms

_log = logging.getLogger(__name__)

LOOKED_AGAIN_S: Final = 1.0
"""The wall clock may jump: it is read at least this often while something waits."""

_Take = Callable[[WaitingMessage, int, str | None], Awaitable[object]]
"""Schedules a message of the topic for an instant, under an idempotency key; returns once that is durable."""


class DelayedTopic:
    """One application's delayed topic on one component."""

    def __init__(self, mounted: Mounted, app_id: str, namespace: str, clock: Clock, take: _Take) -> None:
        self._mounted = mounted
        self._component = mounted.component
        self._clock = clock
        self._take = take
        definition = mounted.definition
        self.name = delayed_topic(app_id, namespace if definition.namespaced else None)
        self.dead_letter_topic = definition.dead_letter_topic or f"{self.name}-dead"
        self._holds = definition.custody == "broker"
        self._due = DueTimes(clock)
        self._subscribed: Subscribed | None = None
        self._trouble: ComponentError = BrokerUnreachable(
            f"the delayed topic {self.name} is not subscribed to yet"
        )
        """Why nobody reads the topic yet."""
        self._dead_letters_kept = False

    async def start(self) -> None:
        """Subscribe, for as long as it takes."""
        waits = waits_s()
        while self._subscribed is None:
            try:
                self._subscribed = await self._component.subscribe(
                    self.name, self._mounted.group, self.receive, {}, lasting=True, hold=self._holds
                )
            except ComponentError as error:
                if str(error) != str(self._trouble):
                    _log.warning(
                        "the delayed topic %s of component %s: %s", self.name, self._mounted.name, error
                    )
                self._trouble = error
                await asyncio.sleep(next(waits))

    async def close(self) -> None:
        """Receive no more; messages held here come again, here or at another instance."""
        if self._subscribed is not None:
            await self._subscribed.close()
        await self._due.close()

    # Writing, where the broker has the custody

    async def publish(
        self, topic: str, data: bytes, content_type: str, metadata: dict[str, str], at_ms: int
    ) -> None:
        """Write a message to the topic."""
        await self._write(
            WaitingMessage(
                topic=topic,
                message=data,
                content_type=content_type,
                metadata=metadata,
                time=format_instant(at_ms),
                bulk=False,
            )
        )

    async def publish_entry(self, topic: str, entry: BulkEntry, at_ms: int) -> None:
        """Write an entry of a bulk publish to the topic."""
        await self._write(
            WaitingMessage(
                topic=topic,
                message=encode_entry(entry),
                content_type=entry.content_type or "",
                metadata={},
                time=format_instant(at_ms),
                bulk=True,
            )
        )

    async def _write(self, delayed: WaitingMessage) -> None:
        if self._subscribed is None:
            # A broker may keep only what somebody has subscribed to.
            raise self._trouble
        await self._component.publish(self.name, encode(delayed), {}, None, lasting=True)

    # Reading

    async def receive(self, received: BrokerMessage) -> Settlement:
        """Take a message of the topic into the ledger, or hold it until it is due and publish it."""
        now_ms = self._clock.now_ms()
        try:
            delayed = decode(received.data)
            at_ms = due_at_ms(delayed.time, now_ms)
        except (Undecodable, Invalid) as error:
            return await self._bury(received, str(error))
        if not self._mounted.may_publish(delayed.topic):
            return await self._bury(received, f"its topic {delayed.topic} is not allowed")
        if not self._holds:
            return await self._take_over(received, delayed, at_ms)
        if due_at_ms(delayed.time, now_ms + 1) != at_ms:
            # A delay would begin anew with each instance that gets the message.
            await self._write(_at(delayed, at_ms))
            return Settlement.ACK
        await self._due.reached(at_ms)
        return await self._publish_held(received, delayed)

    async def _take_over(self, received: BrokerMessage, delayed: WaitingMessage, at_ms: int) -> Settlement:
        try:
            await self._take(delayed, at_ms, self._key(received, delayed))
        except Rejected as error:
            return await self._bury(received, str(error))
        except TarryError as error:
            _log.warning("a message of the delayed topic %s waits there: %s", self.name, error)
            return Settlement.NACK
        return Settlement.ACK

    def _key(self, received: BrokerMessage, delayed: WaitingMessage) -> str | None:
        """The key by which a message is known if the broker delivers it again before its acknowledgement arrived.

        Its bytes alone do not tell: two publishes may well be equal. Its place in the topic does, or the id of
        its event. Where there is neither, a repetition is not known.
        """
        known_by = received.position or event_id(delayed.entry().data if delayed.bulk else delayed.message)
        if known_by is None:
            return None
        told = hashlib.sha256()
        for part in (self._mounted.name, self.name, known_by):
            told.update(part.encode() + b"\0")
        told.update(received.data)
        return f"dapr-delayed-{told.hexdigest()}"

    async def _publish_held(self, received: BrokerMessage, delayed: WaitingMessage) -> Settlement:
        waits = waits_s()
        while True:
            try:
                await self._publish_due(delayed)
            except NeverTaken as error:
                return await self._bury(received, str(error))
            except ComponentError as error:
                _log.warning("a message of the delayed topic %s is late: %s", self.name, error)
                await asyncio.sleep(next(waits))
            else:
                return Settlement.ACK

    async def _publish_due(self, delayed: WaitingMessage) -> None:
        topic = self._mounted.at_broker(delayed.topic)
        if not delayed.bulk:
            await self._component.publish(
                topic, delayed.message, delayed.metadata, delayed.content_type or None
            )
            return
        entry = delayed.entry()
        failed = await self._component.bulk_publish(topic, [entry], delayed.metadata)
        if failed:
            raise failed[entry.entry_id]

    # What cannot be sent

    async def _bury(self, received: BrokerMessage, reason: str) -> Settlement:
        """Put a message into the dead-letter topic; it stays where it is if that cannot be done."""
        _log.warning(
            "a message of the delayed topic %s goes to %s: %s", self.name, self.dead_letter_topic, reason
        )
        try:
            if not self._dead_letters_kept:
                # A broker may keep only what somebody has subscribed to. A group of its own: in Kafka, who joins
                # a group makes all its members begin anew, and with them the receiver that is at work here.
                keeping = await self._component.subscribe(
                    self.dead_letter_topic, f"{self._mounted.group}-dead-letters", _leave, {}, lasting=True
                )
                await keeping.close()
                self._dead_letters_kept = True
            await self._component.publish(
                self.dead_letter_topic, received.data, {"reason": reason}, None, lasting=True
            )
        except ComponentError as error:
            _log.error("it stays in %s: %s", self.name, error)
            return Settlement.NACK
        return Settlement.ACK


async def _leave(received: BrokerMessage) -> Settlement:
    """A receiver that never decides: what it is given stays with the broker."""
    del received
    await asyncio.Event().wait()
    return Settlement.NACK


def _at(delayed: WaitingMessage, at_ms: int) -> WaitingMessage:
    return WaitingMessage(
        topic=delayed.topic,
        message=delayed.message,
        content_type=delayed.content_type,
        metadata=delayed.metadata,
        time=format_instant(at_ms),
        bulk=delayed.bulk,
    )


class DueTimes:
    """Wakes those who wait for an instant of the wall clock: one timer for all, and never early."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._given_up = 0
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def reached(self, at_ms: int) -> None:
        """Return once the clock has reached an instant."""
        if self._clock.now_ms() >= at_ms:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (at_ms, next(self._numbers), reached))
        if self._waiting[0][2] is reached:
            self._changed.set()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        try:
            await reached
        except asyncio.CancelledError:
            self._forget_one()
            raise

    def _forget_one(self) -> None:
        """Somebody gave up. Their places are cleared away once they are half of all."""
        self._given_up += 1
        if 2 * self._given_up > len(self._waiting):
            self._waiting = [one for one in self._waiting if not one[2].done()]
            heapq.heapify(self._waiting)
            self._given_up = 0

    async def _watch(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            while self._waiting and (self._waiting[0][0] <= now_ms or self._waiting[0][2].done()):
                _, _, reached = heapq.heappop(self._waiting)
                if not reached.done():
                    reached.set_result(None)
            left_s = (self._waiting[0][0] - now_ms) / 1000 if self._waiting else LOOKED_AGAIN_S
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(left_s, LOOKED_AGAIN_S))
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Wake nobody any more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
