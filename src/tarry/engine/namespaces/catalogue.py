"""The catalogue: what has a name and is no message, kept for good: tenants, namespaces, schemas, rules of topics.

A tenant or namespace need not be entered before it is used: one that holds a topic or a policy is there. What the
values say is the business of the door that enters them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Literal, Protocol

from tarry.core.errors import Conflict, NotFound, TarryError
from tarry.core.names import DEFAULT_NAMESPACE, check_part, parse_namespace
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.journal.journal import Journal
from tarry.engine.journal.units import append_in_steps
from tarry.engine.namespaces.policies import Policies
from tarry.engine.namespaces.repeat_state import RepeatState
from tarry.ledger.record import Catalogued, PolicySet, Record, TopicSet

Sort = Literal["tenant", "namespace", "schema", "topic"]

OF_TOPICS: Final = ("schema", "topic")
"""The sorts of entries that belong to a topic and end with it."""

EMPTY: Final = b"{}"
"""The value of an entry about which nothing was said."""


class TopicNames(Protocol):
    """The names of the topics that there are."""

    by_namespace: dict[str, set[str]]

    def __contains__(self, name: object, /) -> bool: ...

    def count(self, namespace: str) -> int:
        """How many topics a namespace has."""


class Catalogue:
    """Everything that was entered, by sort and name."""

    sorts: Final = ("tenant", "namespace", "schema", "topic")

    def __init__(
        self,
        journal: Journal,
        policies: Policies,
        topics: TopicNames,
        repeats: RepeatState,
    ) -> None:
        self._journal = journal
        self._policies = policies
        self._topics = topics
        self._repeats = repeats
        self._entered: dict[tuple[str, str], bytes] = {}
        self._of_topic: dict[str, dict[tuple[str, str], None]] = {}
        """By topic: its rules and the versions of its schema."""
        self._leaving: set[str] = set()
        """Namespaces that are being removed, in steps."""

    def take(self, sort: str, name: str, value: bytes | None) -> None:
        """Take the value that was entered under a name; None takes it out."""
        if value is None:
            self._take_out((sort, name))
        else:
            self._put_in((sort, name), value)

    def _put_in(self, key: tuple[str, str], value: bytes) -> None:
        self._entered[key] = value
        if key[0] in OF_TOPICS:
            self._of_topic.setdefault(_topic_of(key[1]), {})[key] = None

    def _take_out(self, key: tuple[str, str]) -> None:
        if self._entered.pop(key, None) is not None and key[0] in OF_TOPICS:
            topic = _topic_of(key[1])
            del self._of_topic[topic][key]
            if not self._of_topic[topic]:
                del self._of_topic[topic]

    def get(self, sort: Sort, name: str) -> bytes | None:
        """The value that was entered, or None."""
        return self._entered.get((sort, name))

    def enter(self, sort: Sort, name: str, value: bytes | None) -> Answer[None]:
        """Enter the value of a name, or with None take the name out."""
        return self._write([Catalogued(sort, name, value)])

    def remove(self, sort: Sort, names: Sequence[str]) -> Answer[None]:
        """Say of several things that they are gone, all or none; of one that was not entered nothing is said."""
        ends: list[Record] = [Catalogued(sort, name, None) for name in names if (sort, name) in self._entered]
        return self._write(ends) if ends else settled(None)

    def ends_of(self, topics: Iterable[str]) -> Iterator[Record]:
        """The records that end topics with their policies, rules and schemas. Reckoned one by one."""
        for topic in topics:
            if self._policies.get("topic", topic) is not None:
                yield PolicySet("topic", topic, None)
            for sort, name in list(self._of_topic.get(topic, ())):
                yield Catalogued(sort, name, None)
            # It goes last: until then all that is left of it can be removed by its name.
            if topic in self._topics:
                yield TopicSet(topic, True, 0)

    # Tenants and namespaces

    def tenants(self) -> list[str]:
        """Every tenant that was entered or has a namespace."""
        entered = {name for sort, name in self._entered if sort == "tenant"}
        return sorted(entered.union(name.partition("/")[0] for name in self.namespaces()))

    def namespaces(self, tenant: str | None = None) -> list[str]:
        """Every namespace, of one tenant or all, that was entered or is in use."""
        names = {name for sort, name in self._entered if sort == "namespace"}
        names.update(self._policies.places("namespace"))
        names.update(self._topics.by_namespace)
        names.add(DEFAULT_NAMESPACE)
        return sorted(name for name in names if tenant is None or name.startswith(f"{tenant}/"))

    def has_namespace(self, name: str) -> bool:
        """Whether a namespace was entered or is in use. Asked for every topic that a client names, so it walks nothing."""
        return name not in self._leaving and (
            name == DEFAULT_NAMESPACE
            or ("namespace", name) in self._entered
            or name in self._topics.by_namespace
            or self._policies.get("namespace", name) is not None
        )

    def add_tenant(self, name: str, value: bytes) -> Answer[None]:
        """Enter a tenant, or change its value."""
        try:
            check_part(name, "tenant")
            return self.enter("tenant", name, value)
        except TarryError as error:
            return failed(error)

    def add_namespace(self, name: str, value: bytes = EMPTY) -> Answer[None]:
        """Enter a namespace of a tenant that is there."""
        try:
            tenant = parse_namespace(name).partition("/")[0]
            if tenant not in self.tenants():
                raise NotFound(f"there is no tenant {tenant}")
            if self.has_namespace(name):
                raise Conflict(f"there is a namespace {name} already", "exists")
            return self.enter("namespace", name, value)
        except TarryError as error:
            return failed(error)

    def remove_tenant(self, name: str, *, force: bool = False) -> Answer[None]:
        """Remove a tenant; with `force` also if it has namespaces, and those with all that they hold."""
        try:
            if name not in self.tenants():
                raise NotFound(f"there is no tenant {name}")
            namespaces = self.namespaces(name)
            if namespaces and not force:
                raise Conflict(f"tenant {name} has namespaces", "not-empty")
            return self._remove(namespaces, [Catalogued("tenant", name, None)])
        except TarryError as error:
            return failed(error)

    def remove_namespace(self, name: str, *, force: bool = False) -> Answer[None]:
        """Remove a namespace and its policies; with `force` also if it has topics, and those with all that they hold."""
        try:
            if not self.has_namespace(name):
                raise NotFound(f"there is no namespace {name}")
            if self._topics.count(name) and not force:
                raise Conflict(f"namespace {name} has topics", "not-empty")
            return self._remove([name])
        except TarryError as error:
            return failed(error)

    def _remove(self, namespaces: Sequence[str], last: Sequence[Record] = ()) -> Answer[None]:
        """Remove namespaces in steps; until it is done, or failed, nothing there is made by a client that connects again."""
        self._leaving.update(namespaces)
        ends = chain(chain.from_iterable(map(self._ends_of_namespace, namespaces)), last)
        removed = append_in_steps(self._journal.append, ends)
        removed.then(lambda _: self._leaving.difference_update(namespaces))
        return removed

    def _ends_of_namespace(self, namespace: str) -> Iterator[Record]:
        """The records that end all there is in a namespace, and itself at last."""
        inside = f"persistent://{namespace}/"
        topics = set(self._topics.by_namespace.get(namespace, ()))
        yield from self.ends_of(topics)
        said = {*self._policies.places("topic"), *self._of_topic} - topics
        yield from self.ends_of(topic for topic in said if topic.startswith(inside))
        yield from self._repeats.ends_in(namespace)
        yield PolicySet("namespace", namespace, None)
        yield Catalogued("namespace", namespace, None)

    def _write(self, records: list[Record]) -> Answer[None]:
        return self._journal.write(records, lambda: None)


def _topic_of(name: str) -> str:
    """The topic in the name of a schema or of rules: `persistent://tenant/namespace/topic`, and more after a slash."""
    return "/".join(name.split("/", 5)[:5])
