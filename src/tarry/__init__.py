"""Tarry holds messages until they are due and delivers each one: never early, never lost, on time.

`from tarry import Client, AsyncClient` for programs; the command is `tarry`. Names are loaded on first use, so
that the command line and the server do not pay for what they do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarry.client import AsyncClient, Client, Message

    __version__: str

__all__ = ["AsyncClient", "Client", "Message", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("AsyncClient", "Client", "Message"):
        return getattr(import_module("tarry.client"), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'tarry' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tarry")
    except PackageNotFoundError:
        # A source tree that is not installed.
        return "0"
