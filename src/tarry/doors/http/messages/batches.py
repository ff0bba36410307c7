"""Many messages in one request: NDJSON as a stream, Arrow as a whole.

NDJSON is taken piece by piece: complete lines go to the engine as they arrive, and their answers go out as
they become durable, so neither side has to hold a body of any length. A client that sends everything
before it reads anything must not lock both sides up, so answers wait here for it, up to a bound.
A request that is cut short has scheduled exactly the lines that came whole.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from tarry.core.access import Access, Caller
from tarry.core.errors import Invalid, TarryError, Unavailable
from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES
from tarry.core.rights import HTTP, right_of
from tarry.doors.http.asgi import Disconnected, Receive, Scope, Send, refuse
from tarry.doors.http.bodies import read_query
from tarry.doors.http.deadlines import Deadlines
from tarry.doors.http.gate import Gate, keep_pace
from tarry.doors.http.messages.arrow import (
    ARROW_TYPE,
    ROW_OVERHEAD_BYTES,
    ArrowBatches,
    defaults_message,
    wait_for_room,
)
from tarry.doors.http.messages.messages import read_key
from tarry.doors.http.messages.ndjson import (
    Line,
    LineSplitter,
    as_columns,
    as_messages,
    read_lines,
    read_plain,
    write_answers,
    write_columns,
)
from tarry.doors.http.problems import HttpRefusal, timed_out, unsupported
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import BatchDefaults
from tarry.doors.http.shares import Shares
from tarry.engine.answer import Answer
from tarry.engine.api import Columns
from tarry.engine.engine import Engine

T = TypeVar("T")

NDJSON_TYPE = b"application/x-ndjson"
_ALIASES = frozenset({NDJSON_TYPE, b"application/ndjson", b"application/jsonl", b"application/x-jsonlines"})

CHUNK_LINES = 1024
"""Handed to the engine at once: few enough that what is due meanwhile is still on time."""
MAX_IN_FLIGHT_BYTES = 4 * 1024 * 1024
"""Maximum bytes of one request's lines that the engine has and that are not durable yet."""
GRACE_S = 30.0
"""How long the answers may take that are left when a batch's time is over."""
_SCHEDULE = right_of(HTTP, "POST /v1/messages/batch")
MAX_BATCH_KEY_BYTES = MAX_IDEMPOTENCY_KEY_BYTES - 12
"""The key of a line is the request's with the line's number after it."""


