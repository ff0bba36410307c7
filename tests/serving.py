"""A real server inside the test's own loop, with a data folder of its own, on a free port of 127.0.0.1.

One in a process of its own is in `tests.processes`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from tarry.config import load
from tarry.doors.http.settings import HttpSettings
from tarry.engine.engine import Engine
from tarry.serve.composition import configuration
from tarry.serve.composition.server import Server
from tarry.serve.datafolder import DataFolder

_SMALL = {"http.port": 0, "ledger.segment_bytes": 1 << 20}
"""A free port, and segments that cost no time to fill."""


def plain_client(url: str) -> httpx.AsyncClient:
    """A client for an address without TLS: it does not read all the authorities that there are, which takes 20 ms."""
    return httpx.AsyncClient(base_url=url, timeout=20, trust_env=False, verify=False)


class Serving:
    """A server inside this loop: its address, its engine, and a client for it."""

    def __init__(self, url: str, engine: Engine, client: httpx.AsyncClient) -> None:
        self.url = url
        self.engine = engine
        self.client = client

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port = httpx.URL(self.url).port
        assert port is not None
        return port

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection, for what no decent client does."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *, door: HttpSettings | None = None, **overrides: Any
) -> AsyncIterator[Serving]:
    """The whole server in this loop. `overrides` are settings with `__` for the dot."""
    given = {name.replace("__", "."): value for name, value in overrides.items()}
    config = load(environment={}, overrides={**_SMALL, "data": str(folder), **given}).config
    with contextlib.ExitStack() as stack:
        if door is not None:
            # These few settings are for tests; operators have no use for them.
            stack.enter_context(mock.patch.object(configuration, "door_settings", return_value=door))
        owned = stack.enter_context(DataFolder.open(folder))
        server = Server(config, owned)
        try:
            url = await server.start()
            assert server._engine is not None
            async with plain_client(url) as client:
                yield Serving(url, server._engine, client)
        finally:
            await server.stop()
        # What it had under way while it stopped has been told by now.
        await asyncio.sleep(0)
        assert server.fault is None, server.fault
