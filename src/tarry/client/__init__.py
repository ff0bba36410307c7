"""The client of the native API: `Client` blocks, `AsyncClient` is awaited.

`from tarry import …` gives each of these names. They are loaded on first use: the command line and the server do not
pay for what they do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tarry.client.asynchronous import AsyncClient
    from tarry.client.blocking import Client
    from tarry.client.bulk import Batch, BatchPage
    from tarry.client.call import ClientCall, Unauthorized, Unreachable
    from tarry.client.consuming import Entry
    from tarry.client.shapes import (
        BulkCommand,
        Delayed,
        DelayedPage,
        Message,
        MessagePage,
        MessageView,
        Pause,
        Policy,
        Published,
        Received,
        Repeat,
        RepeatPage,
        Scheduled,
    )
    from tarry.client.worker.handler import Delivery
    from tarry.client.worker.retrying import Backoff
    from tarry.client.worker.worker import Worker
    from tarry.core.errors import (
        Conflict,
        DelayTooLong,
        Forbidden,
        Invalid,
        NotFound,
        QuotaExceeded,
        RateLimited,
        Rejected,
        TarryError,
        TooLarge,
        TooManyPending,
        Unavailable,
    )

_HOMES: Final = {
    "tarry.client.asynchronous": ("AsyncClient",),
    "tarry.client.blocking": ("Client",),
    "tarry.client.bulk": ("Batch", "BatchPage"),
    "tarry.client.call": ("ClientCall", "Unauthorized", "Unreachable"),
    "tarry.client.consuming": ("Entry",),
    "tarry.client.shapes": (
        "BulkCommand", "Delayed", "DelayedPage", "Message", "MessagePage", "MessageView", "Pause", "Policy", "Published",
        "Received", "Repeat", "RepeatPage", "Scheduled",
    ),
    "tarry.client.worker.handler": ("Delivery",),
    "tarry.client.worker.retrying": ("Backoff",),
    "tarry.client.worker.worker": ("Worker",),
    "tarry.core.errors": (
        "Conflict", "DelayTooLong", "Forbidden", "Invalid", "NotFound", "QuotaExceeded", "RateLimited", "Rejected",
        "TarryError", "TooLarge", "TooManyPending", "Unavailable",
    ),
}  # fmt: skip
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}

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
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tarry.client' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
