"""The figures that the dashboard is drawn from, through the real server."""

from pathlib import Path
from typing import Any

import pytest

from tarry.core.limits import HOUR_MS, MINUTE_MS
from tarry.doors.http.operator.sent import STEP_MS, STEPS, Lateness, Sent
from tarry.index.progress import Progress, write_progress
from tarry.testing.clock import SimulatedClock
from tests.serving import Serving, serving
from tests.waiting import until

TOKENS = [
    {"name": "ops", "token": "admin-secret", "roles": ["admin"]},
    {"name": "app", "token": "produce-secret", "roles": ["produce"]},
    {"name": "screen", "token": "consume-secret", "roles": ["consume"]},
    {"name": "shop", "token": "shop-secret", "roles": ["produce", "consume"], "namespaces": ["acme/shop"]},
]
FIGURES = ["/v1/overview", "/v1/upcoming", "/v1/slots"]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-secret"}


async def schedule(served: Serving, delay_ms: int, **fields: Any) -> str:
    body = {"destination": "orders", "payload": "x", "delay_ms": delay_ms, **fields}
    answer = await served.client.post("/v1/messages", json=body)
    assert answer.status_code == 201
    return str(answer.json()["id"])


async def test_me_says_what_the_token_may_do(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tokens=TOKENS) as served:
        assert (await served.client.get("/v1/me")).status_code == 401
        me = (await served.client.get("/v1/me", headers=bearer("shop"))).json()
        assert me == {
            "name": "shop",
            "roles": ["consume", "produce"],
            "namespaces": ["acme/shop"],
            "open": False,
        }
    async with serving(tmp_path / "open") as served:
        me = (await served.client.get("/v1/me")).json()
        assert (me["open"], me["namespaces"], "admin" in me["roles"]) == (True, None, True)


async def test_any_role_sees_figures_but_not_of_other_namespaces(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tokens=TOKENS) as served:
        for path in FIGURES:
            for name, status in (("admin", 200), ("produce", 200), ("consume", 200), ("shop", 403)):
                found = await served.client.get(path, headers=bearer(name))
                assert found.status_code == status, (path, name)
        for topic in ("acme/shop/a", "acme/stock/b"):
            await served.client.put(f"/v1/topics/{topic}/subscriptions/s", headers=bearer("admin"))
        for name, total in (("admin", 2), ("shop", 1)):
            found = await served.client.get("/v1/backlogs", headers=bearer(name))
            assert found.json()["total"] == total
        # Who may only consume can look at a message whose id it knows, and not touch it.
        scheduled = await served.client.post(
            "/v1/messages", json={"destination": "t", "delay": "1h"}, headers=bearer("admin")
        )
        one = f"/v1/messages/{scheduled.json()['id']}"
        assert (await served.client.get(one, headers=bearer("consume"))).status_code == 200
        assert (await served.client.delete(one, headers=bearer("consume"))).status_code == 403
        assert (await served.client.post(f"{one}/send", headers=bearer("consume"))).status_code == 403


