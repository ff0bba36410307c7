"""The client of the native API: `Client` blocks, `AsyncClient` is awaited. Raises the errors of `tarry.core.errors`.

Names are loaded on first use: a program that blocks does not pay for aiohttp.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tarry.client.asynchronous import AsyncClient
    from tarry.client.blocking import Client
    from tarry.client.bulk import Batch
    from tarry.client.call import Unauthorized, Unreachable
    from tarry.client.shapes import Delayed, Message, MessageView, Policy, Published, Received, Scheduled

_HOMES: Final = {
    "AsyncClient": "asynchronous",
    "Batch": "bulk",
    "Client": "blocking",
    "Delayed": "shapes",
    "Message": "shapes",
    "MessageView": "shapes",
    "Policy": "shapes",
    "Published": "shapes",
    "Received": "shapes",
    "Scheduled": "shapes",
    "Unauthorized": "call",
    "Unreachable": "call",
}

__all__ = [
    "AsyncClient",
    "Batch",
    "Client",
    "Delayed",
    "Message",
    "MessageView",
    "Policy",
    "Published",
    "Received",
    "Scheduled",
    "Unauthorized",
    "Unreachable",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tarry.client' has no attribute {name!r}")
    return getattr(import_module(f"tarry.client.{_HOMES[name]}"), name)
