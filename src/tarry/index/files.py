"""The Parquet files of a table.

They are written sorted, with page checksums, and synced before anybody is told of them (R3, R6); they are read by row
groups, with the checksums verified. No file and no row group grows beyond a bound, so that whoever reads one knows how much
memory that takes.
"""

import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from tarry.core.errors import Damage
from tarry.index.row_groups import RowGroup, groups_of, read_groups, written
from tarry.index.schema import Layout
from tarry.index.table import IndexFile
from tarry.ledger.disk import sync_path

ROW_GROUP_ROWS: Final = 65_536
"""Rows that are read together: a message in the middle of a slot costs one of these."""
ROW_GROUP_BYTES: Final = 16 << 20
"""About how large a row group may be in memory; a single row may be larger."""
FULL_ROWS: Final = 1_000_000
"""A file that has reached this, or the size below, is full: another one is begun."""
FULL_BYTES: Final = 256 << 20
"""In memory; on disk it is smaller."""

REPEATED: Final = ("namespace", "destination", "owner", "door", "batch", "group", "outcome", "reason")
"""Columns whose values repeat: they are stored as dictionaries."""


class Folder:
    """The folder of a table, on this machine or in an object store."""

    def __init__(self, uri: str) -> None:
        self.filesystem, root = filesystem_of(uri)
        self.root = root.rstrip("/")
        self.is_local = isinstance(self.filesystem, pyarrow.fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """The full path of a file of the table."""
        return f"{self.root}/{name}"

    def missing(self, files: Sequence[IndexFile]) -> list[str]:
        """The paths of those files that are not there."""
        found = self.filesystem.get_file_info([self.path(file.path) for file in files])
        return [info.path for info in found if info.type != pyarrow.fs.FileType.File]

    def sync(self, path: str) -> None:
        """Sync a file or folder; an object store needs no sync."""
        if self.is_local:
            sync_path(path)

    def read(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of a file, row group by row group, proved; raises `Damage` that names it."""
        path = self.path(name)
        try:
            with pq.ParquetFile(
                path, filesystem=self.filesystem, page_checksum_verification=True, pre_buffer=False
            ) as file:
                # Columns that a file has not got read as nothing: it may be older than they are.
                chosen = (
                    None if columns is None else [one for one in columns if one in file.schema_arrow.names]
                )
                for number, group in enumerate(read_groups(file, path)):
                    table = file.read_row_group(number, columns=chosen, use_threads=False)
                    if table.num_rows != group.rows:
                        raise Damage(path, 0, f"row group {number} should have {group.rows} rows")
                    yield table
        except (pa.ArrowInvalid, OSError) as error:
            raise Damage(path, 0, str(error)) from error


class FileWriter:
    """One file of one partition, written piece by piece in order."""

    def __init__(self, folder: Folder, layout: Layout, partition: str, name: str) -> None:
        self._folder = folder
        self._layout = layout
        self._partition = partition
        self._path = f"{layout.partition}={partition}/{name}-{uuid.uuid4().hex[:12]}.parquet"
        self._writer: pq.ParquetWriter | None = None
        self._groups: list[RowGroup] = []
        self._rows = self._bytes = self._dels = 0
        self._low = self._low_seq = 1 << 62
        self._high = self._high_seq = -(1 << 62)

    @property
    def is_full(self) -> bool:
        """Whether another file should be begun."""
        return self._rows >= FULL_ROWS or self._bytes >= FULL_BYTES

    def write(self, rows: pa.Table) -> None:
        """Add rows that follow those before, as row groups of bounded size."""
        if self._writer is None:
            full = self._folder.path(self._path)
            self._folder.filesystem.create_dir(os.path.dirname(full), recursive=True)
            self._writer = pq.ParquetWriter(
                full, rows.schema, filesystem=self._folder.filesystem, **options(rows)
            )
        ordered, seqs = rows.column(self._layout.ordered), rows.column("seq")
        self._low, self._high = _span(ordered, self._low, self._high)
        self._low_seq, self._high_seq = _span(seqs, self._low_seq, self._high_seq)
        self._dels += rows.column("body").null_count if "body" in rows.column_names else 0
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        together = group_rows(rows)
        self._groups += groups_of(rows, self._layout.ordered, together)
        self._writer.write_table(rows, row_group_size=together)

    def close(self) -> IndexFile:
        """Finish and sync the file; the folders are synced too."""
        assert self._writer is not None
        self._writer.add_key_value_metadata(written(self._groups))
        self._writer.close()
        full = self._folder.path(self._path)
        for path in (full, os.path.dirname(full)):
            self._folder.sync(path)
        size: int = self._folder.filesystem.get_file_info(full).size
        return IndexFile(
            self._path, size, self._rows, self._partition, self._low, self._high,
            dels=self._dels, low_seq=self._low_seq, high_seq=self._high_seq,
        )  # fmt: skip


def filesystem_of(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a folder or an address, and the path there."""
    if "://" in uri:
        return pyarrow.fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    return pyarrow.fs.LocalFileSystem(), uri


def options(rows: pa.Table, level: int | None = None) -> dict[str, Any]:
    """How files are written: with page checksums (R3), and with dictionaries that are plain strings to everybody else."""
    return {
        "compression": "zstd",
        "compression_level": level,
        "write_page_checksum": True,
        "use_dictionary": [name for name in REPEATED if name in rows.column_names],
        "store_schema": False,
    }


def write_file(
    filesystem: pyarrow.fs.FileSystem, path: str, rows: pa.Table, level: int | None = None
) -> None:
    """Write one file of the index, and sync it where that is not the store's own affair; its folder is the caller's."""
    together = group_rows(rows)
    with pq.ParquetWriter(path, rows.schema, filesystem=filesystem, **options(rows, level)) as writer:
        writer.write_table(rows, row_group_size=together)
        writer.add_key_value_metadata(written(list(groups_of(rows, "fire_at_ms", together))))
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        sync_path(path)


def group_rows(rows: pa.Table) -> int:
    """How many of these rows make a row group of bounded size."""
    per_row: int = max(1, rows.nbytes // max(1, rows.num_rows))
    return max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // per_row))


def write_partitions(rows: pa.Table, uri: str, layout: Layout, name: str) -> list[IndexFile]:
    """Write rows, which are sorted by partition, into files of one partition each; all are synced."""
    folder = Folder(uri)
    files: list[IndexFile] = []
    for value, start, stop in runs(rows.column(layout.partition)):
        part = rows.slice(start, stop - start).drop_columns([layout.partition])
        writer = FileWriter(folder, layout, value, name)
        for at in range(0, part.num_rows, FULL_ROWS):
            if writer.is_full:
                files.append(writer.close())
                writer = FileWriter(folder, layout, value, name)
            writer.write(part.slice(at, FULL_ROWS))
        files.append(writer.close())
    if files:
        folder.sync(folder.root)
    return files


def runs(column: pa.ChunkedArray) -> Iterator[tuple[str, int, int]]:
    """The stretches of equal values: value, first row, row after the last."""
    codes = column.combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.chunk(0) if codes.num_chunks else pa.array([], codes.type)
    if not len(codes):
        return
    if not pa.types.is_dictionary(codes.type):
        codes = codes.dictionary_encode()
    numbers = codes.indices.to_numpy()
    cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
    names = codes.dictionary.to_pylist()
    for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
        yield names[numbers[start]], start, stop


def _span(column: Any, low: int, high: int) -> tuple[int, int]:
    found = pc.min_max(column)
    return min(low, found["min"].as_py()), max(high, found["max"].as_py())
