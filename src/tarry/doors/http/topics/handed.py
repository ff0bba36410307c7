"""Entries in a client's hands, and until when it may keep each unless it acknowledges it."""

from collections.abc import Container, Iterable, Sequence
from typing import Final

from tarry.core.sets.lazy_id_map import LazyIdMap

NEVER: Final = float("inf")


class Handed:
    """The entries that a client has, each with the instant at which it is late."""

    def __init__(self) -> None:
        self._late_at: LazyIdMap[float] = LazyIdMap()
        self._first_late_at = NEVER
        """Nothing is late before."""

    def __bool__(self) -> bool:
        return bool(self._late_at)

    def add(self, entry_ids: Sequence[int], late_at: float) -> None:
        """Note that these entries, in ascending order, were handed over, perhaps again."""
        self._late_at.add(entry_ids, late_at)
        self._first_late_at = min(self._first_late_at, late_at)

    def remove(self, entry_ids: Iterable[int]) -> None:
        """The client has these no more."""
        late_at = self._late_at.each()
        for entry_id in entry_ids:
            late_at.pop(entry_id, None)

    def remove_upto(self, entry_id: int) -> None:
        """The client has nothing more up to an entry."""
        self._late_at.drop_below(entry_id + 1)

    def clear(self) -> None:
        """The client has nothing more."""
        self._late_at.clear()

    def take_late(self, now: float, held: Container[int]) -> list[int]:
        """Remove late entries and those that the client does not hold any more (`held`); answers the late ones."""
        late_at = self._late_at.each()
        late = [one for one, at in late_at.items() if at <= now]
        self.remove([*late, *(one for one in late_at if one not in held)])
        self._first_late_at = min(late_at.values(), default=NEVER)
        return late

    def is_any_late(self, now: float) -> bool:
        """Whether anything may be late."""
        return self._first_late_at <= now
