"""The keys of a key-shared subscription: whose each one is, and the entries that wait behind it.

A key is known by its hash slot. It stays with its consumer while that holds entries of it, and keeps its order: what cannot
be given now is parked, and whatever comes after it with the same key waits behind it.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from tarry.core.errors import Conflict, Invalid
from tarry.core.murmur import murmur3_32
from tarry.engine.topics.consumer import Consumer, Ranges
from tarry.engine.topics.entries import Received

HASH_SLOTS: Final = 65536

MAX_PARKED: Final = 16_384
"""How far a key-shared subscription looks past keys whose consumer is not ready."""


class KeyShares:
    """Whose each key is now; `consumers` is the subscription's own list."""

    def __init__(self, consumers: list[Consumer]) -> None:
        self._consumers = consumers
        self._busy: dict[int, tuple[Consumer, int]] = {}
        """Hash slot -> the consumer that holds entries of it, and how many."""
        self._slot_of: dict[int, int] = {}
        self._parked: dict[int, list[int]] = {}
        """Hash slot -> entries that wait for their key's consumer: a heap."""
        self._parked_count = 0

    @property
    def full(self) -> bool:
        """Whether so much is parked that no further entries are to be looked at."""
        return self._parked_count >= MAX_PARKED

    def clear(self) -> None:
        """Nothing is held, and nothing waits."""
        self._busy.clear()
        self._slot_of.clear()
        self.clear_parked()

    def clear_parked(self) -> None:
        """Forget all parked entries."""
        self._parked.clear()
        self._parked_count = 0

    def share(self, entries: Sequence[Received], takers: list[Consumer]) -> dict[Consumer, list[Received]]:
        """Which of these entries each taker is given now; the others are parked."""
        given: dict[Consumer, list[Received]] = {consumer: [] for consumer in takers}
        left = {consumer: consumer.permits for consumer in takers}
        for entry in entries:
            slot = key_slot(entry)
            busy = self._busy.get(slot)
            consumer = self._consumer_of(slot)
            if (
                consumer is None
                or (slot in self._parked and self._parked[slot][0] < entry.entry_id)
                or (busy is not None and busy[0] is not consumer)
                or left.get(consumer, 0) <= 0
            ):
                heappush(self._parked.setdefault(slot, []), entry.entry_id)
                self._parked_count += 1
                continue
            self._slot_of[entry.entry_id] = slot
            self._busy[slot] = (consumer, (busy[1] if busy else 0) + 1)
            given[consumer].append(entry)
            left[consumer] -= entry.messages
        return given

    def release(self, entry_id: int) -> list[int]:
        """An entry is held no more; gives what waited for its key, if that is free now."""
        slot = self._slot_of.pop(entry_id, None)
        if slot is None:
            return []
        consumer, count = self._busy[slot]
        if count > 1:
            self._busy[slot] = (consumer, count - 1)
            return []
        del self._busy[slot]
        return self._unpark(slot)

    def unpark_all(self) -> list[int]:
        """Everything that waits: the consumers are others now."""
        return [entry_id for slot in list(self._parked) for entry_id in self._unpark(slot)]

    def _unpark(self, slot: int) -> list[int]:
        entry_ids = self._parked.pop(slot, [])
        self._parked_count -= len(entry_ids)
        return entry_ids

    def unpark_for(self, consumer: Consumer) -> Iterator[int]:
        """As many parked entries as a consumer can take now, the lowest ids first."""
        if not self._parked or consumer.permits <= 0:
            return
        heads = [
            (waiting[0], slot)
            for slot, waiting in self._parked.items()
            if self._consumer_of(slot) is consumer
        ]
        heapify(heads)
        for _ in range(consumer.permits):
            if not heads:
                return
            entry_id, slot = heads[0]
            waiting = self._parked[slot]
            heappop(waiting)
            self._parked_count -= 1
            if waiting:
                heapreplace(heads, (waiting[0], slot))
            else:
                del self._parked[slot]
                heappop(heads)
            yield entry_id

    # Whose a hash slot is

    def _consumer_of(self, slot: int) -> Consumer | None:
        consumers = self._consumers
        if consumers[0].ranges is None:
            return consumers[slot * len(consumers) // HASH_SLOTS]
        for consumer in consumers:
            if any(low <= slot <= high for low, high in consumer.ranges or ()):
                return consumer
        return None

    def check(self, ranges: Ranges | None) -> None:
        """Raise if a consumer with these hash slots does not go with the others."""
        consumers = self._consumers
        if consumers and (ranges is None) != (consumers[0].ranges is None):
            raise Conflict("the other consumers have their keys by another mode; use that one", "ranges")
        if ranges is None:
            return
        if not ranges or not all(0 <= low <= high < HASH_SLOTS for low, high in ranges):
            raise Invalid("ranges", f"give hash slots from 0 to {HASH_SLOTS - 1}")
        taken = [pair for consumer in consumers for pair in consumer.ranges or ()]
        if any(low <= top and bottom <= high for low, high in ranges for bottom, top in taken):
            raise Conflict("another consumer has some of these hash slots; choose free ones", "ranges")


def key_slot(entry: Received) -> int:
    """The hash slot of an entry in a key-shared subscription, as Pulsar computes it."""
    key = entry.key if entry.key is not None else str(entry.entry_id)
    return murmur3_32(key.encode()) % HASH_SLOTS
