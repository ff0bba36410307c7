"""Many messages in one request: NDJSON as a stream, Arrow as a whole.

NDJSON is taken piece by piece: complete lines go to the engine as they arrive, and their answers go out as
they become durable, so neither side has to hold a body of any length. A client that sends everything
before it reads anything must not lock both sides up, so answers wait here for it, up to a bound.
A request that is cut short has scheduled exactly the lines that came whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from msgspec import structs

from tarry.core.errors import Invalid, TarryError, Unavailable
from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES
from tarry.core.messages.line_keys import LineKeys
from tarry.core.tenants.access import Access
from tarry.core.tenants.shares import Shares
from tarry.doors.http.bodies import NDJSON, is_ndjson, read_query
from tarry.doors.http.gate import keep_pace
from tarry.doors.http.messages.arrow import (
    ARROW_TYPE,
    ROW_OVERHEAD_BYTES,
    ArrowBatches,
    defaults_message,
    wait_for_space,
)
from tarry.doors.http.messages.messages import read_key
from tarry.doors.http.messages.ndjson import (
    LineSplitter,
    ReadLines,
    as_columns,
    as_messages,
    read_lines,
    write_answers,
    write_columns,
)
from tarry.doors.http.problems import HttpRefusal, timed_out, unsupported
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import BatchDefaults
from tarry.engine.answer import Answer
from tarry.engine.api import Columns
from tarry.engine.engine import Engine
from tarry.http.application import Outcome
from tarry.http.errors import BodyTooSlow, Gone
from tarry.http.request import Request
from tarry.http.response import Response, Sender, Streamed

T = TypeVar("T")


CHUNK_LINES = 1024
"""Handed to the engine at once: few enough that what is due meanwhile is still on time."""
KEYED_AS_COLUMNS = 16
"""Lines with idempotency keys go as columns if there are as many; fewer cost less one by one."""
MAX_IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Maximum bytes of one request's lines that the engine has and that are not durable yet."""
GRACE_S = 30.0
"""How long the answers may take that are left when a batch's time is over."""
_HEADERS = ((b"content-type", NDJSON), (b"cache-control", b"no-store"))
MAX_BATCH_KEY_BYTES = MAX_IDEMPOTENCY_KEY_BYTES - 12
"""The key of a line is the request's with the line's number after it."""


class BatchEndpoints:
    """POST /v1/messages/batch."""

    def __init__(self, engine: Engine, settings: HttpSettings, access: Access) -> None:
        self._engine = engine
        self._settings = settings
        self._arrow = ArrowBatches(engine, settings)
        self._places = Shares(settings.max_batches, "batches under way", access)

    @property
    def under_way(self) -> int:
        """Number of batch requests under way."""
        return self._places.taken

    def schedule(self, request: Request) -> Outcome:
        """Take a batch in either form."""
        defaults = read_query(request.query, BatchDefaults)
        if request.media_type == ARROW_TYPE:
            return self._schedule_arrow(request, defaults)
        if not is_ndjson(request):
            raise unsupported(f"{NDJSON.decode()} or {ARROW_TYPE.decode()}")
        key = _batch_key(request.header(b"idempotency-key"))
        return Streamed(200, _HEADERS, partial(self._schedule_ndjson, request, defaults, key))

    async def _schedule_arrow(self, request: Request, defaults: BatchDefaults) -> Response:
        self._places.take(request.caller)
        try:
            return await self._arrow.schedule(request, defaults)
        finally:
            self._places.give_back(request.caller)

    async def _schedule_ndjson(
        self, request: Request, defaults: BatchDefaults, key: str | None, sender: Sender
    ) -> None:
        self._places.take(request.caller)
        try:
            await self._ndjson(request, defaults, key, sender)
        finally:
            self._places.give_back(request.caller)

    async def _ndjson(
        self, request: Request, defaults: BatchDefaults, key: str | None, sender: Sender
    ) -> None:
        caller, splitter = request.caller, LineSplitter(self._settings.max_body_bytes)
        until_s = asyncio.get_running_loop().time() + self._settings.batch_timeout_ms / 1000
        answers = _Answers(sender, self._settings.max_answer_bytes, until_s)
        writing = asyncio.create_task(answers.write())
        step = caller.standing.at_once(CHUNK_LINES)
        try:
            more = True
            while more:
                await answers.until_few()
                answers.check_time()
                piece = await _next_piece(request)
                more = bool(piece)
                pieces = splitter.feed(piece) if more else [*splitter.feed(piece), *splitter.finish()]
                for start in range(0, len(pieces), step):
                    if start:
                        # What is due meanwhile has its turn.
                        await asyncio.sleep(0)
                    chunk = pieces[start : start + step]
                    await keep_pace(caller, len(chunk))
                    answers.check_time()
                    size = len(piece) * len(chunk) // len(pieces)
                    await wait_for_space(self._engine, 2 * size + CHUNK_LINES * ROW_OVERHEAD_BYTES)
                    read = read_lines(chunk, defaults, caller)
                    self._schedule_lines(read, defaults, key, answers, size)
        except HttpRefusal as late:
            if answers.next_line == 1:
                raise
            answers.add_refusal(late)
        finally:
            answers.end()
            # An answer that nobody will read has no writer; what was accepted stays accepted.
            await writing

    def _schedule_lines(
        self, read: ReadLines, defaults: BatchDefaults, key: str | None, answers: "_Answers", size: int
    ) -> None:
        lines, first_line = read.lines, answers.next_line
        columns = as_columns(read, defaults) if key is None or len(lines) >= KEYED_AS_COLUMNS else None
        refused = {} if read.plain else dict(read.refused())
        if columns is not None and key is not None:
            good = [at for at in range(len(lines)) if at not in refused]
            keys = LineKeys(key, np.array(good, np.int64) + first_line)
            columns = structs.replace(columns, line_keys=keys)
            if self._engine.any_repeated(columns, defaults_message(defaults)):
                columns = None
        if columns is not None:
            self._schedule_columns(columns, defaults, refused, answers, size)
            return
        messages = as_messages(lines, defaults, key, first_line)
        answers.add(
            self._engine.schedule_many(messages),
            lambda results: write_answers(results, first_line),
            len(lines),
            size,
        )

    def _schedule_columns(
        self,
        columns: Columns,
        defaults: BatchDefaults,
        refused: dict[int, TarryError],
        answers: "_Answers",
        size: int,
    ) -> None:
        first_line, now_ms = answers.next_line, self._engine.clock.now_ms()
        answers.add(
            self._engine.schedule_columns(columns, defaults_message(defaults)),
            lambda scheduled: write_columns(scheduled, now_ms, first_line, refused),
            columns.contents.count + len(refused),
            size,
        )


