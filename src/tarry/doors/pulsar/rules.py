"""Rules of namespaces and topics that only Pulsar's users know: kept in the catalogue, obeyed by this door.

A topic's rule stands over its namespace's, and a partition has its topic's. Other doors do not know of them: a limit on
producers is one on Pulsar's producers. A number of 0 is no limit, as in Pulsar.
"""

from functools import lru_cache
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tarry.core.errors import NotFound
from tarry.core.names import parse_topic, unpartitioned
from tarry.doors.pulsar.errors import Code, PulsarRefusal
from tarry.engine.answer import Answer
from tarry.engine.api import EMPTY, Subscription, Topic
from tarry.engine.engine import Engine

RuleLevel = Literal["namespace", "topic"]

Strategy = Literal[
    "UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE", "FULL_TRANSITIVE",
]  # fmt: skip
"""Which schemas go together, in Pulsar's words."""
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
DEFAULT_STRATEGY: Final[Strategy] = "FULL"

Limit = Literal[
    "max_topics", "max_producers", "max_consumers", "max_consumers_per_subscription", "max_subscriptions", "max_unacked",
]  # fmt: skip


class AutoTopicCreation(Struct, frozen=True, kw_only=True):
    """Whether and how a topic is made that a client names and that is not there, in Pulsar's JSON."""

    allowAutoTopicCreation: bool = True  # noqa: N815 - Pulsar's names
    topicType: Literal["partitioned", "non-partitioned"] = "non-partitioned"  # noqa: N815
    defaultNumPartitions: int | None = None  # noqa: N815

    @property
    def partitions(self) -> int:
        """The number of partitions of a topic that is made; 0 for none."""
        return (self.defaultNumPartitions or 1) if self.topicType == "partitioned" else 0


class Rules(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules that one level sets; None leaves a rule to the level above."""

    properties: dict[str, str] = {}
    """Text that an operator keeps there. It has no effect."""
    auto_topic_creation: AutoTopicCreation | None = None
    auto_subscription_creation: bool | None = None
    """Whether a client that names a new subscription makes it."""
    schema_compatibility: Strategy | None = None
    max_topics: int | None = None
    max_producers: int | None = None
    max_consumers: int | None = None
    max_consumers_per_subscription: int | None = None
    max_subscriptions: int | None = None
    max_unacked: int | None = None
    """How many entries a consumer may hold unacknowledged."""


NO_RULES: Final = Rules()


@lru_cache(maxsize=1024)
def _decoded(stored: bytes) -> Rules:
    """Rules as they are kept. They are asked for whenever a producer or consumer comes."""
    return msgspec.json.decode(stored, type=Rules)


class RuleBook:
    """The rules of every namespace and topic."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of(self, level: RuleLevel, name: str) -> Rules:
        """The rules that a namespace or a topic sets itself."""
        stored = self._engine.catalogue.get(level, name)
        return NO_RULES if stored is None else _decoded(stored)

    def set(self, level: RuleLevel, name: str, **changed: Any) -> Answer[None]:
        """Change some rules of a level; None takes one back."""
        rules = replace(self.of(level, name), **changed)
        value: bytes | None = msgspec.json.encode(rules)
        if level == "topic" and value == EMPTY:
            value = None
        return self._engine.catalogue.enter(level, name, value)

    def applied(self, topic: str, rule: str) -> Any:
        """A rule as it is in force at a topic; None where no level sets it."""
        topic = unpartitioned(topic)
        found = getattr(self.of("topic", topic), rule)
        return (
            getattr(self.of("namespace", parse_topic(topic).namespace_name), rule) if found is None else found
        )

    def strategy(self, topic: str) -> Strategy:
        """Which schemas go together at a topic."""
        found: Strategy | None = self.applied(topic, "schema_compatibility")
        return DEFAULT_STRATEGY if found in (None, "UNDEFINED") else found

    # What clients may do

    def check_topic(self, topic: str) -> None:
        """Refuse to make a topic where clients may not, or where the namespace has as many as it may have."""
        topics = self._engine.topics.by_name
        if topic in topics:
            return
        namespace = parse_topic(topic).namespace_name
        rules = self.of("namespace", namespace)
        if rules.auto_topic_creation is not None and not rules.auto_topic_creation.allowAutoTopicCreation:
            raise NotFound(
                f"Topic {topic} does not exist, and topics of {namespace} are not made by clients (autoTopicCreation)"
            )
        self.check_topic_limit(namespace)

    def check_topic_limit(self, namespace: str, count: int = 1) -> None:
        """Refuse to make topics beyond the number that a namespace may have."""
        limit = self.of("namespace", namespace).max_topics
        if limit and self._engine.topics.by_name.count(namespace) + count > limit:
            raise PulsarRefusal(
                Code.NotAllowedError, f"Exceed maximum number of topics in namespace {namespace}: {limit}"
            )

    def partitions(self, topic: str) -> int:
        """The number of partitions that a topic gets if it is made because a client names it."""
        rule = self.of("namespace", parse_topic(topic).namespace_name).auto_topic_creation
        return 0 if rule is None or unpartitioned(topic) != topic else rule.partitions

    def check_producer(self, topic: str, producers: int) -> None:
        """Refuse one producer more than a topic may have."""
        limit = self.applied(topic, "max_producers")
        if limit and producers >= limit:
            raise PulsarRefusal(Code.ProducerBusy, f"Topic {topic} reached max producers limit: {limit}")

    def check_subscription(self, topic: str, name: str, *, durable: bool) -> None:
        """Refuse to make a subscription where clients may not, or where the topic has as many as it may have."""
        found = self._engine.topics.by_name.get(topic)
        if not durable or (found is not None and name in found.subscriptions):
            return
        if self.applied(topic, "auto_subscription_creation") is False:
            raise PulsarRefusal(
                Code.SubscriptionNotFound,
                f"Subscription {name} of {topic} does not exist, and is not made by clients (autoSubscriptionCreation)",
            )
        self.check_subscriptions(topic)

    def check_subscriptions(self, topic: str) -> None:
        """Refuse one subscription more than a topic may have."""
        found = self._engine.topics.by_name.get(topic)
        limit = self.applied(topic, "max_subscriptions")
        if limit and found is not None and len(found.subscriptions) >= limit:
            raise PulsarRefusal(
                Code.NotAllowedError, f"Exceed the maximum number of subscriptions of the topic: {limit}"
            )

    def check_consumer(self, sub: Subscription) -> None:
        """Refuse one consumer more than a subscription or its topic may have."""
        topic = self._engine.topics.find(sub.topic.name)
        limit = self.applied(topic.name, "max_consumers_per_subscription")
        if limit and len(sub.consumers) >= limit:
            raise PulsarRefusal(
                Code.ConsumerBusy, f"Subscription {sub.name} reached max consumers limit: {limit}"
            )
        limit = self.applied(topic.name, "max_consumers")
        if limit and _consumers(topic) >= limit:
            raise PulsarRefusal(Code.ConsumerBusy, f"Topic {topic.name} reached max consumers limit: {limit}")


def _consumers(topic: Topic) -> int:
    return sum(len(sub.consumers) for sub in topic.subscriptions.values())
