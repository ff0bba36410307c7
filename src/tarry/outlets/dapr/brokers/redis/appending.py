"""Appends to streams, as Dapr's component writes them, and many at a time."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from tarry.outlets.dapr.brokers.redis.failures import component_error
from tarry.outlets.dapr.errors import Unreachable
from tarry.outlets.dapr.receiving import ended

Command = list[str | bytes | int]

APPENDED_TOGETHER: Final = 500


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Metadata as Dapr's component writes them; it does so even where there are none."""
    return json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


class Appender:
    """Sends appends that are asked for at the same time together: most of the cost is in the round trip."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[tuple[Command, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, command: Command) -> Awaitable[None]:
        """Append; done once Redis has said so."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            done.set_exception(Unreachable("the component is closed"))
            return done
        self._waiting.append((command, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return done

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:APPENDED_TOGETHER], self._waiting[APPENDED_TOGETHER:]
            try:
                pipeline = self._client.pipeline(transaction=False)
                for command, _ in batch:
                    pipeline.execute_command(*command)
                answers = await pipeline.execute(raise_on_error=False)
            except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for each of them
                answers = [error] * len(batch)
            except asyncio.CancelledError:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(Unreachable("the component is closed", uncertain=True))
                raise
            for (_, done), answer in zip(batch, answers, strict=True):
                if done.done():
                    continue
                if isinstance(answer, Exception):
                    done.set_exception(component_error(answer, sent=True))
                else:
                    done.set_result(None)
        self._sending = None

    async def close(self) -> None:
        """Send no more."""
        self._closed = True
        if self._sending is not None:
            await ended([self._sending])
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(Unreachable("the component is closed"))
        self._waiting.clear()
