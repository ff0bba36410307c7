"""Files that the rows of a batch come from: Parquet, CSV and NDJSON, read in bounded memory.

Everything gives record batches with the columns that the mapping knows, in the order of the file. In CSV every value is
text, and an empty one is null. In NDJSON a payload that is a string is that text; any other value is its JSON as it stands there.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tarry.core.errors import Invalid
from tarry.index.incoming import Mapping
from tarry.index.staging import BadRow, BadRows

ROWS_AT_ONCE: Final = 50_000
BLOCK_BYTES: Final = 8 * 1024 * 1024
FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson",
    ".json": "ndjson",
}  # fmt: skip

Advanced = Callable[[float], None]
"""Told which share of the file was read: from 0 to 1."""


def format_of(path: str, given: str | None) -> str:
    """The format of a file, by its name unless it is given."""
    found = given or FORMATS.get(Path(path).suffix.lower())
    if found is None:
        raise Invalid("format", f"{Path(path).name} does not say what it is: give parquet, csv or ndjson")
    return found


def read_rows(
    path: str, format_: str, mapping: Mapping, advanced: Advanced, *, ignore_unknown: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a file. Raises `Invalid` for columns that cannot make messages, `BadRows` for a line that is no row."""
    if format_ == "parquet":
        return _parquet(path, mapping, advanced, ignore_unknown)
    return (_csv if format_ == "csv" else _ndjson)(path, mapping, advanced, ignore_unknown)


def _known(names: list[str], mapping: Mapping, ignore_unknown: bool) -> list[str]:
    """The columns to read."""
    fields = mapping.field_of()
    known = [name for name in names if name in fields] if ignore_unknown else names
    mapping.check(known)
    return known


def _parquet(
    path: str, mapping: Mapping, advanced: Advanced, ignore_unknown: bool
) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            columns = _known(file.schema_arrow.names, mapping, ignore_unknown)
            total, done = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                yield batch
                done += batch.num_rows
                advanced(done / total)
    except pa.ArrowException as error:
        raise Invalid("file", f"cannot be read as Parquet: {error}") from error


def _csv(path: str, mapping: Mapping, advanced: Advanced, ignore_unknown: bool) -> Iterator[pa.RecordBatch]:
    with open(path, "rb") as file:
        try:
            header = pyarrow.csv.open_csv(path, pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES)).schema.names
            columns = _known(header, mapping, ignore_unknown)
            reader = pyarrow.csv.open_csv(
                file,
                pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES),
                pyarrow.csv.ParseOptions(newlines_in_values=True),
                pyarrow.csv.ConvertOptions(
                    include_columns=columns,
                    # What looks like a number may be a text: nothing is guessed.
                    column_types={name: pa.string() for name in columns},
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
            for batch in reader:
                yield batch
                advanced(_share(file))
        except pa.ArrowException as error:
            raise Invalid("file", f"cannot be read as CSV: {error}") from error


def _share(file: BinaryIO) -> float:
    try:
        return file.tell() / max(1, os.fstat(file.fileno()).st_size)
    except ValueError:
        # The reader closes its file at the end.
        return 1.0


# NDJSON

_line_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXTS: Final = ("destination", "namespace", "owner", "key")


def _ndjson(
    path: str, mapping: Mapping, advanced: Advanced, ignore_unknown: bool
) -> Iterator[pa.RecordBatch]:
    size, done, first = max(1, Path(path).stat().st_size), 0, 1
    fields = mapping.field_of()
    with open(path, "rb") as file:
        while lines := file.readlines(BLOCK_BYTES):
            if first == 1:
                fields = _without_the_other_time(lines[0], fields)
            yield _rows(lines, first, fields, ignore_unknown)
            first += len(lines)
            done += sum(map(len, lines))
            advanced(done / size)


def _without_the_other_time(line: bytes, fields: dict[str, str]) -> dict[str, str]:
    """Every line has a due instant, or every line has a delay: the first one says which."""
    try:
        named = {fields.get(name) for name in _line_decoder.decode(line)}
    except msgspec.DecodeError:
        named = set()
    other = "due" if "delay_ms" in named and "due" not in named else "delay_ms"
    return {name: field for name, field in fields.items() if field != other}


def _rows(lines: list[bytes], first: int, fields: dict[str, str], ignore_unknown: bool) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [None] * len(lines) for name in fields}
    for at, line in enumerate(lines):
        try:
            for name, value in _line_decoder.decode(line).items():
                if name in fields:
                    columns[name][at] = _value(fields[name], bytes(value))
                elif not ignore_unknown:
                    raise Invalid(name, "is not a field that is known here")
        except (msgspec.DecodeError, Invalid) as error:
            raise BadRows([BadRow(f"row {first + at}", str(error))]) from None
    arrays = {
        name: pa.array(values, _TYPES.get(fields[name], pa.string())) for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


_TYPES: Final = {"payload": pa.binary(), "headers": pa.map_(pa.string(), pa.string())}


def _value(field: str, raw: bytes) -> Any:
    if raw == b"null":
        return None
    if field == "payload":
        return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
    if field == "headers":
        return list(_decoded(field, raw, dict[str, str], "is not an object of strings").items())
    if field in _TEXTS:
        return _decoded(field, raw, str, "is not a string")
    # Instants and milliseconds: a number or a string, and both are read as text.
    return _decoded(field, raw, str, "is not text") if raw.startswith(b'"') else raw.decode()


def _decoded(field: str, raw: bytes, kind: Any, said: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        raise Invalid(field, said) from None
