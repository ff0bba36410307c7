"""An unmodified matrix-js-sdk, from npm, in a process of its own."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from bench.peers import packages
from bench.peers.peer import Skipped
from tests.conformance.matrix.people import Person
from tests.processes import ROOT

PACKAGE: Final = "matrix-js-sdk@43.0.0"
DRIVER: Final = Path(__file__).parent / "js" / "client.mjs"
WITHIN_S: Final = 60

WITH_RESOLVERS = (
    "data:text/javascript,Promise.withResolvers ??= function () { let resolve, reject;"
    " const promise = new Promise((...both) => ([resolve, reject] = both)); return { promise, resolve, reject }; };"
)
"""The one function of the language that the library wants and older nodes lack."""


def modules() -> Path:
    """The folder with the package; fetched at the first use, and skipped where that cannot be."""
    if shutil.which("npm") is None:
        install = "source tools/apt.sh && on_debian && apt_install nodejs && apt_install npm"
        subprocess.run(["bash", "-c", install], cwd=ROOT, capture_output=True, check=False)
    try:
        return packages.npm_modules(PACKAGE)
    except Skipped as error:
        pytest.skip(str(error))


class Sdk:
    """A process with a client in it. What it says are JSON objects, one a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def said(self, key: str) -> Any:
        """Wait for the next line that has a key; gives what is said of it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WITHIN_S):
            async for line in self.process.stdout:
                told = json.loads(line)
                assert "failed" not in told, told
                if key in told:
                    return told[key]
        raise AssertionError(f"it ended without saying {key}")

    async def kill(self) -> None:
        """SIGKILL: no farewell."""
        self.process.kill()
        await self.process.wait()

    async def leave(self) -> None:
        """Ask it to leave the call in good order."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"leave\n")
        await self.process.stdin.drain()


@contextlib.asynccontextmanager
async def sdk(scenario: str, person: Person, room_id: str, **more: Any) -> AsyncIterator[Sdk]:
    """A client of this user, doing one of the driver's scenarios."""
    folder = await asyncio.to_thread(modules)
    given = {**person.account, "url": person.url, "room_id": room_id, "scenario": scenario, **more}
    process = await asyncio.create_subprocess_exec(
        "node", DRIVER, folder, json.dumps(given),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Sdk(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ran(scenario: str, person: Person, room_id: str, **more: Any) -> Any:
    """The output of a scenario that ends by itself."""
    async with sdk(scenario, person, room_id, **more) as started:
        return await started.said("done")
