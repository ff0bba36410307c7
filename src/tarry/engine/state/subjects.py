"""Subjects: what messages are about, so that all that wait about one thing can be found and ended together."""

from tarry.ledger.record import Key
from tarry.registry.registry import Registry


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