class _Answers:
    """The answers of one request, sent in order as they become durable."""

    def __init__(self, sender: Sender, max_bytes: int, until_s: float) -> None:
        """`until_s`: when the whole request has to be over, however its client keeps it going; on the loop's clock."""
        self._sender = sender
        self._max_bytes = max_bytes
        self._until_s = until_s
        self._clock = asyncio.get_running_loop().time
        self._slots: deque[_Slot] = deque()
        self._held_bytes = 0
        self._in_flight_bytes = 0
        self._changed = asyncio.Event()
        self._ended = False
        self._gone = False
        self.next_line = 1

    def add(self, answer: Answer[T], write: Callable[[T], bytes], count: int, size: int) -> None:
        """Promise the answers to `count` lines that came in `size` bytes."""
        slot = _Slot(self.next_line, count, size)
        self.next_line += count
        self._slots.append(slot)
        self._in_flight_bytes += size
        answer.then(lambda settled: self._settle(slot, settled, write))

    def add_refusal(self, error: TarryError) -> None:
        """Say why the rest was not taken, in place of the next line."""
        slot = _Slot(self.next_line, 1, 0)
        self._slots.append(slot)
        self._fill(slot, write_answers([error], slot.first_line))

    def _settle(self, slot: "_Slot", answer: Answer[T], write: Callable[[T], bytes]) -> None:
        self._in_flight_bytes -= slot.size
        error = answer.error()
        if error is None:
            self._fill(slot, write(answer.value()))
            return
        said = (
            error
            if isinstance(error, TarryError)
            else Unavailable("the server is stopping; try again in a moment")
        )
        self._fill(slot, write_answers([said] * slot.count, slot.first_line))

    def _fill(self, slot: "_Slot", lines: bytes) -> None:
        slot.lines = lines
        self._held_bytes += len(lines)
        self._changed.set()

    def check_time(self) -> None:
        """Raise a 408 once the request's time is over."""
        if self._clock() > self._until_s:
            raise timed_out("the batch took too long as a whole; send the rest as another one")

    async def until_few(self) -> None:
        """Wait until more may be read."""
        while self._in_flight_bytes > MAX_IN_FLIGHT_BYTES or self._held_bytes > self._max_bytes:
            if self._gone:
                raise Gone
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Nothing more will be added."""
        self._ended = True
        self._changed.set()

    async def write(self) -> None:
        """Send the finished answers in order, until the end."""
        try:
            while self._slots or not self._ended:
                if not self._slots or self._slots[0].lines is None:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                if self._clock() > self._until_s + GRACE_S:
                    raise Gone
                lines = self._slots.popleft().lines
                assert lines is not None
                await self._sender.write(lines)
                self._held_bytes -= len(lines)
                self._changed.set()
        finally:
            self._gone = True
            self._changed.set()


class _Slot:
    """The place of some lines' answers among the others."""

    __slots__ = ("count", "first_line", "lines", "size")

    def __init__(self, first_line: int, count: int, size: int) -> None:
        self.first_line = first_line
        self.count = count
        self.size = size
        self.lines: bytes | None = None


async def _next_piece(request: Request) -> bytes:
    try:
        return await request.stream.read()
    except BodyTooSlow:
        raise timed_out() from None


def _batch_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    if len(value) > MAX_BATCH_KEY_BYTES:
        raise Invalid("Idempotency-Key", f"of a batch has at most {MAX_BATCH_KEY_BYTES} characters")
    return read_key(value)
