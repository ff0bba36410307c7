"""Delayed entries over the native API and its client."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tarry.client import AsyncClient
from tarry.core.errors import Conflict, Invalid, NotFound
from tests.serving import Serving, serving

PATH = "/v1/topics/public/default/orders/delayed"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as served:
        yield served


async def test_a_page_one_and_what_can_be_done_with_it(served: Serving) -> None:
    async with AsyncClient(served.url) as client:
        first = await client.publish("orders", "a", delay="1h", key="k", headers={"h": "v"})
        await client.publish("orders", b"\xff", delay="2h")
        await client.publish("orders", "at once")
        page = (await served.client.get(PATH)).json()
        assert [entry["entry_id"] for entry in page["entries"]] == [0, 1]
        assert (page["next"], page["entries"][0]["payload"], page["entries"][0]["headers"]) == (
            None,
            "a",
            {"h": "v"},
        )
        assert base64.b64decode(page["entries"][1]["payload_base64"]) == b"\xff"
        found = await client.delayed_page("orders", key="k", limit=1)
        assert [entry.payload for entry in found.entries] == [b"a"]
        assert (await client.delayed_page("orders", limit=1)).next == 1
        entry = await client.get_delayed("orders", first.entry_ids[0])
        moved = await client.restart_delayed("orders", 0, due_at_ms=entry.due_at_ms + 5)
        assert moved.due_at_ms == entry.due_at_ms + 5
        assert (await client.restart_delayed("orders", 1, delay="3h")).due_at_ms > moved.due_at_ms
        assert (await client.cancel_delayed("orders", 0)).payload == b"a"
        with pytest.raises(NotFound):
            await client.cancel_delayed("orders", 0)
        with pytest.raises(Conflict):
            await client.get_delayed("orders", 2)
        with pytest.raises(Invalid):
            await client.restart_delayed("orders", 1)


async def test_what_is_refused(served: Serving) -> None:
    assert (await served.client.get(PATH)).status_code == 404
    await served.client.put("/v1/topics/public/default/orders")
    for method, path, status in [
        ("GET", "?limit=0", 400),
        ("GET", "?start=-1", 400),
        ("GET", "?colour=red", 400),
        ("GET", "/x", 404),
        ("GET", "/-1", 404),
        ("GET", "/99999999999999999999", 404),
        ("DELETE", "/7777", 404),
        ("PUT", "", 405),
    ]:
        assert (await served.client.request(method, PATH + path)).status_code == status, path
