"""Rules of namespaces and topics over HTTP: limits on numbers, what clients may make, which schemas go together, properties.

See `tarry.doors.pulsar.rules` for their effect.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from tarry.core.names import parse_topic, unpartitioned
from tarry.core.tenants.rights import GOVERN
from tarry.doors.pulsar.admin.call import AdminCall, AdminEndpoint, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.doors.pulsar.rules import STRATEGIES, AutoTopicCreation, Limit, RuleLevel, Rules
from tarry.engine.api import MAX_PARTITIONS
from tarry.http.response import Response

MAX_LIMIT: Final = (1 << 31) - 1
MAX_PROPERTIES: Final = 1_000
MAX_PROPERTY_BYTES: Final = 1_024

LIMITS: Final[tuple[tuple[Limit, str | None, str | None], ...]] = (
    ("max_topics", "maxTopicsPerNamespace", None),
    ("max_producers", "maxProducersPerTopic", "maxProducers"),
    ("max_consumers", "maxConsumersPerTopic", "maxConsumers"),
    ("max_consumers_per_subscription", "maxConsumersPerSubscription", "maxConsumersPerSubscription"),
    ("max_subscriptions", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
    ("max_unacked", "maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer"),
)
"""Each limit, and the last part of its path at a namespace and at a topic."""


class RulePlace:
    """A namespace or a topic in a request's path, with its rules."""

    def __init__(self, call: AdminCall, level: RuleLevel, name: str) -> None:
        self._call = call
        self._level: RuleLevel = level
        self._name = name

    @property
    def rules(self) -> Rules:
        """The rules that the place sets itself."""
        return self._call.broker.rules.of(self._level, self._name)

    def shown(self, rule: str) -> Any:
        """A rule as the place sets it, or with `?applied=true` as it is in force there."""
        if self._level == "topic" and self._call.flag("applied"):
            return self._call.broker.rules.applied(self._name, rule)
        return getattr(self.rules, rule)

    async def set(self, **changed: Any) -> Response:
        """Change rules of the place."""
        await self._call.broker.rules.set(self._level, self._name, **changed)
        return answer(None)


_Find = Callable[[AdminCall], RulePlace]


def of_namespace(call: AdminCall) -> RulePlace:
    """The namespace in the path, for its administrators."""
    return RulePlace(call, "namespace", call.namespace())


def of_topic(call: AdminCall) -> RulePlace:
    """The topic in the path, for its administrators. A partition has the rules of its topic, and none of its own."""
    topic = call.topic().name
    if unpartitioned(topic) != topic:
        raise RestError(412, "Not allowed to set/get topic policy for a partition")
    return RulePlace(call, "topic", topic)


# Rules that are one value


def _value(
    find: _Find, rule: str, read: Callable[[AdminCall], Any], show: Callable[[Any], Any]
) -> dict[str, AdminEndpoint]:
    """GET, POST and DELETE of a rule: how it is read from a body, and shown where it is set."""

    async def get(call: AdminCall) -> Response:
        value = find(call).shown(rule)
        return answer(None if value is None else show(value))

    async def set_(call: AdminCall) -> Response:
        place = find(call)
        return await place.set(**{rule: await read(call)})

    async def remove(call: AdminCall) -> Response:
        return await find(call).set(**{rule: None})

    return {"GET": get, "POST": set_, "PUT": set_, "DELETE": remove}


def _limit(path: str) -> Callable[[AdminCall], Any]:
    async def read(call: AdminCall) -> int:
        value = call.read(int)
        if not 0 <= value <= MAX_LIMIT:
            raise RestError(412, f"{path} must be 0 or more")
        return value

    return read


async def _read_topic_creation(call: AdminCall) -> AutoTopicCreation:
    rule = call.read(AutoTopicCreation)
    if rule.topicType == "partitioned" and not 1 <= (rule.defaultNumPartitions or 0) <= MAX_PARTITIONS:
        raise RestError(
            406,
            "Invalid configuration for autoTopicCreationOverride. the detail is"
            f" [defaultNumPartitions] is not between 1 and {MAX_PARTITIONS} for partition type.",
        )
    return rule


