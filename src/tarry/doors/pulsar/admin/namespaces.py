"""Tenants and namespaces."""

from typing import Any

import msgspec
from msgspec import Struct

from tarry.core.errors import Conflict, NotFound
from tarry.core.names import check_part
from tarry.core.tenants.rights import GOVERN, GOVERN_ALL, GOVERN_LISTED, USE
from tarry.doors.pulsar.admin.call import AdminCall, AdminOperation, Operations, answer
from tarry.doors.pulsar.admin.cluster import CLUSTER
from tarry.doors.pulsar.admin.policies import of_namespace, quotas_of
from tarry.doors.pulsar.admin.refusals import RestError, no_namespace
from tarry.doors.pulsar.admin.shapes import DEDUPLICATION, DELAYED_DELIVERY, MESSAGE_TTL, RETENTION
from tarry.doors.pulsar.admin.topics import listed
from tarry.http.response import Response


class TenantInfo(Struct, frozen=True, kw_only=True):
    """A tenant's information. Rights are in the server's tokens; these are only kept."""

    adminRoles: list[str] | None = None  # noqa: N815 - Pulsar's names
    allowedClusters: list[str] | None = None  # noqa: N815


# Tenants


async def tenants(call: AdminCall) -> Response:
    """Every tenant."""
    return answer(call.engine.catalogue.tenants())


async def tenant(call: AdminCall) -> Response:
    """Show a tenant's information."""
    info = msgspec.json.decode(
        call.engine.catalogue.get("tenant", _known_tenant(call)) or b"{}", type=TenantInfo
    )
    return answer(
        TenantInfo(adminRoles=info.adminRoles or [], allowedClusters=info.allowedClusters or [CLUSTER])
    )


async def create_tenant(call: AdminCall) -> Response:
    """A new tenant."""
    name = call.part("tenant")
    check_part(name, "tenant")
    info = await _info(call)
    if name in call.engine.catalogue.tenants():
        raise RestError(409, "Tenant already exist")
    await call.engine.catalogue.add_tenant(name, msgspec.json.encode(info))
    return answer(None)


async def update_tenant(call: AdminCall) -> Response:
    """Say something else of a tenant."""
    name = _known_tenant(call)
    await call.engine.catalogue.add_tenant(name, msgspec.json.encode(await _info(call)))
    return answer(None)


async def delete_tenant(call: AdminCall) -> Response:
    """Remove a tenant."""
    name = _known_tenant(call)
    try:
        await call.engine.catalogue.remove_tenant(name, force=call.flag("force"))
    except Conflict:
        raise RestError(409, "The tenant still has active namespaces") from None
    return answer(None)


def _known_tenant(call: AdminCall) -> str:
    name = call.part("tenant")
    if name not in call.engine.catalogue.tenants():
        raise RestError(404, "Tenant does not exist")
    return name


async def _info(call: AdminCall) -> TenantInfo:
    return call.read(TenantInfo, empty=b"{}")


# Namespaces


async def namespaces(call: AdminCall) -> Response:
    """The namespaces of a tenant that the caller governs."""
    found = call.engine.catalogue.namespaces(_known_tenant(call))
    return answer([name for name in found if call.caller.covers(name)])


async def namespace(call: AdminCall) -> Response:
    """The policies of a namespace."""
    level = of_namespace(call)
    policy, applied = level.policy, level.applied
    shown: dict[str, Any] = {
        "auth_policies": {
            "namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}, "topicAuthentication": {},
        },
        "replication_clusters": [CLUSTER],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": quotas_of(policy, applied),
        "message_ttl_in_seconds": MESSAGE_TTL.shown(policy, applied),
        "retention_policies": RETENTION.shown(policy, applied),
        "delayed_delivery_policies": DELAYED_DELIVERY.shown(policy, applied),
        "deduplicationEnabled": DEDUPLICATION.shown(policy, applied),
        "deleted": False,
    }  # fmt: skip
    return answer({name: value for name, value in shown.items() if value is not None})


