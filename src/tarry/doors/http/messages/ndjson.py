"""NDJSON without I/O: bytes into lines, lines into messages or columns, results into lines.

Line n of the answer belongs to line n of the request, whatever became of it. A line that is empty, too
long or no JSON is refused like any other that is wrong; none is skipped.

Lines go to the engine in one of two ways. Those that need nothing but their fields go as columns, which cost it a fraction of what
as many messages do. Those that look at others (a group, a name) go one by one, and so do lines with idempotency keys if they are
few, or if one of the keys was seen before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET
from numpy.typing import NDArray

from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.messages.ids import ID_CHARS
from tarry.core.messages.line_keys import line_key
from tarry.core.messages.message import Message, Scheduled
from tarry.core.names import parse_namespace
from tarry.core.tenants.access import Caller
from tarry.core.unreadable import UNREADABLE
from tarry.doors.http.bodies import check_conflict, explain, message_of, payload_of, times_of
from tarry.doors.http.problems import problem_of
from tarry.doors.http.shapes import BatchDefaults, BatchLine, BatchRefusal
from tarry.engine.api import Columns, ColumnsScheduled
from tarry.ledger.columns import Coded, Contents, Numbers, bytes_column, coded, no_numbers, one_value

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


class ReadLines(NamedTuple):
    """The lines of a chunk as they were read, in order."""

    lines: list[Line]
    plain: bool
    """Whether every line is good and has nothing but fields that go to the engine as they are: most chunks are such."""

    def refused(self) -> Iterator[tuple[int, TarryError]]:
        """The refused lines, by their places."""
        return ((at, line) for at, line in enumerate(self.lines) if isinstance(line, TarryError))


def read_lines(pieces: Sequence[Piece], defaults: BatchDefaults, caller: Caller) -> ReadLines:
    """Each line with its payload and times in the plainest form, or the reason why it is no message."""
    try:
        read = list(map(_decode, pieces))  # type: ignore[arg-type]
        # Looked at together, because this is done for every line: a call for each would cost more than reading it.
        odd: Sequence[int] = [
            at
            for at, line in enumerate(read)
            if line.payload_base64 is not None
            or line.payload_json is not UNSET
            or line.due_at is not None
            or line.delay is not None
            or line.group is not None
            or line.namespace is not None
            or line.name is not None
            or line.on_conflict is not None
        ]
        lines: list[Line] = read  # type: ignore[assignment]
    except (TypeError, *UNREADABLE):
        # Which line it was, and what is wrong with it, each line says by itself.
        lines = list(map(_decoded, pieces))
        odd = range(len(lines))
    for at in odd:
        lines[at] = _checked(lines[at], _plainest)
    if caller.namespaces is not None:
        lines = [_checked(line, lambda one: _check_reach(one, defaults, caller)) for line in lines]
    return ReadLines(lines, not odd and caller.namespaces is None)


def _decoded(piece: Piece) -> Line:
    if isinstance(piece, TarryError):
        return piece
    try:
        return _decode(piece)
    except UNREADABLE as error:
        return (
            explain(error, piece)
            if piece.strip()
            else Invalid("line", "is empty; each line is a JSON object")
        )


def _checked(line: Line, check: Callable[[BatchLine], None]) -> Line:
    """A line once it was looked at, or why it is no message."""
    if isinstance(line, TarryError):
        return line
    try:
        check(line)
    except TarryError as error:
        return error
    return line


def _plainest(line: BatchLine) -> None:
    """Bring payload and times into the plainest form; raise `Invalid` for a line that contradicts itself."""
    if line.payload_base64 is not None or line.payload_json is not UNSET:
        line.payload_base64, line.headers = payload_of(line)
        line.payload, line.payload_json = None, UNSET
    if line.due_at is not None or line.delay is not None:
        line.due_at_ms, line.delay_ms = times_of(line)
        line.due_at = line.delay = None
    if line.namespace is not None:
        parse_namespace(line.namespace)
    check_conflict(line)


def _check_reach(line: BatchLine, defaults: BatchDefaults, caller: Caller) -> None:
    destination = defaults.destination if line.destination is None else line.destination
    if destination is None:
        raise Invalid("destination", "is missing")
    caller.require_destination(destination, defaults.namespace if line.namespace is None else line.namespace)


def as_columns(read: ReadLines, defaults: BatchDefaults) -> Columns | None:
    """The good lines as columns, in order; None if a line has to go by itself."""
    if read.plain:
        return _columns(read.lines, defaults)  # type: ignore[arg-type]
    good = [line for line in read.lines if not isinstance(line, TarryError)]
    if any(line.group is not None or line.namespace is not None or line.name is not None for line in good):
        return None
    encoded = [line.payload_base64 for line in good]
    if encoded.count(None) == len(good):
        return _columns(good, defaults)
    pairs = zip(good, encoded, strict=True)
    payloads = [(line.payload or "").encode() if payload is None else payload for line, payload in pairs]
    return _columns(good, defaults, bytes_column(payloads))


def _columns(lines: Sequence[BatchLine], defaults: BatchDefaults, payloads: Any = None) -> Columns:
    return Columns(
        _few([line.destination for line in lines], defaults.destination),
        _numbers([line.due_at_ms for line in lines]),
        _numbers([line.delay_ms for line in lines]),
        Contents(
            len(lines),
            _few([line.owner for line in lines], defaults.owner or ""),
            _texts([line.payload or "" for line in lines]) if payloads is None else payloads,
            _keys([line.key for line in lines]),
            _ttls([line.ttl_ms for line in lines], defaults.ttl_ms),
            _headers([line.headers for line in lines]),
        ),
    )


def _few(values: list[str | None], default: str | None) -> Coded[str]:
    """Values of which most are the same; None is the default, or none if there is no such."""
    count = len(values)
    if not count or values.count(values[0]) == count:
        value = values[0] if count and values[0] is not None else default
        return Coded([], np.full(count, -1, np.int32)) if value is None else one_value(value, count)
    found = coded([default if value is None else value for value in values])
    if None not in found.values:
        return Coded([value for value in found.values if value is not None], found.codes)
    # Codes above the one that is left out move down by one.
    gap = found.values.index(None)
    codes = np.where(found.codes == gap, -1, found.codes - (found.codes > gap)).astype(np.int32)
    return Coded([value for value in found.values if value is not None], codes)


def _numbers(values: list[int | None]) -> Numbers:
    if None not in values:
        return Numbers(np.array(values, np.int64), np.ones(len(values), np.bool_))
    if values.count(None) == len(values):
        return no_numbers(len(values))
    given = np.array([value is not None for value in values], np.bool_)
    return Numbers(np.array([value or 0 for value in values], np.int64), given)


def _ttls(values: list[int | None], default: int | None) -> Numbers | None:
    if default is not None:
        values = [default if value is None else value for value in values]
    return None if values.count(None) == len(values) else _numbers(values)


def _texts(texts: list[str]) -> Any:
    joined = "".join(texts)
    if not joined.isascii():
        return bytes_column([text.encode() for text in texts])
    # One byte a character: encoded together, and cut by their lengths.
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, texts), np.int32, len(texts)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined.encode())]
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), buffers)


def _keys(keys: list[str | None]) -> Any:
    return None if keys.count(None) == len(keys) else pa.array(keys, pa.string())


def _headers(headers: list[dict[str, str] | None]) -> Any:
    if headers.count(None) == len(headers):
        return None
    return pa.array([list(one.items()) if one else None for one in headers], _HEADERS)


def as_messages(
    lines: Sequence[Line], defaults: BatchDefaults, key: str | None, first_line: int
) -> list[Message | TarryError]:
    """The lines as messages of their own.

    With an idempotency key each one has its own, made of the request's and the line's number.
    """
    return [
        line
        if isinstance(line, TarryError)
        else message_of(line, defaults, None if key is None else line_key(key, number))
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


def write_columns(
    scheduled: ColumnsScheduled, now_ms: int, first_line: int, refused: Mapping[int, TarryError]
) -> bytes:
    """Write the answers of lines that went as columns at `now_ms`; `refused` has the refused ones, by their place."""
    if not scheduled.errors and not refused:
        return _write_ids(scheduled.ids, scheduled.due_at_ms, now_ms)
    answers = iter(_write_ids(scheduled.ids, scheduled.due_at_ms, now_ms).splitlines(keepends=True))
    rows = iter(range(len(scheduled.ids)))
    out: list[bytes] = []
    for number in range(len(scheduled.ids) + len(refused)):
        if number in refused:
            out.append(write_answers([refused[number]], first_line + number))
            continue
        answer, error = next(answers), scheduled.errors.get(next(rows))
        out.append(answer if error is None else write_answers([error], first_line + number))
    return b"".join(out)


_ANSWER: Final = b'{"id":"%b","due_at_ms":%d,"past_due":%b,"repeated":false}\n'
_DUE_DIGITS: Final = 13
"""Digits of a due instant in milliseconds, from 2001 to 2286."""
_PLAIN_ANSWER: Final = np.frombuffer(_ANSWER % (bytes(ID_CHARS), 10 ** (_DUE_DIGITS - 1), b"false"), np.uint8)
_ID_AT: Final = _ANSWER.index(b"%b")
_DUE_AT: Final = _ANSWER.index(b"%d") + ID_CHARS - 2


def _write_ids(ids: NDArray[np.bytes_], due_at_ms: NDArray[np.int64], now_ms: int) -> bytes:
    lowest = 10 ** (_DUE_DIGITS - 1)
    if len(ids) and (due_at_ms >= max(now_ms, lowest)).all() and (due_at_ms < 10 * lowest).all():
        # All lines have one width: they are a matrix, and are written column by column.
        lines = np.empty((len(ids), len(_PLAIN_ANSWER)), np.uint8)
        lines[:] = _PLAIN_ANSWER
        lines[:, _ID_AT : _ID_AT + ID_CHARS] = ids.view(np.uint8).reshape(len(ids), ID_CHARS)
        left = due_at_ms
        for at in reversed(range(_DUE_AT, _DUE_AT + _DUE_DIGITS)):
            left, digit = np.divmod(left, 10)
            lines[:, at] = digit + ord("0")
        return lines.tobytes()
    return b"".join(
        [
            _ANSWER % (id_, due, b"true" if due < now_ms else b"false")
            for id_, due in zip(ids.tolist(), due_at_ms.tolist(), strict=True)
        ]
    )
