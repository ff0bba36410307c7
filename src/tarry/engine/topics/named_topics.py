"""Topics by their full names, counted by namespace, so that asking whether a namespace holds any costs no walk."""

from collections import Counter

from tarry.core.names import namespace_of
from tarry.engine.topics.topic import Topic


class NamedTopics(dict[str, Topic]):
    """A dictionary of topics that knows how many each namespace has. Set, `del` and `pop` are its only changes."""

    def __init__(self) -> None:
        super().__init__()
        self.per_namespace: Counter[str] = Counter()
        """By `tenant/namespace`: the number of its topics; a namespace without topics has no entry."""

    def __setitem__(self, name: str, topic: Topic) -> None:
        if name not in self:
            self.per_namespace[namespace_of(name)] += 1
        super().__setitem__(name, topic)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        namespace = namespace_of(name)
        self.per_namespace[namespace] -= 1
        if not self.per_namespace[namespace]:
            del self.per_namespace[namespace]

    def pop(self, name: str, default: Topic | None = None) -> Topic | None:  # type: ignore[override]
        """Remove a topic and give it back; the default if there is none of this name."""
        if name not in self:
            return default
        topic = self[name]
        del self[name]
        return topic
