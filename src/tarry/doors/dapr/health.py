"""Health checks of an application: asked at an interval, and told where its health changes, as Dapr's flags define it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from tarry.config.dapr import DaprApp


async def changes(app: DaprApp, is_healthy: Callable[[], Awaitable[bool]]) -> AsyncIterator[bool]:
    """Changes of an application's health, for ever: it begins as unhealthy.

    One good answer makes it healthy; so many bad or late ones in a row as the threshold says make it unhealthy.
    """
    loop = asyncio.get_running_loop()
    healthy = False
    failures = 0
    while True:
        began_s = loop.time()
        try:
            async with asyncio.timeout(app.app_health_timeout_ms / 1000):
                good = await is_healthy()
        except TimeoutError:
            good = False
        failures = 0 if good else failures + 1
        if good != healthy and (good or failures >= app.app_health_threshold):
            healthy = good
            yield healthy
        await asyncio.sleep(max(0, began_s + app.app_health_interval_ms / 1000 - loop.time()))
