"""Record batches of Arrow as the columns that the engine accepts.

Columns, by name: `destination`, `payload` (binary or string), `due_at_ms` (integer milliseconds or a timestamp) or
`delay_ms`, `key`, `owner`, `ttl_ms`, `headers` (a map of strings). Those that are missing, and nulls, are
taken from the defaults of the request.

In the ledger the rows are records like any others (ADR 0005 says why not Arrow).
"""

from typing import Final

import pyarrow as pa

from tarry.core.errors import Invalid
from tarry.core.messages.message import Message
from tarry.engine.admission.columns import Columns
from tarry.ledger.columns import Contents
from tarry.ledger.reading import few_texts, headers_of, integers_of, keys_of, payloads_of, ttls_of

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
