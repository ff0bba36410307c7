"""What was handed to a client, and until when it may keep each entry unless it acknowledges it.

As in the engine's holdings, what is handed over together is entered one by one only when somebody asks for one.
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from typing import Final

NEVER: Final = float("inf")


class Handed:
    """The entries that a client has, each with the instant at which it is late."""

    def __init__(self) -> None:
        self._late_at: dict[int, float] = {}
        self._together: list[tuple[Sequence[int], float]] = []
        """What is not entered yet: entries in ascending order, all late at one instant."""
        self._first_late_at = NEVER
        """Nothing is late before."""

    def __bool__(self) -> bool:
        return bool(self._late_at or self._together)

    def add(self, entry_ids: Sequence[int], late_at: float) -> None:
        """These, in ascending order, were handed over, perhaps again."""
        if entry_ids:
            self._together.append((entry_ids, late_at))
            self._first_late_at = min(self._first_late_at, late_at)

    def remove(self, entry_ids: Iterable[int]) -> None:
        """The client has these no more."""
        late_at = self._entered()
        for entry_id in entry_ids:
            late_at.pop(entry_id, None)

    def remove_upto(self, entry_id: int) -> None:
        """The client has nothing more up to an entry."""
        for one in [one for one in self._late_at if one <= entry_id]:
            del self._late_at[one]
        left = ((ids[bisect_right(ids, entry_id) :], late_at) for ids, late_at in self._together)
        self._together = [(ids, late_at) for ids, late_at in left if ids]

    def clear(self) -> None:
        """The client has nothing more."""
        self._late_at.clear()
        self._together.clear()

    def take_late(self, now: float, held: Container[int]) -> list[int]:
        """What is late, and what is not `held` by the client any more, are removed; answers the former."""
        late_at = self._entered()
        late = [one for one, at in late_at.items() if at <= now]
        self._late_at = {one: at for one, at in late_at.items() if at > now and one in held}
        self._first_late_at = min(self._late_at.values(), default=NEVER)
        return late

    def is_any_late(self, now: float) -> bool:
        """Whether anything may be late."""
        return self._first_late_at <= now

    def _entered(self) -> dict[int, float]:
        if self._together:
            together, self._together = self._together, []
            for entry_ids, late_at in together:
                self._late_at.update(dict.fromkeys(entry_ids, late_at))
        return self._late_at