async def create_namespace(call: AdminCall) -> Response:
    """A new namespace. What its body says of bundles and clusters has no meaning here."""
    name = call.named_namespace()
    try:
        await call.engine.catalogue.add_namespace(name)
    except Conflict:
        raise RestError(409, "Namespace already exists") from None
    except NotFound:
        raise RestError(404, "Tenant does not exist") from None
    return answer(None)


async def delete_namespace(call: AdminCall) -> Response:
    """Remove a namespace."""
    name = call.named_namespace()
    try:
        await call.engine.catalogue.remove_namespace(name, force=call.flag("force"))
    except Conflict:
        raise RestError(409, "Cannot delete non empty namespace") from None
    except NotFound:
        raise no_namespace() from None
    return answer(None)


async def topics_of(call: AdminCall) -> Response:
    """The topics of a namespace, partitions one by one."""
    name = call.namespace()
    return answer([] if call.query("mode") == "NON_PERSISTENT" else listed(call, name))


async def bundles(call: AdminCall) -> Response:
    """There is one."""
    call.namespace()
    return answer({"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1})


async def permissions(call: AdminCall) -> Response:
    """Show permissions, which are in the server's tokens."""
    call.namespace()
    return answer({})


async def clear_backlog(call: AdminCall) -> Response:
    """Have every subscription of the namespace, or one of that name, be done with all there is."""
    name = call.namespace()
    wanted = call.request.params.get("subscription")
    topics = [call.engine.topics.find(topic) for topic in listed(call, name)]
    subs = [sub for topic in topics for sub in topic.subscriptions.values() if wanted in (None, sub.name)]
    for sub in subs:
        # It may be deleted while others are cleared.
        if not sub.closed:
            await sub.ack([], below=sub.topic.next)
    return answer(None)


async def unsubscribe(call: AdminCall) -> Response:
    """End the subscriptions of a name in all topics of a namespace."""
    namespace, name = call.namespace(), call.part("subscription")
    found = [
        topic for topic in listed(call, namespace) if name in call.engine.topics.find(topic).subscriptions
    ]
    for topic in found:
        if call.engine.topics.subscription(topic, name).consumers:
            raise RestError(412, "Subscription has active connected consumers")
    for topic in found:
        await call.engine.topics.unsubscribe(topic, name)
    return answer(None)


async def unload(call: AdminCall) -> Response:
    """Disconnect every producer and consumer of a namespace, which come again by themselves."""
    for topic in listed(call, call.namespace()):
        await call.broker.disconnect(call.engine.topics.find(topic))
    return answer(None)


_TENANT = "/admin/v2/tenants/{tenant}"
_ONE = "/admin/v2/namespaces/{tenant}/{namespace}"

OPERATIONS: Operations = (
    AdminOperation("GET", "/admin/v2/tenants", GOVERN_ALL, tenants),
    AdminOperation("GET", _TENANT, GOVERN_ALL, tenant),
    AdminOperation("PUT", _TENANT, GOVERN_ALL, create_tenant),
    AdminOperation("POST", _TENANT, GOVERN_ALL, update_tenant),
    AdminOperation("DELETE", _TENANT, GOVERN_ALL, delete_tenant),
    AdminOperation("GET", "/admin/v2/namespaces/{tenant}", GOVERN_LISTED, namespaces),
    AdminOperation("GET", _ONE, GOVERN, namespace),
    AdminOperation("PUT", _ONE, GOVERN, create_namespace),
    AdminOperation("DELETE", _ONE, GOVERN, delete_namespace),
    AdminOperation("GET", _ONE + "/topics", USE, topics_of),
    AdminOperation("GET", _ONE + "/bundles", GOVERN, bundles),
    AdminOperation("PUT", _ONE + "/unload", GOVERN, unload),
    AdminOperation("PUT", _ONE + "/{bundle}/unload", GOVERN, unload),
    AdminOperation("GET", _ONE + "/permissions", GOVERN, permissions),
    AdminOperation("POST", _ONE + "/clearBacklog", GOVERN, clear_backlog),
    AdminOperation("POST", _ONE + "/clearBacklog/{subscription}", GOVERN, clear_backlog),
    AdminOperation("POST", _ONE + "/unsubscribe/{subscription}", GOVERN, unsubscribe),
)
