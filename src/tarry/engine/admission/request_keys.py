"""Idempotency keys of lines that go as columns, with the fingerprints of their requests: for the bodies, and for the state."""

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from io import BytesIO
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np
from msgspec import NODEFAULT
from msgspec.structs import fields
from numpy.typing import NDArray

from tarry.core.messages.line_keys import LineKeys
from tarry.core.messages.message import Message
from tarry.core.names import parse_namespace
from tarry.core.tenants.holder import Holder
from tarry.engine.records.changes import KeyedLines
from tarry.ledger.columns import Coded, Contents, Numbers, bytes_column, content_of, lengths_of
from tarry.ledger.puts import BodyRows
from tarry.registry.lines_row import ANSWERS, FINGERPRINT_BYTES

_encode: Final = msgspec.msgpack.encode
_NIL: Final = _encode(None)
_DEFAULTS: Final = {
    field.name: _encode(
        {} if field.name == "headers" else field.default if field.default is not NODEFAULT else ""
    )
    for field in fields(Message)
}
"""The fields of a message in their order, with what stands there if a row says nothing."""
_hash: Final = partial(blake2b, digest_size=FINGERPRINT_BYTES)


class AskedTimes(NamedTuple):
    """The times that rows ask for, defaults and all."""

    due_at_ms: Numbers
    delay_ms: Numbers

    def at(self, rows: NDArray[np.int64]) -> "AskedTimes":
        """The times of the rows at these positions."""
        return AskedTimes(self.due_at_ms.at(rows), self.delay_ms.at(rows))


class PageRows(NamedTuple):
    """Rows whose answers are kept in one page."""

    holder: Holder
    page: int
    lines: bytes
    """Their places in the page."""
    rows: NDArray[np.int64]


class RequestKeys:
    """The keys of rows, and the fingerprints of their requests."""

    def __init__(self, lines: LineKeys, texts: list[str], column: Any) -> None:
        self._lines = lines
        self.texts = texts
        self.column = column
        """The keys as a column of bytes."""
        self.print_column: Any = None
        """The fingerprints, once it is known what is asked for."""

    @classmethod
    def of(cls, lines: LineKeys) -> Self:
        """The keys of lines."""
        texts = lines.texts()
        return cls(lines, texts, bytes_column([text.encode() for text in texts]))

    def at(self, rows: NDArray[np.int64]) -> "RequestKeys":
        """The keys of the rows at these positions."""
        return RequestKeys.of(self._lines.at(rows))

    def ask(self, contents: Contents, destinations: Coded[str], times: AskedTimes, defaults: Message) -> None:
        """Say what the rows ask for."""
        self.print_column = fingerprints(contents, destinations, times, defaults)

    def answers(
        self,
        part: slice,
        holders: Coded[Holder],
        fire_at_ms: NDArray[np.int64],
        due_at_ms: NDArray[np.int64],
        now_ms: int,
    ) -> list[KeyedLines]:
        """The answers that the rows of a unit get, but for their seqs."""
        keys = LineKeys(self._lines.request, self._lines.numbers[part])
        answers = np.empty(len(keys.numbers), ANSWERS)
        answers["fingerprint"] = np.frombuffer(content_of(self.print_column[part]), f"V{FINGERPRINT_BYTES}")
        answers["fire_at_ms"] = fire_at_ms
        answers["due_at_ms"] = due_at_ms
        answers["accepted_at_ms"] = now_ms
        return [
            KeyedLines(
                page.holder, keys.request, page.page, page.lines, page.rows, answers[page.rows], now_ms
            )
            for page in pages_of(keys, holders)
        ]


def pages_of(keys: LineKeys, holders: Coded[Holder]) -> Iterator[PageRows]:
    """The rows of lines by the pages of their answers."""
    pages, lines = keys.places()
    width = int(pages.max()) + 1
    places = holders.codes * width + pages
    order = np.argsort(places, kind="stable")
    ends = (np.flatnonzero(np.diff(places[order])) + 1).tolist()
    for low, high in pairwise([0, *ends, len(order)]):
        rows = order[low:high]
        holder, page = divmod(int(places[rows[0]]), width)
        yield PageRows(holders.values[holder], page, lines[rows].astype(np.uint8).tobytes(), rows)


def fingerprints(contents: Contents, destinations: Coded[str], times: AskedTimes, defaults: Message) -> Any:
    """The fingerprint of each row's request, as `fingerprint` makes it of the same message; a column of bytes."""
    texts = BodyRows(contents.count)
    texts.constant(b"\xde" + len(_DEFAULTS).to_bytes(2, "big"))
    for name, default in _DEFAULTS.items():
        texts.constant(_encode(name))
        match name:
            case "destination":
                texts.coded([_encode(value) for value in destinations.values], destinations.codes)
            case "payload":
                lengths = lengths_of(contents.payloads).tolist()
                _add(texts, [_binary_head(length) for length in lengths])
                texts.column(contents.payloads)
            case "headers" if contents.headers is not None:
                _add(texts, [_encode(dict(pairs or ())) for pairs in contents.headers.to_pylist()])
            case "key" if contents.keys is not None:
                _add(texts, [_encode(key) for key in contents.keys.to_pylist()])
            case "owner":
                texts.coded([_encode(value) for value in contents.owners.values], contents.owners.codes)
            case "door":
                texts.constant(_encode(defaults.door))
            case "namespace" if defaults.namespace is not None:
                texts.constant(_encode(parse_namespace(defaults.namespace)))
            case "due_at_ms":
                _add(texts, _numbers(times.due_at_ms))
            case "delay_ms":
                _add(texts, _numbers(times.delay_ms))
            case "ttl_ms" if contents.ttl_ms is not None:
                _add(texts, _numbers(contents.ttl_ms))
            case _:
                texts.constant(default)
    joined = texts.joined()
    rows = map(BytesIO(bytes(content_of(joined))).read, lengths_of(joined).tolist())
    return bytes_column([_hash(row).digest() for row in rows])


def _add(texts: BodyRows, values: Sequence[bytes]) -> None:
    """Append a text of its own to each row; mostly they are the same."""
    if values.count(values[0]) == len(values):
        texts.constant(values[0])
    else:
        texts.column(bytes_column(values))


def _numbers(numbers: Numbers) -> list[bytes]:
    rows = zip(numbers.values.tolist(), numbers.given.tolist(), strict=True)
    return [_encode(value) if given else _NIL for value, given in rows]


def _binary_head(length: int) -> bytes:
    if length < 1 << 8:
        return b"\xc4%c" % length
    return (b"\xc5" + length.to_bytes(2, "big")) if length < 1 << 16 else b"\xc6" + length.to_bytes(4, "big")
