"""The columns of the views, and the record batches made of these.

An instant is there twice: as a timestamp (an instant in UTC, shown in the session's time zone) and in milliseconds since 1970.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from tarry.core.errors import Invalid

_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


class ViewColumn(Struct, frozen=True):
    """One column of a view."""

    name: str
    kind: str
    """As Spark writes a type."""
    nullable: bool


class DataView(Struct, frozen=True):
    """One view: what it shows by default, with bodies, and when asked by name."""

    name: str
    columns: str
    """As Spark writes a schema."""
    bodies: str
    """Further columns with the option `bodies`."""
    more: str = ""
    """Columns that cost the reading of bodies, and come only when they are named."""

    def asked(self, options: Mapping[str, str]) -> list[ViewColumn]:
        """The columns that the options of a read ask for."""
        parts = [self.columns, self.bodies] if wants_bodies(options) else [self.columns]
        named = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        if not named:
            return _parsed(parts)
        every = {one.name: one for one in self.every()}
        unknown = [name for name in named if name not in every]
        if unknown:
            raise Invalid("columns", f"the view {self.name} has no {', '.join(unknown)}")
        return [every[name] for name in named]

    def every(self) -> list[ViewColumn]:
        """All columns that there are."""
        return _parsed([part for part in (self.columns, self.bodies, self.more) if part])

    def names(self) -> list[str]:
        """Their names."""
        return [one.name for one in self.every()]


def arrow_schema(columns: Iterable[ViewColumn]) -> pa.Schema:
    """The columns of a view as Arrow has them."""
    return pa.schema([pa.field(one.name, _TYPES[one.kind], one.nullable) for one in columns])


def _parsed(parts: list[str]) -> list[ViewColumn]:
    columns = []
    for text in ", ".join(parts).split(", "):
        name, kind, *rest = text.split()
        columns.append(ViewColumn(name, kind, nullable=rest != ["not", "null"]))
    return columns


def wants_bodies(options: Mapping[str, str]) -> bool:
    """Whether payloads and headers are asked for."""
    return options.get("bodies", "false").lower() == "true"


_INSTANTS: Final = {
    "due_at": "due_at_ms",
    "fire_at": "fire_at_ms",
    "accepted_at": "accepted_at_ms",
    "scheduled_at": "scheduled_at_ms",
    "finalised_at": "finalised_at_ms",
    "at": "at_ms",
    "as_of": "as_of_ms",
}


def stored_columns(names: Iterable[str]) -> dict[str, str]:
    """Which stored column stands behind each of these columns of a view."""
    return {name: _INSTANTS.get(name, name) for name in names}


def shaped(columns: Mapping[str, Any], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """A record batch of a view, made of stored columns; a column that is not there is null."""
    arrays = []
    for field in schema:
        values = columns.get(_INSTANTS.get(field.name, field.name))
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(_typed(values, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(values: Any, field: pa.Field) -> pa.Array:
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_timestamp(field.type):
        return pc.multiply(values, 1000).cast(field.type)
    return values.cast(field.type)
