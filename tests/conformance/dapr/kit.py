"""Real clients against a real server: a process with the Dapr door open, and applications as processes of their own."""

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dapr.conf import settings

from tests.processes import ROOT, free_port, running

WITHIN_S = 60


class Sidecar:
    """A server with the door open."""

    def __init__(self, http_port: int, grpc_port: int, url: str) -> None:
        self.http_port = http_port
        self.grpc_port = grpc_port
        self.url = url
        """The native API's address."""

    @property
    def address(self) -> str:
        """Address of the gRPC API, as the Python SDK takes it."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment of an application beside the server."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TARRY_", "DAPR_"))}
        return kept | {"DAPR_HTTP_PORT": str(self.http_port), "DAPR_GRPC_PORT": str(self.grpc_port)}


@contextlib.contextmanager
def sidecar(folder: Path, **keys: object) -> Iterator[Sidecar]:
    """A server with the door open; `keys` are those of `[doors.dapr]`."""
    given = {"enabled": True, "port": free_port(), "grpc_port": free_port()} | keys
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
        for key, value in given.items()
    ]
    config = "[ledger]\nsegment_bytes = 1048576\n[doors.dapr]\n" + "\n".join(lines)
    with running(folder, config) as server:
        yield Sidecar(int(str(given["port"])), int(str(given["grpc_port"])), server.url)


@contextlib.contextmanager
def point_sdk_at(one: Sidecar) -> Iterator[None]:
    """The Python SDK in this process finds its sidecar's health by these settings."""
    configured: Any = settings
    before = configured.DAPR_HTTP_PORT
    configured.DAPR_HTTP_PORT = one.http_port
    try:
        yield
    finally:
        configured.DAPR_HTTP_PORT = before


@functools.cache
def _trouble(kind: str) -> str | None:
    script = ROOT / "tools" / "dapr-sdks.sh"
    done = subprocess.run(
        [str(script), kind], capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
    )
    return done.stderr.strip() if done.returncode else None


def need(kind: str) -> None:
    """Skip where an SDK cannot be had."""
    if (trouble := _trouble(kind)) is not None:
        pytest.skip(f"Dapr's SDK for {kind}: {trouble}")


def in_s(seconds: float) -> str:
    """An instant so many seconds from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def now_s() -> float:
    return time.time()
