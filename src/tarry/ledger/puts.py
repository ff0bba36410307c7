"""Many messages at once, as columns: read and checked by column, and encoded as the bodies of their `Put`s.

For requests that arrive as Arrow, and for batches that are staged. Errors are kept by row: a column is never refused for what
is wrong with one of its rows.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tarry.core import limits
from tarry.core.errors import Invalid, TarryError, TooLarge
from tarry.core.message import Message

# Columns


def text(batch: pa.RecordBatch, name: str, default: str | None, *, dictionary: bool = True) -> Any:
    """A column of strings, nulls filled; as a dictionary unless told otherwise."""
    column = column_of(batch, name)
    if column is None:
        column = pa.nulls(batch.num_rows, pa.string())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_null(column.type)
    ):
        raise Invalid(name, f"is a column of {column.type} and not of strings")
    column = _valid(column.cast(pa.string()), name)
    if default is not None:
        column = column.fill_null(default)
    return column.dictionary_encode() if dictionary else column


def binary(batch: pa.RecordBatch, default: bytes) -> Any:
    """The payloads, nulls filled."""
    column = column_of(batch, "payload")
    if column is None:
        return pa.repeat(pa.scalar(default, pa.binary()), batch.num_rows)
    types = pa.types
    if not any(
        is_(column.type)
        for is_ in (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    ):
        raise Invalid("payload", f"is a column of {column.type} and not of binary or strings")
    column = column.cast(pa.binary())
    return column.fill_null(default) if column.null_count else column


def integers(batch: pa.RecordBatch, name: str, default: int | None) -> Any:
    """A column of whole milliseconds, or of timestamps as such."""
    column = column_of(batch, name)
    if column is None:
        column = pa.nulls(batch.num_rows, pa.int64())
    if pa.types.is_timestamp(column.type):
        # Up to the next millisecond: never early.
        column = pc.ceil_temporal(column, unit="millisecond").cast(pa.timestamp("ms")).cast(pa.int64())
    elif pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise Invalid(name, "holds a number beyond 64 bits") from error
    else:
        raise Invalid(name, f"is a column of {column.type} and not of whole milliseconds")
    return column if default is None else column.fill_null(default)


def headers_of(batch: pa.RecordBatch, default: dict[str, str]) -> Any:
    """The headers as maps of strings, nulls filled."""
    column = column_of(batch, "headers")
    wanted = pa.map_(pa.string(), pa.string())
    if column is None:
        return pa.array(
            [list(default.items()) or None] * batch.num_rows if default else [None] * batch.num_rows, wanted
        )
    if not pa.types.is_map(column.type):
        raise Invalid("headers", f"is a column of {column.type} and not a map of strings")
    try:
        column = _valid(column.cast(wanted), "headers")
    except pa.ArrowException as error:
        raise Invalid("headers", "is not a map of strings") from error
    if default and column.null_count:
        rows = [list(default.items()) if pairs is None else pairs for pairs in column.to_pylist()]
        column = pa.array(rows, wanted)
    return column


def _valid(column: Any, name: str) -> Any:
    """A column of text, once it is known to be UTF-8.

    Nothing after this looks, and a body that does not decode could never be sent.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Invalid(name, "is not valid UTF-8") from error
    return column


def column_of(batch: pa.RecordBatch, name: str) -> Any:
    """A column by its name, or None."""
    at = batch.schema.get_field_index(name)
    return None if at < 0 else batch.column(at)


def check_sizes(payloads: Any, keys: Any, owners: Any, headers: Any, errors: dict[int, TarryError]) -> None:
    """Note the rows in which something is larger than its limit."""
    mark(
        errors, truth(pc.greater(pc.binary_length(payloads), limits.MAX_PAYLOAD_BYTES)),
        TooLarge("payload", limits.MAX_PAYLOAD_BYTES),
    )  # fmt: skip
    mark(
        errors,
        truth(pc.greater(pc.binary_length(keys), limits.MAX_KEY_BYTES)),
        TooLarge("key", limits.MAX_KEY_BYTES),
    )
    long = [len(name.encode()) > limits.MAX_OWNER_BYTES for name in owners.dictionary.to_pylist()]
    if any(long):
        over = np.array(long)[owners.indices.to_numpy(zero_copy_only=False)]
        mark(errors, over, TooLarge("owner", limits.MAX_OWNER_BYTES))
    if headers.null_count == len(headers):
        return
    for row, pairs in enumerate(headers.to_pylist()):
        if pairs and row not in errors:
            try:
                if any(value is None for _, value in pairs):
                    raise Invalid("headers", "a value is missing")
                Message(destination="x", delay_ms=0, headers=dict(pairs)).check()
            except TarryError as error:
                errors[row] = error


