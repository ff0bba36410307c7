"""Policies over Pulsar's administration: delayed delivery (PIP-26, PIP-315), time to live, retention, backlog quota."""

from typing import Any

import pytest

from tarry.core.rules.policy import Policy
from tests.unit.pulsar_admin_kit import DEFAULT, ORDERS, PERSISTENT, TOPIC, Admin


@pytest.fixture
def admin() -> Admin:
    admin = Admin()
    admin.bench.ask(admin.engine.topics.create("orders"))
    return admin


def delayed(active: bool = True, tick: int = 1000, longest: int = 0, **more: int) -> dict[str, Any]:
    return {"tickTime": tick, "active": active, "maxDeliveryDelayInMillis": longest, **more}


def applied_as(**said: int) -> dict[str, Any]:
    """The policy in force, which always has a granularity."""
    return delayed(**said, timePartitionGranularityInMillis=300_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
async def test_delayed_delivery_is_set_read_and_removed(admin: Admin, place: str) -> None:
    path = place + "/delayedDelivery"
    assert await admin.get(path) is None
    await admin.do("POST", path, delayed(tick=500, longest=5000))
    assert await admin.get(path) == delayed(tick=500, longest=5000)
    applied = admin.engine.effective_policy(TOPIC, "")
    assert (applied.delayed_delivery, applied.tick_ms, applied.max_delay_ms) == (True, 500, 5000)
    await admin.do("POST", path, delayed(active=False))
    assert await admin.get(path) == delayed(active=False)
    await admin.do("DELETE", path)
    assert await admin.get(path) is None
    assert admin.engine.effective_policy(TOPIC, "").delayed_delivery


async def test_what_is_left_out_is_zero_or_the_default(admin: Admin) -> None:
    await admin.do("POST", ORDERS + "/delayedDelivery", {"active": True})
    assert await admin.get(ORDERS + "/delayedDelivery") == delayed(tick=1000, longest=0)


async def test_the_nearest_level_wins_and_zero_lifts_a_limit(admin: Admin) -> None:
    """PIP-315: retry topics may have no limit where their namespace has one."""
    path = ORDERS + "/delayedDelivery"
    assert await admin.get(path, applied="true") == applied_as(tick=1)
    await admin.do("POST", DEFAULT + "/delayedDelivery", delayed(longest=5000))
    assert await admin.get(path) is None
    assert await admin.get(path, applied="true") == applied_as(longest=5000)
    await admin.do("POST", path, delayed(tick=7, longest=0))
    assert await admin.get(path, applied="true") == applied_as(tick=7, longest=0)
    assert admin.engine.effective_policy(TOPIC, "").max_delay_ms == 0
    await admin.do("DELETE", path)
    assert await admin.get(path, applied="true") == applied_as(longest=5000)
    await admin.do("DELETE", DEFAULT + "/delayedDelivery")
    assert await admin.get(path, applied="true") == applied_as(tick=1)


async def test_the_brokers_level_is_configured() -> None:
    admin = Admin(delayedDeliveryTickTimeMillis=250, delayedDeliveryMaxDeliveryDelayInMillis=9)
    await admin.do("PUT", ORDERS)
    assert await admin.get(ORDERS + "/delayedDelivery", applied="true") == applied_as(tick=250, longest=9)


async def test_the_granularity_is_optional_and_kept(admin: Admin) -> None:
    path = DEFAULT + "/delayedDelivery"
    await admin.do("POST", path, delayed(timePartitionGranularityInMillis=600_000))
    assert await admin.get(path) == delayed(timePartitionGranularityInMillis=600_000)
    assert admin.engine.effective_policy(None, "public/default").slot_ms == 600_000
    # Pulsar's own tool does not know of it, and does not take it away.
    await admin.do("POST", path, delayed(tick=2000))
    assert await admin.get(path) == delayed(tick=2000, timePartitionGranularityInMillis=600_000)
    # PIP-26 could not shrink it; here slots of every size live side by side.
    await admin.do("POST", path, delayed(timePartitionGranularityInMillis=60_000))
    await admin.do("DELETE", path)
    assert admin.engine.policy("namespace", "public/default") is None


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (delayed(longest=-1), "maxDeliveryDelayInMillis must be >= 0"),
        (delayed(tick=0), "tickTime must be > 0"),
        (delayed(tick=-5), "tickTime must be > 0"),
        (delayed(tick=1 << 40), "tick_ms: is not between 1 millisecond and 1 day"),
        (delayed(timePartitionGranularityInMillis=1), "slot_ms: is not between 1 second and 14 days"),
    ],
)
async def test_values_that_cannot_be_change_nothing(
    admin: Admin, place: str, body: dict[str, Any], reason: str
) -> None:
    path = place + "/delayedDelivery"
    await admin.do("POST", path, delayed(longest=7))
    assert await admin.refused("POST", path, body) == (412, reason)
    assert await admin.get(path) == delayed(longest=7)


