"""Waiting until something is so: looked at again and again, and a test fails if it never is."""

import inspect
import time
from asyncio import sleep
from collections.abc import Callable
from typing import Any, Final

WITHIN_S: Final = 90.0
"""For machines that are slow and busy; who waits for what comes does not wait that long."""


async def until(look: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """Wait for `look` to find something true, and give that; what it gives may be awaitable."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, "it never came to be"
        await sleep(0.01)


def wait_until(
    look: Callable[[], Any],
    say: Callable[[], str] = lambda: "it never came to be",
    within_s: float = WITHIN_S,
) -> None:
    """Wait for `look` without an event loop; `say` tells how it is if it never comes to be."""
    deadline = time.monotonic() + within_s
    while not look():
        assert time.monotonic() < deadline, say()
        time.sleep(0.01)
