"""The receivers of one subscription that are at work: how many at a time, and what became of each message."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from tarry.outlets.dapr.component import BrokerMessage, ReceiveMessage, Settlement

log = logging.getLogger("tarry.dapr")

Settle = Callable[[Settlement], Awaitable[None]]
"""Tells the broker what the receiver said."""


class Receivers:
    """Runs the receiver of a subscription for its messages, each in a task of its own."""

    def __init__(self, receive: ReceiveMessage, at_once: int | None, *, within_ms: int | None = None) -> None:
        """`at_once` is how many may run, None for any number; one that takes longer than `within_ms` is ended."""
        self._receive = receive
        self._places = None if at_once is None else asyncio.Semaphore(at_once)
        self._within_s = None if within_ms is None else within_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def start(self, message: BrokerMessage, settle: Settle) -> None:
        """Wait for a place and begin. In one subscription, those who wait come in their order."""
        if self._places is not None:
            await self._places.acquire()
        task = asyncio.create_task(self._run(message, settle))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._places is not None:
            self._places.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            # What is not settled comes again: the broker's deadline or the next connection sees to it.
            log.warning("a message could not be settled with its broker", extra={"reason": str(error)})

    async def _run(self, message: BrokerMessage, settle: Settle) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                reply = await self._receive(message)
        except Exception as error:  # noqa: BLE001 - whatever a receiver raises, its message comes again
            log.warning(
                "a receiver failed", extra={"topic": message.topic, "reason": str(error) or repr(error)}
            )
            reply = Settlement.NACK
        await settle(reply)

    async def close(self) -> None:
        """End those at work; their messages are not settled."""
        await ended(self._tasks)


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they are done. Brokers' libraries may swallow a cancellation: then again."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)