@pytest.mark.parametrize("body", [None, [], "x", {"tickTime": "soon"}, {"active": "perhaps"}])
async def test_bodies_that_are_no_policy(admin: Admin, body: Any) -> None:
    status, _ = await admin.refused("POST", ORDERS + "/delayedDelivery", body)
    assert status == 400


async def test_places_that_are_not_there(admin: Admin) -> None:
    path = f"{PERSISTENT}/public/default/bills/delayedDelivery"
    missing = (404, "Topic persistent://public/default/bills not found")
    for method, body in (("GET", None), ("POST", delayed()), ("DELETE", None)):
        assert await admin.refused(method, path, body) == missing
        assert await admin.refused(method, "/admin/v2/namespaces/public/none/delayedDelivery", body) == (
            404,
            "Namespace does not exist",
        )


async def test_a_partition_has_the_policies_of_its_topic(admin: Admin) -> None:
    path = f"{PERSISTENT}/public/default/parted"
    await admin.do("PUT", path + "/partitions", 2)
    await admin.do("POST", path + "/delayedDelivery", delayed(longest=5000))
    assert admin.engine.effective_policy("parted-partition-1", "").max_delay_ms == 5000
    for method in ("GET", "POST", "DELETE"):
        status, _ = await admin.refused(method, path + "-partition-0/delayedDelivery", delayed())
        assert status == 412


async def test_what_else_a_level_says_stays(admin: Admin) -> None:
    admin.bench.ask(admin.engine.set_policy("namespace", "public/default", Policy(max_pending_per_owner=5)))
    await admin.do("POST", DEFAULT + "/delayedDelivery", delayed())
    await admin.do("POST", DEFAULT + "/messageTTL", 60)
    await admin.do("DELETE", DEFAULT + "/delayedDelivery")
    assert admin.engine.policy("namespace", "public/default") == Policy(
        max_pending_per_owner=5, message_ttl_ms=60_000
    )


# Time to live, retention, quota


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
async def test_message_ttl(admin: Admin, place: str) -> None:
    path = place + "/messageTTL"
    assert await admin.get(path) is None
    if place == ORDERS:
        await admin.do("POST", path, messageTTL="60")
        assert await admin.get(DEFAULT + "/messageTTL") is None
        assert await admin.get(path, applied="true") == 60
    else:
        await admin.do("POST", path, 60)
    assert await admin.get(path) == 60
    assert admin.engine.effective_policy(TOPIC, "").message_ttl_ms == 60_000
    assert await admin.refused("POST", path, -1) == (412, "Invalid value for message TTL")
    await admin.do("DELETE", path)
    assert await admin.get(path) is None


async def test_a_message_ttl_that_is_no_number(admin: Admin) -> None:
    assert await admin.refused("POST", ORDERS + "/messageTTL", messageTTL="x") == (
        412,
        "messageTTL is not a number",
    )


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
@pytest.mark.parametrize(
    ("minutes", "mebibytes", "kept"), [(60, 10, (3_600_000, 10 << 20)), (-1, -1, (-1, -1)), (0, 0, (0, -1))]
)
async def test_retention(
    admin: Admin, place: str, minutes: int, mebibytes: int, kept: tuple[int, int]
) -> None:
    path = place + "/retention"
    shape = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mebibytes}
    assert await admin.get(path) is None
    await admin.do("POST", path, shape)
    assert await admin.get(path) == shape
    applied = admin.engine.effective_policy(TOPIC, "")
    assert (applied.retention_ms, applied.retention_bytes) == kept
    await admin.do("DELETE", path)
    assert await admin.get(path) is None


