"""Access to the real server with tokens, and its treatment of slow or strange clients."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tarry.doors.http.settings import HttpSettings
from tests.serving import Serving, serving

HASHED = hashlib.sha256(b"reader-secret").hexdigest()
TOKENS = [
    {"name": "ops", "token": "admin-secret", "roles": ["admin"]},
    {"name": "shop", "token": "shop-secret", "roles": ["produce"], "namespaces": ["acme/shop"]},
    {"name": "reader", "sha256": HASHED, "roles": ["consume"], "namespaces": ["acme/shop"]},
    {"name": "boss", "token": "boss-secret", "roles": ["admin"], "namespaces": ["acme/shop"]},
]
INSIDE = {"destination": "persistent://acme/shop/t", "delay": "1h"}
OUTSIDE = {"destination": "persistent://acme/stock/t", "delay": "1h"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data", tokens=TOKENS) as server:
        yield server


async def ask(served: Serving, token: str | None, method: str, path: str, **more: Any) -> int:
    headers = more.pop("headers", {})
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    answer = await served.client.request(method, path, headers=headers, **more)
    if answer.status_code >= 400 and path != "/readyz":
        assert answer.json()["status"] == answer.status_code
    return answer.status_code


async def test_without_a_known_token_only_health_is_told(served: Serving) -> None:
    for token in (None, "wrong-secret", HASHED, f"sha256:{HASHED}"):
        for method, path in [
            ("POST", "/v1/messages"), ("GET", "/v1/messages"), ("POST", "/v1/messages/batch"), ("GET", "/v1/topics"),
            ("GET", "/v1/status"), ("GET", "/metrics"), ("GET", "/nope"), ("GET", "/v1/policies/broker"),
            ("GET", f"/v1/messages/{'a' * 32}"),
        ]:  # fmt: skip
            assert await ask(served, token, method, path) == 401
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert await ask(served, token, "GET", path) == 200
    refused = await served.client.get("/v1/topics")
    assert refused.headers["www-authenticate"] == "Bearer"


async def test_each_role_does_its_own(served: Serving) -> None:
    topic = "/v1/topics/acme/shop/t"
    cases: list[tuple[str, str, Any, dict[str, int]]] = [
        ("POST", "/v1/messages", INSIDE, {"admin-secret": 201, "shop-secret": 201, "reader-secret": 403}),
        ("PUT", topic + "/subscriptions/s", {}, {"admin-secret": 200, "reader-secret": 200, "shop-secret": 403}),
        ("POST", topic + "/messages", {}, {"admin-secret": 201, "shop-secret": 201, "reader-secret": 403}),
        (
            "POST", topic + "/subscriptions/s/receive", {"wait_ms": 0},
            {"admin-secret": 200, "reader-secret": 200, "shop-secret": 403},
        ),
        ("GET", topic, None, {"admin-secret": 200, "reader-secret": 200, "shop-secret": 200}),
        ("PUT", topic, None, {"admin-secret": 204, "boss-secret": 204, "reader-secret": 403, "shop-secret": 403}),
        ("DELETE", topic + "x", None, {"admin-secret": 404, "boss-secret": 404, "reader-secret": 403}),
        ("GET", "/v1/messages", None, {"admin-secret": 200, "shop-secret": 403, "boss-secret": 400}),
        ("GET", "/v1/messages?namespace=acme/shop", None, {"boss-secret": 200, "admin-secret": 200}),
        ("GET", "/v1/messages?namespace=acme/stock", None, {"boss-secret": 403, "admin-secret": 200}),
        ("GET", "/v1/topics", None, {"admin-secret": 200, "boss-secret": 200, "shop-secret": 403}),
        ("GET", "/v1/status", None, {"admin-secret": 200, "shop-secret": 403, "reader-secret": 403}),
        ("GET", "/metrics", None, {"admin-secret": 200, "shop-secret": 403}),
        ("PUT", "/v1/policies/broker", {}, {"admin-secret": 200, "boss-secret": 403, "shop-secret": 403}),
        ("PUT", "/v1/policies/namespaces/acme/shop", {}, {"admin-secret": 200, "boss-secret": 200, "shop-secret": 403}),
        ("PUT", "/v1/policies/namespaces/acme/stock", {}, {"boss-secret": 403}),
        ("PUT", "/v1/policies/topics/acme/stock/t", {}, {"boss-secret": 403}),
    ]  # fmt: skip
    for method, path, body, expected in cases:
        for token, status in expected.items():
            more = {} if body is None else {"json": body}
            assert (method, path, token, await ask(served, token, method, path, **more)) == (
                method,
                path,
                token,
                status,
            )


async def test_a_token_stays_within_its_namespaces(served: Serving) -> None:
    shop, reader = "shop-secret", "reader-secret"
    assert await ask(served, shop, "POST", "/v1/messages", json=OUTSIDE) == 403
    assert await ask(served, shop, "POST", "/v1/messages", json={**OUTSIDE, "namespace": "acme/shop"}) == 403
    assert (
        await ask(served, shop, "POST", "/v1/messages", json={**OUTSIDE, "destination": "acme/stock/t"})
        == 403
    )
    assert await ask(served, shop, "POST", "/v1/messages", json={**OUTSIDE, "destination": "t"}) == 403
    assert await ask(served, shop, "POST", "/v1/topics/acme/stock/t/messages", json={}) == 403
    assert await ask(served, reader, "PUT", "/v1/topics/acme/stock/t/subscriptions/s", json={}) == 403
    dead = {"max_redeliveries": 1, "dead_letter_topic": "acme/stock/dead"}
    assert await ask(served, reader, "PUT", "/v1/topics/acme/shop/t/subscriptions/s", json=dead) == 403
    assert served.engine.topics.names() == []
    assert served.engine.stats().pending == 0
    await ask(served, "admin-secret", "PUT", "/v1/topics/acme/stock/t")
    await ask(served, "admin-secret", "PUT", "/v1/topics/acme/shop/t")
    listed = await served.client.get("/v1/topics", headers={"authorization": "Bearer boss-secret"})
    assert listed.json()["topics"] == ["persistent://acme/shop/t"]


async def test_a_batch_stays_within_its_namespaces(served: Serving) -> None:
    headers = {"authorization": "Bearer shop-secret", "content-type": "application/x-ndjson"}
    body = b'{"destination":"acme/shop/t","delay":"1h"}\n{"destination":"acme/stock/t","delay":"1h"}\n'
    answer = await served.client.post("/v1/messages/batch", content=body, headers=headers)
    taken, refused = answer.text.splitlines()
    assert '"id"' in taken
    assert '"forbidden"' in refused
    for destinations, query, status in [
        (["acme/shop/t", "acme/stock/t"], "", 403), (["acme/shop/t", None], "?destination=acme/stock/t", 403),
        (["acme/shop/t", None], "?destination=acme/shop/u", 200),
    ]:  # fmt: skip
        table = pa.table(
            {"destination": pa.array(destinations).dictionary_encode(), "delay_ms": [3_600_000] * 2}
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        path = "/v1/messages/batch" + query
        arrow = {"content-type": "application/vnd.apache.arrow.stream"}
        assert (
            await ask(
                served, "shop-secret", "POST", path, content=sink.getvalue().to_pybytes(), headers=arrow
            )
            == status
        )
    assert served.engine.stats().pending == 3


async def test_an_id_from_elsewhere_means_nothing(served: Serving) -> None:
    admin = {"authorization": "Bearer admin-secret"}
    inside = (await served.client.post("/v1/messages", json=INSIDE, headers=admin)).json()["id"]
    outside = (await served.client.post("/v1/messages", json=OUTSIDE, headers=admin)).json()["id"]
    for method, path in [
        ("GET", ""),
        ("POST", "/restart"),
        ("POST", "/send"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ]:
        assert await ask(served, "shop-secret", method, f"/v1/messages/{outside}{path}") == 404
        # Whoever may only read may look at a message whose id it was given, and do nothing to it.
        expected = 200 if method == "GET" else 403
        assert await ask(served, "reader-secret", method, f"/v1/messages/{inside}{path}") == expected
    shown = await served.client.get(f"/v1/messages/{outside}", headers=admin)
    assert shown.json()["state"] == "scheduled"
    assert await ask(served, "shop-secret", "DELETE", f"/v1/messages/{inside}") == 200
    # What is finalised is still out of sight.
    assert await ask(served, "admin-secret", "DELETE", f"/v1/messages/{outside}") == 200
    assert await ask(served, "shop-secret", "GET", f"/v1/messages/{outside}") == 404
    assert await ask(served, "shop-secret", "DELETE", f"/v1/messages/{outside}") == 404


async def test_metrics_can_be_open(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tokens=TOKENS, http__metrics_open=True) as served:
        assert await ask(served, None, "GET", "/metrics") == 200
        assert await ask(served, None, "GET", "/v1/status") == 401


async def test_without_tokens_browsers_elsewhere_are_kept_out(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        for headers in (
            {"host": "evil.example"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"},
            {"origin": "null"},
        ):  # fmt: skip
            assert await ask(served, None, "POST", "/v1/messages", json=INSIDE, headers=dict(headers)) == 403
            assert await ask(served, None, "GET", "/v1/topics", headers=dict(headers)) == 403
        own = {"origin": served.url, "sec-fetch-site": "same-origin"}
        assert await ask(served, None, "POST", "/v1/messages", json=INSIDE, headers=own) == 201
        assert served.engine.stats().pending == 1


async def test_a_slow_client_is_told_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.serve.transport.listener.SWEEP_MS", 20)
    async with (
        serving(tmp_path / "data", door=HttpSettings(body_timeout_ms=100)) as served,
        served.connect() as (reader, writer),
    ):
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        writer.write(b'content-length: 100\r\n\r\n{"destination":')
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 408 ")
        assert await asyncio.wait_for(reader.read(), 10) != b""
        assert reader.at_eof()


async def test_methods_and_paths_that_are_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        for method, path, allowed in [
            ("PATCH", "/v1/messages", "GET, HEAD, POST"), ("GET", "/v1/messages/batch", "POST"),
            ("PUT", "/v1/messages/x", "DELETE, GET, HEAD"), ("POST", "/healthz", "GET, HEAD"),
            ("TRACE", "/v1/topics", "GET, HEAD"),
        ]:  # fmt: skip
            refused = await served.client.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        for path in (
            "/v1",
            "/v1/messages/",
            "/v1/messages/x/",
            "/v1/topics/a/b",
            "/v2/messages",
            "//v1/messages",
        ):
            missing = await served.client.get(served.url + path)
            assert (missing.status_code, missing.json()["code"]) == (404, "no-such-path")
        head = await served.client.head("/v1/topics")
        assert (head.status_code, head.content) == (200, b"")
