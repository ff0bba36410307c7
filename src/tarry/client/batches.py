"""Many messages in few requests: cuts a stream of them into bodies, and reads the answers line by line.

Pure. Every message gets exactly one answer, in order: scheduled, or the error that refused it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Unpack

import msgspec

from tarry.client.call import (
    ARROW,
    NDJSON,
    ClientCall,
    ServerAnswer,
    Unreachable,
    as_json,
    check,
    problem_error,
    query,
)
from tarry.client.shapes import LineDefaults, Message, Scheduled
from tarry.core.errors import TarryError

CHUNK_MESSAGES: Final = 10_000
CHUNK_BYTES: Final = 8 << 20

LineInput = Message | Mapping[str, Any] | bytes
"""A message, the JSON object that the API wants, or that object as bytes without a line break."""

LineOutcome = Scheduled | TarryError


class _Answer(msgspec.Struct):
    """One line of the answer: either the error is there, or the rest."""

    id: str = ""
    due_at_ms: int | None = None
    past_due: bool = False
    repeated: bool = False
    name: str | None = None
    kept: bool = False
    replaced: bool = False
    error: dict[str, Any] | None = None


_answer = msgspec.json.Decoder(_Answer)


def cut(messages: Iterable[LineInput], chunk: int = CHUNK_MESSAGES) -> Iterator[tuple[int, bytes]]:
    """NDJSON bodies, each with the number of its lines; bounded in lines and bytes."""
    lines: list[bytes] = []
    size = 0
    for message in messages:
        line = as_json(message.body() if isinstance(message, Message) else message)
        if isinstance(message, bytes):
            line = message.replace(b"\n", b" ")
        if lines and (len(lines) >= chunk or size + len(line) > CHUNK_BYTES):
            yield len(lines), b"\n".join(lines) + b"\n"
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield len(lines), b"\n".join(lines) + b"\n"


def schedule_lines(
    count: int, body: bytes, **defaults: Unpack[LineDefaults]
) -> ClientCall[list[LineOutcome]]:
    """Schedule one NDJSON body of `count` lines; gives as many outcomes."""

    def read(answered: ServerAnswer) -> list[LineOutcome]:
        check(answered)
        outcomes = [read_outcome(line) for line in answered.body.splitlines() if line]
        if len(outcomes) != count:
            # What was cut off may or may not have been taken: that must not look like an end.
            raise Unreachable(
                f"the answer broke off after {len(outcomes)} of {count} messages; the others may or may not be scheduled"
            )
        return outcomes

    return ClientCall("POST", query("/v1/messages/batch", **defaults), read, body, NDJSON)


def read_outcome(line: bytes) -> LineOutcome:
    """The outcome of one message: the answer, or the error that refused it."""
    try:
        answer = _answer.decode(line)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the server's answer is not what this client expects: {error}") from None
    if answer.error is not None:
        return problem_error(answer.error)
    return Scheduled(
        id=answer.id, due_at_ms=answer.due_at_ms, past_due=answer.past_due, repeated=answer.repeated, name=answer.name,
        kept=answer.kept, replaced=answer.replaced,
    )  # fmt: skip


def schedule_stream(table: Any, **defaults: Unpack[LineDefaults]) -> ClientCall[Any]:
    """Schedule the rows of an Arrow table or record batch; gives a table of id, due_at_ms and error."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    def read(answered: ServerAnswer) -> Any:
        check(answered)
        with pa.ipc.open_stream(answered.body) as reader:
            return reader.read_all()

    path = query("/v1/messages/batch", **defaults)
    return ClientCall("POST", path, read, sink.getvalue().to_pybytes(), ARROW)
