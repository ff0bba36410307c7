"""The policies in force, by place: broker, namespace, topic."""

from collections.abc import Mapping
from itertools import chain

from tarry.core.errors import Invalid
from tarry.core.names import TOPIC_SCHEME, namespace_of, parse_namespace, parse_topic, unpartitioned
from tarry.core.rules.policy import Effective, Level, Policy, Scope, effective


class Policies:
    """Every policy that was set, and the policy in force at each place."""

    def __init__(self, broker: Policy, namespaces: Mapping[str, Policy] | None = None) -> None:
        self._configured = broker
        """The broker's policy from the configuration; one that is set at run time stands over it."""
        self._namespaces = dict(namespaces or {})
        """The namespaces' policies from the configuration, likewise."""
        self._set: dict[str, dict[str, Policy]] = {"broker": {}, "namespace": {}, "topic": {}}
        """By scope and name."""
        self._cache: dict[tuple[str | None, str], Effective] = {}

    @staticmethod
    def check_name(scope: Scope, name: str) -> str:
        """The full name of a place; raises `Invalid`."""
        match scope:
            case "broker":
                return ""
            case "namespace":
                return parse_namespace(name)
            case "topic":
                return parse_topic(name).full
            case _:
                raise Invalid("scope", "is not broker, namespace or topic")

    def get(self, scope: Scope, name: str) -> Policy | None:
        """The policy that was set at a place itself."""
        return self._set[scope].get(self.check_name(scope, name))

    def places(self, scope: Scope) -> list[str]:
        """The names of the places that have policies of their own."""
        return list(self._set[scope])

    def says(self, *fields: str) -> bool:
        """Whether any level, anywhere, says anything of these."""
        levels = (self._configured, *self._namespaces.values(), *chain(*map(dict.values, self._set.values())))
        return any(getattr(level, field) is not None for level in levels for field in fields)

    def apply(self, scope: str, name: str, policy: Policy | None) -> None:
        """Set or remove a policy."""
        if policy is None:
            self._set[scope].pop(name, None)
        else:
            self._set[scope][name] = policy
        self._cache.clear()

    def at_topic(self, topic: str) -> Effective:
        """The policy in force at a topic, by its full name."""
        return self.effective(topic, namespace_of(topic))

    def retains(self, topic: str) -> bool:
        """Whether a topic keeps what every subscription is done with."""
        return self.at_topic(topic).retention_ms != 0

    def of(self, destination: str, namespace: str) -> Effective:
        """The policy in force for messages to a destination (in full): of its topic if it is one, else of their namespace."""
        return self.effective(destination if destination.startswith(TOPIC_SCHEME) else None, namespace)

    def level_at(self, destination: str | None, namespace: str) -> Level:
        """Tells which level has set a field at a destination (in full), or in a namespace."""
        topic = destination if destination is not None and destination.startswith(TOPIC_SCHEME) else None
        return lambda field: self._level_of(field, topic, namespace)

    def _level_of(self, field: str, topic: str | None, namespace: str) -> str:
        topics, namespaces = self._set["topic"], self._set["namespace"]
        whole = unpartitioned(topic) if topic else ""
        levels = (
            (f"topic {topic}", topics.get(topic or "")),
            (f"topic {whole}", topics.get(whole)),
            (f"namespace {namespace}", namespaces.get(namespace)),
            (f"namespace {namespace}", self._namespaces.get(namespace)),
            ("the broker", self._set["broker"].get("")),
            ("the broker", self._configured),
        )
        said = (name for name, level in levels if level is not None and getattr(level, field) is not None)
        return next(said, "")

    def effective(self, topic: str | None, namespace: str) -> Effective:
        """The policy in force at a topic (a full name), or in a namespace for messages that are not bound for a topic."""
        found = self._cache.get((topic, namespace))
        if found is None:
            found = effective(
                self._configured,
                self._set["broker"].get(""),
                self._namespaces.get(namespace),
                self._set["namespace"].get(namespace),
                # A partition has the policy of its topic, unless it has one of its own.
                self._set["topic"].get(unpartitioned(topic)) if topic else None,
                self._set["topic"].get(topic) if topic else None,
            )
            # Names come from clients: the cache must not grow without bound.
            if len(self._cache) >= 10_000:
                self._cache.clear()
            self._cache[topic, namespace] = found
        return found
