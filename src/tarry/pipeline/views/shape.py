"""The columns of the views, and the record batches made of these.

An instant is there twice: as a timestamp (an instant in UTC, shown in the session's time zone) and in milliseconds since 1970.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tarry.core.errors import Invalid

_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "long": LongType(),
    "int": IntegerType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


class DataView(Struct, frozen=True):
    """One view: what it shows by default, with bodies, and when asked by name."""

    name: str
    columns: str
    """As Spark writes a schema."""
    bodies: str
    """Further columns with the option `bodies`."""
    more: str = ""
    """Columns that cost the reading of bodies, and come only when they are named."""

    def schema(self, options: Mapping[str, str]) -> StructType:
        """The columns that the options of a read ask for."""
        parts = [self.columns, self.bodies] if wants_bodies(options) else [self.columns]
        named = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        if not named:
            return _parsed(parts)
        every = self.every()
        unknown = [name for name in named if name not in every.fieldNames()]
        if unknown:
            raise Invalid("columns", f"the view {self.name} has no {', '.join(unknown)}")
        return StructType([every[name] for name in named])

    def every(self) -> StructType:
        """All columns that there are."""
        return _parsed([part for part in (self.columns, self.bodies, self.more) if part])


def _parsed(parts: list[str]) -> StructType:
    """Read columns as Spark writes them. Spark's own reading needs a JVM, which a planner process does not have."""
    fields = []
    for text in ", ".join(parts).split(", "):
        name, kind, *rest = text.split()
        fields.append(StructField(name, _TYPES[kind], nullable=rest != ["not", "null"]))
    return StructType(fields)


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


def stored_columns(schema: StructType) -> dict[str, str]:
    """Which stored column stands behind each column of a view."""
    return {name: _INSTANTS.get(name, name) for name in schema.fieldNames()}


def shaped(columns: Mapping[str, Any], schema: StructType, rows: int) -> pa.RecordBatch:
    """A record batch of a view, made of stored columns; a column that is not there is null."""
    target = to_arrow_schema(schema, timezone="UTC")
    arrays = []
    for field in target:
        values = columns.get(_INSTANTS.get(field.name, field.name))
        if values is None:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(_typed(values, field))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _typed(values: Any, field: pa.Field) -> pa.Array:
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_timestamp(field.type):
        return pc.multiply(values, 1000).cast(field.type)
    return values.cast(field.type)
