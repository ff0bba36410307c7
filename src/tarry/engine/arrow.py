"""Record batches of Arrow as the columns that the engine works on.

Columns, by name: `destination`, `payload` (binary or string), `due_at_ms` (integer milliseconds or a timestamp) or
`delay_ms`, `key`, `owner`, `ttl_ms`, `headers` (a map of strings). Those that are missing, and nulls, are
taken from the defaults of the request.

A batch is cut into pieces that each fit a frame well. In the ledger its rows are records like any others (ADR 0005
says why not Arrow).
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tarry.core.errors import Invalid
from tarry.core.message import Message
from tarry.engine.columns import Coded, Columns, Numbers, bytes_column, no_numbers, numbers_of, one_value

COLUMNS: Final = frozenset(
    {"destination", "payload", "due_at_ms", "delay_ms", "key", "owner", "ttl_ms", "headers"}
)

FRAME_ROWS: Final = 8_192
FRAME_BYTES: Final = 8 * 1024 * 1024


def frames_of(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A batch in pieces that each fit a frame well, with the row at which each begins."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(FRAME_ROWS, FRAME_BYTES // per_row))
    for start in range(0, batch.num_rows, rows):
        yield start, batch.slice(start, rows)


def columns_of(batch: pa.RecordBatch, defaults: Message) -> Columns:
    """The columns of a record batch; raises `Invalid` for one that cannot be what its name says."""
    names = batch.schema.names
    unknown = set(names) - COLUMNS
    if unknown:
        raise Invalid(min(unknown), "is not a column that is known here")
    if len(set(names)) != len(names):
        raise Invalid("columns", "a name stands there twice")
    given = {name: batch.column(at) for at, name in enumerate(names)}
    count = batch.num_rows
    return Columns(
        count,
        _few_texts(given.get("destination"), "destination", defaults.destination or None, count),
        _few_texts(given.get("owner"), "owner", defaults.owner, count),
        _payloads(given.get("payload"), defaults.payload, count),
        _integers(given.get("due_at_ms"), "due_at_ms", count),
        _integers(given.get("delay_ms"), "delay_ms", count),
        _ttls(given.get("ttl_ms"), defaults.ttl_ms, count),
        _keys(given.get("key"), defaults.key, count),
        _headers(given.get("headers"), defaults.headers, count),
    )


def _few_texts(column: Any, name: str, default: str | None, count: int) -> Coded[str]:
    if column is None:
        if default is None:
            return Coded([], np.full(count, -1, np.int32))
        return one_value(default, count)
    column = _texts(column, name)
    if default is not None and column.null_count:
        column = column.fill_null(default)
    column = column.dictionary_encode()
    codes = numbers_of(column.indices.cast(pa.int64()))
    return Coded(column.dictionary.to_pylist(), np.where(codes.given, codes.values, -1).astype(np.int32))


def _keys(column: Any, default: str | None, count: int) -> Any:
    if column is None:
        return None if default is None else bytes_column([default.encode()] * count).cast(pa.string())
    column = _texts(column, "key")
    if default is not None and column.null_count:
        return column.fill_null(default)
    return None if column.null_count == count else column


def _texts(column: Any, name: str) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    types = pa.types
    if not any(is_(column.type) for is_ in (types.is_string, types.is_large_string, types.is_null)):
        raise Invalid(name, f"is a column of {column.type} and not of strings")
    return _valid(column.cast(pa.string()), name)


def _payloads(column: Any, default: bytes, count: int) -> Any:
    if column is None:
        return bytes_column([default] * count)
    types = pa.types
    if not any(
        is_(column.type)
        for is_ in (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    ):
        raise Invalid("payload", f"is a column of {column.type} and not of binary or strings")
    column = column.cast(pa.binary())
    return column.fill_null(default) if column.null_count else column


def _integers(column: Any, name: str, count: int) -> Numbers:
    if column is None or pa.types.is_null(column.type):
        return no_numbers(count)
    if pa.types.is_timestamp(column.type):
        # Up to the next millisecond: never early.
        column = pc.ceil_temporal(column, unit="millisecond").cast(pa.timestamp("ms")).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise Invalid(name, "holds a number beyond 64 bits") from error
    else:
        raise Invalid(name, f"is a column of {column.type} and not of whole milliseconds")
    return numbers_of(column)


def _ttls(column: Any, default: int | None, count: int) -> Numbers | None:
    if column is None and default is None:
        return None
    ttl_ms = _integers(column, "ttl_ms", count)
    if default is None:
        return ttl_ms
    return Numbers(np.where(ttl_ms.given, ttl_ms.values, default), np.ones(count, np.bool_))


def _headers(column: Any, default: dict[str, str], count: int) -> Any:
    wanted = pa.map_(pa.string(), pa.string())
    if column is None:
        return pa.array([list(default.items())] * count, wanted) if default else None
    if not pa.types.is_map(column.type):
        raise Invalid("headers", f"is a column of {column.type} and not a map of strings")
    try:
        column = _valid(column.cast(wanted), "headers")
    except pa.ArrowException as error:
        raise Invalid("headers", "is not a map of strings") from error
    if default and column.null_count:
        rows = [list(default.items()) if pairs is None else pairs for pairs in column.to_pylist()]
        column = pa.array(rows, wanted)
    return None if column.null_count == count else column


def _valid(column: Any, name: str) -> Any:
    """A column of text, once it is known to be UTF-8.

    Nothing after this looks, and a body that does not decode could never be sent.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Invalid(name, "is not valid UTF-8") from error
    return column
