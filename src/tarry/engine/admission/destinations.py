"""Destinations: the full name of where a message goes, its namespace, and the policy there; and what that policy allows an owner.

A policy limits how many messages of an owner may wait, and how fast they may be scheduled.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from tarry.core.errors import Invalid, RateLimited
from tarry.core.messages.delivery import NamespacedOutlet, Outlet
from tarry.core.names import DEFAULT_NAMESPACE, TOPIC_SCHEME, parse_destination, parse_namespace
from tarry.core.rules.policy import Effective, Level
from tarry.core.tenants.holder import Holder
from tarry.core.tenants.rates import Rates
from tarry.engine.state.engine_state import EngineState
from tarry.engine.state.pending import Pending

BROKERS: Final = frozenset({"kafka", "rabbitmq", "amqp", "nats", "jetstream", "redis", "pulsar"})
"""Schemes that people try for brokers, which are destinations by the names of their components."""


class Bound(NamedTuple):
    """Where a message is bound for."""

    destination: str
    """In full."""
    namespace: str
    policy: Effective


class Destinations:
    """Looks destinations up, as they are given by clients."""

    def __init__(self, state: EngineState, outlets: Mapping[str, Outlet]) -> None:
        self._state = state
        self._outlets = outlets
        # To ask a protocol is dear, and there is a destination in each request.
        self._namespaced = {
            scheme: outlet for scheme, outlet in outlets.items() if isinstance(outlet, NamespacedOutlet)
        }

    def find(self, destination: str, namespace: str | None) -> Bound:
        """A destination as it is given; raises `Invalid`, or `Conflict` for one topic too many."""
        policies = self._state.policies
        if not destination.startswith(TOPIC_SCHEME):
            scheme, separator, _ = destination.partition(":")
            outlet = self._outlets.get(scheme) if separator else None
            if outlet is not None:
                outlet.check(destination)
                namespace = DEFAULT_NAMESPACE if namespace is None else parse_namespace(namespace)
                if scheme in self._namespaced:
                    self._namespaced[scheme].check_namespace(destination, namespace)
                return Bound(destination, namespace, policies.effective(None, namespace))
            if separator and "://" in destination:
                raise Invalid("destination", f"there is no outlet for {scheme}:// here{self._hint(scheme)}")
        topic = parse_destination(destination)
        full, within = topic.full, topic.namespace_name
        if namespace is not None and namespace != within:
            raise Invalid("namespace", f"the destination is in {within}")
        if full not in self._state.topics.by_name:
            self._state.topics.check_topic_limit(full)
        return Bound(full, within, policies.effective(full, within))

    def _hint(self, scheme: str) -> str:
        """A scheme that may have been meant."""
        if scheme == "broker":
            return "; components are opened to namespaces by [[brokers.allow]] in the configuration"
        known = {"broker", TOPIC_SCHEME.removesuffix("://"), *self._outlets}
        near = get_close_matches(scheme.lower(), known | BROKERS, 1)
        if not near:
            return "; an address is written https://host/path, and a topic by its name"
        if near[0] not in known:
            return "; a broker's topic is written broker://component/topic"
        return f"; did you mean {near[0]}://?"


class OwnerLimits:
    """Checks how many messages of an owner wait, and charges accepted ones to the owner's rate."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._rates = Rates()

    @staticmethod
    def applies(policy: Effective) -> bool:
        """Whether a policy limits its owners at all."""
        return bool(policy.max_pending_per_owner or policy.accept_per_second)

    def charge(self, holder: Holder, policy: Effective, level: Level, now_ms: int, before: int = 0) -> None:
        """Raise `TooManyPending` or `RateLimited`, or charge one message; `before` it come so many of its unit.

        `level` has set a field of the policy. The last rule to be asked: a message that is refused for another reason is not charged.
        """
        self._pending.check(holder, policy.max_pending_per_owner, level, before)
        if policy.accept_per_second:
            wait_ms = self._rates.wait_ms(holder, policy.accept_per_second, now_ms)
            if wait_ms:
                most_a_second = f"{policy.accept_per_second:g} messages a second"
                raise RateLimited(
                    wait_ms,
                    f"an owner may schedule at most {most_a_second}, set on {level('accept_per_second')}",
                )
