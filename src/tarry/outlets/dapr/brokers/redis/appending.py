"""Appends to streams, as Dapr's component writes them, and many at a time.

What is asked for together is sent together: several entries of one stream as one call of a script, which costs a third of
as many `XADD`s here, the others as one pipeline. A user who may not run scripts is served all the same.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.exceptions import NoPermissionError, ResponseError

from tarry.outlets.dapr.brokers.redis.failures import component_error
from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError
from tarry.outlets.dapr.receiving import ended

TOGETHER: Final = 512
TOGETHER_BYTES: Final = 1024 * 1024
SCRIPT_FROM: Final = 4
"""Fewer entries of a stream are not worth a script."""

_SCRIPT: Final = """
local done = 0
for at = 1, #ARGV, 2 do
  local answer = redis.pcall('XADD', KEYS[1], {trim}'*', 'data', ARGV[at], 'metadata', ARGV[at + 1])
  if type(answer) == 'table' and answer.err then return {{done, answer.err}} end
  done = done + 1
end
return {{done}}
"""


class StreamEntry(NamedTuple):
    """An entry of a stream."""

    topic: str
    data: bytes
    metadata: bytes
    trim: tuple[str, str, int] | None = None
    """How the stream is trimmed with it: `MAXLEN ~ n` or `MINID ~ n`."""

    def command(self) -> list[str | bytes | int]:
        """The entry by itself."""
        return ["XADD", self.topic, *(self.trim or ()), "*", "data", self.data, "metadata", self.metadata]


def encode_metadata(metadata: Mapping[str, str]) -> bytes:
    """Metadata as Dapr's component writes them; it does so even where there are none."""
    if not metadata:
        return b"{}"
    return json.dumps(dict(metadata), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


class _Asked:
    """Entries that somebody waits for."""

    __slots__ = ("_left", "done", "failed")

    def __init__(self, entries: int) -> None:
        self._left = set(range(entries))
        self.failed: dict[int, ComponentError] = {}
        self.done: asyncio.Future[dict[int, ComponentError]] = asyncio.get_running_loop().create_future()

    def settle(self, at: int, error: ComponentError | None) -> None:
        """Settle an entry as appended, or as failed; the first outcome counts."""
        if at not in self._left:
            return
        self._left.remove(at)
        if error is not None:
            self.failed[at] = error
        if not self._left and not self.done.done():
            self.done.set_result(self.failed)


class _Waiting(NamedTuple):
    """One of the entries that somebody waits for."""

    entry: StreamEntry
    asked: _Asked
    at: int


class Appender:
    """Appends entries; one call at a time is under way."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None
        self._scripts = True
        """Whether scripts may be run, as far as is known."""
        self._closed = False

    async def add(self, entries: Sequence[StreamEntry]) -> dict[int, ComponentError]:
        """Append; done once Redis has said so. Gives what failed, by its place among the entries."""
        if self._closed:
            return dict.fromkeys(range(len(entries)), BrokerUnreachable("the component is closed"))
        asked = _Asked(len(entries))
        self._waiting += [_Waiting(entry, asked, at) for at, entry in enumerate(entries)]
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await asked.done

    async def _send(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                await self._send_batch(batch)
            except asyncio.CancelledError:
                _settle(batch, BrokerUnreachable("the component is closed", uncertain=True))
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for each of them
                _settle(batch, component_error(error, sent=True))
        self._sending = None

    def _take(self) -> list[_Waiting]:
        size, count = 0, 0
        for waiting in self._waiting[:TOGETHER]:
            size += len(waiting.entry.data)
            count += 1
            if size > TOGETHER_BYTES:
                break
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _send_batch(self, batch: list[_Waiting]) -> None:
        streams: dict[tuple[str, tuple[str, str, int] | None], list[_Waiting]] = {}
        for one in batch:
            streams.setdefault((one.entry.topic, one.entry.trim), []).append(one)
        single: list[_Waiting] = []
        for (topic, trim), entries in streams.items():
            if self._scripts and len(entries) >= SCRIPT_FROM:
                single += await self._by_script(topic, trim, entries)
            else:
                single += entries
        if single:
            await self._by_pipeline(single)

    async def _by_script(
        self, topic: str, trim: tuple[str, str, int] | None, entries: list[_Waiting]
    ) -> list[_Waiting]:
        """Append entries of one stream; gives back what must be tried by itself."""
        text = "".join(f"'{part}', " for part in trim or ())
        arguments = [part for one in entries for part in (one.entry.data, one.entry.metadata)]
        try:
            answer = await self._client.eval(_SCRIPT.format(trim=text), 1, topic, *arguments)
        except NoPermissionError:
            self._scripts = False
            return entries
        done = int(answer[0])
        _settle(entries[:done], None)
        if done < len(entries):
            reason = answer[1].decode(errors="replace") if isinstance(answer[1], bytes) else str(answer[1])
            _settle(entries[done:], component_error(ResponseError(reason)))
        return []

    async def _by_pipeline(self, entries: list[_Waiting]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for one in entries:
            pipeline.execute_command(*one.entry.command())
        answers = await pipeline.execute(raise_on_error=False)
        for one, answer in zip(entries, answers, strict=True):
            error = component_error(answer, sent=True) if isinstance(answer, Exception) else None
            _settle([one], error)

    async def close(self) -> None:
        """Send no more."""
        self._closed = True
        if self._sending is not None:
            await ended([self._sending])
        _settle(self._waiting, BrokerUnreachable("the component is closed"))
        self._waiting.clear()


def _settle(entries: list[_Waiting], error: ComponentError | None) -> None:
    for _, asked, at in entries:
        asked.settle(at, error)
