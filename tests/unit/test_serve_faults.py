"""A fault, an error that escapes from the engine: the server ends as if it had crashed, and says so; the next start knows all."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tarry.config import Loaded, load
from tarry.core.errors import Unavailable
from tarry.engine.engine import Engine
from tarry.serve.composition import process
from tarry.serve.composition.server import Server
from tests.serving import plain_client, serving
from tests.waiting import until


def loaded(folder: Path) -> Loaded:
    given = {"data": str(folder), "http.port": 0, "ledger.segment_bytes": 1 << 20}
    return load(environment={}, overrides=given)


def break_down(_engine: Engine) -> int:
    raise RuntimeError("broken")


async def started(folder: Path, capsys: pytest.CaptureFixture[str]) -> "tuple[asyncio.Task[None], str]":
    """A server as `tarry serve` runs it, and its address."""
    task = asyncio.create_task(process._serve(loaded(folder).config, partial(loaded, folder)))
    said = ""

    def ready() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "ready on " in said and said.endswith("\n")

    await until(ready)
    return task, said.rpartition(" ")[2].strip()


async def ended(task: "asyncio.Task[None]") -> str:
    """Why it ended."""
    with pytest.raises(Unavailable) as error:
        await asyncio.wait_for(task, 30)
    return str(error.value)


async def test_a_fault_ends_the_server_and_what_was_answered_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    task, url = await started(folder, capsys)
    async with plain_client(url) as client:
        answer = await client.post("/v1/messages", json={"destination": "t", "payload": "x", "delay": "1h"})
        assert answer.status_code == 201
        monkeypatch.setattr(Engine, "tick", break_down)
        assert await ended(task) == "the server ended because of a fault: broken; start it again"
    monkeypatch.undo()
    async with serving(folder) as again:
        found = await again.client.get(f"/v1/messages/{answer.json()['id']}")
        assert (found.status_code, found.json()["state"]) == (200, "scheduled")


async def test_a_fault_in_the_very_first_turn_ends_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "tick", break_down)
    assert "a fault: broken" in await ended(
        asyncio.create_task(
            process._serve(loaded(tmp_path / "data").config, partial(loaded, tmp_path / "data"))
        )
    )


async def test_a_fault_while_it_stops_is_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(server: Server, _engine: Engine) -> None:
        server._faulted(RuntimeError("broken"))

    monkeypatch.setattr(Server, "_let_attempts_end", fail)
    task, _ = await started(tmp_path / "data", capsys)
    os.kill(os.getpid(), signal.SIGTERM)
    assert "a fault: broken" in await ended(task)
