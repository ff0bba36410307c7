"""Rows of Arrow with names, as messages: the engine looks at the other message of a name, so that each row goes by itself (ADR 0024).

The columns `name` and `on_conflict` are text. A row without a name is a message like any other.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tarry.core.errors import Invalid, TarryError
from tarry.core.messages.ids import ID_CHARS
from tarry.core.messages.message import Message, NamedMessage, OnConflict, Scheduled
from tarry.engine.admission.columns import Columns, ColumnsScheduled, columns_of
from tarry.ledger.columns import Numbers
from tarry.ledger.reading import texts_of

NAME: Final = "name"
ON_CONFLICT: Final = "on_conflict"
NAMED: Final = frozenset({NAME, ON_CONFLICT})


def messages_of(batch: pa.RecordBatch, defaults: Message) -> list[Message | TarryError]:
    """The rows of a record batch as messages, or why one cannot be; raises `Invalid` for a column that cannot be what its name says."""
    plain = [name for name in batch.schema.names if name not in NAMED]
    rows = _rows(columns_of(batch.select(plain), defaults), defaults)
    names, conflicts = _texts(batch, NAME), _texts(batch, ON_CONFLICT)
    return [_named(*row) for row in zip(rows, names, conflicts, strict=True)]


def in_columns(results: Sequence[Scheduled | TarryError]) -> ColumnsScheduled:
    """The answers to rows that were accepted as messages."""
    taken = [None if isinstance(result, TarryError) else result for result in results]
    return ColumnsScheduled(
        np.array([b"" if one is None else one.id.encode() for one in taken], f"S{ID_CHARS}"),
        np.array([0 if one is None else one.due_at_ms or 0 for one in taken], np.int64),
        {row: result for row, result in enumerate(results) if isinstance(result, TarryError)},
    )


def _named(message: Message, name: str | None, conflict: str | None) -> Message | TarryError:
    if conflict not in (None, *get_args(OnConflict)):
        return Invalid(ON_CONFLICT, "is not fail, keep or replace")
    if name is not None:
        return NamedMessage.of(message, name, conflict or "fail")  # type: ignore[arg-type]
    if conflict is not None:
        return Invalid(ON_CONFLICT, "is for messages with a name; give `name` too")
    return message


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    found: list[str | None] = texts_of(batch.column(name), name).to_pylist()
    return found


def _rows(columns: Columns, defaults: Message) -> Iterator[Message]:
    contents, count = columns.contents, columns.contents.count
    destinations, owners = columns.destinations, contents.owners
    due, delay, ttl = (_numbers(one, count) for one in (columns.due_at_ms, columns.delay_ms, contents.ttl_ms))
    keys, headers = _values(contents.keys, count), _values(contents.headers, count)
    for row, payload in enumerate(contents.payloads.to_pylist()):
        timed = due[row] is not None or delay[row] is not None
        to, owner = destinations.codes[row], owners.codes[row]
        yield replace(
            defaults,
            destination=destinations.values[to] if to >= 0 else "",
            payload=payload,
            headers=dict(headers[row] or ()),
            key=keys[row],
            owner=owners.values[owner] if owner >= 0 else "",
            due_at_ms=due[row] if timed else defaults.due_at_ms,
            delay_ms=delay[row] if timed else defaults.delay_ms,
            ttl_ms=ttl[row],
        )


def _numbers(numbers: Numbers | None, count: int) -> list[int | None]:
    if numbers is None:
        return [None] * count
    return [
        value if given else None
        for value, given in zip(numbers.values.tolist(), numbers.given.tolist(), strict=True)
    ]


def _values(column: Any, count: int) -> list[Any]:
    return [None] * count if column is None else list(column.to_pylist())
