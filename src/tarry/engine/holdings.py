"""Holdings: which entries of a subscription are given out, and to whom.

They are entered one by one, because they are acknowledged one by one; but not before somebody asks for one. So of ten
thousand entries that are given out at one instant none costs anything then, nor later if all that came before an entry
is acknowledged with it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.engine.consumer import Consumer


class Holdings:
    """The holder of each entry that has one."""

    def __init__(self) -> None:
        self._holders: dict[int, Consumer] = {}
        self._given: list[tuple[Sequence[int], Consumer]] = []
        """What is not entered yet."""

    def __len__(self) -> int:
        return len(self._holders) + sum([len(entry_ids) for entry_ids, _ in self._given])

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._entered()

    def give(self, entry_ids: Sequence[int], consumer: "Consumer") -> None:
        """A consumer has these, in ascending order, which nobody had."""
        self._given.append((entry_ids, consumer))
        consumer.unacked += len(entry_ids)

    def holder(self, entry_id: int) -> "Consumer | None":
        """Who has this one."""
        return self._entered().get(entry_id)

    def of(self, consumer: "Consumer") -> set[int]:
        """What a consumer has at the moment."""
        self._entered()
        return set(consumer.entered)

    def below(self, entry_id: int) -> list[int]:
        """What is held of the entries below one."""
        return [held for held in self._entered() if held < entry_id]

    def release(self, entry_ids: Iterable[int]) -> list[int]:
        """Nobody has these any more. Answers which of them somebody had."""
        holders = self._entered()
        released: list[int] = []
        for entry_id in entry_ids:
            consumer = holders.pop(entry_id, None)
            if consumer is not None:
                consumer.entered.discard(entry_id)
                consumer.unacked -= 1
                released.append(entry_id)
        return released

    def release_below(self, entry_id: int) -> None:
        """Nobody has anything below an entry any more."""
        # What is not entered yet is not entered for this.
        given, self._given = self._given, []
        self.release([held for held in self._holders if held < entry_id])
        for entry_ids, consumer in given:
            left = entry_ids[bisect_left(entry_ids, entry_id) :]
            consumer.unacked -= len(entry_ids) - len(left)
            if left:
                self._given.append((left, consumer))

    def clear(self) -> None:
        """Nobody has anything any more."""
        for consumer in {*self._entered().values()}:
            consumer.entered.clear()
            consumer.unacked = 0
        self._holders.clear()

    def _entered(self) -> "dict[int, Consumer]":
        if self._given:
            given, self._given = self._given, []
            for entry_ids, consumer in given:
                self._holders.update(dict.fromkeys(entry_ids, consumer))
                consumer.entered.update(entry_ids)
        return self._holders
