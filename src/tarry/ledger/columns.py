"""Many messages as columns: the form in which batches are checked and encoded, whether they are accepted or staged.

Columns of text with few different values are coded; numbers are arrays with a mask of the rows that have one;
the rest are Arrow arrays. What no row has is None, and costs nothing.

From Arrow to NumPy the way goes through the buffers: `to_numpy` of pyarrow would import pandas on first use, which
holds everything up for a third of a second.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import TarryError
from tarry.core.rules import admission
from tarry.core.rules.admission import Errors, check_record, is_large, mark
from tarry.core.tenants.holder import Holder
from tarry.ledger.lanes import lane_of

T = TypeVar("T")


class Coded(NamedTuple, Generic[T]):
    """A value for each row, of few different ones."""

    values: list[T]
    codes: NDArray[np.int32]
    """Which of the values each row has; -1 for none."""

    def at(self, rows: NDArray[np.int64]) -> "Coded[T]":
        """A column of the rows at these positions."""
        return Coded(self.values, self.codes[rows])


class Numbers(NamedTuple):
    """A number for each row that has one."""

    values: NDArray[np.int64]
    """0 in the other rows."""
    given: NDArray[np.bool_]

    def at(self, rows: NDArray[np.int64]) -> "Numbers":
        """A column of the rows at these positions."""
        return Numbers(self.values[rows], self.given[rows])


class Contents(Struct, frozen=True):
    """The contents of a batch's messages, beside where they go and when; the defaults are filled in."""

    count: int
    owners: Coded[str]
    payloads: Any
    """A column of bytes without nulls."""
    keys: Any = None
    """A column of strings."""
    ttl_ms: Numbers | None = None
    headers: Any = None
    """A column of maps of strings."""

    def take(self, rows: NDArray[np.int64]) -> "Contents":
        """The contents of these rows, in this order."""
        index = int64_column(rows)
        return Contents(
            len(rows),
            self.owners.at(rows),
            self.payloads.take(index),
            None if self.keys is None else self.keys.take(index),
            None if self.ttl_ms is None else self.ttl_ms.at(rows),
            None if self.headers is None else self.headers.take(index),
        )

    def check(self, errors: Errors) -> None:
        """Note the rows that break a rule, in the order of `Message.check`."""
        admission.PAYLOAD_SIZE.mark(errors, lengths_of(self.payloads))
        if self.headers is not None:
            _check_headers(self.headers, errors)
        if self.keys is not None:
            # Under a null there may be bytes as well.
            admission.KEY_SIZE.mark(errors, lengths_of(self.keys), given_of(self.keys))
        for code, owner in enumerate(self.owners.values):
            try:
                admission.check_owner(owner)
            except TarryError as error:
                mark(errors, self.owners.codes == code, error)
        if self.ttl_ms is not None:
            admission.TTL.mark(errors, *self.ttl_ms)

    def check_records(
        self,
        unit_max_bytes: int,
        places: Sequence[tuple[str, str]],
        codes: NDArray[np.int32],
        errors: Errors,
        request_keys: Sequence[str] | None = None,
    ) -> None:
        """Note the rows whose later records may not fit; `places` are destinations with their namespaces."""
        lengths = lengths_of(self.payloads)
        large = is_large(lengths, unit_max_bytes)
        for row in np.flatnonzero(large).tolist() if large.any() else ():
            headers = None if self.headers is None else self.headers[row].as_py()
            key = None if self.keys is None else self.keys[row].as_py()
            destination, namespace = places[codes[row]]
            request_key = None if request_keys is None else request_keys[row]
            names = key, self.owners.values[self.owners.codes[row]], namespace, request_key
            try:
                check_record(unit_max_bytes, int(lengths[row]), dict(headers or ()), destination, names)
            except TarryError as error:
                errors.setdefault(row, error)


def _check_headers(headers: Any, errors: Errors) -> None:
    # Most rows of a batch have the headers of the row before.
    good: Any = None
    for row, pairs in enumerate(headers.to_pylist()):
        if pairs and pairs != good and row not in errors:
            try:
                admission.check_headers(dict(pairs))
                good = pairs
            except TarryError as error:
                errors[row] = error


def one_value(value: T, count: int) -> Coded[T]:
    """A column with one value in every row."""
    return Coded([value], np.zeros(count, np.int32))


def coded(values: Sequence[T]) -> Coded[T]:
    """Values with a code for each."""
    known: dict[T, int] = {}
    codes = [known.setdefault(value, len(known)) for value in values]
    return Coded(list(known), np.array(codes, np.int32))


def holders_of(namespaces: Coded[str], owners: Coded[str]) -> Coded[Holder]:
    """The owner of each row within its namespace."""
    names = {name: at for at, name in enumerate(dict.fromkeys(namespaces.values))}
    places = np.array([names[name] for name in namespaces.values], np.int64)
    width = len(owners.values)
    pairs = places[namespaces.codes] * width + owners.codes
    if len(names) * width <= 4 * len(pairs):
        there = np.zeros(len(names) * width, np.bool_)
        there[pairs] = True
        found, codes = np.flatnonzero(there), (np.cumsum(there) - 1)[pairs]
    else:
        # Most pairs do not occur.
        found, codes = np.unique(pairs, return_inverse=True)
    listed = list(names)
    holders = [Holder(listed[pair // width], owners.values[pair % width]) for pair in found.tolist()]
    return Coded(holders, codes.astype(np.int32))


def count_holders(holders: Coded[Holder]) -> Counter[Holder]:
    """How many rows each holder has."""
    counts = np.bincount(holders.codes, minlength=len(holders.values)).tolist()
    return Counter({holder: count for holder, count in zip(holders.values, counts, strict=True) if count})


def lanes_of(holders: Coded[Holder], door: str) -> NDArray[np.uint16]:
    """The lane of each row."""
    return np.array([lane_of(*holder, door) for holder in holders.values], np.uint16)[holders.codes]


# Between Arrow and NumPy


def lengths_of(column: Any) -> NDArray[np.int32]:
    """The length of each of a column of bytes or strings, in bytes."""
    if not len(column):
        return np.zeros(0, np.int32)
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    # As `np.diff`, which costs ten times as much where there are few.
    return ends[1:] - ends[:-1]


def one_width(column: Any) -> int | None:
    """The length that all of a column of bytes or strings have; None if they differ."""
    lengths = lengths_of(column)
    return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None


def content_of(column: Any) -> memoryview:
    """All of a column of bytes or strings, one after another."""
    ends = np.frombuffer(column.buffers()[1], np.int32)[[column.offset, column.offset + len(column)]]
    return memoryview(column.buffers()[2])[ends[0] : ends[1]]


def numbers_of(column: Any) -> Numbers:
    """A column of 64-bit integers as arrays."""
    given = given_of(column)
    if not len(column):
        return Numbers(np.zeros(0, np.int64), given)
    values = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column)]
    return Numbers(np.where(given, values, 0) if column.null_count else values, given)


def given_of(column: Any) -> NDArray[np.bool_]:
    """Which rows of a column are not null."""
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def no_numbers(count: int) -> Numbers:
    """A column of which no row has a number."""
    return Numbers(np.zeros(count, np.int64), np.zeros(count, np.bool_))


def bytes_column(texts: Sequence[bytes]) -> Any:
    """A column of bytes."""
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, texts), np.int32, len(texts)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), buffers)


def int32_column(values: NDArray[np.int32]) -> Any:
    """A column of integers."""
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def int64_column(values: NDArray[np.int64]) -> Any:
    """A column of integers."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
