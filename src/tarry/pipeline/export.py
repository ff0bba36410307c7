"""Messages as plain rows in one file, Parquet or CSV: what the views show, read without Spark or Java.

Rows are written as they are read, so that memory does not grow with them. A file appears under its name once it is whole, and only
its owner can read it. Ids are credentials: they are made with the key of the data folder, for whoever can read that.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.messages.ids import Ids
from tarry.pipeline.views.filters import wanted_by_options
from tarry.pipeline.views.parts import parts_of, view_of
from tarry.pipeline.views.place import find
from tarry.pipeline.views.shape import arrow_schema, stored_columns

Format = Literal["parquet", "csv"]

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduled": (
        "due_at", "accepted_at", "namespace", "destination", "owner", "door", "key", "group", "attempts", "batch", "entry",
    ),
    "history": (
        "outcome", "reason", "due_at", "scheduled_at", "finalised_at", "lateness_ms", "namespace", "destination", "owner",
        "door", "key", "attempts", "messages", "batch",
    ),
}  # fmt: skip
"""Columns of a file, by view."""

_BODIES: Final[Mapping[str, tuple[str, ...]]] = {"scheduled": ("payload", "headers"), "history": ("payload",)}
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheduled": ("origin_seq", "origin_fire_at_ms"),
    "history": ("origin_seq", "version_seq", "fire_at_ms"),
}
"""Columns from which an id is made, by view."""


class ExportSettings(Struct, frozen=True):
    """The rows and columns of an export."""

    view: Literal["scheduled", "history"] = "scheduled"
    bodies: bool = False
    """Whether payloads are written, and the headers of scheduled messages."""
    ids: Ids | None = None
    """With them each message's id is written, where it is known."""


def export(
    options: Mapping[str, str],
    settings: ExportSettings,
    out: Path | IO[bytes],
    form: Format,
    step: Callable[[int], None] = lambda _: None,
) -> int:
    """Write the rows that the options of a read choose; gives how many. `step` is told so meanwhile."""
    if isinstance(out, Path):
        return _to_file(options, settings, out, form, step)
    return _write(_rows(options, settings), out, form, step)


def _to_file(
    options: Mapping[str, str], settings: ExportSettings, out: Path, form: Format, step: Callable[[int], None]
) -> int:
    part = out.with_name(f".{out.name}.part")
    try:
        # As a new file: one that stands there may be readable for others.
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            written = _write(_rows(options, settings), file, form, step)
        part.replace(out)
        return written
    except OSError as error:
        raise Invalid("file", f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def _write(rows: Iterator[pa.RecordBatch], out: Any, form: Format, step: Callable[[int], None]) -> int:
    written = 0
    # The first one has no rows, so that a file without messages has its columns.
    first = next(rows)
    with (pq.ParquetWriter if form == "parquet" else pa_csv.CSVWriter)(out, first.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)
            written += batch.num_rows
            step(written)
    return written


def _rows(options: Mapping[str, str], settings: ExportSettings) -> Iterator[pa.RecordBatch]:
    names = list(COLUMNS[settings.view])
    if settings.bodies:
        names += _BODIES[settings.view]
    if settings.ids is not None:
        names += _KEYS[settings.view]
    asked = {**options, "view": settings.view, "columns": ",".join(dict.fromkeys(names))}
    view = view_of(asked)
    schema = arrow_schema(view.asked(asked))
    wanted = wanted_by_options(asked, stored_columns(view.names()))
    parts = parts_of(view, find(asked), schema, wanted)
    yield _plain(pa.RecordBatch.from_pylist([], schema), settings)
    for part in parts:
        for batch in part.read():
            yield _plain(batch, settings)


def _plain(batch: pa.RecordBatch, settings: ExportSettings) -> pa.RecordBatch:
    """The columns of the file: no maps, no bytes, instants to the millisecond with their zone."""
    columns: dict[str, pa.Array] = {}
    if settings.ids is not None:
        columns["id"] = _ids(batch, settings.ids, settings.view)
    for name in COLUMNS[settings.view]:
        values = batch.column(name)
        columns[name] = (
            values.cast(pa.timestamp("ms", "UTC")) if pa.types.is_timestamp(values.type) else values
        )
    if settings.bodies:
        payloads = batch.column("payload").to_pylist()
        texts = [_text(one) for one in payloads]
        columns["payload"] = pa.array(texts, pa.string())
        columns["payload_base64"] = pa.array(
            [
                base64.b64encode(one).decode() if one is not None and text is None else None
                for one, text in zip(payloads, texts, strict=True)
            ],
            pa.string(),
        )
        if "headers" in batch.schema.names:
            headers = [
                json.dumps(dict(one or ()), ensure_ascii=False) for one in batch.column("headers").to_pylist()
            ]
            columns["headers"] = pa.array(headers, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode()
    except UnicodeDecodeError:
        return None


def _ids(batch: pa.RecordBatch, ids: Ids, view: str) -> pa.Array:
    """The id of each row: the encryption of its first version's key. The history has that key of messages that had one version."""
    if not batch.num_rows:
        return pa.array([], pa.string())
    seqs = batch.column("origin_seq")
    if view == "scheduled":
        fires, known = batch.column("origin_fire_at_ms"), None
    else:
        known = pc.and_(pc.equal(seqs, batch.column("version_seq")), pc.is_null(batch.column("batch")))
        fires = pc.fill_null(batch.column("fire_at_ms"), 0)
    made = ids.make_many(seqs.to_numpy(zero_copy_only=False), fires.to_numpy(zero_copy_only=False))
    texts = pa.array(np.char.decode(made, "ascii"))
    return (
        texts
        if known is None
        else pc.if_else(pc.fill_null(known, False), texts, pa.scalar(None, pa.string()))
    )
