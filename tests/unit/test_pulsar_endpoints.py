"""Endpoints of Pulsar's administration that users reach for: each is served, or named in the table of those that are not."""

import re
from pathlib import Path

import pytest

from tarry.doors.pulsar.admin import unserved
from tests.unit.pulsar_admin_kit import DEFAULT, ORDERS, Admin

PAGE = (Path(__file__).parents[2] / "docs" / "doors" / "pulsar.md").read_text("utf-8")

REACHED_FOR = [
    *(("GET", f"{DEFAULT}/{name}") for name in (
        "deduplication", "schemaCompatibilityStrategy", "persistence", "autoTopicCreation", "permissions", "properties",
        "maxTopicsPerNamespace", "maxProducersPerTopic", "maxConsumersPerTopic", "maxConsumersPerSubscription",
        "maxSubscriptionsPerTopic", "subscriptionExpirationTime", "autoSubscriptionCreation", "subscribeRate",
        "subscriptionDispatchRate", "dispatchRate", "publishRate", "retention", "backlogQuotaMap", "messageTTL",
        "delayedDelivery", "inactiveTopicPolicies", "compactionThreshold", "replication",
    )),
    ("PUT", f"{DEFAULT}/unload"), ("POST", f"{DEFAULT}/permissions/ann"), ("DELETE", f"{DEFAULT}/permissions/ann"),
    *(("GET", f"{ORDERS}/{name}") for name in (
        "properties", "deduplicationEnabled", "subscribeRate", "subscriptionDispatchRate", "autoSubscriptionCreation",
        "maxMessageSize", "maxProducers", "maxConsumers", "dispatchRate", "publishRate", "compaction", "offload",
        "persistence", "schemaCompatibilityStrategy", "lastMessageId", "internalStats",
    )),
    ("GET", f"{ORDERS}/messageid/0"), ("PUT", f"{ORDERS}/backlogSize"),
    ("PUT", f"{ORDERS}/unload"), ("POST", f"{ORDERS}/terminate"), ("DELETE", f"{ORDERS}/truncate"),
]  # fmt: skip


def table() -> tuple[set[str], set[str]]:
    """The names in the page's table of endpoints that are not served: of namespaces, and of topics."""
    section = PAGE.partition("### Endpoints that are not served")[2].partition("\n### ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")][1:]
    of_namespaces, of_topics = (
        {name for cell in column for name in re.findall(r"`(\w+)`", cell)}
        for column in zip(*rows, strict=True)
    )
    return of_namespaces, of_topics


async def served_or_not(admin: Admin, method: str, path: str) -> bool:
    """Whether an endpoint is served; fails if the server knows nothing of it."""
    response = await admin.request(method, path)
    if response.status_code in (405, 501):
        assert " is not supported: " in response.json()["reason"]
        return False
    assert response.status_code in (200, 204), f"{path}: {response.status_code} {response.text}"
    return True


def test_the_page_names_each_endpoint_that_is_not_served() -> None:
    assert table() == (set(unserved.NAMESPACE), set(unserved.TOPIC))


async def test_each_endpoint_of_the_table_says_that_it_is_not_served() -> None:
    admin = Admin()
    await admin.do("PUT", ORDERS)
    for base, names in zip((DEFAULT, ORDERS), table(), strict=True):
        for name in names:
            for method in unserved.METHODS:
                assert not await served_or_not(admin, method, f"{base}/{name}")


@pytest.mark.parametrize(("method", "path"), REACHED_FOR)
async def test_endpoints_that_users_reach_for_are_known(method: str, path: str) -> None:
    admin = Admin()
    await admin.do("PUT", ORDERS)
    of_namespaces, of_topics = table()
    name = path.removeprefix(ORDERS).removeprefix(DEFAULT).split("/")[1]
    named = name in (of_topics if path.startswith(ORDERS) else of_namespaces) or path.endswith("/ann")
    assert await served_or_not(admin, method, path) is not named


async def test_a_place_that_is_not_there_is_still_not_found() -> None:
    assert await Admin().refused("GET", "/admin/v2/namespaces/public/none/persistence") == (
        404,
        "Namespace does not exist",
    )