class Batches:
    """POST /v1/messages/batch."""

    def __init__(
        self, engine: Engine, gate: Gate, settings: HttpSettings, deadlines: Deadlines, access: Access
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._settings = settings
        self._deadlines = deadlines
        self._arrow = ArrowBatches(engine, settings, deadlines)
        self._places = Shares(settings.max_batches, "batches under way", access)

    @property
    def under_way(self) -> int:
        """Number of batch requests under way."""
        return self._places.taken

    async def schedule(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take a batch in either form."""
        try:
            caller, content_type, key = self._gate.let_in(scope)
            _SCHEDULE.check(caller)
            defaults = read_query(scope, BatchDefaults)
            kind = (content_type or b"").partition(b";")[0].strip().lower()
            if kind not in _ALIASES and kind != ARROW_TYPE:
                raise unsupported(f"{NDJSON_TYPE.decode()} or {ARROW_TYPE.decode()}")
            self._places.take(caller)
            try:
                if kind == ARROW_TYPE:
                    await self._arrow.schedule(scope, receive, send, caller, defaults)
                else:
                    await self._ndjson(receive, send, caller, defaults, _batch_key(key))
            finally:
                self._places.give_back(caller)
        except TarryError as error:
            await refuse(send, error)
        except Disconnected:
            return

    async def _ndjson(
        self, receive: Receive, send: Send, caller: Caller, defaults: BatchDefaults, key: str | None
    ) -> None:
        splitter = LineSplitter(self._settings.max_body_bytes)
        until_s = asyncio.get_running_loop().time() + self._settings.batch_timeout_ms / 1000
        answers = _Answers(send, self._settings.max_answer_bytes, self._deadlines, until_s)
        writing = asyncio.create_task(answers.write())
        step = caller.standing.at_once(CHUNK_LINES)
        try:
            more = True
            while more:
                await answers.room()
                answers.check_time()
                with self._deadlines.within():
                    event = await receive()
                if event["type"] == "http.disconnect":
                    raise Disconnected
                piece = event.get("body", b"")
                more = event.get("more_body", False)
                pieces = splitter.feed(piece) if more else [*splitter.feed(piece), *splitter.finish()]
                for start in range(0, len(pieces), step):
                    if start:
                        # What is due meanwhile has its turn.
                        await asyncio.sleep(0)
                    chunk = pieces[start : start + step]
                    await keep_pace(caller, len(chunk))
                    answers.check_time()
                    size = len(piece) * len(chunk) // len(pieces)
                    await wait_for_room(self._engine, 2 * size + CHUNK_LINES * ROW_OVERHEAD_BYTES)
                    columns = None if key is not None else read_plain(chunk, defaults, caller)
                    if columns is None:
                        self._schedule_lines(
                            read_lines(chunk, defaults, caller), defaults, key, answers, size
                        )
                    else:
                        self._schedule_columns(columns, defaults, {}, answers, size)
        except HttpRefusal as late:
            if not answers.begun:
                raise
            answers.add_refusal(late)
        finally:
            answers.end()
            # An answer that nobody will read has no writer; what was accepted stays accepted.
            await writing
        if not answers.begun:
            await answers.begin()
        await send({"type": "http.response.body", "body": b""})

    def _schedule_lines(
        self, lines: list[Line], defaults: BatchDefaults, key: str | None, answers: "_Answers", size: int
    ) -> None:
        columns = as_columns(lines, defaults) if key is None else None
        if columns is not None:
            refused = {at: line for at, line in enumerate(lines) if isinstance(line, TarryError)}
            self._schedule_columns(columns, defaults, refused, answers, size)
            return
        first_line = answers.next_line
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

    def __init__(self, send: Send, max_bytes: int, deadlines: Deadlines, until_s: float) -> None:
        """`until_s`: when the whole request has to be over, however its client keeps it going; on the loop's clock."""
        self._send = send
        self._max_bytes = max_bytes
        self._deadlines = deadlines
        self._until_s = until_s
        self._clock = asyncio.get_running_loop().time
        self._slots: deque[_Slot] = deque()
        self._held_bytes = 0
        self._in_flight_bytes = 0
        self._changed = asyncio.Event()
        self._ended = False
        self._gone = False
        self.next_line = 1
        self.begun = False

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
        said = error if isinstance(error, TarryError) else Unavailable("the server is stopping")
        self._fill(slot, write_answers([said] * slot.count, slot.first_line))

    def _fill(self, slot: "_Slot", lines: bytes) -> None:
        slot.lines = lines
        self._held_bytes += len(lines)
        self._changed.set()

    def check_time(self) -> None:
        """Raise a 408 once the request's time is over."""
        if self._clock() > self._until_s:
            raise timed_out("the batch took too long as a whole; send the rest as another one")

    async def room(self) -> None:
        """Wait until more may be read."""
        while self._in_flight_bytes > MAX_IN_FLIGHT_BYTES or self._held_bytes > self._max_bytes:
            if self._gone:
                raise Disconnected
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Nothing more will be added."""
        self._ended = True
        self._changed.set()

    async def begin(self) -> None:
        """Send the head of the answer."""
        self.begun = True
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", NDJSON_TYPE), (b"cache-control", b"no-store")],
            }
        )

    async def write(self) -> None:
        """Send what is there, in order, until the end."""
        try:
            while self._slots or not self._ended:
                if not self._slots or self._slots[0].lines is None:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                if self._clock() > self._until_s + GRACE_S:
                    raise Disconnected
                lines = self._slots.popleft().lines
                assert lines is not None
                with self._deadlines.within():
                    if not self.begun:
                        await self.begin()
                    await self._send({"type": "http.response.body", "body": lines, "more_body": True})
                self._held_bytes -= len(lines)
                self._changed.set()
        except HttpRefusal:
            # A client that takes no answers is as good as gone.
            raise Disconnected from None
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


def _batch_key(value: bytes | None) -> str | None:
    if value is None:
        return None
    if len(value) > MAX_BATCH_KEY_BYTES:
        raise Invalid("Idempotency-Key", f"of a batch has at most {MAX_BATCH_KEY_BYTES} characters")
    return read_key(value)
