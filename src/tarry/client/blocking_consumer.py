"""A consumer that blocks: entries by long poll, acknowledged from whichever thread handles them."""

import contextlib
import threading
import time
from collections.abc import Generator, Sequence
from typing import Final

from tarry.client import operations
from tarry.client.consuming import ACK_TIMEOUT_MS, Entry, Settlements, consumer_name
from tarry.client.operation import Blocking
from tarry.client.shapes import Received
from tarry.core.errors import TarryError

BATCH: Final = 20
"""Few enough that a slow loop gets through them before the server gives them to somebody else."""
TELL_EVERY_S: Final = 0.1


class BlockingConsumer:
    """A consumer of one subscription, for one loop and the threads that it hands entries to."""

    def __init__(
        self,
        client: Blocking,
        topic: str,
        subscription: str,
        name: str | None,
        max_unacked: int,
        ack_timeout_ms: int | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._subscription = subscription
        self._name = name or consumer_name()
        self._max_unacked = max_unacked
        self._ack_timeout_ms = ack_timeout_ms or ACK_TIMEOUT_MS
        self._settlements = Settlements()
        self._late_at_s: dict[int, float] = {}
        """When each entry that is out and not settled will be given to somebody else."""
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._told_at_s = 0.0
        self._looping: int | None = None
        """The thread of the loop."""

    def entries(self, wait_ms: int, *, forever: bool) -> Generator[Entry, None, None]:
        """Entries as they come."""
        self._looping = threading.get_ident()
        unseen: Sequence[Received] = ()
        try:
            while unseen := self._receive(wait_ms, forever=forever):
                while unseen:
                    received, *unseen = unseen
                    # One that waited here for too long comes again.
                    if self._late_at_s.get(received.entry_id, 0.0) > time.monotonic():
                        yield Entry(received, self._settle)
        finally:
            self._looping = None
            # Leaving must not hide why it was left; what is not acknowledged comes again, and at once.
            with contextlib.suppress(TarryError):
                self._tell()
                if left := list(self._late_at_s):
                    self._give_back(left)

    def _receive(self, wait_ms: int, *, forever: bool) -> Sequence[Received]:
        """Entries, at least one; none if it is not for ever and nothing has come."""
        while True:
            self._tell()
            room = self._wait_for_room(wait_ms / 1000)
            asked_at_s = time.monotonic()
            entries = self._poll(min(BATCH, room), wait_ms) if room else []
            if entries:
                late_at_s = asked_at_s + self._ack_timeout_ms / 1000
                with self._changed:
                    self._late_at_s.update(dict.fromkeys([one.entry_id for one in entries], late_at_s))
            if entries or not forever:
                return entries

    def _poll(self, count: int, wait_ms: int) -> Sequence[Received]:
        poll = operations.receive(
            self._topic, self._subscription, max=count, wait_ms=wait_ms, consumer=self._name,
            ack_timeout_ms=self._ack_timeout_ms,
        )  # fmt: skip
        return self._client.run(poll)

    def _wait_for_room(self, wait_s: float) -> int:
        """How many more entries may be out; waits for a thread to settle one, or for one to be late."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            while True:
                now_s = time.monotonic()
                self._late_at_s = {one: at_s for one, at_s in self._late_at_s.items() if at_s > now_s}
                room = self._max_unacked - len(self._late_at_s)
                if room > 0 or now_s >= until_s:
                    return max(0, room)
                self._changed.wait(min(until_s, *self._late_at_s.values()) - now_s)

    def _settle(self, entry_id: int, acked: bool) -> None:
        with self._changed:
            self._late_at_s.pop(entry_id, None)
            self._settlements.add(entry_id, acked)
            self._changed.notify()
        # The loop tells the server when it asks for more; a thread cannot know when that will be.
        if (
            threading.get_ident() != self._looping
            or not acked
            or time.monotonic() - self._told_at_s > TELL_EVERY_S
        ):
            self._tell()

    def _tell(self) -> None:
        """Tell the server of acknowledgements and returns; those that came while another thread told it go together."""
        with self._telling:
            while True:
                with self._changed:
                    told = self._settlements.take()
                self._told_at_s = time.monotonic()
                if not any(told):
                    return
                if told.acked:
                    self._client.run(
                        operations.ack(self._topic, self._subscription, told.acked, consumer=self._name)
                    )
                if told.given_back:
                    self._give_back(told.given_back)

    def _give_back(self, entry_ids: list[int]) -> None:
        self._client.run(operations.nack(self._topic, self._subscription, entry_ids, consumer=self._name))
