"""Many messages cancelled in one request: a line for each, and a line of the answer as soon as its message has ended.

Each is cancelled by itself, as by a request of its own. Most are answered by one write of the ledger; one that is being sent waits
for its verdict, and keeps no other waiting: answers say which line they are for.
"""

import asyncio
from functools import partial
from typing import Final

import msgspec

from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.names import DEFAULT_NAMESPACE, check_message_name, parse_namespace
from tarry.core.tenants.access import Access, Caller
from tarry.core.tenants.shares import Shares
from tarry.core.unreadable import UNREADABLE
from tarry.doors.http.bodies import NDJSON, explain, is_ndjson
from tarry.doors.http.gate import keep_pace
from tarry.doors.http.messages.messages import show
from tarry.doors.http.problems import problem_of, unsupported
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import BatchRefusal, CancelledLine, CancelLine
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Sender, Streamed

MAX_LINES: Final = 1024
STEP: Final = 64
"""Cancels that are begun in one turn of the loop."""
_HEADERS: Final = ((b"content-type", NDJSON), (b"cache-control", b"no-store"))

_decode = msgspec.json.Decoder(CancelLine).decode
_encode = msgspec.json.Encoder().encode


class CancelEndpoint:
    """POST /v1/messages/batch/cancel."""

    def __init__(self, engine: Engine, settings: HttpSettings, access: Access) -> None:
        self._engine = engine
        self._places = Shares(settings.max_batches, "batches of cancels under way", access)

    def cancel(self, request: Request) -> Streamed:
        """Cancel the messages that the lines name."""
        if not is_ndjson(request):
            raise unsupported(NDJSON.decode())
        lines = [line for line in request.body.split(b"\n") if line]
        if len(lines) > MAX_LINES:
            raise TooLarge("body", MAX_LINES, "lines")
        return Streamed(200, _HEADERS, partial(self._cancel_all, request.caller, lines))

    async def _cancel_all(self, caller: Caller, lines: list[bytes], sender: Sender) -> None:
        waiting: set[asyncio.Task[bytes]] = set()
        self._places.take(caller)
        try:
            if len(lines) > 1:
                await keep_pace(caller, len(lines) - 1)
            for number, line in enumerate(lines, 1):
                waiting.add(asyncio.create_task(self._answered(caller, number, line)))
                if number % STEP == 0:
                    # What is due meanwhile has its turn.
                    await asyncio.sleep(0)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await sender.write(b"".join([task.result() for task in done]))
        finally:
            # What was begun is done, whether or not somebody reads it.
            for task in waiting:
                task.cancel()
            self._places.give_back(caller)

    async def _answered(self, caller: Caller, number: int, line: bytes) -> bytes:
        try:
            view = await self._engine.cancel(await self._reach(caller, line))
            return _encode(CancelledLine(line=number, message=show(view))) + b"\n"
        except TarryError as error:
            return _encode(BatchRefusal(error=problem_of(error), line=number)) + b"\n"

    async def _reach(self, caller: Caller, line: bytes) -> str:
        """The id of the message that a line names, once it is clear that the caller may touch it."""
        try:
            asked = _decode(line)
        except UNREADABLE as error:
            raise explain(error, line) from None
        if asked.id is None and asked.name is not None:
            # A name is no credential: the namespace must be the caller's.
            namespace = parse_namespace(asked.namespace or DEFAULT_NAMESPACE)
            caller.require_namespace(namespace)
            check_message_name(asked.name)
            return self._engine.id_of_name(namespace, asked.name)
        if asked.id is None or asked.name is not None or asked.namespace is not None:
            raise Invalid("id", "give the id of a message, or its name with its namespace")
        if caller.namespaces is not None:
            caller.require_sight((await self._engine.get(asked.id)).namespace)
        return asked.id
