"""Pauses over the native API, its client and the command line."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app
from tarry.client import AsyncClient
from tarry.core.errors import Conflict, Invalid, NotFound
from tests.serving import Serving, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as served:
        yield served


async def test_a_message_is_paused_and_resumed(served: Serving) -> None:
    async with AsyncClient(served.url) as client:
        done = await client.schedule("orders", "x", delay="1h", name="trial")
        assert (await client.pause(done.id)).paused == "message"
        assert (await client.get(name="trial")).paused == "message"
        assert (await client.resume(name="trial")).paused is None
        with pytest.raises(Conflict):
            await client.resume(done.id)
        await client.pause(name="trial")
        assert (await client.restart(done.id, delay="2h")).paused is None


async def test_a_place_holds_what_is_due_until_it_is_resumed(served: Serving) -> None:
    async with AsyncClient(served.url) as client:
        await client.subscribe("orders", "sub", start="earliest")
        place = await client.pause_place(topic="orders")
        assert (place.kind, place.name) == ("topic", "persistent://public/default/orders")
        await client.schedule("orders", "x", delay_ms=0)
        assert await client.receive("orders", "sub", wait_ms=300) == []
        (waiting,) = (await client.list_page()).messages
        assert waiting.paused == "topic"
        assert [one.name for one in await client.pauses(namespace="public/default")] == [place.name]
        await client.resume_place(topic="orders")
        (entry,) = await client.receive("orders", "sub", wait_ms=5_000)
        assert entry.payload == b"x"
        with pytest.raises(NotFound):
            await client.resume_place(owner="ann")
        with pytest.raises(Invalid):
            await client.pause_place(owner="ann", topic="orders")


async def test_the_command_line_has_it_all(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_URL", served.url)

    def tarry(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, arguments)
        return done.exit_code, done.output

    async def run(*arguments: str) -> tuple[int, str]:
        return await asyncio.to_thread(tarry, *arguments)

    code, said = await run("schedule", "orders", "x", "--in", "1h", "--json")
    id_ = json.loads(said.splitlines()[0])["id"]
    assert await run("pause", id_) == (0, f"{id_}  scheduled  paused\n")
    assert "message" in (await run("list"))[1]
    code, said = await run("resume", id_)
    assert (code, said.startswith(f"{id_}  scheduled  due 20")) == (0, True), said
    code, said = await run("pause", "--owner", "ann")
    assert (code, "owner ann in public/default: paused" in said) == (0, True), said
    assert "ann" in (await run("pauses"))[1]
    assert json.loads((await run("pauses", "--json"))[1])["kind"] == "owner"
    assert (await run("resume", "--owner", "ann"))[0] == 0
    assert (await run("resume", "--owner", "ann"))[0] in (0, 1)
    assert (await run("pause", id_, "--owner", "ann"))[0] == 2
    code, said = await run("list", "--state", "retrying", "--key-prefix", "a", "--door", "http")
    assert (code, "no messages" in said) == (0, True)
