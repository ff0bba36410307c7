"""Pending messages: how many there are, by holder and in all, and which are about a subject.

Both are kept as messages come and go, so that to know it costs nothing, and all that wait about one thing can be ended together.
"""

from typing import Final

from tarry.core.errors import TooManyPending
from tarry.core.rules.policy import Level
from tarry.core.tenants.holder import UNSCOPED, Holder
from tarry.ledger.record import Key
from tarry.registry.registry import Registry

SAVED_TOGETHER: Final = 1_000
"""Counts that a flush finds changed, at the most."""


class Pending:
    """Counts of the messages that are not finalised. A holder without any is not there."""

    def __init__(self, registry: Registry | None = None) -> None:
        """Without a registry nothing is saved before `save`."""
        self._registry = registry
        self.by_holder: dict[Holder, int] = {}
        self.total = 0
        self.scoped_from = 0
        """Messages from this seq on are counted by namespace and owner, those of format 1 by owner alone."""
        self._changed: dict[Holder, None] = {}

    def holder(self, origin_seq: int, namespace: str, owner: str) -> Holder:
        """The holder under whom a message is counted."""
        return Holder(namespace if origin_seq >= self.scoped_from else UNSCOPED, owner)

    def of(self, namespace: str, owner: str) -> int:
        """How many messages of an owner wait in a namespace."""
        return self.by_holder.get(Holder(namespace, owner), 0)

    def check(self, holder: Holder, most: int, level: Level, more: int = 0) -> None:
        """Raise `TooManyPending` unless one message fits below the limit, if there is one, when `more` have come besides.

        `level` has set the limit.
        """
        if most and self.by_holder.get(holder, 0) + more >= most:
            raise TooManyPending(most, level("max_pending_per_owner"))

    def change(self, holder: Holder, by: int) -> None:
        """So many more of a holder wait, or below zero fewer; never fewer than none."""
        before = self.by_holder.get(holder, 0)
        now = max(0, before + by)
        if now:
            self.by_holder[holder] = now
        else:
            self.by_holder.pop(holder, None)
        self.total += now - before
        self._changed[holder] = None
        if len(self._changed) > SAVED_TOGETHER and self._registry is not None:
            # A million owners may come between two flushes: the first to change is saved at once.
            self._save(next(iter(self._changed)), self._registry)

    @property
    def changed(self) -> bool:
        """Whether anything here is newer than the registry."""
        return bool(self._changed)

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's table."""
        while self._changed:
            self._save(next(iter(self._changed)), registry)

    def _save(self, holder: Holder, registry: Registry) -> None:
        del self._changed[holder]
        count = self.by_holder.get(holder)
        if count is None:
            registry.owners.remove(*holder)
        else:
            registry.owners.put(tuple(holder), count)

    def load(self, registry: Registry) -> None:
        """Take everything back from the registry."""
        self.by_holder = {Holder(*key): count for key, count in registry.owners.rows()}
        self.total = sum(self.by_holder.values())
        if registry.meta is not None:
            self.scoped_from = registry.meta.scoped_from


class Subjects:
    """The waiting messages of each subject, by the keys of their first versions."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def add(self, subject: str, origin: Key) -> None:
        """A message about it was accepted."""
        self._registry.subjects.put((subject,), [*self.of(subject), origin])

    def remove(self, subject: str, origin: Key) -> None:
        """A message about it has ended."""
        left = [one for one in self.of(subject) if one != origin]
        if left:
            self._registry.subjects.put((subject,), left)
        else:
            self._registry.subjects.remove(subject)

    def of(self, subject: str) -> list[Key]:
        """The waiting messages of a subject."""
        return self._registry.subjects.get(subject) or []
