"""A mapping from ids that takes many at once: they are entered one by one only when somebody asks for one.

So of ten thousand entries that are given out at one instant none costs anything then, nor later if all below an entry
are done with together.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, TypeVar

from tarry.core.tricks import TRICKS

V = TypeVar("V")


class LazyIdMap(Generic[V]):
    """Ids, each with a value that it shares with those it came with."""

    def __init__(self) -> None:
        self._each: dict[int, V] = {}
        self._bundles: list[tuple[Sequence[int], V]] = []
        """Bundles whose ids are not entered yet."""

    def __bool__(self) -> bool:
        return bool(self._each or self._bundles)

    def add(self, ids: Sequence[int], value: V) -> None:
        """Take ids in ascending order; of one that is there already the value is the new one."""
        if ids:
            self._bundles.append((ids, value))
            if not TRICKS.lazy_ids:
                self.each()

    def each(self) -> dict[int, V]:
        """All of them one by one: the mapping itself, from which some may be taken."""
        if self._bundles:
            bundles, self._bundles = self._bundles, []
            for ids, value in bundles:
                self._each.update(dict.fromkeys(ids, value))
        return self._each

    def drop_below(self, bound: int) -> list[tuple[Sequence[int], V]]:
        """Take out all ids below one; gives them, as they are known, with their values."""
        dropped: list[tuple[Sequence[int], V]] = []
        for one in [one for one in self._each if one < bound]:
            dropped.append(([one], self._each.pop(one)))
        bundles, self._bundles = self._bundles, []
        for ids, value in bundles:
            at = bisect_left(ids, bound)
            self.add(ids[at:], value)
            if at:
                dropped.append((ids[:at], value))
        return dropped

    def clear(self) -> None:
        """Take out everything."""
        self._each.clear()
        self._bundles.clear()
