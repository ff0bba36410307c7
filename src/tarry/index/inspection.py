"""Looking at staged files before they are adopted: they are there, and are what the manifest says (R10).

Everything is read from the files' footers, on a thread that may wait for a disk. What is in the pages has checksums, and
is checked when it is read.
"""

import os
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tarry.core.errors import Invalid
from tarry.core.timers.slots import parse_slot
from tarry.index.files import filesystem_of
from tarry.index.manifest import ManifestFile, is_token_for
from tarry.index.schema import INDEX, INDEX_SCHEMA, STAGED

_PATH: Final = re.compile(rf"{STAGED}/([0-9a-f]{{32}})/[A-Za-z0-9_-]{{1,200}}\.parquet")
_COLUMNS: Final = sorted(set(INDEX_SCHEMA.names) - set(INDEX.partitions))


def inspect(index: str, name: str, files: Sequence[ManifestFile]) -> None:
    """Raise `Invalid` unless these files can be adopted under this name."""
    filesystem, root = filesystem_of(index)
    root = root.rstrip("/")
    for file in files:
        match = _PATH.fullmatch(file.path)
        if match is None:
            raise Invalid("files", f"a path is not {STAGED}/<token>/<name>.parquet")
        if not is_token_for(match[1], name):
            raise Invalid("files", f"{file.path}: was staged for a batch of another name")
        _inspect(filesystem, root, file)


def _inspect(filesystem: pyarrow.fs.FileSystem, root: str, file: ManifestFile) -> None:
    full = f"{root}/{file.path}"
    local = isinstance(filesystem, pyarrow.fs.LocalFileSystem)
    if local and os.path.realpath(full) != os.path.join(os.path.realpath(root), file.path):
        raise Invalid("files", f"{file.path}: lies elsewhere")
    found = filesystem.get_file_info(full)
    if found.type != pyarrow.fs.FileType.File:
        raise Invalid("files", f"{file.path}: there is no such file in the folder of the index")
    if found.size != file.size_bytes:
        raise Invalid("files", f"{file.path}: has {found.size} bytes and not {file.size_bytes}")
    try:
        with pq.ParquetFile(full, filesystem=filesystem) as parquet:
            _check_footer(file, parquet.metadata, parquet.schema_arrow)
    except (pa.ArrowException, OSError) as error:
        raise Invalid("files", f"{file.path}: cannot be read as Parquet: {error}") from error


def _check_footer(file: ManifestFile, metadata: Any, schema: pa.Schema) -> None:
    if sorted(schema.names) != _COLUMNS:
        raise Invalid("files", f"{file.path}: its columns are not those of the index")
    fire, seq = (_bounds(metadata, schema.get_field_index(name)) for name in ("fire_at_ms", "seq"))
    if metadata.num_rows != file.rows or seq != (0, file.rows - 1):
        raise Invalid("files", f"{file.path}: has {metadata.num_rows} rows and not {file.rows}")
    if fire != (file.low_ms, file.high_ms):
        raise Invalid("files", f"{file.path}: its instants are not those in the manifest")
    slot = parse_slot(file.slot)
    if not slot.start_ms <= file.low_ms or not file.high_ms < slot.end_ms:
        raise Invalid("files", f"{file.path}: its instants are not in its slot")


def _bounds(metadata: Any, column: int) -> tuple[int, int] | None:
    statistics = [
        metadata.row_group(number).column(column).statistics for number in range(metadata.num_row_groups)
    ]
    if not statistics or any(one is None or not one.has_min_max for one in statistics):
        return None
    return min(one.min for one in statistics), max(one.max for one in statistics)
