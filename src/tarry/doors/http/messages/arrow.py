"""Batches as Arrow IPC streams: a column for each field, an answer with a row for each row.

The bytes come from a client, so nothing in them is believed: compressed buffers are refused (their size is
only known once it is too late), and every array is fully validated before anything looks into it, because
Arrow itself follows whatever offsets it is given. A few bytes can stand for much: a column of nulls has a length and
no bytes, and a dictionary is decoded into a value for each row. So rows are bounded by the bytes of the stream, sizes
are computed before anything is decoded, and all of it happens on a thread of its own.
"""

import asyncio
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tarry.core.errors import Invalid, TarryError
from tarry.core.limits import MAX_BATCH_BYTES, SECOND_MS
from tarry.core.messages.ids import ID_CHARS
from tarry.core.messages.message import Message
from tarry.core.tenants.access import Caller
from tarry.doors.http.gate import keep_pace
from tarry.doors.http.problems import encode, problem_of
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import BatchDefaults
from tarry.engine.api import (
    COLUMNS,
    NAMED,
    Answer,
    ColumnsScheduled,
    columns_of,
    in_columns,
    messages_of,
)
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.ledger.columns import int64_column, numbers_of

ARROW_TYPE: Final = b"application/vnd.apache.arrow.stream"

CHUNK_ROWS: Final = 8192
MANY_VALUES: Final = 256
CHUNK_ROWS_OF_MANY: Final = 512
CHUNK_HEADER_BYTES: Final = 128 * 1024
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Rows handed to the engine at once: few enough that what is due in between is still on time. Where destinations or
owners have many values, each costs by itself; headers cost more than other bytes."""

MAX_MESSAGES: Final = 10_000
"""Record batches of a stream: each costs by itself, however little it holds."""

BYTES_PER_ROW: Final = 4
"""Bytes that a row takes in the stream at the least, on average: an offset, or a number."""

ROW_OVERHEAD_BYTES: Final = 256
"""Bytes of a row in the ledger beside its own columns, about."""

CHUNK_ROWS_WITH_NAMES: Final = 1024
"""Rows of which each is accepted by itself, as a line is."""

ANSWER: Final = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("due_at_ms", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""The schema of an answer: in each row either the id or the error is null; the error is a problem document in JSON."""


class ArrowBatches:
    """Takes a whole stream, up to its bound, and schedules it in chunks."""

    def __init__(self, engine: Engine, settings: HttpSettings) -> None:
        self._engine = engine
        self._max_bytes = settings.max_arrow_bytes
        self._max_ms = settings.batch_timeout_ms

    async def schedule(self, request: Request, defaults: BatchDefaults) -> Response:
        """Take the body, schedule its rows, answer."""
        if request.header(b"idempotency-key") is not None:
            raise Invalid("Idempotency-Key", "is not honoured for Arrow streams; use NDJSON")
        caller = request.caller
        pieces = await request.stream.read_all(self._max_bytes)
        message = defaults_message(defaults)

        def read() -> list[pa.RecordBatch]:
            batches = read_batches(b"".join(pieces), self._max_bytes)
            _check_reach(batches, caller, message)
            _check_time(batches, caller, self._max_ms)
            return chunks_of(batches, caller.standing.at_once(CHUNK_ROWS))

        # Chunks are enqueued one behind the other and share the syncs of the ledger.
        answers = []
        for chunk in await asyncio.to_thread(read):
            await keep_pace(caller, chunk.num_rows)
            await wait_for_space(self._engine, chunk.nbytes + ROW_OVERHEAD_BYTES * chunk.num_rows)
            answers.append(self._accept(chunk, message))
            # What is due meanwhile has its turn.
            await asyncio.sleep(0)
        done = [await answer for answer in answers]
        return Response(
            200,
            [(b"content-type", ARROW_TYPE), (b"cache-control", b"no-store")],
            await asyncio.to_thread(write_answers, done),
        )

    def _accept(self, chunk: pa.RecordBatch, defaults: Message) -> Answer[ColumnsScheduled]:
        if NAMED.isdisjoint(chunk.schema.names):
            return self._engine.schedule_columns(columns_of(chunk, defaults), defaults)
        return self._engine.schedule_many(messages_of(chunk, defaults)).map(in_columns)


