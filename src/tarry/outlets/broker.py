"""The outlet for `broker://component/topic`: messages of any door, published to a broker through a component file of Dapr's format.

A component is open to the namespaces that the configuration names, and to no other. That is asked when a message is accepted and
again when it is sent, because it may have changed since.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

from tarry.core.errors import Invalid
from tarry.core.messages.delivery import Delivery, Missing, Refused, Retry, Verdict
from tarry.outlets.dapr.delivery import CONTENT_TYPE
from tarry.outlets.dapr.publishing import BULK, CallsUnderWay, Publisher, VerdictsById, order_key, publish

SCHEME: Final = "broker"
ALL_NAMESPACES: Final = "*"
ID: Final = "tarry-id"
"""The metadata by which a receiver knows a message that comes twice."""
PARTITION_KEY: Final = "partitionKey"
"""The metadata in which components take an order key."""
MAX_TOPIC_BYTES: Final = 1024


class BrokerTopic(NamedTuple):
    """The parts of a destination."""

    component: str
    topic: str


@lru_cache(maxsize=4096)
def topic_of(destination: str) -> BrokerTopic:
    """Read a destination; raises `Invalid`."""
    component, _, topic = destination.removeprefix(f"{SCHEME}://").partition("/")
    if not destination.startswith(f"{SCHEME}://") or not component or not topic:
        raise Invalid("destination", f"a broker's topic is written {SCHEME}://component/topic")
    found = BrokerTopic(unquote(component), unquote(topic))
    if len(found.topic.encode()) > MAX_TOPIC_BYTES or not found.topic.isprintable():
        raise Invalid("destination", f"a broker's topic is 1 to {MAX_TOPIC_BYTES} printable bytes")
    return found


class BrokerOutlet:
    """Publishes due messages to brokers."""

    together = BULK

    def __init__(self, namespaces: Mapping[str, frozenset[str]]) -> None:
        """`namespaces` says by component who may use it; `*` is all."""
        self._namespaces = namespaces
        self._find: Callable[[str], Publisher | None] | None = None
        self._calls = CallsUnderWay()

    def open(self, find: Callable[[str], Publisher | None]) -> None:
        """The components are there."""
        self._find = find

    async def close(self) -> None:
        """Let the calls under way end."""
        await self._calls.ended()

    def check(self, destination: str) -> None:
        """Raise `Invalid` unless this names a component and a topic."""
        topic_of(destination)

    def check_namespace(self, destination: str, namespace: str) -> None:
        """Raise `Invalid` unless messages of a namespace may be sent to this topic."""
        name, topic = topic_of(destination)
        if not self._is_open(name, namespace):
            closed = f"no broker component {name!r} is open to namespace {namespace}"
            raise Invalid("destination", f"{closed}; {self._hint(name, topic, namespace)}")
        broker = None if self._find is None else self._find(name)
        if broker is not None and not broker.may_publish(topic):
            raise Invalid("destination", f"component {name} does not let {topic!r} be published to")

    def _hint(self, name: str, topic: str, namespace: str) -> str:
        """The component that may have been meant, or those that there are."""
        known = sorted(one for one in self._namespaces if self._is_open(one, namespace))
        if near := get_close_matches(name, known, 1):
            return f"did you mean {SCHEME}://{near[0]}/{topic}?"
        if known:
            return f"there are {', '.join(known)}"
        return "components are named in brokers.resources_path, and opened to it by [[brokers.allow]]"

    def _is_open(self, name: str, namespace: str) -> bool:
        allowed = self._namespaces.get(name, frozenset())
        return namespace in allowed or ALL_NAMESPACES in allowed

    def order_key(self, destination: str, key: str | None) -> str | None:
        """See `publishing`."""
        return order_key(destination, key)

    async def send(self, delivery: Delivery) -> Verdict:
        """Publish it."""
        (verdict,) = await self.send_many([delivery])
        return verdict

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        """Publish due messages of one topic in one call."""
        with self._calls.current():
            return await self._send(deliveries)

    async def _send(self, deliveries: Sequence[Delivery]) -> Sequence[Verdict]:
        try:
            name, topic = topic_of(deliveries[0].destination)
        except Invalid as error:
            return [Refused(error.reason)] * len(deliveries)
        if self._find is None:
            return [Retry("the components are not there yet", counted=False)] * len(deliveries)
        broker = self._find(name)
        if broker is None:
            return [Missing(f"there is no broker component {name}")] * len(deliveries)
        verdicts: VerdictsById = {
            one.id: Missing(f"the broker component {name} is not open to namespace {one.namespace} any more")
            for one in deliveries
            if not self._is_open(name, one.namespace)
        }
        if not broker.may_publish(topic):
            verdicts = {
                one.id: Refused(f"component {name} does not let {topic!r} be published to any more")
                for one in deliveries
            }
        left = [one for one in deliveries if one.id not in verdicts]
        if left:
            verdicts |= await publish(broker.component, broker.at_broker(topic), left, metadata_of)
        return [verdicts[one.id] for one in deliveries]


def metadata_of(delivery: Delivery) -> dict[str, str]:
    """The metadata of a publish: a message's headers, its id, and its order key."""
    metadata = {name: text for name, text in delivery.headers.items() if name != CONTENT_TYPE}
    metadata[ID] = delivery.id
    if delivery.key is not None:
        metadata.setdefault(PARTITION_KEY, delivery.key)
    return metadata
