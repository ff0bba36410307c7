"""The HTTP door of a server that stands by, and how its listener goes over to that of an owner."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tarry.config.settings import Http
from tarry.core.telemetry.figure import Figure, Histogram, HistogramFigure
from tarry.core.tenants.access import Access, Token
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.standby import StandbyApp
from tarry.serve.transport.listener import Listener
from tests.serving import plain_client
from tests.unit.listener_kit import echo

APPENDS = Histogram((0.1, 1.0))
LAG = Figure(name="tarry_cluster_lag_records", text="Records", values=lambda: {"": 7.0})
ADMIN = "a" * 32
READER = "r" * 32


def standby(*tokens: Token, settings: HttpSettings | None = None) -> StandbyApp:
    return StandbyApp(
        Access(tokens),
        settings or HttpSettings(),
        lambda: ["standby: so it is"],
        lambda: "b owns the ledger",
        [LAG, HistogramFigure(name="tarry_cluster_append_seconds", text="Appends", of=lambda: APPENDS)],
    )


@asynccontextmanager
async def serving(app: StandbyApp) -> AsyncIterator[tuple[Listener, httpx.AsyncClient]]:
    listener = Listener(Http(port=0))
    url = listener.bind()
    await listener.start(app)
    try:
        async with plain_client(url) as client:
            yield listener, client
    finally:
        await listener.stop()


async def test_it_lives_is_not_ready_and_says_why() -> None:
    async with serving(standby()) as (_, client):
        assert (await client.get("/healthz")).status_code == 200
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json() == {"ready": False, "reasons": ["standby: so it is"]}
        assert (await client.head("/readyz")).status_code == 503


async def test_its_figures_are_for_those_who_may_see_figures() -> None:
    for took_s in (0.05, 0.1, 1.0, 7.35):
        APPENDS.observe(took_s)
    tokens = [
        Token.of("admin", ADMIN, ("admin",), ("*",), 0),
        Token.of("reader", READER, ("consume",), ("*",), 0),
    ]
    async with serving(standby(*tokens)) as (_, client):
        assert (await client.get("/metrics")).status_code == 401
        assert (
            await client.get("/metrics", headers={"authorization": f"Bearer {READER}"})
        ).status_code == 403
        shown = await client.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})
        assert shown.status_code == 200
        assert "tarry_cluster_lag_records 7.0" in shown.text
        assert "tarry_ready 0.0" in shown.text
        for line in (
            'append_seconds_bucket{le="0.1"} 2.0',
            'append_seconds_bucket{le="1.0"} 3.0',
            'append_seconds_bucket{le="+Inf"} 4.0',
            "append_seconds_count 4.0",
            "append_seconds_sum 8.5",
        ):
            assert f"tarry_cluster_{line}\n" in shown.text
    async with serving(standby(*tokens, settings=HttpSettings(metrics_open=True))) as (_, client):
        assert (await client.get("/metrics")).status_code == 200


async def test_everything_else_is_elsewhere() -> None:
    async with serving(standby()) as (_, client):
        for answer in (
            await client.post("/v1/messages", json={"destination": "orders", "payload": "x"}),
            await client.get("/v1/status"),
            await client.delete("/healthz"),
            await client.get("/lookup/v2/topic/persistent/public/default/orders"),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["detail"] == "this server stands by; b owns the ledger"


async def test_who_is_connected_comes_again_when_the_owners_door_opens() -> None:
    async with serving(standby()) as (listener, client):
        port = client.base_url.port
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503")
        listener.change(echo)
        # The connection ends, and does not go on with an application that knows nothing of the owner's.
        async with asyncio.timeout(20):
            await reader.read()
        assert (await client.post("/v1/messages", content=b"hello")).content == b"hello"
        writer.close()
