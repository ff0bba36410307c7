"""Policies of namespaces and topics: delayed delivery, time to live, retention, backlog quota, deduplication."""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from tarry.core.rules.policy import Effective, Policy, Scope
from tarry.core.tenants.rights import GOVERN, GOVERN_ALL
from tarry.doors.pulsar.admin.call import AdminCall, AdminEndpoint, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.refusals import RestError
from tarry.doors.pulsar.admin.shapes import (
    DEDUPLICATION,
    DELAYED_DELIVERY,
    MESSAGE_TTL,
    QUOTAS,
    RETENTION,
    STORAGE,
    Facet,
    as_policy,
)
from tarry.http.response import Response

_PARTITION: Final = re.compile(r".*-partition-[0-9]+")


class PolicyLevel:
    """A namespace or a topic in a request's path."""

    def __init__(self, call: AdminCall, scope: Scope, name: str) -> None:
        self._call = call
        self._scope: Scope = scope
        self._name = name

    @property
    def policy(self) -> Policy:
        """The policy of the level itself."""
        return self._call.engine.policy(self._scope, self._name) or Policy()

    @property
    def applied(self) -> Effective:
        """The policy in force there."""
        if self._scope == "topic":
            return self._call.engine.effective_policy(self._name, "")
        return self._call.engine.effective_policy(None, self._name)

    async def set(self, policy: Policy) -> None:
        """Have it say this."""
        policy.check()
        await self._call.engine.set_policy(self._scope, self._name, None if policy == Policy() else policy)


_Find = Callable[[AdminCall], PolicyLevel]


def of_namespace(call: AdminCall) -> PolicyLevel:
    """The namespace in the path."""
    return PolicyLevel(call, "namespace", call.namespace())


def of_topic(call: AdminCall) -> PolicyLevel:
    """The topic in the path. A partition has the policies of its topic, and none of its own."""
    if _PARTITION.fullmatch(call.part("topic")):
        call.named_topic()
        raise RestError(412, "Not allowed to set/get topic policy for a partition")
    return PolicyLevel(call, "topic", call.topic().name)


def _show(find: _Find, facet: Facet) -> AdminEndpoint:
    async def show(call: AdminCall) -> Response:
        level = find(call)
        applied = level.applied
        return answer(facet.shown(as_policy(applied) if call.flag("applied") else level.policy, applied))

    return show


def _set(find: _Find, facet: Facet, parameter: str | None = None) -> AdminEndpoint:
    """Set from the body, or from a parameter if there is one."""

    async def set_(call: AdminCall) -> Response:
        level = find(call)
        given = None if parameter is None else call.query(parameter)
        if given is None:
            value = call.read(facet.kind)
        else:
            try:
                value = msgspec.convert(given, facet.kind, strict=False)
            except msgspec.ValidationError:
                raise RestError(412, f"{parameter} is not a number") from None
        await level.set(facet.said(value, level.policy))
        return answer(None)

    return set_


def _remove(find: _Find, facet: Facet) -> AdminEndpoint:
    async def remove(call: AdminCall) -> Response:
        level = find(call)
        await level.set(facet.gone(level.policy))
        return answer(None)

    return remove


def _show_quotas(find: _Find) -> AdminEndpoint:
    async def show(call: AdminCall) -> Response:
        level = find(call)
        applied = level.applied
        policy = as_policy(applied) if call.flag("applied") else level.policy
        return answer(quotas_of(policy, applied))

    return show


def quotas_of(policy: Policy, applied: Effective) -> dict[str, Any]:
    """The quotas that a level sets, by their type."""
    shown = {name: facet.shown(policy, applied) for name, facet in QUOTAS.items()}
    return {name: quota for name, quota in shown.items() if quota is not None}


def _quota(find: _Find, act: Callable[[_Find, Facet], AdminEndpoint]) -> AdminEndpoint:
    async def of_type(call: AdminCall) -> Response:
        facet = QUOTAS.get(call.query("backlogQuotaType") or STORAGE)
        if facet is None:
            raise RestError(412, f"backlogQuotaType is not one of {', '.join(QUOTAS)}")
        return await act(find, facet)(call)

    return of_type


def _operations() -> Iterator[AdminOperation]:
    namespace, topic = (
        "/admin/v2/namespaces/{tenant}/{namespace}",
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}",
    )
    for path, find in ((namespace, of_namespace), (topic, of_topic)):
        at_namespace = find is of_namespace
        # As in Pulsar, only a superuser changes whether and how long a namespace delays.
        delays = GOVERN_ALL if at_namespace else GOVERN
        yield AdminOperation("GET", path + "/delayedDelivery", GOVERN, _show(find, DELAYED_DELIVERY))
        yield AdminOperation("POST", path + "/delayedDelivery", delays, _set(find, DELAYED_DELIVERY))
        yield AdminOperation("DELETE", path + "/delayedDelivery", delays, _remove(find, DELAYED_DELIVERY))
        # At a topic the word is another one.
        deduplication = "/deduplication" if at_namespace else "/deduplicationEnabled"
        for end, aspect, *query in (
            ("/messageTTL", MESSAGE_TTL, "messageTTL"),
            ("/retention", RETENTION),
            (deduplication, DEDUPLICATION),
        ):
            yield AdminOperation("GET", path + end, GOVERN, _show(find, aspect))
            yield AdminOperation("POST", path + end, GOVERN, _set(find, aspect, *query))
            yield AdminOperation("DELETE", path + end, GOVERN, _remove(find, aspect))
        yield AdminOperation("GET", path + "/backlogQuotaMap", GOVERN, _show_quotas(find))
        yield AdminOperation("POST", path + "/backlogQuota", GOVERN, _quota(find, _set))
        yield AdminOperation("DELETE", path + "/backlogQuota", GOVERN, _quota(find, _remove))


OPERATIONS: Operations = tuple(_operations())