class AutoSubscriptionCreation(Struct, frozen=True):
    """The body that says whether clients may make subscriptions."""

    allowAutoSubscriptionCreation: bool  # noqa: N815 - Pulsar's name


async def _read_subscription_creation(call: AdminCall) -> bool:
    return (call.read(AutoSubscriptionCreation)).allowAutoSubscriptionCreation


async def _read_strategy(call: AdminCall) -> str:
    value = call.read(str)
    if value not in STRATEGIES:
        raise RestError(400, f"{value} is not a strategy; there are {', '.join(STRATEGIES)}")
    return value


# Properties


def _properties(find: _Find) -> dict[str, AdminEndpoint]:
    async def get(call: AdminCall) -> Response:
        return answer(find(call).rules.properties)

    async def add(call: AdminCall) -> Response:
        place = find(call)
        return await _keep(place, {**place.rules.properties, **call.read(dict[str, str])})

    async def remove(call: AdminCall) -> Response:
        place = find(call)
        key = call.query("key")
        if key is None:
            return await place.set(properties={})
        return await place.set(properties=_without(place, key))

    return {"GET": get, "PUT": add, "DELETE": remove}


async def property_(call: AdminCall) -> Response:
    """One property of a namespace."""
    return answer(of_namespace(call).rules.properties.get(call.part("key")))


async def set_property(call: AdminCall) -> Response:
    """Keep one property of a namespace."""
    place = of_namespace(call)
    return await _keep(place, {**place.rules.properties, call.part("key"): call.part("value")})


async def remove_property(call: AdminCall) -> Response:
    """Remove one property of a namespace; gives the value that it had."""
    place, key = of_namespace(call), call.part("key")
    value = place.rules.properties.get(key)
    await place.set(properties=_without(place, key))
    return answer(value)


async def keep_properties(call: AdminCall, topic: str, properties: dict[str, str]) -> None:
    """Keep the properties that come with a new topic."""
    if properties:
        await _keep(RulePlace(call, "topic", parse_topic(topic).full), properties)


async def _keep(place: RulePlace, properties: dict[str, str]) -> Response:
    if len(properties) > MAX_PROPERTIES:
        raise RestError(412, f"there are more than {MAX_PROPERTIES} properties")
    for key, value in properties.items():
        if len(key.encode()) + len(value.encode()) > MAX_PROPERTY_BYTES:
            raise RestError(412, f"a property is larger than {MAX_PROPERTY_BYTES} bytes with its name")
    return await place.set(properties=properties)


def _without(place: RulePlace, key: str) -> dict[str, str]:
    return {name: value for name, value in place.rules.properties.items() if name != key}


def _operations() -> Iterator[AdminOperation]:
    namespace, topic = (
        "/admin/v2/namespaces/{tenant}/{namespace}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    )
    served: dict[str, Mapping[str, AdminEndpoint]] = {}
    for rule, at_namespace, at_topic in LIMITS:
        for base, path, find in ((namespace, at_namespace, of_namespace), (topic, at_topic, of_topic)):
            if path is not None:
                served[f"{base}/{path}"] = _value(find, rule, _limit(path), int)
    for base, find in ((namespace, of_namespace), (topic, of_topic)):
        served[base + "/properties"] = _properties(find)
        served[base + "/schemaCompatibilityStrategy"] = _value(
            find, "schema_compatibility", _read_strategy, str
        )
        served[base + "/autoSubscriptionCreation"] = _value(
            find,
            "auto_subscription_creation",
            _read_subscription_creation,
            lambda allowed: {"allowAutoSubscriptionCreation": allowed},
        )
    served[namespace + "/autoTopicCreation"] = _value(
        of_namespace, "auto_topic_creation", _read_topic_creation, lambda rule: rule
    )
    served[namespace + "/property/{key}"] = {"GET": property_, "DELETE": remove_property}
    served[namespace + "/property/{key}/{value}"] = {"PUT": set_property}
    for path, methods in served.items():
        for method, endpoint in methods.items():
            yield AdminOperation(method, path, GOVERN, endpoint)


OPERATIONS: Operations = tuple(_operations())
