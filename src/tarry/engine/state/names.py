"""Names of messages: which message a name is of (ADR 0024).

A name is of the message that was given it last, whether that waits or has ended; the message itself knows which of the
two. So nothing is written here when a message ends, is restarted or carried, and a name costs one row, once.
"""

from tarry.ledger.record import Key
from tarry.registry.registry import Registry


class Names:
    """The names that messages were given, for as long as their outcomes are kept."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def give(self, namespace: str, name: str, origin: Key) -> None:
        """A message with a name was accepted: from now on the name is its."""
        self._registry.names.put((namespace, name), origin, (origin.seq,))

    def message_of(self, namespace: str, name: str) -> Key | None:
        """The origin of the message that has a name; None if none has, or its outcome was forgotten."""
        return self._registry.names.get(namespace, name)

    def name_of(self, origin: Key) -> str | None:
        """The name by which a message that has ended is found, as of the last flush of the registry."""
        for (_, name), _, named in self._registry.names.select("origin_seq = ?", (origin.seq,)):
            if named == origin:
                return str(name)
        return None
