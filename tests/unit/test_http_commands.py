"""Commands by filter over the native API, its client and the command line; and a server that is killed in the middle of one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry import Client
from tarry.cli.app import app
from tarry.client import AsyncClient
from tarry.client.shapes import BulkCommand
from tarry.core.errors import Conflict, Invalid, NotFound
from tests.processes import ServerProcess, free_port
from tests.serving import Serving, serving

MANY = 3_000


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as served:
        yield served


async def counted(client: AsyncClient, command: BulkCommand) -> BulkCommand:
    while command.phase in ("counting", "running"):
        await asyncio.sleep(0.01)
        command = await client.get_command(command.id)
    return command


async def test_messages_are_counted_and_then_cancelled(served: Serving) -> None:
    async with AsyncClient(served.url) as client:
        for n in range(5):
            await client.schedule("orders", str(n), delay="1h", owner="ann" if n else "bob")
        command = await counted(client, await client.ask_command("cancel", owner="ann"))
        assert (command.phase, command.counted, command.asked_by) == ("counted", 4, "anybody")
        assert command.filter == {"state": "scheduled", "namespace": "public/default", "owner": "ann"}
        with pytest.raises(Conflict):
            await client.confirm_command(command.id, counted=5)
        command = await counted(client, await client.confirm_command(command.id, counted=4))
        assert (command.phase, command.done) == ("done", 4)
        assert [view.owner for view in (await client.list_page()).messages] == ["bob"]
        assert [one.id for one in await client.commands()] == [command.id]
        with pytest.raises(Invalid):
            await client.ask_command("move")
        with pytest.raises(NotFound):
            await client.get_command("123456")
        with pytest.raises(NotFound):
            await client.get_command("x")


async def test_the_command_line_asks_before_it_acts(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_URL", served.url)

    async def tarry(*arguments: str, stdin: str = "") -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin)
        return done.exit_code, done.output

    async with AsyncClient(served.url) as client:
        for n in range(3):
            await client.schedule("orders", str(n), delay="1h", key=f"order-{n}")
        code, said = await tarry("commands", "cancel", "--key-prefix", "order-", stdin="n\n")
        assert (code, "cancel 3 messages?" in said, "stopped" in said) == (130, True, True), said
        assert len((await client.list_page()).messages) == 3
        code, said = await tarry(
            "commands", "move", "--in", "2h", "--destination", "orders", "--yes", "--json"
        )
        assert (code, json.loads(said.splitlines()[-1])["done"]) == (0, 3), said
        assert {view.delay_ms for view in (await client.list_page()).messages} == {7_200_000}
        code, said = await tarry("commands", "send", "--key", "order-1", stdin="y\n")
        assert (code, "1 of 1 messages" in said) == (0, True), said
        assert (await tarry("commands", "retry", "--yes"))[0] == 0
        code, said = await tarry("commands", "list")
        assert (code, "key_prefix=order-" in said, "anybody" in said) == (0, True, True), said
        (last, *_) = await client.commands()
        assert "done" in (await tarry("commands", "show", last.id))[1]
        assert (await tarry("commands", "stop", last.id))[0] != 0


def test_a_server_that_is_killed_in_the_middle_goes_on(tmp_path: Path) -> None:
    """Twice: every message is moved once, and none is lost."""
    with ServerProcess(tmp_path / "data", port=free_port()) as server:
        server.start()
        with Client(server.url, retry_for_s=30) as client:
            lines = [
                {"destination": "orders", "payload": str(n), "delay_ms": 3_600_000 + n} for n in range(MANY)
            ]
            assert len(list(client.schedule_many(lines))) == MANY
            due_at_ms = time.time_ns() // 1_000_000 + 86_400_000
            command = client.ask_command("move", due_at_ms=due_at_ms)
            while (command := client.get_command(command.id)).phase == "counting":
                time.sleep(0.01)
            assert command.counted == MANY
            client.confirm_command(command.id, MANY)
            kills = 0
            while (command := client.get_command(command.id)).phase == "running":
                if kills < 2 and command.done > kills * MANY // 3:
                    kills += 1
                    server.kill()
                    server.start()
                time.sleep(0.01)
            assert (command.phase, kills) == ("done", 2)
            dues = [view.due_at_ms for view in client.list(limit=1000)]
            assert (len(dues), set(dues)) == (MANY, {due_at_ms})
