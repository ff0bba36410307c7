"""NDJSON without I/O: bytes into lines, lines into messages, results into lines.

Line n of the answer belongs to line n of the request, whatever became of it. A line that is empty, too
long or no JSON is refused like any other that is wrong; none is skipped.
"""

import msgspec
from msgspec import MsgspecError

from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.message import Message, Scheduled
from tarry.doors.http.access import Caller
from tarry.doors.http.bodies import explain, message_of
from tarry.doors.http.problems import problem_of
from tarry.doors.http.shapes import BatchDefaults, BatchLine, BatchRefusal

Line = bytes | TarryError
"""A line, or why it cannot be one."""

_decode = msgspec.json.Decoder(BatchLine).decode
_encoder = msgspec.json.Encoder()


class LineSplitter:
    """Cuts pieces of any size into lines. Holds at most one unfinished line of bounded length."""

    def __init__(self, max_line_bytes: int) -> None:
        self._limit = max_line_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Line]:
        """The lines that this piece completes."""
        first, *rest = piece.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        lines: list[Line] = [self._take()]
        self._keep(rest.pop())
        lines.extend(rest)
        return lines

    def finish(self) -> list[Line]:
        """The last line, if there was something after the last newline."""
        return [self._take()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            # Too long already: its length is remembered, its bytes are not.
            self._parts.clear()
        else:
            self._parts.append(part)

    def _take(self) -> Line:
        parts, size = self._parts, self._size
        self._parts, self._size = [], 0
        return TooLarge("line", self._limit) if size > self._limit else b"".join(parts)


def read_messages(
    lines: list[Line], defaults: BatchDefaults, caller: Caller, key: str | None, first_line: int
) -> list[Message | TarryError]:
    """Each line as a message, or as the reason why it is none.

    With an idempotency key each line has its own, made of the request's and the line's number.
    """
    found: list[Message | TarryError] = []
    limited = caller.namespaces is not None
    line_key = None
    for number, line in enumerate(lines, first_line):
        try:
            if isinstance(line, TarryError):
                raise line
            if key is not None:
                line_key = f"{key}:{number}"
            message = message_of(_decode(line), defaults, line_key)
            if limited:
                caller.require_destination(message.destination, message.namespace)
            found.append(message)
        except TarryError as error:
            found.append(error)
        except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
            assert isinstance(line, bytes)
            found.append(explain(error, line) if line.strip() else Invalid("line", "is empty"))
    return found


def write_answers(results: list[Scheduled | TarryError], first_line: int) -> bytes:
    """One line for each result, in order."""
    return _encoder.encode_lines(
        [
            BatchRefusal(error=problem_of(result), line=number) if isinstance(result, TarryError) else result
            for number, result in enumerate(results, first_line)
        ]
    )
