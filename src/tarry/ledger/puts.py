"""First versions of many messages, encoded as columns: the unit that `record.encode` would make of each, in one go.

A `Put` is a msgpack array, so that a body is fields in a row. Here every field is a column: what stands in all rows, or
has the same width in each, is laid into one matrix; only what differs in width is joined row by row, by
Arrow's own kernel. A row costs a fraction of a microsecond, most of it for its checksum. Integers take their
longest form, which decodes the same.
"""

from array import array
from io import BytesIO
from typing import Any, Final, Protocol

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tarry.ledger.columns import (
    Coded,
    Contents,
    Numbers,
    bytes_column,
    content_of,
    int32_column,
    lengths_of,
    one_width,
)
from tarry.ledger.frame import Unit, unit_of_columns
from tarry.ledger.record import Kind, Put

_NIL: Final = b"\xc0"
_encode: Final = msgspec.msgpack.encode
_crc: Final = google_crc32c.value
_EMPTY: Final = bytes_column([b""])[0]
"""The column between the parts of a row."""
_SHORT: Final = Put.__struct_fields__.index("delay_ms") + 1
_WHOLE: Final = Put.__struct_fields__.index("trace") + 1
_KEYED: Final = Put.__struct_fields__.index("fingerprint") + 1


class RequestKeyColumns(Protocol):
    """The idempotency key of each row, and the fingerprint of its request, which has 16 bytes."""

    @property
    def column(self) -> Any:
        """The keys."""

    @property
    def print_column(self) -> Any:
        """The fingerprints."""


class BodyRows:
    """Rows of bytes, built part by part from left to right."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._parts: list[Any] = []
        self._template = bytearray()
        """Bytes of one known width since the last part of varying width."""
        self._holes: list[tuple[int, str, NDArray[Any]]] = []
        """Where in the template each row has something of its own, in which form, and what."""

    def constant(self, data: bytes) -> None:
        """Append equal bytes to every row."""
        self._template += data

    def fixed(self, head: bytes, form: str, values: NDArray[Any]) -> None:
        """A head, then a value of each row in a form of NumPy's that has one width."""
        self._template += head
        self._holes.append((len(self._template), form, values))
        self._template += bytes(np.dtype(form).itemsize)

    def integers(self, numbers: NDArray[np.int64]) -> None:
        """A number of each row as msgpack: 0xcf and eight bytes."""
        self.fixed(b"\xcf", ">u8", numbers)

    def coded(self, texts: list[bytes], codes: NDArray[np.int32]) -> None:
        """For each row one of few texts."""
        if len(texts) == 1:
            self.constant(texts[0])
        else:
            self.column(bytes_column(texts).take(int32_column(codes)))

    def column(self, texts: Any) -> None:
        """A text of its own for each row; a row with a null is null as a whole."""
        width = None if texts.null_count else one_width(texts)
        if width:
            self.fixed(b"", f"V{width}", np.frombuffer(content_of(texts), f"V{width}"))
        elif width is None:
            self._close()
            self._parts.append(texts)

    def joined(self) -> Any:
        """The rows, as a column of bytes."""
        self._close()
        return self._parts[0] if len(self._parts) == 1 else pc.binary_join_element_wise(*self._parts, _EMPTY)

    def _close(self) -> None:
        width = len(self._template)
        if width:
            matrix = np.empty((self._rows, width), np.uint8)
            matrix[:] = np.frombuffer(self._template, np.uint8)
            rows = matrix.view(_holes_of(self._holes, width))[:, 0]
            for at, (_, _, values) in enumerate(self._holes):
                rows[f"f{at}"] = values
            ends = np.arange(0, (self._rows + 1) * width, width, dtype=np.int32)
            self._parts.append(
                pa.BinaryArray.from_buffers(
                    pa.binary(), self._rows, [None, pa.py_buffer(ends), pa.py_buffer(matrix)]
                )
            )
        self._template = bytearray()
        self._holes = []


def _holes_of(holes: list[tuple[int, str, NDArray[Any]]], width: int) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [f"f{at}" for at in range(len(holes))],
            "formats": [form for _, form, _ in holes],
            "offsets": [offset for offset, _, _ in holes],
            "itemsize": width,
        }
    )


