"""Fixtures: `tarry_server`, and `tarry_settings` to change its settings. pytest loads this module where Tarry is installed."""

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

# What a server needs is imported in its own process, and the client when it is used: most runs have nothing to do with Tarry.
from tarry.pytest.server import Starter, TarryServer

__all__ = ["tarry_server", "tarry_settings"]


@pytest.fixture(scope="session")
def _tarry_starter() -> Iterator[Starter]:
    with Starter() as starter:
        yield starter


@pytest.fixture
def tarry_settings() -> Mapping[str, Any]:
    """Settings of the server of a test, by their dotted names; override it, in a module or a class, to have others."""
    return {}


@pytest.fixture
def tarry_server(
    _tarry_starter: Starter,
    tarry_settings: Mapping[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[TarryServer]:
    """A Tarry server of this test's own. `Client()` and `AsyncClient()` find it; `tarry_server.clock` moves its time."""
    folder = tmp_path_factory.mktemp("tarry")
    for name in [name for name in os.environ if name.startswith("TARRY_")]:
        monkeypatch.delenv(name)
    with _tarry_starter.start(folder, tarry_settings) as server:
        monkeypatch.setenv("TARRY_URL", server.url)
        yield server
    shutil.rmtree(folder / "data", ignore_errors=True)
