"""Writing the files of a table: sorted, with page checksums, and synced before anybody is told of them (R3, R6)."""

import os
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tarry.index.schema import Layout
from tarry.index.table import IndexFile

ROW_GROUP_ROWS = 65_536
"""Rows that are read together: a message in the middle of a slot costs one of these."""

REPEATED = ["namespace", "destination", "owner", "door", "batch", "group", "outcome", "reason"]
"""Columns whose values repeat: they are stored as dictionaries."""


def write_partitions(rows: pa.Table, uri: str, layout: Layout, name: str) -> list[IndexFile]:
    """Write rows, which are sorted by partition, into one file for each partition; all are synced."""
    partition = layout.partition
    filesystem, root = filesystem_of(uri)
    files: list[IndexFile] = []
    for value, start, stop in _runs(rows.column(partition)):
        part = rows.slice(start, stop - start).drop_columns([partition])
        path = f"{partition}={value}/{name}-{uuid.uuid4().hex[:12]}.parquet"
        full = f"{root.rstrip('/')}/{path}"
        filesystem.create_dir(os.path.dirname(full), recursive=True)
        write_file(filesystem, full, part)
        if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
            sync(os.path.dirname(full))
        bounds = part.column(layout.ordered).to_numpy()
        files.append(
            IndexFile(
                path,
                filesystem.get_file_info(full).size,
                part.num_rows,
                value,
                int(bounds.min()),
                int(bounds.max()),
            )
        )
    if files and isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        sync(root)
    return files


def _runs(column: pa.ChunkedArray) -> Iterator[tuple[str, int, int]]:
    """The stretches of equal values: value, first row, row after the last."""
    values = column.combine_chunks()
    if not len(values):
        return
    codes = values.dictionary_encode()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    numbers = codes.indices.to_numpy()
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    names = codes.dictionary.to_pylist()
    for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
        yield names[numbers[start]], start, stop


def filesystem_of(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a folder or an address, and the path there."""
    if "://" in uri:
        return pyarrow.fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    return pyarrow.fs.LocalFileSystem(), uri


def write_file(
    filesystem: pyarrow.fs.FileSystem, path: str, rows: pa.Table, level: int | None = None
) -> None:
    """Write one file, and sync it where that is not the store's own affair; its folder is the caller's to sync."""
    pq.write_table(
        rows,
        path,
        filesystem=filesystem,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=level,
        write_page_checksum=True,
        use_dictionary=REPEATED,
        # Dictionaries of ours are plain strings to everybody else.
        store_schema=False,
    )
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        sync(path)


def sync(path: str) -> None:
    """Sync a local file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