async def test_upcoming_counts_by_bucket_and_door(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        for minutes in (10, 70, 80):
            await schedule(served, minutes * MINUTE_MS)
        now_ms = served.engine.clock.now_ms()
        query = {"from_ms": now_ms, "to_ms": now_ms + 2 * HOUR_MS, "buckets": 2}
        found = (await served.client.get("/v1/upcoming", params=query)).json()
        assert found["doors"] == {"http": [1, 2]}
        assert (found["total"], len(found["edges_ms"])) == (3, 3)
        assert (await served.client.get("/v1/upcoming")).json()["total"] == 1
        for wrong in ({"buckets": 0}, {"buckets": 2_000}, {"from_ms": 5, "to_ms": 5}, {"colour": 1}):
            refused = await served.client.get("/v1/upcoming", params=wrong)
            assert refused.status_code == 400, wrong


async def test_the_overview_tells_what_happens(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with serving(folder) as served:
        await schedule(served, HOUR_MS)
        await schedule(served, 0)

        async def sent() -> bool:
            found = (await served.client.get("/v1/overview")).json()
            return bool(sum(found["recent"]["sent"]) == found["counters"]["sent"] == 1)

        await until(sent)
        found = (await served.client.get("/v1/overview")).json()
        assert (found["pending"], found["ready"], found["pipeline"]) == (1, True, None)
        assert found["recent"]["doors"]["http"]["sent"] == 1
        assert found["ledger"]["segments"] == 1
        assert found["ledger"]["durable_seq"] >= 3
        (folder / "pipeline").mkdir(exist_ok=True)
        now_ms = served.engine.clock.now_ms()
        write_progress(folder / "pipeline", Progress(state="running", at_ms=now_ms, cursor=1, behind_ms=5))
        told = (await served.client.get("/v1/overview")).json()["pipeline"]
        assert (told["up"], told["cursor"]) == (True, 1)
        assert told["lag"] >= 2
        assert (await served.client.get("/v1/slots")).json()["slots"] == []


async def test_backlogs_come_largest_first_and_within_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        for name, entries in (("few", 1), ("many", 3), ("none", 0)):
            topic = f"/v1/topics/public/default/{name}"
            await served.client.put(f"{topic}/subscriptions/s", json={"start": "earliest"})
            for _ in range(entries):
                await served.client.post(f"{topic}/messages", json={"payload": "x"})
        found = (await served.client.get("/v1/backlogs", params={"limit": 2})).json()
        assert found["total"] == 3
        assert [(one["topic"].rpartition("/")[2], one["figures"]["backlog"]) for one in found["subscriptions"]] == [
            ("many", 3), ("few", 1),
        ]  # fmt: skip


async def test_finalised_messages_are_listed_by_outcome(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        cancelled = await schedule(served, HOUR_MS)
        await served.client.delete(f"/v1/messages/{cancelled}")
        await schedule(served, 0)

        async def listed() -> bool:
            found = await served.client.get("/v1/messages", params={"state": "finalised"})
            return len(found.json()["messages"]) == 2

        await until(listed)
        for outcome, count in (("cancelled", 1), ("sent", 1), ("failed", 0)):
            query = {"state": "finalised", "outcome": outcome}
            found = (await served.client.get("/v1/messages", params=query)).json()["messages"]
            assert [one["state"] for one in found] == [outcome] * count
        assert (await served.client.get("/v1/messages", params={"outcome": "sent"})).status_code == 400


# What was sent lately


@pytest.mark.parametrize(("share", "within_ms"), [(0.5, 1), (0.9, 1), (0.95, 20), (0.99, 20), (1.0, 700_000)])
def test_percentiles_are_bounds_that_hold(share: float, within_ms: int) -> None:
    lateness = Lateness()
    lateness.add(0, 900)
    lateness.add(15, 99)
    lateness.add(700_000, 1)
    assert lateness.within_ms(share) == within_ms
    assert lateness.count == 1_000


def test_only_the_last_minutes_are_recent() -> None:
    clock = SimulatedClock(1_000_000_000)
    sent = Sent(clock)
    sent.observe("http", 3, 7)
    clock.advance(STEP_MS)
    sent.observe("dapr", 4, 2)
    recent = sent.recent()
    assert recent.sent[-2:] == [7, 2]
    # No more than the largest that was seen, although its bucket goes further.
    assert (recent.doors["http"].p99_ms, recent.doors["dapr"].p50_ms) == (3, 4)
    clock.advance(STEP_MS * (STEPS - 1))
    assert sum(sent.recent().sent) == 2
    clock.advance(STEP_MS)
    assert sent.recent().doors == {}
    assert sent.doors["http"].count == 7
    # A clock that is set back does no harm.
    clock.jump(-10 * STEP_MS)
    sent.observe("http", 1, 1)
    assert sum(sent.recent().sent) >= 1
