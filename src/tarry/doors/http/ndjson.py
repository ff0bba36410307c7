"""NDJSON without I/O: bytes into lines, lines into messages or columns, results into lines.

Line n of the answer belongs to line n of the request, whatever became of it. A line that is empty, too
long or no JSON is refused like any other that is wrong; none is skipped.

Lines that need nothing but their fields go to the engine as columns, which cost it a fraction of what as
many messages do. Those that look at others (a group, an idempotency key) go one by one.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import UNSET, MsgspecError

from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.message import Message, Scheduled
from tarry.core.names import parse_namespace
from tarry.doors.http.access import Caller
from tarry.doors.http.bodies import explain, message_of, payload_of, times_of
from tarry.doors.http.problems import problem_of
from tarry.doors.http.shapes import BatchDefaults, BatchLine, BatchRefusal
from tarry.engine.planner import ColumnsScheduled

Piece = bytes | TarryError
"""A line as it came, or why it cannot be one."""
Line = BatchLine | TarryError
"""A line as it was read, or why it cannot be one."""

_decode = msgspec.json.Decoder(BatchLine).decode
_encoder = msgspec.json.Encoder()
_HEADERS: Final = pa.map_(pa.string(), pa.string())


class LineSplitter:
    """Cuts pieces of any size into lines. Holds at most one unfinished line of bounded length."""

    def __init__(self, max_line_bytes: int) -> None:
        self._limit = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Piece]:
        """The lines that this piece completes."""
        first, *rest = piece.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        lines: list[Piece] = [self._take()]
        self._keep(rest.pop())
        lines.extend(rest)
        return lines

    def finish(self) -> list[Piece]:
        """The last line, if there was something after the last newline."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            # Too long already: its length is remembered, its bytes are not.
            self._parts.clear()
        else:
            self._parts.append(part)

    def _take(self) -> Piece:
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        return TooLarge("line", self._limit) if size > self._limit else b"".join(parts)


def read_lines(pieces: Sequence[Piece], defaults: BatchDefaults, caller: Caller) -> list[Line]:
    """Each line with its payload and times in the plainest form, or the reason why it is none."""
    lines: list[Line] = []
    limited = caller.namespaces is not None
    for piece in pieces:
        try:
            if isinstance(piece, TarryError):
                raise piece
            line = _decode(piece)
            if line.payload_base64 is not None or line.payload_json is not UNSET:
                line.payload_base64, line.headers = payload_of(line)
                line.payload, line.payload_json = None, UNSET
            if (
                line.due_at is not None
                or line.delay is not None
                or None not in (line.due_at_ms, line.delay_ms)
            ):
                line.due_at_ms, line.delay_ms = times_of(line)
                line.due_at = line.delay = None
            if line.namespace is not None:
                parse_namespace(line.namespace)
            if limited:
                _check_reach(line, defaults, caller)
            lines.append(line)
        except TarryError as error:
            lines.append(error)
        except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
            assert isinstance(piece, bytes)
            lines.append(explain(error, piece) if piece.strip() else Invalid("line", "is empty"))
    return lines


def _check_reach(line: BatchLine, defaults: BatchDefaults, caller: Caller) -> None:
    destination = defaults.destination if line.destination is None else line.destination
    if destination is None:
        raise Invalid("destination", "is missing")
    caller.require_destination(destination, defaults.namespace if line.namespace is None else line.namespace)


def as_columns(lines: Sequence[Line]) -> pa.RecordBatch | None:
    """The lines that are good as columns, in order; None if one of them has to go by itself."""
    good = [line for line in lines if not isinstance(line, TarryError)]
    if _some([line.group for line in good]) or _some([line.namespace for line in good]):
        return None
    columns: dict[str, Any] = {
        "destination": pa.array([line.destination for line in good], pa.string()),
        "due_at_ms": pa.array([line.due_at_ms for line in good], pa.int64()),
        "delay_ms": pa.array([line.delay_ms for line in good], pa.int64()),
        "payload": _payloads(good),
    }
    if _some(keys := [line.key for line in good]):
        columns["key"] = pa.array(keys, pa.string())
    if _some(owners := [line.owner for line in good]):
        columns["owner"] = pa.array(owners, pa.string())
    if _some(ttls := [line.ttl_ms for line in good]):
        columns["ttl_ms"] = pa.array(ttls, pa.int64())
    if _some(headers := [line.headers for line in good]):
        columns["headers"] = pa.array([list(one.items()) if one else None for one in headers], _HEADERS)
    return pa.record_batch(columns)


def _some(values: list[Any]) -> bool:
    """Whether any of them is given."""
    return values.count(None) < len(values)


def _payloads(lines: Sequence[BatchLine]) -> Any:
    texts = [line.payload for line in lines]
    encoded = [line.payload_base64 for line in lines]
    if not _some(encoded):
        return pa.array(texts, pa.string())
    pairs = zip(texts, encoded, strict=True)
    return pa.array([payload if text is None else text.encode() for text, payload in pairs], pa.binary())


def as_messages(
    lines: Sequence[Line], defaults: BatchDefaults, key: str | None, first_line: int
) -> list[Message | TarryError]:
    """The lines as messages of their own.

    With an idempotency key each one has its own, made of the request's and the line's number.
    """
    return [
        line
        if isinstance(line, TarryError)
        else message_of(line, defaults, None if key is None else f"{key}:{number}")
        for number, line in enumerate(lines, first_line)
    ]


def write_answers(results: Sequence[Scheduled | TarryError], first_line: int) -> bytes:
    """One line for each result, in order."""
    return _encoder.encode_lines(
        [
            BatchRefusal(error=problem_of(result), line=number) if isinstance(result, TarryError) else result
            for number, result in enumerate(results, first_line)
        ]
    )


def write_columns(lines: Sequence[Line], scheduled: ColumnsScheduled, now_ms: int, first_line: int) -> bytes:
    """The same for lines that went as columns; `now_ms` is when they went."""
    answers = [
        b'{"id":"%b","due_at_ms":%d,"past_due":%b,"repeated":false}\n'
        % (id_, due_at_ms, b"true" if due_at_ms < now_ms else b"false")
        for id_, due_at_ms in zip(scheduled.ids.tolist(), scheduled.due_at_ms.tolist(), strict=True)
    ]
    if not scheduled.errors and len(answers) == len(lines):
        return b"".join(answers)
    out: list[bytes] = []
    row = 0
    for number, line in enumerate(lines, first_line):
        if isinstance(line, TarryError):
            out.append(write_answers([line], number))
            continue
        error = scheduled.errors.get(row)
        out.append(answers[row] if error is None else write_answers([error], number))
        row += 1
    return b"".join(out)
