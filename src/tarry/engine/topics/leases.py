"""Leases: which entries of a subscription are given out, and to whom."""

from collections.abc import Iterable, Sequence

from tarry.core.sets.lazy_id_map import LazyIdMap
from tarry.engine.topics.consumer import Consumer


class Leases:
    """The holder of each entry that has one. A consumer knows what it holds itself, and how many."""

    def __init__(self) -> None:
        self._holders: LazyIdMap[Consumer] = LazyIdMap()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._holders.each()

    def give(self, entry_ids: Sequence[int], consumer: Consumer) -> None:
        """A consumer has these, in ascending order, which nobody had."""
        self._holders.add(entry_ids, consumer)
        consumer.holds.add(entry_ids, None)
        self._count_for(consumer, len(entry_ids))

    def holder(self, entry_id: int) -> Consumer | None:
        """The consumer that holds an entry."""
        return self._holders.each().get(entry_id)

    def below(self, entry_id: int) -> list[int]:
        """The held entries below an entry id."""
        return [held for held in self._holders.each() if held < entry_id]

    def release(self, entry_ids: Iterable[int]) -> list[int]:
        """Nobody has these any more. Answers which of them somebody had."""
        holders = self._holders.each()
        released: list[int] = []
        for entry_id in entry_ids:
            consumer = holders.pop(entry_id, None)
            if consumer is not None:
                del consumer.holds.each()[entry_id]
                self._count_for(consumer, -1)
                released.append(entry_id)
        return released

    def release_below(self, entry_id: int) -> None:
        """End the leases of all entries below one."""
        dropped = self._holders.drop_below(entry_id)
        for entry_ids, consumer in dropped:
            self._count_for(consumer, -len(entry_ids))
        for consumer in {consumer for _, consumer in dropped}:
            consumer.holds.drop_below(entry_id)

    def clear(self) -> None:
        """End all leases."""
        for consumer in {*self._holders.each().values()}:
            consumer.holds.clear()
            consumer.unacked = 0
        self._holders.clear()
        self._count = 0

    def _count_for(self, consumer: Consumer, more: int) -> None:
        consumer.unacked += more
        self._count += more
