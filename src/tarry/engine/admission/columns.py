"""Messages as columns: requests, answers, and the units of the ledger in between; and record batches of Arrow read as requests.

Columns of Arrow, by name: `destination`, `payload` (binary or string), `due_at_ms` (integer milliseconds or a timestamp) or
`delay_ms`, `key`, `owner`, `ttl_ms`, `headers` (a map of strings). Those that are missing, and nulls, are
taken from the defaults of the request. In the ledger the rows are records like any others (ADR 0005 says why not Arrow).
"""

from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core.errors import Invalid
from tarry.core.messages.line_keys import LineKeys
from tarry.core.messages.message import Message
from tarry.core.rules.admission import Errors
from tarry.engine.records.changes import Written
from tarry.ledger.columns import Coded, Contents, Numbers
from tarry.ledger.reading import few_texts, headers_of, integers_of, keys_of, payloads_of, ttls_of


class Columns(Struct, frozen=True):
    """The rows of a batch, as one column for each field that they give."""

    destinations: Coded[str]
    due_at_ms: Numbers
    delay_ms: Numbers
    contents: Contents
    line_keys: LineKeys | None = None
    """The idempotency keys of the rows, where they have such; none of these was seen before."""


class ColumnsScheduled(Struct, frozen=True):
    """The answer to a batch, row by row."""

    ids: NDArray[np.bytes_]
    """The id of each row, empty where it was not taken."""
    due_at_ms: NDArray[np.int64]
    errors: Errors
    """Row -> why it was not taken."""


class Plan(Struct, frozen=True):
    """Rows that break no rule: a unit of their records, and which rows of the request they are."""

    written: Written
    rows: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]


COLUMNS: Final = frozenset(
    {"destination", "payload", "due_at_ms", "delay_ms", "key", "owner", "ttl_ms", "headers"}
)


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
        few_texts(given.get("destination"), "destination", defaults.destination or None, count),
        integers_of(given.get("due_at_ms"), "due_at_ms", count),
        integers_of(given.get("delay_ms"), "delay_ms", count),
        Contents(
            count,
            few_texts(given.get("owner"), "owner", defaults.owner, count),
            payloads_of(given.get("payload"), defaults.payload, count),
            keys_of(given.get("key"), defaults.key, count),
            ttls_of(given.get("ttl_ms"), defaults.ttl_ms, count),
            headers_of(given.get("headers"), defaults.headers, count),
        ),
    )