async def wait_for_space(engine: Engine, size_bytes: int) -> None:
    """Return when the ledger takes so much; nothing else has its turn between that and the return."""
    while not (space := engine.space(size_bytes)).settled:
        await space


def read_batches(body: bytes, max_bytes: int = MAX_BATCH_BYTES) -> list[pa.RecordBatch]:
    """The record batches of a stream, checked so far that they are safe to look into, without dictionaries."""
    try:
        _refuse_compressed(body)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            unknown = set(reader.schema.names) - COLUMNS - NAMED
            if unknown:
                raise Invalid(min(unknown), "is not a known column")
            if len(set(reader.schema.names)) < len(reader.schema.names):
                raise Invalid("schema", "has two columns of one name")
            _check_types(reader.schema)
            batches = []
            rows_left = len(body) // BYTES_PER_ROW + 1
            for batch in reader:
                rows_left -= batch.num_rows
                if rows_left < 0:
                    raise Invalid("body", f"has more than a row for {BYTES_PER_ROW} of its bytes")
                batches.append(batch)
        for batch in batches:
            batch.validate(full=True)
        batches = _decoded(batches, max_bytes)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise Invalid("body", f"is not a valid Arrow IPC stream: {str(error)[:200]}") from None
    return batches


def _refuse_compressed(body: bytes) -> None:
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(pa.py_buffer(body))):
        if number > MAX_MESSAGES:
            raise Invalid(
                "body", f"has more than {MAX_MESSAGES} record batches and dictionaries; write larger ones"
            )
        if _is_compressed(message.metadata.to_pybytes()):
            raise Invalid("body", "has compressed buffers; write the stream without compression")


def _is_compressed(metadata: bytes) -> bool:
    """Whether an IPC message's header (a flatbuffer; Arrow has verified it) asks for decompression."""
    message = struct.unpack_from("<I", metadata)[0]
    kind_at = _field(metadata, message, 1)
    header_at = _field(metadata, message, 2)
    if kind_at is None or header_at is None:
        return False
    kind, batch = metadata[kind_at], _follow(metadata, header_at)
    if kind == 2:  # a dictionary wraps a batch
        data_at = _field(metadata, batch, 1)
        if data_at is None:
            return False
        batch = _follow(metadata, data_at)
    elif kind != 3:  # neither a dictionary nor a batch: a schema
        return False
    return _field(metadata, batch, 3) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """The column of a table that holds a field; None if the field has its default."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    at: int = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
    return table + at if at else None


def _follow(metadata: bytes, at: int) -> int:
    offset: int = struct.unpack_from("<I", metadata, at)[0]
    return at + offset


def _check_types(schema: pa.Schema) -> None:
    """Raise `Invalid` for a column whose type can stand for more than its bytes, in a way that is not counted here."""
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_map(kind):
            plain = _is_text(kind.key_type) and _is_text(kind.item_type)
        else:
            plain = pa.types.is_primitive(kind) or pa.types.is_null(kind) or _is_text(kind)
        if not plain:
            raise Invalid(field.name, f"is a column of {field.type}, which is not taken here")


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_(kind) for is_ in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _decoded(batches: list[pa.RecordBatch], max_bytes: int) -> list[pa.RecordBatch]:
    """Batches with values in the place of dictionaries; raises `Invalid` if they would be larger than a stream may be."""
    size_bytes = sum(_decoded_bytes(column) for batch in batches for column in batch.columns)
    if size_bytes > max_bytes:
        raise Invalid("body", f"has dictionaries that decode to {size_bytes} bytes; {max_bytes} is the limit")
    return [
        pa.record_batch(
            [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                for column in batch.columns
            ],
            names=batch.schema.names,
        )
        for batch in batches
    ]


def _decoded_bytes(column: pa.Array) -> int:
    """How many bytes a dictionary's column has once it is decoded; 0 for any other."""
    if not pa.types.is_dictionary(column.type):
        return 0
    values, codes = column.dictionary, numbers_of(column.indices.cast(pa.int64()))
    if not len(values):
        return 0
    if _is_text(values.type):
        lengths = numbers_of(pc.binary_length(values).cast(pa.int64())).values
    else:
        lengths = np.full(len(values), 8, np.int64)
    return int(lengths[codes.values[codes.given]].sum()) + 8 * len(column)


