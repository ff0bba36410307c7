"""Policies, readiness, status and metrics through the real server."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tarry.index.progress import Progress, write_progress
from tests.processes import ROOT
from tests.serving import Serving, serving
from tests.waiting import until


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        yield server


@pytest.mark.parametrize(
    "path",
    ["/v1/policies/broker", "/v1/policies/namespaces/public/default", "/v1/policies/topics/public/default/t"],
)
async def test_policies_are_set_shown_in_force_and_removed(served: Serving, path: str) -> None:
    assert (await served.client.get(path)).status_code == 404
    policy = {"tick_ms": 1000, "max_delay_ms": 60_000}
    assert (await served.client.put(path, json=policy)).json() == policy
    assert (await served.client.get(path)).json() == policy
    # Some of it (RFC 7396): what is null goes, what is not there stays.
    patched = {"max_delay_ms": 60_000, "retention_ms": -1}
    for content_type in ("application/merge-patch+json", "application/json; charset=utf-8"):
        answer = await served.client.patch(
            path, content=b'{"tick_ms": null, "retention_ms": -1}', headers={"content-type": content_type}
        )
        assert (answer.status_code, answer.json()) == (200, patched)
    assert (await served.client.patch(path, content=b"{}")).status_code == 415
    for wrong in ({"tick_ms": 0}, {"tick": 1}, {"deduplication": 1}):
        refused = await served.client.patch(path, json=wrong)
        assert (refused.status_code, refused.json()["field"]) == (400, next(iter(wrong)))
    assert (await served.client.get(path)).json() == patched
    assert (await served.client.put(path, json=policy)).json() == policy
    effective = (await served.client.get(path, params={"effective": "true"})).json()
    assert (effective["tick_ms"], effective["max_delay_ms"], effective["delayed_delivery"]) == (
        1000,
        60_000,
        True,
    )
    refused = await served.client.post("/v1/messages", json={"destination": "t", "delay": "2m"})
    assert (refused.status_code, refused.json()["max_delay_ms"]) == (400, 60_000)
    scheduled = await served.client.post("/v1/messages", json={"destination": "t", "delay": "30s"})
    assert scheduled.json()["due_at_ms"] % 1000 == 0
    assert (await served.client.delete(path)).status_code == 204
    assert (await served.client.delete(path)).status_code == 204
    assert (
        await served.client.post("/v1/messages", json={"destination": "t", "delay": "2m"})
    ).status_code == 201


async def test_the_nearest_policy_wins(served: Serving) -> None:
    await served.client.put("/v1/policies/broker", json={"tick_ms": 10, "max_delay_ms": 5})
    await served.client.put("/v1/policies/namespaces/public/default", json={"tick_ms": 20})
    await served.client.put("/v1/policies/topics/public/default/t", json={"tick_ms": 30})
    for path, tick_ms in [("topics/public/default/t", 30), ("topics/public/default/u", 20), ("broker", 10)]:
        shown = await served.client.get(f"/v1/policies/{path}", params={"effective": "true"})
        assert (shown.json()["tick_ms"], shown.json()["max_delay_ms"]) == (tick_ms, 5)


@pytest.mark.parametrize(
    ("body", "field"),
    [({"tick_ms": 0}, "tick_ms"), ({"tick_ms": 1.5}, "tick_ms"), ({"colour": 1}, "colour"), ({"accept_per_second": -1}, "accept_per_second")],
)  # fmt: skip
async def test_bad_policies_are_refused(served: Serving, body: object, field: str) -> None:
    refused = await served.client.put("/v1/policies/broker", json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    assert (await served.client.get("/v1/policies/broker")).status_code == 404


async def test_limits_are_refusals_that_say_when(served: Serving) -> None:
    await served.client.put("/v1/policies/broker", json={"max_pending_per_owner": 1})
    body = {"destination": "t", "delay": "1h", "owner": "o"}
    assert (await served.client.post("/v1/messages", json=body)).status_code == 201
    refused = await served.client.post("/v1/messages", json=body)
    assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (
        429,
        "too-many-pending",
        1,
    )
    await served.client.put("/v1/policies/broker", json={"accept_per_second": 0.001})
    answers = [await served.client.post("/v1/messages", json=body) for _ in range(3)]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "rate-limited"
    assert int(refused.headers["retry-after"]) * 1000 >= refused.json()["retry_after_ms"] > 0


async def test_readiness_gives_its_reasons(served: Serving) -> None:
    assert (await served.client.get("/readyz")).json() == {"ready": True, "reasons": []}
    served.engine.ready = False
    starting = await served.client.get("/readyz")
    assert starting.status_code == 503
    assert starting.json()["ready"] is False
    assert "starting" in starting.json()["reasons"][0]
    assert (await served.client.get("/healthz")).status_code == 200
    assert "tarry_ready 0.0" in (await served.client.get("/metrics")).text
    served.engine.ready = True


async def all_finalised(served: Serving) -> bool:
    return served.engine.stats().pending == 0


async def test_metrics_tell_what_happened(served: Serving) -> None:
    await served.client.put("/v1/topics/public/default/t/subscriptions/s", json={})
    for _ in range(2):
        await served.client.post("/v1/messages", json={"destination": "t", "delay_ms": 0})
    scheduled = await served.client.post("/v1/messages", json={"destination": "t", "delay_ms": 3_600_000})
    await served.client.delete(f"/v1/messages/{scheduled.json()['id']}")
    await served.client.post("/v1/topics/public/default/t/subscriptions/s/receive", json={"wait_ms": 5000})
    await until(lambda: all_finalised(served))
    answer = await served.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["tarry_messages_accepted_total",] == 3
    assert found["tarry_messages_finalised_total", "sent"] == 2
    assert found["tarry_messages_finalised_total", "cancelled"] == 1
    assert found["tarry_lateness_seconds_count", "http"] == 2
    assert found["tarry_lateness_seconds_bucket", "http", "+Inf"] == 2
    assert found["tarry_pending",] == 0
    assert found["tarry_http_sessions",] == 1
    assert found["tarry_ledger_durable_seq",] > 0
    assert found["process_open_fds",] > 0


async def test_every_metric_is_documented(served: Serving) -> None:
    await served.client.post("/v1/messages", json={"destination": "t", "delay_ms": 0})
    documented = (ROOT / "docs" / "operations" / "metrics.md").read_text()
    families = text_string_to_metric_families((await served.client.get("/metrics")).text)
    missing = [
        family.name
        for family in families
        if family.name.startswith("tarry_") and f"`{family.name}" not in documented
    ]
    assert missing == []


async def test_the_pipeline_is_told_of(served: Serving, tmp_path: Path) -> None:
    assert "tarry_pipeline_up 0.0" in (await served.client.get("/metrics")).text
    for n in range(3):
        await served.client.post("/v1/messages", json={"destination": "t", "delay": "1h", "payload": f"{n}"})
    (tmp_path / "data" / "pipeline").mkdir()
    now_ms = time.time_ns() // 1_000_000
    write_progress(
        tmp_path / "data" / "pipeline",
        Progress(
            state="running", at_ms=now_ms, cursor=1, behind_ms=7_000, commits=4, failures=2, last_commit_at_ms=5_000
        ),
    )  # fmt: skip
    text = (await served.client.get("/metrics")).text
    found = {
        family.name: family.samples[0].value
        for family in text_string_to_metric_families(text)
        if family.samples
    }
    assert found["tarry_pipeline_up"] == 1
    assert found["tarry_pipeline_cursor_seq"] == 1
    assert found["tarry_pipeline_lag_records"] >= 2
    assert found["tarry_pipeline_behind_seconds"] >= 7
    assert found["tarry_pipeline_last_commit_seconds"] == 5
    assert (found["tarry_pipeline_commits"], found["tarry_pipeline_failures"]) == (4, 2)
    documented = (ROOT / "docs" / "operations" / "metrics.md").read_text()
    assert [name for name in found if name.startswith("tarry_") and f"`{name}" not in documented] == []


async def test_status_shows_the_figures(served: Serving) -> None:
    await served.client.post("/v1/messages", json={"destination": "t", "delay": "1h"})
    status = (await served.client.get("/v1/status")).json()
    assert (status["ready"], status["reasons"], status["sessions"], status["batches"]) == (True, [], 0, 0)
    assert status["engine"]["pending"] == 1
