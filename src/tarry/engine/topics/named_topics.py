"""Topics by their full names and by namespace, so that asking whether a namespace holds any costs no walk over all."""

from tarry.core.names import namespace_of
from tarry.engine.topics.topic import Topic


class NamedTopics(dict[str, Topic]):
    """A dictionary of topics that knows which each namespace has. Set, `del` and `pop` are its only changes."""

    def __init__(self) -> None:
        super().__init__()
        self.by_namespace: dict[str, set[str]] = {}
        """By `tenant/namespace`: the names of its topics; a namespace without topics has no entry."""

    def count(self, namespace: str) -> int:
        """How many topics a namespace has."""
        return len(self.by_namespace.get(namespace, ()))

    def __setitem__(self, name: str, topic: Topic) -> None:
        self.by_namespace.setdefault(namespace_of(name), set()).add(name)
        super().__setitem__(name, topic)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        namespace = namespace_of(name)
        self.by_namespace[namespace].remove(name)
        if not self.by_namespace[namespace]:
            del self.by_namespace[namespace]

    def pop(self, name: str, default: Topic | None = None) -> Topic | None:  # type: ignore[override]
        """Remove a topic and give it back; the default if there is none of this name."""
        if name not in self:
            return default
        topic = self[name]
        del self[name]
        return topic
