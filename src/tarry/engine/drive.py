"""Driving the engine on an asyncio loop: the timer, the threads behind it, and a clean stop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tarry.core.delivery import Delivery, Outlet, Retry, Verdict
from tarry.engine.engine import Engine
from tarry.engine.flights import Launch
from tarry.engine.reclaim import Offload

log = logging.getLogger(__name__)


def launcher(loop: asyncio.AbstractEventLoop) -> Launch:
    """Sending as tasks of the loop."""
    tasks: set[asyncio.Task[None]] = set()

    def launch(outlet: Outlet, delivery: Delivery, verdict: Callable[[Verdict], None]) -> None:
        async def send() -> None:
            try:
                result = await outlet.send(delivery)
            except Exception as error:  # An outlet's bug must not lose the message.
                log.exception("an outlet failed")
                result = Retry(f"the outlet failed: {type(error).__name__}", uncertain=True)
            verdict(result)

        task = loop.create_task(send())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return launch


def offloader(loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor) -> Offload:
    """Slow work in a thread of its own, one piece after another."""

    def offload(work: Callable[[], Any], done: Callable[[Exception | None], None]) -> None:
        def run() -> None:
            try:
                work()
                error = None
            except Exception as caught:  # noqa: BLE001 - whatever it was, the engine is told
                error = caught
            loop.call_soon_threadsafe(done, error)

        pool.submit(run)

    return offload


class Driver:
    """Calls the engine's turns: when something is due, and when there is something to see to."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._wake_ms: float = 0
        self._stopped = False
        engine.journal.horizon.on_earlier = self._earlier

    def start(self) -> None:
        """Begin."""
        self._turn()

    def stop(self) -> None:
        """No more turns."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def post(self, work: Callable[[], None]) -> None:
        """Bring a call from the ledger's thread to the engine's, and give out what it made visible."""

        def run() -> None:
            work()
            self._engine.topics.records.pump()

        self._loop.call_soon_threadsafe(run)

    def _turn(self) -> None:
        if self._stopped:
            return
        self._timer = None
        wake_ms = self._engine.tick()
        self._arm(wake_ms)

    def _earlier(self, fire_at_ms: int) -> None:
        if fire_at_ms < self._wake_ms and not self._stopped:
            self._arm(fire_at_ms)

    def _arm(self, wake_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_ms = wake_ms
        if wake_ms == 0:
            # Through the loop, so that doors get their turn between two batches.
            self._timer = self._loop.call_later(0, self._turn)
            return
        # Never sleep long: the wall clock may be set while we do.
        delay_ms = min(wake_ms - self._engine.clock.now_ms(), 1000)
        self._timer = self._loop.call_later(max(0, delay_ms) / 1000, self._turn)