def truth(mask: Any) -> NDArray[np.bool_]:
    """A column of booleans as an array; null is false."""
    return mask.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def numbers(column: Any) -> NDArray[np.int64]:
    """A column of integers as an array of its own; null is 0."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=True)  # type: ignore[no-any-return]


def mark(errors: dict[int, TarryError], mask: NDArray[np.bool_], error: TarryError) -> None:
    """Note an error at the rows that a mask names; the first of a row stays."""
    for row in np.flatnonzero(mask).tolist():
        errors.setdefault(row, error)


# Bodies


class PutBodies:
    """Encodes the bodies of many first versions at once, as `tarry.ledger.record.encode` would each.

    A `Put` is a msgpack array; here its columns are laid side by side and joined, so that a row costs a
    fraction of a microsecond. Integers take their longest form, which decodes the same.
    """

    def __init__(self, accepted_at_ms: int, door: str) -> None:
        accepted = _integer(accepted_at_ms)
        # Array of 18: the tag and the fields up to `delay_ms`; those after it have their defaults.
        self._front = b"\xdc\x00\x12\x01"
        self._accepted = accepted
        self._door = _encode(door) + _NIL

    @staticmethod
    def places(codes: NDArray[np.int32], names: Sequence[tuple[str, str] | None]) -> pa.DictionaryArray:
        """Destination and namespace of each row, by its code, as they stand in a body."""
        texts = [_encode(name[1]) + _encode(name[0]) if name else b"" for name in names]
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.binary()))

    def encode(
        self,
        fire: NDArray[np.int64],
        due: NDArray[np.int64],
        delay: NDArray[np.int64],
        places: pa.DictionaryArray,
        keys: Any,
        owners: pa.DictionaryArray,
        ttls: Any,
        payloads: Any,
        headers: Any,
        taken: NDArray[np.int64],
    ) -> pa.BinaryArray:
        """The bodies of the rows that are taken, in order."""
        rows = pa.array(taken)
        count = len(taken)
        lengths = numbers(pc.binary_length(payloads.take(rows)))
        owner_texts = pa.array(
            [_encode(name) + self._door for name in owners.dictionary.to_pylist()], pa.binary()
        )
        parts = [
            _matrix(count, self._front, fire[taken], due[taken], self._accepted),
            places.take(rows).cast(pa.binary()),
            _strings(keys.take(rows)),
            owner_texts.take(owners.indices.take(rows)),
            _optional_integers(ttls.take(rows)),
            # No origin, no attempts, not listed; then the payload's length, in four bytes.
            _matrix(count, _NIL + b"\x00\xc2\xc6", lengths.astype(">u4")),
            payloads.take(rows),
            _header_maps(headers.take(rows)),
            _matrix(count, self._accepted, delay[taken]),
        ]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


_NIL: Final = b"\xc0"
_encode: Final = msgspec.msgpack.encode


def _integer(value: int) -> bytes:
    return b"\xcf" + value.to_bytes(8, "big")


def _matrix(count: int, *parts: Any) -> Any:
    """Columns of fixed width side by side: bytes stand in every row, integers as msgpack, lengths as they are."""
    columns = []
    for part in parts:
        if isinstance(part, bytes):
            columns.append(np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part))))
            continue
        if part.dtype == np.int64:
            columns.append(np.full((count, 1), 0xCF, np.uint8))
            part = part.astype(">u8")
        columns.append(np.ascontiguousarray(part).view(np.uint8).reshape(count, part.dtype.itemsize))
    rows = np.ascontiguousarray(np.hstack(columns))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), count, [None, pa.py_buffer(rows)])
    return fixed.cast(pa.binary())


def _strings(column: Any) -> Any:
    """A column of strings as msgpack, null as nil."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(_NIL, pa.binary()), len(column))
    texts = column.cast(pa.binary())
    lengths = numbers(pc.binary_length(texts))
    heads = _matrix(len(column), b"\xdb", lengths.astype(">u4"))
    joined = pc.binary_join_element_wise(heads, texts, pa.scalar(b"", pa.binary()))
    return joined.fill_null(_NIL)


def _optional_integers(column: Any) -> Any:
    """A column of integers as msgpack, null as nil."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(_NIL, pa.binary()), len(column))
    return pc.if_else(column.is_valid(), _matrix(len(column), numbers(column)), pa.scalar(_NIL, pa.binary()))


def _header_maps(column: Any) -> Any:
    """A column of maps as msgpack; null is empty."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(b"\x80", pa.binary()), len(column))
    return pa.array([_encode(dict(pairs or ())) for pairs in column.to_pylist()], pa.binary())
