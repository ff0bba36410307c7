"""Tarry holds messages until they are due and delivers each one: never early, never lost, on time.

`from tarry import Client, AsyncClient, Worker` for programs, with the errors that they raise; the command is `tarry`.
Names are loaded on first use, so that the command line and the server do not pay for what they do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tarry.client import (
        AsyncClient,
        Backoff,
        Batch,
        BatchPage,
        BulkCommand,
        Client,
        ClientCall,
        Conflict,
        Delayed,
        DelayedPage,
        DelayTooLong,
        Delivery,
        Entry,
        Forbidden,
        Invalid,
        Message,
        MessagePage,
        MessageView,
        NotFound,
        Pause,
        Policy,
        Published,
        QuotaExceeded,
        RateLimited,
        Received,
        Rejected,
        Repeat,
        RepeatPage,
        Scheduled,
        TarryError,
        TooLarge,
        TooManyPending,
        Unauthorized,
        Unavailable,
        Unreachable,
        Worker,
    )

    __version__: str

__all__ = [
    "AsyncClient",
    "Backoff",
    "Batch",
    "BatchPage",
    "BulkCommand",
    "Client",
    "ClientCall",
    "Conflict",
    "DelayTooLong",
    "Delayed",
    "DelayedPage",
    "Delivery",
    "Entry",
    "Forbidden",
    "Invalid",
    "Message",
    "MessagePage",
    "MessageView",
    "NotFound",
    "Pause",
    "Policy",
    "Published",
    "QuotaExceeded",
    "RateLimited",
    "Received",
    "Rejected",
    "Repeat",
    "RepeatPage",
    "Scheduled",
    "TarryError",
    "TooLarge",
    "TooManyPending",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Worker",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'tarry' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("tarry.client"), name)
    return value


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tarry")
    except PackageNotFoundError:
        # A source tree that is not installed.
        return "0"
