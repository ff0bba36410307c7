"""How many messages wait, by owner and in all: kept as messages come and go, so that to know it costs nothing."""

from collections.abc import Mapping

from tarry.registry.registry import Registry


class Pending:
    """Counts of the messages that are not finalised. An owner without any is not there."""

    def __init__(self) -> None:
        self.by_owner: dict[str, int] = {}
        self.total = 0
        self._changed: set[str] = set()

    def change(self, owner: str, by: int) -> None:
        """So many more of an owner wait, or below zero fewer; never fewer than none."""
        before = self.by_owner.get(owner, 0)
        now = max(0, before + by)
        if now:
            self.by_owner[owner] = now
        else:
            self.by_owner.pop(owner, None)
        self.total += now - before
        self._changed.add(owner)

    def change_many(self, by: Mapping[str, int]) -> None:
        """The same for several owners."""
        for owner, count in by.items():
            self.change(owner, count)

    @property
    def changed(self) -> bool:
        """Whether anything here is newer than the registry."""
        return bool(self._changed)

    def save(self, registry: Registry) -> None:
        """Put what changed into the registry's table."""
        for owner in self._changed:
            count = self.by_owner.get(owner)
            if count is None:
                registry.owners.remove(owner)
            else:
                registry.owners.put((owner,), count)
        self._changed.clear()

    def load(self, registry: Registry) -> None:
        """Take everything back from the registry."""
        self.by_owner = {owner: count for (owner,), count in registry.owners.rows()}
        self.total = sum(self.by_owner.values())