@pytest.mark.parametrize(("minutes", "mebibytes"), [(-2, 1), (0, 1), (5, 0)])
async def test_a_retention_that_cannot_be(admin: Admin, minutes: int, mebibytes: int) -> None:
    shape = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mebibytes}
    assert (await admin.refused("POST", ORDERS + "/retention", shape))[0] == 412


@pytest.mark.parametrize("place", [DEFAULT, ORDERS])
async def test_backlog_quotas(admin: Admin, place: str) -> None:
    path, map_ = place + "/backlogQuota", place + "/backlogQuotaMap"
    assert await admin.get(map_) == {}
    size = {"limit": 1000, "limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    await admin.do("POST", path, size, backlogQuotaType="destination_storage")
    assert await admin.get(map_) == {"destination_storage": size}
    age = {"limit": -1, "limitSize": -1, "limitTime": 60, "policy": "consumer_backlog_eviction"}
    await admin.do("POST", path, age, backlogQuotaType="message_age")
    # There is one action for both: what was said last.
    both = {"destination_storage": size | {"policy": "consumer_backlog_eviction"}, "message_age": age}
    assert await admin.get(map_) == both
    assert await admin.get(ORDERS + "/backlogQuotaMap", applied="true") == both
    applied = admin.engine.effective_policy(TOPIC, "")
    assert (applied.backlog_bytes, applied.backlog_ms) == (1000, 60_000)
    await admin.do("DELETE", path)
    assert await admin.get(map_) == {"message_age": age}
    await admin.do("DELETE", path, backlogQuotaType="message_age")
    assert await admin.get(map_) == {}
    scope: Any = "namespace" if place == DEFAULT else "topic"
    assert admin.engine.policy(scope, "public/default" if place == DEFAULT else TOPIC) is None


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ({"limitSize": -1, "policy": "producer_exception"}, "destination_storage", 412),
        ({"limitTime": 0}, "message_age", 412),
        ({"limitSize": 5}, "phase_of_the_moon", 412),
        ({"limitSize": 5, "policy": "magic"}, "destination_storage", 400),
    ],
)
async def test_quotas_that_cannot_be(admin: Admin, body: Any, kind: str, status: int) -> None:
    assert (await admin.refused("POST", ORDERS + "/backlogQuota", body, backlogQuotaType=kind))[0] == status


async def test_it_survives_a_restart(admin: Admin) -> None:
    await admin.do("POST", ORDERS + "/delayedDelivery", delayed(tick=5, longest=6))
    quota = {"limitSize": 5, "policy": "consumer_backlog_eviction"}
    await admin.do("POST", DEFAULT + "/backlogQuota", quota)
    admin.reopen()
    assert await admin.get(ORDERS + "/delayedDelivery") == delayed(tick=5, longest=6)
    assert (await admin.get(DEFAULT + "/backlogQuotaMap"))["destination_storage"]["policy"] == quota["policy"]


@pytest.mark.parametrize("path", [DEFAULT + "/deduplication", ORDERS + "/deduplicationEnabled"])
async def test_deduplication_is_set_read_and_removed(admin: Admin, path: str) -> None:
    assert await admin.get(path) is None
    assert not admin.engine.effective_policy(TOPIC, "").deduplication
    await admin.do("POST", path, True)
    assert await admin.get(path) is True
    assert admin.engine.effective_policy(TOPIC, "").deduplication
    assert (await admin.get(ORDERS + "/stats"))["deduplicationStatus"] == "Enabled"
    await admin.do("POST", path, False)
    assert await admin.get(path) is False
    await admin.do("DELETE", path)
    assert await admin.get(path) is None
    assert (await admin.get(ORDERS + "/stats"))["deduplicationStatus"] == "Disabled"


async def test_the_nearest_level_says_whether_to_deduplicate() -> None:
    admin = Admin(brokerDeduplicationEnabled=True)
    await admin.do("PUT", ORDERS)
    path = ORDERS + "/deduplicationEnabled"
    assert await admin.get(path, applied="true") is True
    await admin.do("POST", DEFAULT + "/deduplication", False)
    assert await admin.get(path, applied="true") is False
    assert (await admin.get(DEFAULT))["deduplicationEnabled"] is False
    await admin.do("POST", path, True)
    assert await admin.get(path, applied="true") is True
