"""Columns of Arrow that somebody sent, as the columns of `tarry.ledger.columns`: checked for their types, nulls filled.

A column that cannot be what its name says is refused as a whole (`Invalid`); what is wrong with single rows is
looked for later.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tarry.core.errors import Invalid
from tarry.ledger.columns import Coded, Numbers, bytes_column, no_numbers, numbers_of, one_value


def few_texts(column: Any, name: str, default: str | None, count: int) -> Coded[str]:
    """A column of strings of which few differ; None is a column that is missing."""
    if column is None:
        if default is None:
            return Coded([], np.full(count, -1, np.int32))
        return one_value(default, count)
    column = texts_of(column, name)
    if default is not None and column.null_count:
        column = column.fill_null(default)
    column = column.dictionary_encode()
    codes = numbers_of(column.indices.cast(pa.int64()))
    return Coded(column.dictionary.to_pylist(), np.where(codes.given, codes.values, -1).astype(np.int32))


def keys_of(column: Any, default: str | None, count: int) -> Any:
    """The keys; None if no row has one."""
    if column is None:
        return None if default is None else bytes_column([default.encode()] * count).cast(pa.string())
    column = texts_of(column, "key")
    if default is not None and column.null_count:
        return column.fill_null(default)
    return None if column.null_count == count else column


def texts_of(column: Any, name: str) -> Any:
    """A column of text; raises `Invalid` for any other."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    types = pa.types
    if not any(is_(column.type) for is_ in (types.is_string, types.is_large_string, types.is_null)):
        raise Invalid(name, f"is a column of {column.type} and not of strings")
    return _valid(column.cast(pa.string()), name)


def payloads_of(column: Any, default: bytes, count: int) -> Any:
    """The payloads, from bytes or from text."""
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


def integers_of(column: Any, name: str, count: int) -> Numbers:
    """Whole milliseconds, or timestamps as such."""
    if column is None or pa.types.is_null(column.type):
        return no_numbers(count)
    if pa.types.is_timestamp(column.type):
        # Up to the next millisecond: never early.
        column = pc.ceil_temporal(column, unit="millisecond").cast(pa.timestamp("ms")).cast(pa.int64())
    elif pa.types.is_integer(column.type):
        if pa.types.is_uint64(column.type):
            # Beyond all limits in any case, and so for a rule about rows.
            column = pc.min_element_wise(column, pa.scalar((1 << 63) - 1, pa.uint64()), skip_nulls=False)
        column = column.cast(pa.int64())
    else:
        raise Invalid(name, f"is a column of {column.type} and not of whole milliseconds")
    return numbers_of(column)


def ttls_of(column: Any, default: int | None, count: int) -> Numbers | None:
    """The times to live; None if no row has one."""
    if column is None and default is None:
        return None
    ttl_ms = integers_of(column, "ttl_ms", count)
    if default is None:
        return ttl_ms
    return Numbers(np.where(ttl_ms.given, ttl_ms.values, default), np.ones(count, np.bool_))


def headers_of(column: Any, default: dict[str, str], count: int) -> Any:
    """The headers; None if no row has any."""
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
