"""docs/client.md: every method has an entry, and every example runs as printed against a real server."""

import asyncio
import contextlib
import inspect
import io
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import tarry
from tarry import AsyncClient, Client
from tarry.client.operation import ClientOperation, Operations
from tests.documents import blocks
from tests.processes import ROOT, environment
from tests.serving import serving

PAGE = ROOT / "docs/client.md"
ENTRY = re.compile(r"^### (\w+)$", re.MULTILINE)
OURS = re.compile(r"\btarry\.[\w.]+\.([A-Z]\w+)")
PRINTED = re.compile(r"# -> (.*)$", re.MULTILINE)


def public(client: type) -> set[str]:
    return {name for name in dir(client) if not name.startswith("_")}


def test_every_method_has_an_entry_with_an_example() -> None:
    _, *entries = ENTRY.split(PAGE.read_text())
    found = dict(zip(entries[::2], entries[1::2], strict=True))
    assert set(found) == public(Client) == public(AsyncClient)
    assert [name for name, text in found.items() if f".{name}(" not in text] == []


def test_every_error_is_exported_and_in_the_table() -> None:
    page = PAGE.read_text()
    errors = {name for name in tarry.__all__ if _is_error(getattr(tarry, name))}
    assert len(errors) > 10
    assert {name for name in errors if f"`{name}` |" not in page} == set()


def test_every_exported_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert {name for name in tarry.__all__ if f"`{name}`" not in page} == {"__version__"}


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, tarry.TarryError)


async def test_the_examples_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as server:
        monkeypatch.setenv("TARRY_URL", server.url)
        names: dict[str, Any] = {}
        for block in blocks("docs/client.md"):
            said = await asyncio.to_thread(_run, block.text, names)
            assert said == PRINTED.findall(block.text), block.text
        names["client"].close()


async def test_the_worker_s_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is run, and its program as well: a reminder that was scheduled is handled by one of both."""
    async with serving(tmp_path / "data") as server:
        monkeypatch.setenv("TARRY_URL", server.url)
        names: dict[str, Any] = {}
        found = blocks("docs/worker.md")
        (command,) = [block for block in found if block.language == ""]
        python = [block for block in found if block.language == "python"]
        (tmp_path / "app.py").write_text(python[0].text)
        program, words = [sys.executable, "-m", "tarry"], shlex.split(command.text)
        assert words[0] == "tarry"
        running = await asyncio.create_subprocess_exec(
            *program, *words[1:], cwd=tmp_path, stdout=subprocess.PIPE, env=environment(TARRY_URL=server.url)
        )
        try:
            await asyncio.to_thread(_run, python[0].text, names)
            await asyncio.to_thread(_run, python[1].text, names)
            assert running.stdout is not None
            handled = await asyncio.wait_for(running.stdout.readline(), 60)
            assert handled == b"dear user 42: your trial ends today\n"
        finally:
            running.terminate()
            await running.wait()
        await asyncio.to_thread(_run, python[1].text, names)
        for block in python[2:-1]:
            await asyncio.to_thread(_run, block.text, names)
        said = await asyncio.to_thread(_run, python[-1].text, names)
    assert said[0] == "dear user 42: your trial ends today"
    assert said[1].startswith("persistent://public/default/reminders took 0.")


def _run(block: str, names: dict[str, Any]) -> list[str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(block, str(PAGE), "exec"), names)
    return said.getvalue().splitlines()


def test_signatures_are_those_of_the_descriptions() -> None:
    for name, operation in vars(Operations).items():
        if not isinstance(operation, ClientOperation):
            continue
        for client in (Client, AsyncClient):
            method = getattr(client, name)
            signature = inspect.signature(method)
            described = inspect.signature(operation._describe)
            assert list(signature.parameters) == ["self", *described.parameters]
            assert signature.return_annotation is not inspect.Signature.empty
            assert method.__doc__ == operation._describe.__doc__
            assert method.__qualname__ == f"{client.__name__}.{name}"
            assert inspect.iscoroutinefunction(method) is (client is AsyncClient)
    assert inspect.signature(Client.schedule).return_annotation is tarry.Scheduled
    assert inspect.signature(AsyncClient.ack).return_annotation is None


def test_every_class_in_a_signature_is_exported() -> None:
    named = {
        name
        for method in public(Client)
        for name in OURS.findall(str(inspect.signature(getattr(Client, method), eval_str=True)))
    }
    assert len(named) > 10
    # The last two are keyword arguments, whose names editors show.
    assert named - set(tarry.__all__) == {"LineDefaults", "ListFilters"}


def test_names_show_before_they_are_loaded() -> None:
    assert {"Client", "AsyncClient", "Message", "NotFound", "TarryError"} <= set(dir(tarry))
    assert set(tarry.__all__) - {"__version__"} == set(tarry.client.__all__)
    for name in tarry.__all__:
        assert getattr(tarry, name) is not None
    with pytest.raises(AttributeError, match="Clientt"):
        _ = tarry.Clientt
