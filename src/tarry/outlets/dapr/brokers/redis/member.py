"""A member of a stream's consumer group: reading, acknowledging, and taking over what others left."""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from redis.exceptions import ResponseError

from tarry.outlets.dapr.broker import Joining
from tarry.outlets.dapr.brokers.redis.failures import FAILURES
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.outlets.dapr.receiving import Receivers, ended

log = logging.getLogger("tarry.dapr")

AGAIN_AFTER_S: Final = 0.5
"""After a failure of the connection."""
CLAIMED_TOGETHER: Final = 1000
DEFAULT_PROCESSING_MS: Final = 60_000
DEFAULT_REDELIVER_MS: Final = 15_000


class RedisSettings(Struct, frozen=True, kw_only=True):
    """Settings in the metadata beside the address of Redis."""

    processing_ms: int
    redeliver_ms: int
    queue_depth: int
    concurrency: int
    block_ms: int
    max_length: int
    stream_ttl_ms: int
    ack_on_error: bool


class RedisMember:
    """One subscription: a member of a stream's group.

    `_held` are the entries that are ours: with a receiver or on their way to one. They are claimed again well
    before others may. If that did not succeed for a whole `processingTimeout`, others may have them:
    then the receivers are ended, and what was theirs comes again to whoever claims it.
    """

    def __init__(self, client: Any, joining: Joining, settings: RedisSettings) -> None:
        self._client = client
        self._topic = joining.topic
        self._group = joining.group
        self._settings = settings
        self._lasting = joining.lasting
        self._redelivers = joining.lasting or bool(settings.processing_ms and settings.redeliver_ms)
        self._processing_ms = settings.processing_ms or DEFAULT_PROCESSING_MS
        self._redeliver_ms = settings.redeliver_ms or DEFAULT_REDELIVER_MS
        self._receivers = Receivers(
            joining.receive,
            None if joining.hold else settings.concurrency,
            within_ms=self._processing_ms if self._redelivers and not joining.hold else None,
        )
        self._held: dict[bytes, None] = {}
        self._claimed_at_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._troubled = False

    async def start(self) -> None:
        """Make the group if there is none, and begin."""
        await self._make_group()
        loops = [self._read, self._reclaim, self._keep] if self._redelivers else [self._read]
        self._tasks = [asyncio.create_task(loop()) for loop in loops]

    async def _make_group(self) -> None:
        try:
            await self._client.xgroup_create(self._topic, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _read(self) -> None:
        """Take what nobody has read yet."""
        while True:
            try:
                found = await self._client.xreadgroup(
                    self._group,
                    self._group,
                    {self._topic: ">"},
                    count=self._settings.queue_depth,
                    block=self._settings.block_ms,
                )
            except FAILURES as error:
                await self._trouble(error)
                continue
            self._troubled = False
            for _, entries in found or ():
                await self._begin(entries)

    async def _trouble(self, error: BaseException) -> None:
        """Log an outage once, wait, and make a missing group anew."""
        if not self._troubled:
            self._troubled = True
            log.warning(
                "a Redis stream cannot be read",
                extra={"topic": self._topic, "reason": str(error) or repr(error)},
            )
        await asyncio.sleep(AGAIN_AFTER_S)
        if str(error).startswith("NOGROUP"):
            # The server lost its data, or somebody removed the group.
            try:
                await self._make_group()
            except FAILURES:
                pass

    async def _begin(self, entries: Sequence[tuple[bytes, dict[bytes, bytes] | None]]) -> None:
        fresh = [(id_, fields) for id_, fields in entries if id_ not in self._held]
        self._held.update(dict.fromkeys(id_ for id_, _ in fresh))
        for id_, fields in fresh:
            if fields is None:
                # It was trimmed away while it was pending.
                await self._settle(id_, Settlement.ACK)
                continue
            message = BrokerMessage(
                topic=self._topic,
                data=fields.get(b"data", b""),
                metadata=decode_metadata(fields.get(b"metadata", b"{}")),
                position=id_.decode(),
            )
            if id_ in self._held:
                await self._receivers.start(message, partial(self._settle, id_))

    async def _settle(self, id_: bytes, reply: Settlement) -> None:
        """Acknowledge, or leave it pending, to be claimed when its time is up."""
        if reply is Settlement.ACK or (self._settings.ack_on_error and not self._lasting):
            while True:
                try:
                    await self._client.xack(self._topic, self._group, id_)
                    if self._lasting and len(await self._client.xinfo_groups(self._topic)) == 1:
                        # Nothing trims such a stream by its length; and nobody else is to read it.
                        await self._client.xdel(self._topic, id_)
                    break
                except FAILURES as error:
                    await self._trouble(error)
        self._held.pop(id_, None)

    async def _reclaim(self) -> None:
        """Take over entries that any member has left pending for too long."""
        while True:
            try:
                while await self._reclaim_some():
                    pass
            except FAILURES as error:
                await self._trouble(error)
            await asyncio.sleep(self._redeliver_ms / 1000)

    async def _reclaim_some(self) -> bool:
        pending = await self._client.xpending_range(
            self._topic, self._group, "-", "+", self._settings.queue_depth, idle=self._processing_ms
        )
        ids = [one["message_id"] for one in pending if one["message_id"] not in self._held]
        if not ids:
            return False
        claimed = await self._client.xclaim(self._topic, self._group, self._group, self._processing_ms, ids)
        await self._begin(claimed)
        # Those that are not in the stream any more would be found again and again.
        gone = [one for one in ids if one not in {id_ for id_, _ in claimed}]
        still = {
            one["message_id"]
            for id_ in gone
            for one in await self._client.xpending_range(
                self._topic, self._group, id_, id_, 1, idle=self._processing_ms
            )
        }
        if still:
            await self._client.xack(self._topic, self._group, *still)
        return True

    async def _keep(self) -> None:
        """Claim the entries held here again, well before others may."""
        every_s = self._processing_ms / 3000
        while True:
            await asyncio.sleep(every_s)
            ids = list(self._held)
            try:
                for start in range(0, len(ids), CLAIMED_TOGETHER):
                    await self._client.xclaim(
                        self._topic,
                        self._group,
                        self._group,
                        0,
                        ids[start : start + CLAIMED_TOGETHER],
                        justid=True,
                    )
                self._claimed_at_s = time.monotonic()
            except FAILURES as error:
                await self._trouble(error)
                if time.monotonic() - self._claimed_at_s > self._processing_ms / 1000:
                    self._held.clear()
                    await self._receivers.close()

    async def close(self) -> None:
        """Leave the group; entries that receivers hold stay pending until their time is up."""
        await ended(self._tasks)
        await self._receivers.close()
        await self._client.aclose()


def decode_metadata(text: bytes) -> dict[str, str]:
    """The metadata of an entry; a value that is no JSON object of texts counts for nothing, as in Dapr."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        return {}
    return found