def _check_time(batches: list[pa.RecordBatch], caller: Caller, max_ms: int) -> None:
    """Raise `Invalid` for more rows than the token's rate lets in within the time of a batch: then none of them is taken."""
    rows, per_second = sum(batch.num_rows for batch in batches), caller.standing.per_second
    if per_second and rows / per_second * SECOND_MS > max_ms:
        raise Invalid(
            "body",
            f"has {rows} rows, which at the token's {per_second:g} operations a second take longer than the"
            f" {max_ms} milliseconds of a batch; send fewer at once",
        )


def chunks_of(batches: list[pa.RecordBatch], most: int = CHUNK_ROWS) -> list[pa.RecordBatch]:
    """Batches cut so that the engine sees to each piece within a few milliseconds; put together first, if they are many.

    A piece costs about a millisecond beside its rows, and a stream may have a batch for each of them.
    """
    chunks: list[pa.RecordBatch] = []
    if len(batches) > 1:
        batches = pa.Table.from_batches(batches).combine_chunks().to_batches()
    for batch in batches:
        rows = min(most, _chunk_rows(batch))
        chunks += (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
    return chunks


def _chunk_rows(batch: pa.RecordBatch) -> int:
    names, count = batch.schema.names, max(1, batch.num_rows)
    values = [
        pc.count_distinct(batch.column(name)).as_py()
        for name in ("destination", "owner")
        if name in names and not pa.types.is_null(batch.column(name).type)
    ]
    rows = CHUNK_ROWS_OF_MANY if max(values, default=0) > MANY_VALUES else CHUNK_ROWS
    if not NAMED.isdisjoint(names):
        rows = min(rows, CHUNK_ROWS_WITH_NAMES)
    headers_bytes = batch.column("headers").nbytes if "headers" in names else 0
    for size_bytes, most_bytes in ((batch.nbytes, CHUNK_BYTES), (headers_bytes, CHUNK_HEADER_BYTES)):
        rows = min(rows, max(1, most_bytes * count // max(1, size_bytes)))
    return rows


def defaults_message(defaults: BatchDefaults) -> Message:
    """The values that rows of a request leave out."""
    return Message(
        destination=defaults.destination or "",
        namespace=defaults.namespace,
        owner=defaults.owner or "",
        due_at_ms=defaults.due_at_ms,
        delay_ms=defaults.delay_ms,
        ttl_ms=defaults.ttl_ms,
    )


def _check_reach(batches: list[pa.RecordBatch], caller: Caller, defaults: Message) -> None:
    """Raise `Forbidden` if any row goes where the caller may not send: then none of them is taken."""
    if caller.namespaces is None:
        return
    if defaults.destination:
        caller.require_destination(defaults.destination, defaults.namespace)
    for batch in batches:
        if "destination" not in batch.schema.names:
            continue
        column = batch.column("destination")
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise Invalid("destination", "is not a column of text")
        for destination in pc.unique(column).to_pylist():
            if destination is not None:
                caller.require_destination(destination, defaults.namespace)


def write_answers(answers: list[ColumnsScheduled]) -> bytes:
    """The answers as a stream of their own."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ANSWER) as writer:
        for answer in answers:
            writer.write_batch(_answer_batch(answer))
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _answer_batch(answer: ColumnsScheduled) -> pa.RecordBatch:
    count = len(answer.ids)
    taken = np.ones(count, np.bool_)
    errors: Any
    if answer.errors:
        rows = list(answer.errors)
        taken[rows] = False
        texts: list[str | None] = [None] * count
        for row, error in answer.errors.items():
            texts[row] = _problem_text(error)
        errors = pa.array(texts, pa.string())
    else:
        errors = pa.nulls(count, pa.string())
    ids = pa.StringArray.from_buffers(
        count,
        pa.py_buffer(np.arange(0, (count + 1) * ID_CHARS, ID_CHARS, dtype=np.int32)),
        pa.py_buffer(np.ascontiguousarray(answer.ids)),
    )
    due = int64_column(answer.due_at_ms)
    if answer.errors:
        mask = pa.array(taken)
        ids = pc.if_else(mask, ids, None)
        due = pc.if_else(mask, due, None)
    return pa.record_batch([ids, due, errors], schema=ANSWER)


def _problem_text(error: TarryError) -> str:
    return encode(problem_of(error)).decode()
