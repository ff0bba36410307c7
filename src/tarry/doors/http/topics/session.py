"""One consumer session: what makes an HTTP client a consumer of a subscription between its requests.

A session belongs to a topic, a subscription and a consumer's name, and owns one engine consumer. It is fed in
one of two ways: by long polls, each of which asks the engine only while somebody waits, so that nothing
lies here unclaimed; or by one event stream with a window of unacknowledged entries. What is handed out and not
acknowledged in time is given back and comes again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tarry.core.errors import NotFound, TarryError
from tarry.doors.http.topics.handed import Handed
from tarry.engine.api import Consumer, Received, about_bytes, ids_of

GATHER_BYTES: Final = 4 * 1024 * 1024
"""About how much one answer or the unsent part of a stream may hold; one entry may pass it."""
FIRST_PERMITS: Final = 4
"""Before it is known how large the entries are; the largest are 5 MiB."""
MAX_PERMITS: Final = 4096

Entries = Sequence[Received]
"""Entries as the engine gives them: those of a burst as an entry batch."""


class SessionKey(NamedTuple):
    """The identity of a session: its subscription and its client."""

    topic: str
    subscription: str
    consumer: str


class Session:
    """One consumer. `stream` is the event stream that feeds on it, if one does."""

    def __init__(self, key: SessionKey, now: Callable[[], float]) -> None:
        self.key = key
        self.stream: Stream | None = None
        self._consumer: Consumer | None = None
        self._now = now
        self._used_at = now()
        self._handed = Handed()
        self._taking: list[Entries] | None = None
        self._waiters: deque[Waiter] = deque()
        self._permits = FIRST_PERMITS
        self.ended: TarryError | None = None

    def attach(self, consumer: Consumer) -> None:
        """Begin, with the engine's consumer."""
        self._consumer = consumer
        consumer.on_close = lambda: self.end(NotFound("the subscription was removed; make it again"))

    @property
    def consumer(self) -> Consumer:
        """The engine's consumer."""
        assert self._consumer is not None
        return self._consumer

    def deliver(self, entries: Entries) -> None:
        """Take entries that the engine gives for the session's permits."""
        if self._taking is not None:
            self._taking.append(entries)
        elif self.stream is not None:
            self.stream.put(entries)
        else:
            for entry in entries:
                self._hand_over(entry)
            # An entry may count as many messages; here it is one, and whoever waits has not had any.
            owed = len(self._waiters) - self.consumer.permits
            if owed > 0:
                self.consumer.flow(owed)

    def _hand_over(self, entry: Received) -> None:
        if self._waiters:
            waiter = self._waiters.popleft()
            waiter.entry = entry
            waiter.wake()
        else:
            # Its waiter has just gone.
            self.consumer.nack([entry.entry_id])

    def gather(self, count: int) -> list[Entries]:
        """Entries at hand, up to a number and a bound of bytes, as the engine gave them."""
        consumer = self.consumer
        taken: list[Entries] = []
        left, size = count, 0
        # Permits of those who wait are set aside, so that none of them is used up here.
        waiting = max(0, consumer.permits)
        consumer.flow(-consumer.permits)
        self._taking = taken
        try:
            while left > 0 and size < GATHER_BYTES and not consumer.closed:
                before = len(taken)
                consumer.flow(min(self._permits, left))
                fresh = taken[before:]
                came, came_bytes = sum(map(len, fresh)), sum(map(about_bytes, fresh))
                left -= came
                size += came_bytes
                unused = consumer.permits
                # Below zero they are the messages of an entry that counts as many.
                consumer.flow(-unused)
                if unused > 0 or not came:
                    break
                # Entries of a topic are of a kind: the next ones are probably as large.
                self._permits = min(MAX_PERMITS, GATHER_BYTES // 4 * came // max(1, came_bytes)) or 1
        finally:
            self._taking = None
            if not consumer.closed:
                consumer.flow(waiting)
        return taken

    def wait(self) -> "Waiter":
        """Wait for the next entry, until `give_up`."""
        waiter = Waiter()
        self._waiters.append(waiter)
        self.consumer.flow(1)
        return waiter

    def give_up(self, waiter: "Waiter") -> None:
        """Stop waiting; entries that came at this moment go back."""
        self._used_at = self._now()
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if not self.consumer.closed:
                self.consumer.flow(-1)
        elif waiter.entry is not None:
            self.consumer.nack([waiter.entry.entry_id])

    def hold(self, batches: Iterable[Entries], timeout_s: float) -> None:
        """Count the time that the client has for these."""
        now = self._used_at = self._now()
        for entries in batches:
            self._handed.add(ids_of(entries), now + timeout_s)

    def acknowledged(self, entry_ids: Iterable[int], up_to: int | None) -> None:
        """The client is done with these, or with all up to an entry."""
        if up_to is None:
            self._handed.remove(entry_ids)
        else:
            self._handed.remove_upto(up_to)
        self._refresh()

    def nack(self, entry_ids: list[int] | None) -> None:
        """Give entries back to come again; None gives back all."""
        given_back = list(self.consumer.held) if entry_ids is None else entry_ids
        self._handed.remove(given_back)
        self.consumer.nack(given_back)
        self._refresh()

    def sought(self) -> None:
        """The subscription went elsewhere: what was handed out does not count any more."""
        self._handed.clear()
        self._refresh()

    def _refresh(self) -> None:
        self._used_at = self._now()
        if self.stream is not None:
            self.stream.changed()

    def expire(self) -> None:
        """Give back the entries that were not acknowledged in time."""
        now = self._now()
        if not self._handed.is_any_late(now):
            return
        self.consumer.nack(self._handed.take_late(now, self.consumer.held))
        if self.stream is not None:
            self.stream.changed()

    def is_idle(self, limit_s: float) -> bool:
        """Whether nobody has used it for so long and nothing is out."""
        if self.stream is not None or self._waiters or self._handed:
            return False
        return self._now() - self._used_at >= limit_s

    def end(self, reason: TarryError) -> None:
        """Close, and tell the waiting requests why."""
        if self.ended is not None:
            return
        self.ended = reason
        for waiter in self._waiters:
            waiter.wake()
        self._waiters.clear()
        if self.stream is not None:
            self.stream.changed()
        if self._consumer is not None:
            self._consumer.close()


class Waiter:
    """A request that waits for an entry. One future for all that may happen: the next turn of the loop sees to it."""

    __slots__ = ("entry", "woken")

    def __init__(self) -> None:
        self.entry: Received | None = None
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self, _: object = None) -> None:
        """Wake the waiting request: something has happened."""
        _wake(self.woken)


class Stream:
    """The entries that an event stream was given and has not sent yet."""

    def __init__(self, session: Session, window: int) -> None:
        self.session = session
        self._window = window
        self._unsent: list[Entries] = []
        self._happened = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, entries: Entries) -> None:
        """Take entries from the engine."""
        self._unsent.append(entries)
        self.changed()

    def changed(self) -> None:
        """There may be something to send, permits for more, or an end."""
        self._happened = True
        if self._waiter is not None:
            _wake(self._waiter)

    def take(self) -> list[Entries]:
        """The entries to send now; asks for more as far as the window and the bytes allow."""
        consumer = self.session.consumer
        free = self._window - consumer.unacked - max(0, consumer.permits)
        if free > 0 and not consumer.closed:
            self._unsent += self.session.gather(free)
            # And one permit that stays, for whatever comes next.
            if consumer.permits <= 0 and consumer.unacked < self._window and not consumer.closed:
                consumer.flow(1)
        batches, self._unsent = self._unsent, []
        self._happened = False
        return batches

    async def wait(self, timeout_s: float) -> bool:
        """Until something happens, for so long at most; whether it did.

        A future and a timer: what is due is on its way one turn of the loop later, where a task would take three.
        """
        if self._happened:
            return True
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        return self._happened


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