def encode_bodies(
    contents: Contents,
    places: Coded[bytes],
    fire_at_ms: NDArray[np.int64],
    due_at_ms: NDArray[np.int64],
    delay_ms: NDArray[np.int64],
    accepted_at_ms: int,
    door: str,
    trace: bytes | None = None,
    keys: RequestKeyColumns | None = None,
) -> Any:
    """The bodies of these rows, as a column of bytes.

    `places` has the namespace and destination of each row as they stand in a body (`place_text`); the trace is that of all.
    """
    accepted = b"\xcf" + accepted_at_ms.to_bytes(8, "big")
    owners = contents.owners
    body = BodyRows(contents.count)
    # An array of the tag and the fields up to `delay_ms`; those after it have their defaults, and are left out.
    fields = _WHOLE if trace is not None else _KEYED if keys is not None else _SHORT
    body.constant(b"\xdc" + (1 + fields).to_bytes(2, "big") + b"\x01")
    body.integers(fire_at_ms)
    body.integers(due_at_ms)
    body.constant(accepted)
    body.coded(places.values, places.codes)
    _add_keys(body, contents.keys)
    # The owner, the door, and no group.
    body.coded([_encode(name) + _encode(door) + _NIL for name in owners.values], owners.codes)
    _add_ttls(body, contents.ttl_ms)
    # No origin, no attempts, not listed; then the payload with its length in four bytes.
    body.fixed(_NIL + b"\x00\xc2\xc6", ">u4", lengths_of(contents.payloads))
    body.column(contents.payloads)
    _add_headers(body, contents.headers)
    body.constant(accepted)
    body.integers(delay_ms)
    if keys is not None:
        # It kills nothing.
        body.constant(_NIL)
        body.column(_strings(keys.column))
        body.constant(b"\xc4\x10")
        body.column(keys.print_column)
    elif trace is not None:
        body.constant(_defaults(_SHORT, _KEYED))
    if trace is not None:
        body.constant(_defaults(_KEYED, _WHOLE - 1) + _encode(trace))
    return body.joined()


def _defaults(begin: int, end: int) -> bytes:
    """Fields of a body that say nothing."""
    return b"".join(_encode(field.default) for field in msgspec.structs.fields(Put)[begin:end])


def place_text(namespace: str, destination: str) -> bytes:
    """Where a message goes, as it stands in a body."""
    return _encode(namespace) + _encode(destination)


def unit_of_puts(bodies: Any, fire_at_ms: NDArray[np.int64], lanes: NDArray[np.uint16]) -> Unit:
    """The unit of a column of bodies."""
    sizes = lengths_of(bodies)
    data = bytes(content_of(bodies))
    # Read one after the other: that takes less than cutting each out by its bounds.
    crcs = array("I", map(_crc, map(BytesIO(data).read, sizes.tolist())))
    return unit_of_columns(Kind.PUT, sizes, crcs, data, lane=lanes, fire_at_ms=fire_at_ms)


def _add_keys(body: BodyRows, keys: Any) -> None:
    if keys is None:
        body.constant(_NIL)
        return
    body.column(_strings(keys.cast(pa.binary())).fill_null(_NIL))


def _strings(column: Any) -> Any:
    """Strings as msgpack; null stays null."""
    texts = BodyRows(len(column))
    texts.fixed(b"\xdb", ">u4", lengths_of(column))
    texts.column(column)
    return texts.joined()


def _add_ttls(body: BodyRows, ttl_ms: Numbers | None) -> None:
    if ttl_ms is None:
        body.constant(_NIL)
    elif ttl_ms.given.all():
        body.integers(ttl_ms.values)
    else:
        texts = [b"\xcf" + value.to_bytes(8, "big") for value in ttl_ms.values.tolist()]
        body.column(
            bytes_column([t if g else _NIL for t, g in zip(texts, ttl_ms.given.tolist(), strict=True)])
        )


def _add_headers(body: BodyRows, headers: Any) -> None:
    """Maps as msgpack; null is empty."""
    if headers is None:
        body.constant(b"\x80")
    else:
        body.column(bytes_column([_encode(dict(pairs or ())) for pairs in headers.to_pylist()]))
